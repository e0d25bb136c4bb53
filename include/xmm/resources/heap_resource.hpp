// SPDX-License-Identifier: Apache-2.0
// heap_resource.hpp - the malloc of a device as a memory resource, in queue order.
//
// Model    Blocks of the node's one heap under a tag of the user's choice: resources of one heap and tag are
//          equal. A block given back on its queue is reused there at once; given back on another one, once
//          that has passed this point; on a stream that is no queue of the space, the call waits for it. While a
//          stream is being captured, what was given back on it waits for the end of that.
// Threads  Any.
// Failure  allocate throws out_of_memory, after all that the heap can do in need has been done. A pointer that is
//          no block is reported on stderr and left alone. In a child of fork, which has none of this memory,
//          allocate throws, and what is given back is left alone.
#pragma once

#include <atomic>
#include <cstdio>

#include <xmm/os/registry.hpp>
#include <xmm/resources/memory_resource.hpp>
#include <xmm/resources/xpu_malloc.hpp>

namespace xmm {

class heap_resource final : public device_memory_resource {
public:
    static constexpr reach static_reach = reach::device;

    // The heap, and the queues' port if streams are used, outlive the resource.
    explicit heap_resource(xpu_malloc& heap, queue_port queues = {}, pool_tag tag = {})
        : device_memory_resource{"heap", heap.node(), reach::device},
          heap_{heap},
          queues_{queues},
          tag_{tag} {}

    [[nodiscard]] xpu_malloc& heap() const noexcept { return heap_; }
    [[nodiscard]] pool_tag tag() const noexcept { return tag_; }
    [[nodiscard]] queue_port queues() const noexcept override { return queues_; }
    // Of the node, whoever draws on it.
    [[nodiscard]] resource_usage usage() const noexcept override { return heap_.usage(); }
    // Frames that no block of this tag needs go back to the device.
    std::size_t trim() noexcept { return heap_.trim(tag_); }

private:
    void* do_allocate_on(stream_ref stream, std::size_t bytes, std::size_t alignment) override {
        if (registry::is_forked_child()) {
            this->refuse(bytes, "this is a forked child: the heap is its parent's");
        }
        result<void*> given = heap_.allocate(
            {.bytes = bytes, .alignment = alignment, .queue = stream.queue(), .tag = tag_});
        if (!given) {
            this->refuse(bytes, given.error().why, given.error().driver_code);
        }
        return *given;
    }
    void do_deallocate_on(stream_ref stream, void* pointer, std::size_t,
                          std::size_t) noexcept override {
        if (registry::is_forked_child()) {
            return;
        }
        const bool is_known = knows(stream.queue());
        if (!is_known && !try_await(stream)) {
            say_left_alone(pointer);
            return;
        }
        const queue_id last_user = is_known ? stream.queue() : queue_id{};
        if (const status outcome = heap_.deallocate_when_known(pointer, last_user); !outcome) {
            std::fprintf(stderr, "xmm: %s: %p is left alone: %s\n", this->name(), pointer,
                         outcome.why);
        }
    }
    bool do_is_equal_to(const resource_base& other) const noexcept override {
        const auto* same = dynamic_cast<const heap_resource*>(&other);
        return same != nullptr && &same->heap_ == &heap_ && same->tag_ == tag_;
    }

    // Numbers of queues are of one driver each: what the heap knew once it knows for good.
    [[nodiscard]] bool knows(queue_id queue) noexcept {
        // relaxed, both: a number that nothing hangs on.
        if (queue.value == 0 || queue.value == known_.load(std::memory_order_relaxed)) {
            return queue.value != 0;
        }
        const bool is_known = heap_.knows(queue);
        if (is_known) {
            known_.store(queue.value, std::memory_order_relaxed);
        }
        return is_known;
    }

    xpu_malloc& heap_;
    queue_port queues_;
    pool_tag tag_;
    std::atomic<decltype(queue_id::value)> known_{0};  // (A) the last one that it knew
};

}  // namespace xmm
