// SPDX-License-Identifier: Apache-2.0
// stale_mappings.hpp - where frames that went to other slots are still mapped.
//
// Model    On a port that can alias, a frame that is taken from its slot stays mapped there as well: work may use
//          the old mapping, and the frame may come back without a call of the driver. Such a mapping ends
//          when another frame is to come there, when the frame goes back to the device, or with its span;
//          never before the work up to the slot's last release is done.
// Threads  None of its own: the lock of device_frames guards it. Which slots have one is in the span, and may be
//          read without that lock.
// Failure  Where there is no room, frames are unmapped instead.
// See      device_frames.hpp.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <xmm/core/config.hpp>
#include <xmm/core/types.hpp>
#include <xmm/resources/frame_port.hpp>
#include <xmm/resources/slot_span.hpp>
#include <xmm/resources/vector_room.hpp>

namespace xmm {

class stale_mappings {
public:
    static constexpr std::size_t most = 4096;

    struct entry {
        slot_span* span;
        std::size_t slot;
        port_frame frame;
        std::uint64_t stamp;  // of the slot's last release
    };

    // For a mapping of each of so many slots, up to `most`.
    struct room {
        vector_room<entry> entries;

        [[nodiscard]] bool try_make(std::size_t slots) noexcept {
            return entries.try_make(std::min(slots, most));
        }
    };
    // False: what was made is too small.
    [[nodiscard]] bool try_fit(room& made, std::size_t slots) noexcept {
        return made.entries.try_fit(entries_, std::min(slots, most));
    }
    [[nodiscard]] bool has_room() const noexcept { return entries_.size() < entries_.capacity(); }
    [[nodiscard]] std::size_t count() const noexcept { return entries_.size(); }

    // There is room, and the slot has none.
    void push(const entry& one) noexcept {
        XMM_ASSERT(has_room() && !one.span->is_stale(one.slot), "no room for a stale mapping");
        entries_.push_back(one);
        set(one, true);
    }
    // The latest is none after all: its frame has not moved.
    void take_back() noexcept {
        set(entries_.back(), false);
        entries_.pop_back();
    }
    // Of that slot; null if it has none.
    [[nodiscard]] const entry* find(const slot_span& span, std::size_t slot) const noexcept {
        const auto at = std::ranges::find_if(
            entries_, [&](const entry& one) { return one.span == &span && one.slot == slot; });
        return at == entries_.end() ? nullptr : &*at;
    }
    // The frame came back to the slot of `one`; it is still mapped where it was last.
    void turn(const entry& one, const entry& now) noexcept {
        entry& own = entries_[static_cast<std::size_t>(&one - entries_.data())];
        set(own, false);
        own = now;
        set(own, true);
    }

    // No mapping is left at the slot: true. False, and all that could end has ended: work may use it, `until` is
    // what to wait for.
    [[nodiscard]] bool end_at(frame_port& port, const slot_span& span, std::size_t slot,
                              ticket& until) noexcept {
        const entry* one = find(span, slot);
        return one == nullptr || end(port, *one, until);
    }
    // The same for all mappings of the frame.
    [[nodiscard]] bool end_of(frame_port& port, port_frame frame, ticket& until) noexcept {
        for (std::size_t i = 0; i < entries_.size();) {
            if (entries_[i].frame.handle != frame.handle) {
                ++i;
            } else if (!end(port, entries_[i], until)) {
                return false;
            }
        }
        return true;
    }

private:
    // relaxed: who reads it without the lock of device_frames makes a guess.
    static void set(const entry& one, bool is_stale) noexcept {
        one.span->set_stale(one.slot, is_stale);
    }
    [[nodiscard]] bool end(frame_port& port, const entry& one, ticket& until) noexcept {
        if (!one.span->user_->is_finished(port, one.stamp, until)) {
            return false;
        }
        port.end_loan(one.span->slot_begin(one.slot), one.frame, one.span->slot_bytes());
        set(one, false);
        entries_[static_cast<std::size_t>(&one - entries_.data())] = entries_.back();
        entries_.pop_back();
        return true;
    }

    std::vector<entry> entries_;
};

}  // namespace xmm
