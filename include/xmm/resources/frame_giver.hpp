// SPDX-License-Identifier: Apache-2.0
// frame_giver.hpp - how a slot comes to a frame: its last one again, a new one, or one from an idle slot.
//
// Model    In this order: the frame that was here last, if it lies idle elsewhere (no call of the driver); a new one,
//          as long as the budget has room; the coldest idle one of that size; a new one in place of idle ones
//          of other sizes. Where the port can alias, an idle slot lends its frame and stays mapped (stale).
//          Slots is what device_frames lets its parts do with a user and its spans.
// Threads  The lock of device_frames guards it; the errand's own user's is held as well.
// Failure  give_one is wait or none, and the slot has no frame; the errand knows why, and what to wait for.
// See      frame_dropper.hpp, idle_slots.hpp, stale_mappings.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/resources/frame_budget.hpp>
#include <xmm/resources/frame_dropper.hpp>
#include <xmm/resources/frame_errand.hpp>
#include <xmm/resources/frame_port.hpp>
#include <xmm/resources/frame_users.hpp>
#include <xmm/resources/idle_slots.hpp>
#include <xmm/resources/slot_span.hpp>
#include <xmm/resources/stale_mappings.hpp>

namespace xmm {

template <class Slots>
class frame_giver {
public:
    using outcome = frame_errand::outcome;

    frame_giver(frame_port& port, frame_users<Slots>& users, frame_budget& budget,
                idle_slots<Slots>& idle, stale_mappings& stale, frame_dropper<Slots>& dropper,
                unsigned patience) noexcept
        : port_{port},
          users_{users},
          budget_{budget},
          idle_{idle},
          stale_{stale},
          dropper_{dropper},
          patience_{patience} {}

    // The slot has no frame.
    outcome give_one(slot_span& span, std::size_t slot, frame_errand& job) noexcept {
        if (Slots::is_stale(span, slot) && take_again(span, slot, job)) {
            return outcome::done;
        }
        if (ticket point; Slots::is_stale(span, slot) && !stale_.end_at(port_, span, slot, point)) {
            job.note_unfinished(point);
            job.why =
                fail(errc::busy, "work may use the slot's last mapping, and its queue cannot say");
            return job.none_left(patience_);
        }
        const std::size_t bytes = span.slot_bytes();
        port_frame frame;
        idle_slot from;  // no span: the frame is new
        const outcome found = find_frame(job, bytes, from, frame);
        return found == outcome::done ? map(span, slot, frame, from, job) : found;
    }
    // All slots have frames now: those that were made for them are as others.
    void keep(slot_span& span, std::size_t first, std::size_t last) noexcept {
        std::replace(&Slots::stamp(span, first), &Slots::stamp(span, last) + 1, just_created,
                     std::uint64_t{0});
    }
    // Not all could be given: what was made goes again. What was taken from idle slots stays, idle, where it is now.
    void take_back(slot_span& span, std::size_t first, std::size_t last) noexcept {
        for (std::size_t slot = first; slot <= last; ++slot) {
            if (span.has_frame(slot) && Slots::stamp(span, slot) == just_created) {
                dropper_.drop_slot(span, slot);
            }
        }
    }

private:
    static constexpr std::uint64_t just_created = ~std::uint64_t{0};  // a stamp, within one call

    outcome find_frame(frame_errand& job, std::size_t bytes, idle_slot& from,
                       port_frame& frame) noexcept {
        job.why = {};
        const bool is_created = budget_.has_room(bytes, job.limit) && create(job, bytes, frame);
        if (!is_created) {
            const outcome taken = take(job, from, frame);
            if (taken != outcome::none) {
                return taken;
            }
            const outcome made = create_for_others(job, bytes, frame);
            if (made != outcome::done) {
                return made;
            }
        }
        budget_.note_created(bytes);
        return outcome::done;
    }
    bool create(frame_errand& job, std::size_t bytes, port_frame& made) noexcept {
        result<port_frame> one = port_.create(bytes);
        if (!one) {
            job.why = one.error();
            return false;
        }
        made = *one;
        job.why = {};
        return true;
    }
    outcome map(slot_span& span, std::size_t slot, port_frame frame, const idle_slot& from,
                frame_errand& job) noexcept {
        const std::size_t bytes = span.slot_bytes();
        const bool is_created = from.span == nullptr;
        if (const status mapped = port_.map(span.slot_begin(slot), frame, bytes); !mapped) {
            job.why = mapped;
            if (is_created || !come_back(from, frame, job)) {
                // Older mappings of it are of work that is done, or it could not have been taken.
                ticket until;
                (void)stale_.end_of(port_, frame, until);
                dropper_.drop(frame, bytes);
            }
            return outcome::none;
        }
        if (!is_created) {
            budget_.note_moved(bytes);
        }
        Slots::put_frame(span, slot, frame, is_created ? just_created : 0);
        return outcome::done;
    }
    // A frame that was lent is still mapped where it was: there it stays.
    bool come_back(const idle_slot& lender, port_frame frame, const frame_errand& job) noexcept {
        frame_user& user = lender.span->user();
        const bool is_own = &user == job.own;
        if (!Slots::is_stale(*lender.span, lender.slot) || (!is_own && !user.lock().try_lock())) {
            return false;
        }
        port_.come_back(lender.begin(), frame, lender.bytes());
        stale_.take_back();
        Slots::put_back_frame(*lender.span, lender.slot, frame);
        if (!is_own) {
            user.lock().unlock();
        }
        return true;
    }

    // The frame that was here before, if it lies idle elsewhere: its mapping is still here, so no driver is called.
    bool take_again(slot_span& span, std::size_t slot, frame_errand& job) noexcept {
        idle_.list(users_, job);
        const stale_mappings::entry* old = stale_.find(span, slot);
        const idle_slot* found = idle_.find(old->frame);
        if (found == nullptr) {
            return false;
        }
        const idle_slot victim = *found;
        ticket point;
        port_frame taken;
        if (!can_lend(job, victim, Slots::is_finished(port_, *victim.span, victim.stamp, point)) ||
            !idle_.claim(victim, job, taken)) {
            return false;
        }
        port_.lend(victim.begin(), taken, victim.bytes());
        port_.come_back(span.slot_begin(slot), taken, span.slot_bytes());
        stale_.turn(*old, {victim.span, victim.slot, taken, victim.stamp});
        Slots::put_frame(span, slot, taken, 0);
        return true;
    }
    // The frame that has been idle longest, of the wanted size; those whose queue is done come first.
    outcome take(frame_errand& job, idle_slot& from, port_frame& taken) noexcept {
        idle_.list(users_, job);
        while (!idle_.wanted().empty()) {
            const idle_slot victim = idle_.pop(idle_.wanted());
            ticket point;
            const bool is_finished = Slots::is_finished(port_, *victim.span, victim.stamp, point);
            const bool is_aliased =
                port_.can_alias() && stale_.has_room() && can_lend(job, victim, is_finished);
            if (!is_finished && !is_aliased) {
                job.note_unfinished(point);
                continue;
            }
            if (!idle_.claim(victim, job, taken)) {
                continue;
            }
            if (is_aliased) {
                port_.lend(victim.begin(), taken, victim.bytes());
                stale_.push({victim.span, victim.slot, taken, victim.stamp});
            } else {
                port_.unmap(victim.begin(), taken, victim.bytes());
            }
            from = victim;
            return outcome::done;
        }
        return job.none_left(patience_);
    }
    // No frame of the wanted size is idle: idle ones of other sizes make room, as far as there are any.
    outcome create_for_others(frame_errand& job, std::size_t bytes, port_frame& made) noexcept {
        for (;;) {
            const bool has_room = budget_.has_room(bytes, job.limit) && job.why.is_ok();
            const outcome dropped =
                has_room ? outcome::none : dropper_.drop_coldest(job, idle_.others());
            if (dropped == outcome::wait) {
                return dropped;
            }
            if (dropped == outcome::none || !job.why.is_ok()) {
                if (create(job, bytes, made)) {
                    return outcome::done;
                }
                if (dropped == outcome::none && idle_.others().empty()) {
                    return outcome::none;
                }
            }
        }
    }
    // Work of the same queue comes in order, so only what looks the slot up when its turn comes is in the way.
    [[nodiscard]] bool can_lend(const frame_errand& job, const idle_slot& victim,
                                bool is_finished) const noexcept {
        return is_finished || (&victim.span->user() == job.own && port_.is_quiet(victim.begin()));
    }

    frame_port& port_;
    frame_users<Slots>& users_;
    frame_budget& budget_;
    idle_slots<Slots>& idle_;
    stale_mappings& stale_;
    frame_dropper<Slots>& dropper_;
    const unsigned patience_;
};

}  // namespace xmm
