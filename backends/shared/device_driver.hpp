// SPDX-License-Identifier: Apache-2.0
// device_driver.hpp - the operators that are the same for every driver of devices: nodes, queues, tickets.
//
// Model    Memories of hosts first, then the devices' in their order. A driver derives from this, builds the lists, and
//          adds what it does its own way; an operator that it says anew hides the one here.
// Threads  As concepts/backend.hpp says. The lists are constant once built.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <xmm/concepts/backend.hpp>

#include "page_records.hpp"
#include "queue_slots.hpp"

namespace xmm::shared {

// Device has node(), host_numa(), is_lost(); Memory has node(), bytes(), smallest_frame_bytes(); Queue has record(),
// wait(value), is_done(value), is_submitted(value), await_point(Queue&, value), call() and submit().
template <class Device, class Memory, class Queue>
class device_driver {
public:
    device_driver(const device_driver&) = delete;
    device_driver& operator=(const device_driver&) = delete;

    [[nodiscard]] std::span<const node_id> nodes() const noexcept { return device_ids_; }
    // Null where the node is none of this driver's devices.
    [[nodiscard]] const Device* device_at(node_id node) const noexcept { return find_device(node); }
    [[nodiscard]] bool is_lost(node_id node) const noexcept {
        const Device* one = find_device(node);
        return one != nullptr && one->is_lost();
    }

    // Lets the submitted work finish. Not from a host call of that queue.
    void queue_destroy(queue_id id) noexcept { queues_.end(id); }
    // Tickets of queues that are gone, and of other drivers, are reached.
    [[nodiscard]] bool is_done(ticket point) const noexcept { return queues_.is_done(point); }
    // Returns when the ticket is reached; device_lost if its work was lost.
    [[nodiscard]] status wait(ticket point) noexcept {
        if (point.value == 0) {
            return {};
        }
        return queues_.is_mine(point.queue) ? queues_.of(point.queue).wait(point.value)
                                            : foreign_ticket();
    }
    [[nodiscard]] result<ticket> record(queue_id id) noexcept {
        Queue* one = queues_.find(id);
        return one == nullptr ? result<ticket>{no_queue()} : one->record();
    }
    [[nodiscard]] status make_wait(queue_id id, ticket point) noexcept {
        Queue* one = queues_.find(id);
        if (one == nullptr) {
            return no_queue();
        }
        const status known = queues_.check(point);
        return known && point.value != 0 ? one->await_point(queues_.of(point.queue), point.value)
                                         : known;
    }
    // fn runs in queue order on a thread of ours, even if the device is lost meanwhile, and may call the driver.
    [[nodiscard]] result<ticket> call(queue_id id, void (*fn)(void*) noexcept,
                                      void* context) noexcept {
        Queue* one = queues_.find(id);
        return one == nullptr ? result<ticket>{no_queue()} : one->call(fn, context);
    }

protected:
    static constexpr std::size_t default_host = std::size_t{64} << 30;

    device_driver(std::span<const node_id> device_ids, std::uint32_t queue_salt)
        : device_ids_(device_ids.begin(), device_ids.end()), queues_{queue_salt} {}
    ~device_driver() = default;

    // The OS's number of each host node; what is missing or -1 counts as 0.
    void set_hosts(std::size_t count, std::span<const int> numa) {
        for (std::size_t i = 0; i < count; ++i) {
            host_numa_.push_back(i < numa.size() ? std::max(numa[i], 0) : 0);
        }
    }
    [[nodiscard]] static std::size_t bytes_of_host(std::size_t i,
                                                   std::span<const std::size_t> bytes) noexcept {
        return i < bytes.size() ? bytes[i] : default_host;
    }

    // ---- what callers must not do

    // A proposal for va_examine; the alignment is at least a page from here on.
    [[nodiscard]] static status check_proposal(va_range range, std::size_t& alignment) noexcept {
        XMM_ASSERT(
            range.bytes != 0 && range.bytes % page_bytes == 0 && range.begin % page_bytes == 0,
            "a range is a whole number of pages");
        alignment = std::max(alignment, page_bytes);
        XMM_ASSERT((alignment & (alignment - 1)) == 0, "an alignment is a power of two");
        if (range.bytes >> address_bits != 0) {
            return fail(errc::no_memory, "more than 48 bits of addresses");
        }
        return range.begin % alignment == 0
                   ? status{}
                   : fail(errc::unsupported, "the range is not aligned as asked");
    }
    static void check_frame([[maybe_unused]] std::size_t bytes) noexcept {
        XMM_ASSERT(bytes != 0 && bytes % page_bytes == 0 && bytes <= largest_frame_bytes,
                   "a frame is a whole number of pages, at most largest_frame_bytes");
    }
    static void check_runs(std::span<const run> runs) noexcept {
        for ([[maybe_unused]] const run& one : runs) {
            XMM_ASSERT(one.va.begin % page_bytes == 0 && one.va.bytes % page_bytes == 0 &&
                           one.va.bytes != 0 && one.va.bytes <= one.backing.bytes,
                       "a run is whole pages, no longer than its frame");
        }
    }
    static void check_ranges(std::span<const va_range> ranges) noexcept {
        for ([[maybe_unused]] const va_range& one : ranges) {
            XMM_ASSERT(one.begin % page_bytes == 0 && one.bytes % page_bytes == 0,
                       "a range is whole pages");
        }
    }

    // ---- descriptions

    [[nodiscard]] node_description describe_memory(const Memory& memory) const noexcept {
        node_description about;
        about.bytes = align_down(memory.bytes(), page_bytes);
        about.smallest_frame_bytes = memory.smallest_frame_bytes();
        about.able = abilities_;
        return about;
    }
    // After its bytes and frames.
    void describe_device(const Device& one, node_description& about) const noexcept {
        about.headroom_bytes =
            std::min(std::max(std::size_t{512} << 20, about.bytes / 50), about.bytes / 8);
        while (about.granule_bytes > about.smallest_frame_bytes &&
               about.granule_bytes > about.bytes / 16) {
            about.granule_bytes /= 2;
        }
        about.link_in_bytes_per_second = about.link_out_bytes_per_second =
            one.link_bytes_per_second();
        about.nearest_host = nearest_host(one);
    }

    // ---- who is who

    [[nodiscard]] Memory* find_memory(node_id node) const noexcept {
        for (const auto& one : memories_) {
            if (one->node() == node) {
                return one.get();
            }
        }
        return node == any_host ? memories_[0].get() : nullptr;
    }
    // devices_.size() if there is none.
    [[nodiscard]] std::size_t device_index(node_id node) const noexcept {
        std::size_t i = 0;
        while (i < devices_.size() && devices_[i]->node() != node) {
            ++i;
        }
        return i;
    }
    [[nodiscard]] Device* find_device(node_id node) const noexcept {
        const std::size_t i = device_index(node);
        return i == devices_.size() ? nullptr : devices_[i].get();
    }
    [[nodiscard]] node_id nearest_host(const Device& one) const noexcept {
        const int numa = one.host_numa();
        for (std::size_t i = 0; i < host_numa_.size(); ++i) {
            if (host_numa_[i] == numa) {
                return memories_[i]->node();
            }
        }
        return memories_[0]->node();
    }
    template <class Enqueue>
    [[nodiscard]] result<ticket> submit(queue_id id, Enqueue&& enqueue) noexcept {
        Queue* one = queues_.find(id);
        return one == nullptr ? result<ticket>{no_queue()} : one->submit(enqueue);
    }

    // Those of the base go after the driver's own members: a driver whose queues must end first ends them itself.
    const std::vector<node_id> device_ids_;
    std::vector<std::unique_ptr<Device>> devices_;  // (C) once built, as are the next three
    std::vector<std::unique_ptr<Memory>> memories_;
    std::vector<int> host_numa_;
    abilities abilities_;
    queue_slots<Queue> queues_;
};

}  // namespace xmm::shared
