// SPDX-License-Identifier: Apache-2.0
// parked_blocks.hpp - what was given back while a queue could not say how far it is.
//
// Model    A stream that is being captured has no point to wait for, and a queue may hold too many of them. Such a
//          block is the program's no more; whoever comes by asks its queues again.
// Threads  Any. One lock (rank leaf).
// Failure  None.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>

#include <xmm/core/lock.hpp>

namespace xmm {

template <class List>
class parked_blocks {
public:
    [[nodiscard]] bool has_any() const noexcept {
        // relaxed: a hint; who misses one takes it the next time.
        return count_.load(std::memory_order_relaxed) != 0;
    }
    template <class Entry>
    void add(Entry& one) noexcept {
        std::lock_guard guard{lock_};
        all_.push_back(one);
        count_.fetch_add(1, std::memory_order_relaxed);  // relaxed: see has_any
    }
    void take_all(List& taken) noexcept {
        std::lock_guard guard{lock_};
        while (auto* one = all_.pop_front()) {
            taken.push_back(*one);
        }
        count_.store(0, std::memory_order_relaxed);  // relaxed: see has_any
    }
    template <class Fn>
    void for_each(Fn&& fn) const {
        std::lock_guard guard{lock_};
        all_.for_each(fn);
    }

private:
    mutable ranked_mutex<lock_rank::leaf> lock_;
    mutable List all_;                   // under lock_; a list is walked by its links
    std::atomic<std::size_t> count_{0};  // written under lock_
};

}  // namespace xmm
