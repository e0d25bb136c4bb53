// SPDX-License-Identifier: Apache-2.0
// parked_blocks.hpp - what was given back while a queue could not say how far it is.
//
// Model    A stream that is being captured has no point to wait for, and a queue may hold too many of them. Such a
//          block is the program's no more, and stands in the line of the queue that could not say. Whoever comes by
//          asks again for the head of each line: what that queue cannot say of the head it cannot say of the others.
// Threads  Any. One lock (rank leaf).
// Failure  Without memory for a line a block is a stray, for which its queues are asked each time.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include <xmm/core/lock.hpp>
#include <xmm/core/types.hpp>

namespace xmm {

template <class Entry, class List>
class parked_blocks {
public:
    [[nodiscard]] bool has_any() const noexcept {
        // relaxed: a hint; who misses one takes it the next time.
        return count_.load(std::memory_order_relaxed) != 0;
    }
    void add(Entry& one, queue_id refuser) noexcept {
        std::lock_guard guard{lock_};
        list_of_locked(refuser).push_back(one);
        count_.fetch_add(1, std::memory_order_relaxed);  // relaxed: see has_any
    }
    // It was the head, and its queue cannot say still.
    void put_back(Entry& one, queue_id refuser) noexcept {
        std::lock_guard guard{lock_};
        list_of_locked(refuser).push_front(one);
        count_.fetch_add(1, std::memory_order_relaxed);  // relaxed: see has_any
    }
    void take_strays(List& taken) noexcept {
        std::lock_guard guard{lock_};
        while (Entry* one = strays_.pop_front()) {
            taken.push_back(*one);
            count_.fetch_sub(1, std::memory_order_relaxed);  // relaxed: see has_any
        }
    }
    // The head of the first line from there on that has one, with its queue; null: there is none.
    [[nodiscard]] Entry* take_head(std::size_t& line, queue_id& refuser) noexcept {
        std::lock_guard guard{lock_};
        for (; line < lines_.size(); ++line) {
            if (Entry* one = lines_[line]->waiting.pop_front()) {
                refuser = lines_[line]->queue;
                count_.fetch_sub(1, std::memory_order_relaxed);  // relaxed: see has_any
                return one;
            }
        }
        return nullptr;
    }
    template <class Fn>
    void for_each(Fn&& fn) const {
        std::lock_guard guard{lock_};
        for (const auto& one : lines_) {
            one->waiting.for_each(fn);
        }
        strays_.for_each(fn);
    }

private:
    struct queue_line {
        queue_id queue;
        List waiting;
    };

    List& list_of_locked(queue_id queue) noexcept {
        queue_line* empty = nullptr;
        for (const auto& one : lines_) {
            if (one->queue == queue) {
                return one->waiting;
            }
            empty = one->waiting.is_empty() ? one.get() : empty;
        }
        if (empty == nullptr) {
            try {
                lines_.push_back(std::make_unique<queue_line>());
            } catch (const std::bad_alloc&) {
                return strays_;
            }
            empty = lines_.back().get();
        }
        empty->queue = queue;  // a line without blocks serves any queue
        return empty->waiting;
    }

    mutable ranked_mutex<lock_rank::leaf> lock_;
    std::vector<std::unique_ptr<queue_line>> lines_;  // under lock_; only ever more
    mutable List strays_;                             // under lock_; a list is walked by its links
    std::atomic<std::size_t> count_{0};               // written under lock_
};

}  // namespace xmm
