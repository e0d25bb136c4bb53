// SPDX-License-Identifier: Apache-2.0
// page_list.hpp - the active frames of one node, oldest mapping event first.
//
// Model    Order is that of mapping events (GMM's LRU), not of accesses: faults and will_need move a frame
//          to the recent end, cold to the old end.
// Threads  Any. One lock, rank page_list; victims are popped, then their page is try-locked.
// Failure  Allocates nothing and cannot fail; an empty list answers nullptr.
#pragma once

#include <atomic>

#include <xmm/core/lock.hpp>
#include <xmm/mapping/frame_record.hpp>

namespace xmm {

class page_list {
public:
    // A frame in some thread's hands is on no list: then there is nothing to do.
    void remove(frame_record& record) noexcept {
        with(lock_, [&] { unlink_locked(record); });
    }
    void move_to_recent(frame_record& record) noexcept {
        with(lock_, [&] {
            unlink_locked(record);
            frames_.push_back(record);
        });
    }
    void move_to_old(frame_record& record) noexcept {
        with(lock_, [&] {
            unlink_locked(record);
            frames_.push_front(record);
        });
    }
    // Pops the oldest frame whose owner `take` accepts; those it declines go to the recent end. `take`
    // runs with the list locked and may try-lock the page, nothing more. Looks at each frame once.
    template <class Take>
    [[nodiscard]] granule* pop_victim(Take&& take) noexcept {
        std::lock_guard guard{lock_};
        for (std::size_t left = frames_.count(); left > 0; --left) {
            frame_record* oldest = frames_.pop_front();
            if (take(*oldest)) {
                return oldest->owner;
            }
            frames_.push_back(*oldest);
        }
        return nullptr;
    }
    [[nodiscard]] std::size_t count() const noexcept {
        std::lock_guard guard{lock_};
        return frames_.count();
    }

private:
    void unlink_locked(frame_record& record) noexcept {
        if (frame_list::is_linked(record)) {
            frames_.remove(record);
        }
    }

    mutable ranked_mutex<lock_rank::page_list> lock_;
    frame_list frames_;  // guarded by lock_
};

}  // namespace xmm
