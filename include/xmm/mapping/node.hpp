// SPDX-License-Identifier: Apache-2.0
// node.hpp - a place with memory, as one space sees it: its driver, budget, frames and copy queues.
//
// Model    A space holds its nodes in slots: hosts first, then devices, in the order of attaching. The
//          frames of a node are in its pool, on its active list, with one mover, or its heap's.
// Threads  Fields are constant once the slot is published, counters are atomic, pool and list lock
//          themselves.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include <xmm/concepts/backend_table.hpp>
#include <xmm/mapping/frame_pool.hpp>
#include <xmm/mapping/granule.hpp>
#include <xmm/mapping/ledger.hpp>
#include <xmm/mapping/page_list.hpp>
#include <xmm/os/futex.hpp>

namespace xmm {

// What happened on one node since it was attached.
struct node_counters {
    std::uint64_t faults = 0;            // accesses of this node that found no mapping
    std::uint64_t faults_coalesced = 0;  // ... of which another fault had just resolved
    std::uint64_t first_touches = 0;     // pages that got their first frame here
    std::uint64_t bytes_in = 0;          // moved or copied to this node
    std::uint64_t bytes_out = 0;         // moved or copied away from it
    std::uint64_t bytes_zeroed = 0;
    std::uint64_t mapped_in_place = 0;  // device accesses served by a mapping to host memory
    std::uint64_t prefetched_bytes = 0;
    std::uint64_t reclaimed_bytes = 0;  // frames won back under pressure
    std::uint64_t copies_dropped = 0;   // clean copies dropped instead of copied
    std::uint64_t moves_given_up = 0;   // optional moves dropped since the page was used meanwhile
};

// Who holds frames of a node that back nothing needed, beside the pool: a heap.
class frame_lender {
public:
    // Gives up to about that many bytes of frames back to the node's pool; answers how many. No lock is held. It
    // does not wait for a queue: who asks may be a fault of that queue's kernel.
    virtual std::size_t give_back(std::size_t bytes) noexcept = 0;

protected:
    ~frame_lender() = default;
};

struct node {
    // relaxed throughout: counters, nothing hangs on their order.
    struct counter {
        std::atomic<std::uint64_t> value{0};
        void add(std::uint64_t more) noexcept { value.fetch_add(more, std::memory_order_relaxed); }
        [[nodiscard]] std::uint64_t get() const noexcept {
            return value.load(std::memory_order_relaxed);
        }
    };
    // Directions are seen from the device.
    enum queue_use : unsigned { urgent_in, urgent_out, quiet_in, quiet_out, queue_count };

    // (C) constant once published
    node_id id = no_node;                        // (C)
    std::uint8_t slot = no_slot;                 // (C)
    bool is_host = false;                        // (C)
    backend_ref driver;                          // (C)
    node_description about;                      // (C)
    ledger* book = nullptr;                      // (C)
    std::array<queue_id, queue_count> queues{};  // (C)  a device's; hosts have none
    frame_pool pool;
    page_list active;
    std::atomic<frame_lender*> lender{
        nullptr};  // (A)  asked before pages are demoted; null: nobody
    // (A) whose turn it is to fill the quiet queues, in and out: 1 while one mover does.
    std::array<detail::futex_word, 2> quiet_turns{};
    // (A) reclaims under way, and how many have ended, and won something: who finds no victim waits for those of
    // others, and looks again if they won any.
    std::atomic<std::uint32_t> reclaims{0};
    std::atomic<std::uint32_t> reclaims_ended{0};
    std::atomic<std::uint32_t> reclaims_won{0};
    // (A) frames that somebody asks for, or has had and not yet put on the list: they count as reclaims under way, for
    // those who have none of them. One that has arrived is as good as won.
    std::atomic<std::uint32_t> coming{0};

    counter faults, faults_coalesced, first_touches, bytes_in, bytes_out, bytes_zeroed,
        mapped_in_place, prefetched_bytes, reclaimed_bytes, copies_dropped, moves_given_up;

    // One of `coming` is on the list, or in the pool again.
    void note_arrival() noexcept {
        // release, all: as in reclaimer::reclaim. The frame is where others find it.
        reclaims_won.fetch_add(1, std::memory_order_release);
        coming.fetch_sub(1, std::memory_order_release);
        reclaims_ended.fetch_add(1, std::memory_order_release);
        detail::futex_wake_all(reclaims_ended);
    }
    // One of `coming` was not to be had.
    void note_refusal() noexcept {
        // release, both: as above. Who waits for others that are coming still need not look.
        if (coming.fetch_sub(1, std::memory_order_release) == 1) {
            reclaims_ended.fetch_add(1, std::memory_order_release);
            detail::futex_wake_all(reclaims_ended);
        }
    }

    [[nodiscard]] bool can(ability one) const noexcept { return about.able.has(one); }
    [[nodiscard]] unsigned accessor() const noexcept { return is_host ? cpu_accessor : slot; }

    [[nodiscard]] node_counters counters() const noexcept {
        return {.faults = faults.get(),
                .faults_coalesced = faults_coalesced.get(),
                .first_touches = first_touches.get(),
                .bytes_in = bytes_in.get(),
                .bytes_out = bytes_out.get(),
                .bytes_zeroed = bytes_zeroed.get(),
                .mapped_in_place = mapped_in_place.get(),
                .prefetched_bytes = prefetched_bytes.get(),
                .reclaimed_bytes = reclaimed_bytes.get(),
                .copies_dropped = copies_dropped.get(),
                .moves_given_up = moves_given_up.get()};
    }
};

}  // namespace xmm
