// SPDX-License-Identifier: Apache-2.0
// idle_slots.hpp - the slots of a device that have a frame and no block, coldest first.
//
// Model    Listed anew for each round of an errand: those of the wanted size, and the others. A slot may be used
//          after it was listed, so that claim looks again. Listed is only who can be asked now: a user whose
//          lock is taken is skipped, one whose queue is gone without a word has nothing to take.
//          Slots is what device_frames lets its parts do with a user and its spans.
// Threads  The lock of device_frames guards it; users' locks are only tried, but for the errand's own user's, which is
//          held.
// Failure  Where try_fit has made room, list allocates nothing: faults list, too.
// See      frame_errand.hpp, frame_users.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include <xmm/resources/frame_errand.hpp>
#include <xmm/resources/frame_port.hpp>
#include <xmm/resources/frame_users.hpp>
#include <xmm/resources/slot_span.hpp>
#include <xmm/resources/vector_room.hpp>

namespace xmm {

struct idle_slot {
    std::uint64_t stamp = 0;
    slot_span* span = nullptr;
    std::size_t slot = 0;

    [[nodiscard]] address begin() const noexcept { return span->slot_begin(slot); }
    [[nodiscard]] std::size_t bytes() const noexcept { return span->slot_bytes(); }
    // For a heap whose front is to go first: idle longest, and of one extent the last, so that what is
    // left of it stays in one piece.
    friend bool operator<(const idle_slot& a, const idle_slot& b) noexcept {
        return a.stamp != b.stamp ? a.stamp > b.stamp : a.begin() < b.begin();
    }
};

template <class Slots>
class idle_slots {
public:
    using heap = std::vector<idle_slot>;

    // Of the wanted size, and of others.
    [[nodiscard]] heap& wanted() noexcept { return wanted_; }
    [[nodiscard]] heap& others() noexcept { return others_; }

    struct room {
        vector_room<idle_slot> wanted;
        vector_room<idle_slot> others;

        [[nodiscard]] bool try_make(std::size_t slots) noexcept {
            return wanted.try_make(slots) && others.try_make(slots);
        }
    };
    // False: what was made is too small.
    [[nodiscard]] bool try_fit(room& made, std::size_t slots) noexcept {
        return made.wanted.try_fit(wanted_, slots) && made.others.try_fit(others_, slots);
    }
    // Once a round. Users that have no frame any more leave.
    void list(frame_users<Slots>& users, frame_errand& job) noexcept {
        if (job.is_listed) {
            return;
        }
        job.begin_list();
        wanted_.clear();
        others_.clear();
        users.keep_if([&](frame_user& user) {
            const bool is_meant = job.tag == nullptr || user.tag() == *job.tag;
            return !is_meant || Slots::is_lost(user) || list_of(user, job);
        });
        std::make_heap(wanted_.begin(), wanted_.end());
        std::make_heap(others_.begin(), others_.end());
    }
    // From a heap that is not empty.
    [[nodiscard]] static idle_slot pop(heap& from) noexcept {
        std::pop_heap(from.begin(), from.end());
        const idle_slot coldest = from.back();
        from.pop_back();
        return coldest;
    }
    // The one that has that frame, of the wanted size; null if none has.
    [[nodiscard]] const idle_slot* find(port_frame frame) const noexcept {
        const auto at = std::ranges::find_if(wanted_, [&](const idle_slot& one) {
            return Slots::frame(*one.span, one.slot).handle == frame.handle;
        });
        return at == wanted_.end() ? nullptr : &*at;
    }
    // Takes the frame from its slot, unless the slot was used since it was listed.
    [[nodiscard]] bool claim(const idle_slot& victim, frame_errand& job,
                             port_frame& taken) noexcept {
        frame_user& user = victim.span->user();
        const bool is_own = &user == job.own;
        if (!is_own && !user.lock().try_lock()) {
            job.has_skipped = true;
            return false;
        }
        const bool is_idle = Slots::is_idle(*victim.span, victim.slot) &&
                             Slots::stamp_of(*victim.span, victim.slot) == victim.stamp;
        if (is_idle) {
            taken = Slots::take_frame(*victim.span, victim.slot);
        }
        if (!is_own) {
            user.lock().unlock();
        }
        return is_idle;
    }
    [[nodiscard]] std::size_t bytes() const noexcept {
        std::size_t bytes = 0;
        for (const heap* list : {&wanted_, &others_}) {
            for (const idle_slot& one : *list) {
                bytes += one.bytes();
            }
        }
        return bytes;
    }

private:
    // Whether the user has a frame, or will have.
    bool list_of(frame_user& user, frame_errand& job) noexcept {
        const bool is_own = &user == job.own;
        if (!is_own && !user.lock().try_lock()) {
            job.has_skipped = true;
            return true;
        }
        Slots::note_look(user);
        bool has_frame = is_own;
        Slots::for_each_span(user, [&](slot_span& span) {
            has_frame = has_frame || span.has_any_frame();
            heap& to = span.slot_bytes() == job.slot_bytes ? wanted_ : others_;
            const std::size_t end = span.slot_count();
            for (std::size_t slot = span.next(0, end, true); slot < end;
                 slot = span.next(slot + 1, end, true)) {
                if (Slots::is_idle(span, slot)) {
                    // There is room, see try_fit; at worst those found so far will have to do.
                    try {
                        to.push_back({Slots::stamp_of(span, slot), &span, slot});
                    } catch (const std::bad_alloc&) {
                        break;
                    }
                }
            }
        });
        if (!is_own) {
            user.lock().unlock();
        }
        return has_frame;
    }

    heap wanted_;
    heap others_;
};

}  // namespace xmm
