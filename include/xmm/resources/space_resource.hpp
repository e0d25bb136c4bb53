// SPDX-License-Identifier: Apache-2.0
// space_resource.hpp - memory straight from a space: unified, on one device, or page-locked.
//
// Model    Every block is a mapping of its own, whole 2 MiB pages: pool_resource serves small blocks.
//          Fresh memory reads as zero. Resources of one kind, space and node are equal.
//          Given back on a queue of the space, a block is kept until the queue has passed that point (or, while it
//          cannot say, a later one) and unmapped by a later call; on another library's stream, the call waits for it.
//          If the queue ends before it can say, nobody knows when its work is done, and the block stays mapped.
// Threads  Any. One lock guards the blocks that are kept: rank leaf, never held while the space is called.
// Failure  When the space has no memory, kept blocks are waited for and it is asked once more.
//          A block that the space does not take back stays mapped, with a line on stderr.
//          A child of fork has none of this memory: there allocate throws, and nothing is given back.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <thread>
#include <vector>

#include <xmm/core/lock.hpp>
#include <xmm/os/registry.hpp>
#include <xmm/os/signal_mask.hpp>
#include <xmm/resources/memory_resource.hpp>

namespace xmm {

// What unified, device and pinned have in common: requests cut after one pattern.
template <reach Who>
class space_resource : public detail::base_for<Who> {
public:
    static constexpr reach static_reach = Who;

    ~space_resource() override {
        give_back_all();
        if (!registry::is_forked_child()) {
            for (const kept_block& one : kept_) {
                this->say_left_alone(one.pointer);
            }
        }
    }

    [[nodiscard]] space_port space() const noexcept { return space_; }
    [[nodiscard]] resource_usage usage() const noexcept override {
        return space_.usage(this->node());
    }
    [[nodiscard]] queue_port queues() const noexcept override { return space_.queues(); }

    // Unmaps the blocks that their queues have passed. Every other call does so as well.
    void collect() noexcept {
        collect_if([&](const kept_block& block) { return space_.queues().is_done(block.point); });
    }

protected:
    space_resource(const char* name, node_id node, space_port space, page_request pattern)
        : detail::base_for<Who>{name, node, Who}, space_{space}, pattern_{pattern} {
        if (!space) {
            throw std::invalid_argument{"xmm: a resource needs a space"};
        }
        pattern_.name = name;
    }
    // The node, if the space has it and it is of the wanted kind.
    static node_id checked(space_port space, node_id node, const char* why,
                           reach wanted = reach::none) {
        const reach kind = space ? space.reach_of(node) : reach::none;
        if (kind == reach::none || !includes(kind, wanted)) {
            throw std::invalid_argument{why};
        }
        return node;
    }
    void* do_allocate_on(stream_ref, std::size_t bytes, std::size_t alignment) override {
        if (registry::is_forked_child()) {
            this->refuse(bytes, "this is a forked child: the space is its parent's");
        }
        collect();
        page_request request = pattern_;
        request.bytes = bytes;
        request.alignment = std::max(alignment, page_bytes);
        if (result<void*> pages = space_.map(request)) {
            return *pages;
        }
        give_back_all();
        result<void*> pages = space_.map(request);
        if (!pages) {
            this->refuse(bytes, pages.error().why, pages.error().driver_code);
        }
        return *pages;
    }

private:
    struct kept_block {
        void* pointer;
        ticket point;
        bool is_known;  // false: the queue could not say, and is to be asked again
    };

    // Queues that have not passed one block, and so none that was given back later.
    struct queues_at_work {
        std::array<queue_id, 16> queues;
        std::size_t count = 0;

        [[nodiscard]] bool has(queue_id queue) const noexcept {
            return std::find(queues.begin(), queues.begin() + count, queue) !=
                   queues.begin() + count;
        }
        void add(queue_id queue) noexcept {
            if (count < queues.size()) {
                queues[count++] = queue;
            }
        }
    };

    void do_deallocate_on(stream_ref stream, void* pointer, std::size_t,
                          std::size_t) noexcept override {
        if (registry::is_forked_child()) {
            return;
        }
        if (stream.queue() == queue_id{} || !try_keep(stream.queue(), pointer)) {
            if (this->try_await(stream)) {
                unmap(pointer);
            } else {
                this->say_left_alone(pointer);
            }
        }
        collect();
    }
    bool try_keep(queue_id queue, void* pointer) noexcept {
        result<ticket> point = space_.queues().record(queue);
        if (!point && is_over(point.code())) {
            return false;
        }
        const ticket known = point ? *point : ticket{queue, 0};
        try {
            with(lock_, [&] { kept_.push_back({pointer, known, point.has_value()}); });
            return true;
        } catch (const std::bad_alloc&) {
            return false;
        }
    }
    void give_back_all() noexcept {
        collect_if([&](const kept_block& block) {
            const status waited = space_.queues().wait(block.point);
            return waited || is_over(waited.code);
        });
    }
    // False: it cannot say still.
    bool ask_again(kept_block& block) noexcept {
        result<ticket> point = space_.queues().record(block.point.queue);
        if (!point && point.code() != errc::device_lost) {
            return false;
        }
        const kept_block before = block;
        block = {block.pointer, point ? *point : ticket{}, true};
        with(lock_, [&] {
            if (const auto at = find_locked(before); at != kept_.end()) {
                *at = block;
            }
        });
        return true;
    }
    // The queues are asked, and waited for, without the lock; what two threads find free, one takes.
    template <class Condition>
    void collect_if(Condition&& is_free) noexcept {
        if (registry::is_forked_child()) {
            return;
        }
        queues_at_work working;
        for (std::size_t index = 0;;) {
            kept_block one{};
            const bool is_left = with(lock_, [&] {
                while (index < kept_.size() && working.has(kept_[index].point.queue)) {
                    ++index;
                }
                const bool has_one = index < kept_.size();
                one = has_one ? kept_[index] : kept_block{};
                return has_one;
            });
            if (!is_left) {
                return;
            }
            const bool is_passed =
                (one.is_known || ask_again(one)) && (one.point.value == 0 || is_free(one));
            if (!is_passed) {
                working.add(one.point.queue);
                ++index;
            } else if (try_take(one)) {
                unmap(one.pointer);
            }
        }
    }
    bool try_take(const kept_block& wanted) noexcept {
        return with(lock_, [&] {
            const auto at = find_locked(wanted);
            const bool is_there = at != kept_.end();
            if (is_there) {
                kept_.erase(at);
            }
            return is_there;
        });
    }
    std::vector<kept_block>::iterator find_locked(const kept_block& wanted) noexcept {
        return std::ranges::find_if(kept_, [&](const kept_block& one) {
            return one.pointer == wanted.pointer && one.is_known == wanted.is_known &&
                   one.point.queue == wanted.point.queue && one.point.value == wanted.point.value;
        });
    }
    void unmap(void* pointer) noexcept {
        if (const status outcome = space_.unmap(pointer); !outcome) {
            std::fprintf(stderr, "xmm: %s: %p stays mapped: %s (%s)\n", this->name(), pointer,
                         outcome.why, name_of(outcome.code));
        }
    }
    bool do_is_equal_to(const resource_base& other) const noexcept override {
        const auto* same = dynamic_cast<const space_resource*>(&other);
        return same != nullptr && same->space_ == space_ && same->pattern_.fixed == pattern_.fixed;
    }

    space_port space_;
    page_request pattern_;
    ranked_mutex<lock_rank::leaf> lock_;
    std::vector<kept_block> kept_;  // under lock_, oldest first
};

// One pointer valid on the CPU and on every device of the space; its pages move, and rather live on
// the preferred node if one is named. "pmr containers on device memory" are this with a device.
class unified_resource final : public space_resource<reach::host_and_device> {
public:
    explicit unified_resource(space_port space, node_id preferred = no_node,
                              std::size_t granule_bytes = 0)
        : space_resource{
              "unified",
              preferred == no_node
                  ? any_host
                  : checked(space, preferred, "xmm::unified_resource: the space has no such node"),
              space,
              {.granule_bytes = granule_bytes, .preferred = preferred}} {}
};

// Memory of one device, out of the CPU's reach; it never moves.
class device_resource final : public space_resource<reach::device> {
public:
    device_resource(space_port space, node_id device)
        : space_resource{
              "device",
              checked(space, device, "xmm::device_resource: the space has no such device",
                      reach::device),
              space,
              {.fixed = device}} {}
};

struct pinned_options {
    bool touch =
        true;  // all pages exist when allocate returns, so nothing is slower the first time
    unsigned threads = 0;  // that touch them; 0: as many as pay off
};

// Page-locked memory of a host node that devices reach; it never moves.
class pinned_resource final : public space_resource<reach::host_and_device> {
public:
    explicit pinned_resource(space_port space, node_id host = any_host, pinned_options options = {})
        : space_resource{"pinned",
                         checked(space, host,
                                 "xmm::pinned_resource: the space has no such host node",
                                 reach::host),
                         space,
                         {.fixed = host}},
          options_{options} {}

private:
    void* do_allocate_on(stream_ref stream, std::size_t bytes, std::size_t alignment) override {
        void* pointer = space_resource::do_allocate_on(stream, bytes, alignment);
        if (options_.touch) {
            touch(static_cast<std::byte*>(pointer), bytes);
        }
        return pointer;
    }
    // The kernel zeroes fresh pages on the thread that touches them, some GB/s each: from 64 MiB on that is
    // many times what a thread costs to start.
    void touch(std::byte* begin, std::size_t bytes) const noexcept {
        constexpr std::size_t worth_a_thread = std::size_t{64} << 20;
        constexpr std::size_t most = 16;
        const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
        const std::size_t threads =
            options_.threads != 0
                ? options_.threads
                : std::clamp<std::size_t>(bytes / worth_a_thread, 1, std::min(cores, most));
        const std::size_t share = align_up(bytes / threads + 1, page_bytes);
        std::vector<std::thread> helpers;
        std::size_t done = share;  // the first share is this thread's
        try {
            const detail::signals_blocked quiet;
            for (; done < bytes; done += share) {
                helpers.emplace_back(touch_each_page, begin + done, std::min(share, bytes - done));
            }
        } catch (...) {
            touch_each_page(begin + done, bytes - done);  // no thread to be had: do the rest here
        }
        touch_each_page(begin, std::min(share, bytes));
        for (std::thread& helper : helpers) {
            helper.join();
        }
    }
    static void touch_each_page(std::byte* begin, std::size_t bytes) noexcept {
        constexpr std::size_t smallest_os_page = 4096;
        for (std::size_t at = 0; at < bytes; at += smallest_os_page) {
            static_cast<volatile std::byte*>(begin)[at] = std::byte{0};
        }
    }

    pinned_options options_;
};

}  // namespace xmm
