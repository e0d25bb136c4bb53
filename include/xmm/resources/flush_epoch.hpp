// SPDX-License-Identifier: Apache-2.0
// flush_epoch.hpp - what all desks of a heap are asked to do at their next call, in one number.
//
// Model    Flushes that were asked for count in the lower half, queues' ends and the like in the upper one. A desk
//          remembers the number that it has followed, so one load tells whether there is something to do.
// Threads  Any. An atomic; a desk is its thread's alone.
// Failure  None.
// See      heap_desk.hpp keeps the number; small_stock.hpp empties a desk.
#pragma once

#include <atomic>
#include <cstdint>

#include <xmm/resources/heap_desk.hpp>
#include <xmm/resources/heap_shelf.hpp>

namespace xmm {

class flush_epoch {
public:
    // Desks give back what they keep, and forget where they were last.
    void ask_for_flush() noexcept {
        // relaxed, both: late is good enough for a flush; addresses whose notes go come back through a lock.
        now_.fetch_add(1, std::memory_order_relaxed);
    }
    // Desks forget where they were last. Its work is done, and the next queue with its id comes later.
    void note_end_of_queue() noexcept {
        now_.fetch_add(end_of_queue,
                       std::memory_order_relaxed);  // relaxed: the caller orders the two queues
    }

    // Whether the desk has something to do.
    [[nodiscard]] bool is_ahead_of(const heap_desk& mine) const noexcept {
        // relaxed: late is good enough.
        return mine.epoch != now_.load(std::memory_order_relaxed);
    }
    // The desk is as new as can be then. True: its magazines are to be emptied.
    [[nodiscard]] bool bring_up(heap_desk& mine) const noexcept {
        // relaxed: late is good enough for a flush; a queue's end comes before its id is another one's.
        const std::uint64_t now = now_.load(std::memory_order_relaxed);
        if (mine.epoch == now) {
            return false;
        }
        const bool is_flush = (mine.epoch ^ now) % end_of_queue != 0;
        mine.epoch = now;
        mine.last_key = heap_shelf::no_key;
        return is_flush;
    }

private:
    static constexpr std::uint64_t end_of_queue = std::uint64_t{1} << 32;

    std::atomic<std::uint64_t> now_{0};
};

}  // namespace xmm
