// SPDX-License-Identifier: Apache-2.0
// frame_dropper.hpp - frames that go back to the device: one, that of a slot, the coldest idle one, a span's.
//
// Model    A frame goes when no work uses its slot, nor a slot that it is still mapped at (stale).
//          Slots is what device_frames lets its parts do with a user and its spans.
// Threads  The lock of device_frames guards it. drop_slot and clear: the user's lock is held as well.
// Failure  What a queue may still use stays, and the errand knows what to wait for.
// See      idle_slots.hpp, stale_mappings.hpp.
#pragma once

#include <cstddef>

#include <xmm/core/config.hpp>
#include <xmm/core/types.hpp>
#include <xmm/resources/frame_budget.hpp>
#include <xmm/resources/frame_errand.hpp>
#include <xmm/resources/frame_port.hpp>
#include <xmm/resources/idle_slots.hpp>
#include <xmm/resources/slot_span.hpp>
#include <xmm/resources/stale_mappings.hpp>

namespace xmm {

template <class Slots>
class frame_dropper {
public:
    using outcome = frame_errand::outcome;

    // `patience`: see device_frames_options.
    frame_dropper(frame_port& port, frame_budget& budget, idle_slots<Slots>& idle,
                  stale_mappings& stale, unsigned patience) noexcept
        : port_{port}, budget_{budget}, idle_{idle}, stale_{stale}, patience_{patience} {}

    // It is mapped nowhere.
    void drop(port_frame frame, std::size_t bytes) noexcept {
        port_.drop(frame, bytes);
        budget_.note_dropped(bytes);
    }
    // It is mapped nowhere else, and nothing uses the slot.
    void drop_slot(slot_span& span, std::size_t slot) noexcept {
        port_.unmap(span.slot_begin(slot), Slots::frame(span, slot), span.slot_bytes());
        drop(Slots::take_frame(span, slot), span.slot_bytes());
    }
    // From one of the lists of idle slots, which is up to date.
    outcome drop_coldest(frame_errand& job, typename idle_slots<Slots>::heap& from) noexcept {
        while (!from.empty()) {
            const idle_slot victim = idle_.pop(from);
            ticket point;
            port_frame taken;
            const bool is_finished =
                Slots::is_finished(port_, *victim.span, victim.stamp, point) &&
                stale_.end_of(port_, Slots::frame(*victim.span, victim.slot), point);
            if (!is_finished) {
                job.note_unfinished(point);
            } else if (idle_.claim(victim, job, taken)) {
                port_.unmap(victim.begin(), taken, victim.bytes());
                drop(taken, victim.bytes());
                return outcome::done;
            }
        }
        return job.none_left(patience_);
    }
    // What of a span's frames no work uses; no block is in it. True: none is left, nor a mapping.
    [[nodiscard]] bool clear(slot_span& span, ticket& until) noexcept {
        bool is_empty = true;
        Slots::note_look(span.user());
        for (std::size_t slot = 0; slot < span.slot_count(); ++slot) {
            XMM_ASSERT(!Slots::has_block(span, slot), "a span is released with a block in it");
            if (Slots::is_stale(span, slot) && !stale_.end_at(port_, span, slot, until)) {
                is_empty = false;
            } else if (span.has_frame(slot)) {
                if (Slots::is_finished(port_, span, Slots::stamp_of(span, slot), until) &&
                    stale_.end_of(port_, Slots::frame(span, slot), until)) {
                    drop_slot(span, slot);
                } else {
                    is_empty = false;
                }
            }
        }
        return is_empty;
    }

private:
    frame_port& port_;
    frame_budget& budget_;
    idle_slots<Slots>& idle_;
    stale_mappings& stale_;
    const unsigned patience_;
};

}  // namespace xmm
