// SPDX-License-Identifier: Apache-2.0
// fake_space.hpp - a space for the tests of the resources: plain mappings behind a space_port.
//
// Model    Host node 0 and device node 1, each with a capacity. What is fixed on the device is mapped
//          without any access, so that a CPU that touches it dies. Queues are numbers; a test submits work
//          and completes it by hand.
// Threads  Any. One lock guards everything.
#pragma once

#include <map>
#include <mutex>

#include <sys/mman.h>

#include <xmm/resources/space_port.hpp>

namespace xmm::test {

class fake_space {
public:
    static constexpr node_id host{0};
    static constexpr node_id device{1};
    static constexpr queue_id queue_a{7};
    static constexpr queue_id queue_b{8};

    explicit fake_space(std::size_t capacity = std::size_t{1} << 30) : capacity_{capacity} {}
    fake_space(const fake_space&) = delete;
    fake_space& operator=(const fake_space&) = delete;
    ~fake_space() {
        for (const auto& [at, block] : blocks_) {
            ::munmap(to_pointer(at), block.bytes);
        }
    }

    [[nodiscard]] space_port port() noexcept { return {this, table()}; }

    // A stream_ref to a queue of this space; synchronising completes the queue.
    [[nodiscard]] stream_ref stream(queue_id queue) noexcept {
        return {queue, this, [](void* self, queue_id which) noexcept -> status {
                    auto& space = *static_cast<fake_space*>(self);
                    if (space.is_captured(which)) {
                        return fail(errc::busy, "the queue is being captured");
                    }
                    space.complete(which);
                    return {};
                }};
    }
    // From now on the queue cannot say how far it is, until it is no longer captured.
    void capture(queue_id queue, bool is_captured = true) {
        const std::lock_guard guard{mutex_};
        queues_[queue.value].is_captured = is_captured;
    }
    [[nodiscard]] bool is_captured(queue_id queue) {
        const std::lock_guard guard{mutex_};
        return queues_[queue.value].is_captured;
    }
    // The queue is gone, and its work may run still.
    void lose(queue_id queue) {
        const std::lock_guard guard{mutex_};
        queues_[queue.value].is_gone = true;
    }
    void submit(queue_id queue) {
        const std::lock_guard guard{mutex_};
        ++queues_[queue.value].submitted;
    }
    void complete(queue_id queue) {
        const std::lock_guard guard{mutex_};
        queues_[queue.value].done = queues_[queue.value].submitted;
    }

    struct counts {
        std::size_t maps = 0;
        std::size_t unmaps = 0;
        std::size_t prefetches = 0;
        std::size_t waits = 0;
        std::size_t questions = 0;  // to queues
        node_id prefetched_to = no_node;
        std::size_t prefetched_bytes = 0;
    };
    [[nodiscard]] counts counted() const {
        const std::lock_guard guard{mutex_};
        return counts_;
    }
    [[nodiscard]] std::size_t live_blocks() const {
        const std::lock_guard guard{mutex_};
        return blocks_.size();
    }
    [[nodiscard]] std::size_t used() const {
        const std::lock_guard guard{mutex_};
        return used_locked(any_host) + used_locked(device);
    }
    [[nodiscard]] page_request last_request() const {
        const std::lock_guard guard{mutex_};
        return last_;
    }
    void refuse_unmaps(bool refuse) {
        const std::lock_guard guard{mutex_};
        refuses_unmaps_ = refuse;
    }

private:
    struct block {
        std::size_t bytes;
        bool is_on_device;
    };
    struct queue_state {
        std::uint64_t submitted = 1;
        std::uint64_t done = 1;
        bool is_captured = false;
        bool is_gone = false;
    };

    result<void*> map(const page_request& request) noexcept {
        const std::lock_guard guard{mutex_};
        last_ = request;
        const std::size_t bytes = align_up(request.bytes, page_bytes);
        const bool is_on_device = request.fixed == device;
        if (bytes > capacity_ ||
            used_locked(is_on_device ? device : any_host) > capacity_ - bytes) {
            return fail(errc::no_memory, "the fake node is full", 12);
        }
        const int access = is_on_device ? PROT_NONE : PROT_READ | PROT_WRITE;
        const std::size_t length = bytes + request.alignment;
        void* raw =
            ::mmap(nullptr, length, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (raw == MAP_FAILED) {
            return fail(errc::no_memory, "no address space");
        }
        const address begin = align_up(to_address(raw), request.alignment);
        if (begin != to_address(raw)) {
            ::munmap(raw, begin - to_address(raw));
        }
        ::munmap(to_pointer(begin + bytes), to_address(raw) + length - begin - bytes);
        ++counts_.maps;
        blocks_[begin] = {bytes, is_on_device};
        return to_pointer(begin);
    }
    status unmap(void* pointer) noexcept {
        const std::lock_guard guard{mutex_};
        if (refuses_unmaps_) {
            return fail(errc::busy, "told to refuse");
        }
        if (!blocks_.contains(to_address(pointer))) {
            return fail(errc::not_mapped, "not the start of a map");
        }
        drop_locked(pointer);
        return {};
    }
    void drop_locked(void* pointer) noexcept {
        const auto at = blocks_.find(to_address(pointer));
        ::munmap(pointer, at->second.bytes);
        blocks_.erase(at);
        ++counts_.unmaps;
    }
    [[nodiscard]] std::size_t used_locked(node_id node) const noexcept {
        std::size_t sum = 0;
        for (const auto& [at, block] : blocks_) {
            sum += block.is_on_device == (node == device) ? block.bytes : 0;
        }
        return sum;
    }
    [[nodiscard]] bool is_done_locked(ticket point) noexcept {
        return point.value <= queues_[point.queue.value].done;
    }

    static fake_space& self(void* one) noexcept { return *static_cast<fake_space*>(one); }

    static const space_table& table() noexcept {
        static constexpr space_table functions{
            .map = [](void* s,
                      const page_request& request) noexcept { return self(s).map(request); },
            .unmap = [](void* s, void* pointer) noexcept { return self(s).unmap(pointer); },
            .prefetch = [](void* s, node_id node, void*, std::size_t bytes) noexcept -> status {
                const std::lock_guard guard{self(s).mutex_};
                ++self(s).counts_.prefetches;
                self(s).counts_.prefetched_to = node;
                self(s).counts_.prefetched_bytes = bytes;
                return {};
            },
            .usage = [](void* s, node_id node) noexcept -> resource_usage {
                const std::lock_guard guard{self(s).mutex_};
                return {self(s).used_locked(node), self(s).capacity_};
            },
            .reach_of =
                [](void*, node_id node) noexcept {
                    return node == device
                               ? reach::device
                               : (node == host || node == any_host ? reach::host : reach::none);
                },
            .queues = {.record = [](void* s, queue_id queue) noexcept -> result<ticket> {
                           const std::lock_guard guard{self(s).mutex_};
                           ++self(s).counts_.questions;
                           if ((queue != queue_a && queue != queue_b) ||
                               self(s).queues_[queue.value].is_gone) {
                               return fail(errc::invalid_argument, "no such queue");
                           }
                           if (self(s).queues_[queue.value].is_captured) {
                               return fail(errc::busy, "the queue is being captured");
                           }
                           return ticket{queue, self(s).queues_[queue.value].submitted};
                       },
                       .is_done =
                           [](void* s, ticket point) noexcept {
                               const std::lock_guard guard{self(s).mutex_};
                               ++self(s).counts_.questions;
                               return self(s).is_done_locked(point);
                           },
                       .wait = [](void* s, ticket point) noexcept -> status {
                           self(s).complete(point.queue);
                           const std::lock_guard guard{self(s).mutex_};
                           ++self(s).counts_.waits;
                           return {};
                       }}};
        return functions;
    }

    mutable std::mutex mutex_;
    std::size_t capacity_;
    std::map<address, block> blocks_;
    std::map<std::uint32_t, queue_state> queues_;
    page_request last_;
    counts counts_;
    bool refuses_unmaps_ = false;
};

}  // namespace xmm::test
