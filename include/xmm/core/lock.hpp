// SPDX-License-Identifier: Apache-2.0
// lock.hpp - lock ranks, ranked_mutex, with(lock, fn).
//
// Model    Every lock has a rank; a thread acquires downwards only (outermost first). Two locks of one
//          rank: lower address first. try_lock may go against the order, since it cannot wait.
// Failure  With checks on, a wrong order prints both ranks and aborts.
#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <mutex>

#include <xmm/core/config.hpp>

namespace xmm {

enum class lock_rank : std::uint8_t {
    // guards: the extents of one jemalloc arena
    // may: reserve addresses, take frames          may not: call jemalloc or user code
    extent_hooks,
    // guards: the blocks of one extent heap, or of one size of a pool
    // may: reserve addresses, take frames, ask a queue  may not: call user code or the upstream
    extent_heap,
    // guards: which slots of all heaps of one device have frames, and the idle ones among them
    // may: reserve addresses, create, map, unmap and drop frames   may not: call user code, wait, reclaim
    // but: an unmap waits for copies that hold the page. The slot has no block by then, so that is a copy about to
    //      return: it waits for its device at most. One of a block that a program gave back too early may reclaim,
    //      come here for it, and never end
    device_frames,
    // guards: attaching nodes, the list of regions of one space
    // may: reserve addresses, create records       may not: wait for a transfer
    address_space,
    // guards: the list of launches in flight (that a flip sees their marks is the page lock's work)
    // may: ask the driver whether a point is reached  may not: wait for it, take a page lock
    gate,
    // guards: growth of the radix tree
    // may: map a table                             may not: take any page lock
    tree,
    // guards: one granule's record: residency, frames, mappings, hints
    // may: enter and clear mappings, touch lists   may not: wait for a transfer, reclaim
    page,
    // guards: the active list of one node
    // may: relink                                  may not: anything else (a victim's page is try-locked)
    page_list,
    // guards: which pools of the process keep free frames of one node
    // may: drop a free frame of theirs             may not: reclaim, wait for a transfer
    frame_keepers,
    // guards: the free frames of one pool
    // may: relink                                  may not: anything else (frames are made and dropped without it)
    frame_pool,
    // guards: a backend's queue, page table or frame table
    // may: call the driver                         may not: call back into xmm
    backend_queue,
    // guards: one node's budget
    // may: compute                                 may not: wait
    ledger,
    // guards: a counter, a free list, the records of one resource
    // may: compute, call malloc or stdio           may not: take any other lock of ours
    // but: a space's policy is asked under one, so that it is there while it is asked. That is user code, and bound to
    //      take none of ours (concepts/policy.hpp)
    leaf,
};

[[nodiscard]] constexpr const char* name_of(lock_rank rank) noexcept {
    constexpr const char* names[] = {
        "extent_hooks", "extent_heap",   "device_frames", "address_space", "gate",   "tree", "page",
        "page_list",    "frame_keepers", "frame_pool",    "backend_queue", "ledger", "leaf"};
    static_assert(std::size(names) == static_cast<unsigned>(lock_rank::leaf) + 1);
    return names[static_cast<unsigned>(rank)];
}

namespace detail {

// The ranked locks that this thread holds, in the order of acquisition.
struct held_locks {
    static constexpr unsigned capacity = 48;  // below what the thread sanitizer bears, 64
    struct entry {
        const void* lock;
        lock_rank rank;
    };
    entry entries[capacity];
    unsigned count = 0;

    void check(const void* lock, lock_rank rank) const noexcept {
        for (unsigned i = 0; i < count; ++i) {
            // std::less: the plain operator orders only pointers into one object.
            const bool is_below = entries[i].rank < rank ||
                                  (entries[i].rank == rank && std::less<>{}(entries[i].lock, lock));
            if (!is_below) {
                std::fprintf(stderr, "xmm: lock order: %s acquired while %s is held\n",
                             name_of(rank), name_of(entries[i].rank));
                std::abort();
            }
        }
    }
    void push(const void* lock, lock_rank rank) noexcept {
        if (count == capacity) {
            assertion_failed("a thread holds more locks than can be checked", __FILE__, __LINE__);
        }
        entries[count++] = {lock, rank};
    }
    void pop(const void* lock) noexcept {
        for (unsigned i = count; i-- > 0;) {
            if (entries[i].lock == lock) {
                for (unsigned j = i + 1; j < count; ++j) {
                    entries[j - 1] = entries[j];
                }
                --count;
                return;
            }
        }
        assertion_failed("a lock was released by a thread that does not hold it", __FILE__,
                         __LINE__);
    }
};

inline held_locks& locks_of_this_thread() noexcept {
    thread_local held_locks held;
    return held;
}

}  // namespace detail

// A mutex that knows its place in the order. Lockable, so std's guards work on it. The check level is part
// of the type: where units of two levels meet in one program, a guard's lock and unlock are of one level.
template <lock_rank Rank, int CheckLevel = check_level>
class ranked_mutex {
public:
    static constexpr lock_rank rank = Rank;
    static constexpr bool is_checked = CheckLevel >= 1;

    void lock() noexcept {
        if constexpr (is_checked) {
            detail::locks_of_this_thread().check(this, Rank);
        }
        mutex_.lock();
        note_acquired();
    }
    [[nodiscard]] bool try_lock() noexcept {
        if (!mutex_.try_lock()) {
            return false;
        }
        note_acquired();
        return true;
    }
    void unlock() noexcept {
        if constexpr (is_checked) {
            detail::locks_of_this_thread().pop(this);
        }
        mutex_.unlock();
    }

private:
    void note_acquired() noexcept {
        if constexpr (is_checked) {
            detail::locks_of_this_thread().push(this, Rank);
        }
    }

    std::mutex mutex_;
};

// Runs fn with the lock held and returns what it returns.
template <class Lock, class Fn>
decltype(auto) with(Lock& lock, Fn&& fn) {
    std::lock_guard guard{lock};
    return static_cast<Fn&&>(fn)();
}

}  // namespace xmm
