// SPDX-License-Identifier: Apache-2.0
// frame_users.hpp - the heaps that have frames of a device, and what the blocks of all heaps take.
//
// Model    In the list is who has a frame, or may have one: there may be thousands who had one, and what is done for
//          each counts. Users count their live bytes for themselves, so that those who miss no frame share
//          nothing; they are asked when it matters, and who leaves the list leaves its peak behind.
//          Slots is what device_frames lets its parts do with a user and its spans.
// Threads  The lock of device_frames guards it; add_live alone needs none.
// Failure  None.
// See      slot_span.hpp has the user, device_frames.hpp the list.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

#include <xmm/resources/slot_span.hpp>

namespace xmm {

template <class Slots>
class frame_users {
public:
    void enter(frame_user& user) noexcept {
        if (!std::exchange(Slots::is_listed(user), true)) {
            Slots::next(user) = first_;
            first_ = &user;
        }
    }
    // Nothing happens to one that is not in the list.
    void leave(frame_user& user) noexcept {
        if (Slots::is_listed(user)) {
            frame_user** at = &first_;
            while (*at != &user) {
                at = &Slots::next(**at);
            }
            take_out(*at);
        }
    }
    // fn(frame_user&) answers whether the user stays in the list.
    template <class Fn>
    void keep_if(Fn&& fn) noexcept {
        for (frame_user** at = &first_; *at != nullptr;) {
            frame_user** const next = &Slots::next(**at);
            if (fn(**at)) {
                at = next;
            } else {
                take_out(*at);
            }
        }
    }
    template <class Fn>
    void for_each(Fn&& fn) const {
        for (frame_user* user = first_; user != nullptr; user = Slots::next(*user)) {
            fn(*user);
        }
    }

    // Of a user that does not tell its live bytes by set_live: so many came, or went.
    void add_live(std::ptrdiff_t bytes) noexcept {
        // relaxed: the budget is a measure, nothing is published by it.
        live_.fetch_add(static_cast<std::size_t>(bytes), std::memory_order_relaxed);
    }
    // Live bytes of all; their peak is noted.
    std::size_t look() const noexcept {
        std::size_t live = live_.load(std::memory_order_relaxed);  // relaxed: a measure
        for_each([&](const frame_user& user) {
            live += user.live_bytes();
            note_live(user.live_peak());
        });
        note_live(live);
        return live;
    }
    void note_live(std::size_t bytes) const noexcept { live_peak_ = std::max(live_peak_, bytes); }
    // As it was at the last look.
    [[nodiscard]] std::size_t live_peak() const noexcept { return live_peak_; }

private:
    void take_out(frame_user*& at) noexcept {
        note_live(at->live_peak());
        Slots::is_listed(*at) = false;
        at = Slots::next(*at);
    }

    frame_user* first_ = nullptr;
    mutable std::size_t live_peak_ = 0;  // looked up as it is asked for
    std::atomic<std::size_t> live_{0};   // of users that do not count themselves
};

}  // namespace xmm
