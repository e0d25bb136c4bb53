// SPDX-License-Identifier: Apache-2.0
// frame_trimmer.hpp - frames that nobody needs go: of a whole device down to a size, or of one span.
//
// Model    A round drops what can go under the lock; then it pauses without it, for a queue or for whoever has a lock,
//          and the next round begins. A span that is given back for good is waited for as long as its queue can
//          tell; after that the queue counts as over.
//          Slots is what device_frames lets its parts do with a user and its spans.
// Threads  Any. Takes the lock of device_frames for each round, and waits without it. A span's user's lock is held.
// Failure  Where the port cannot say how far a queue is, some frames are left; empty() leaves none.
// See      frame_dropper.hpp drops one.
#pragma once

#include <cstddef>
#include <cstdint>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>
#include <xmm/resources/frame_budget.hpp>
#include <xmm/resources/frame_dropper.hpp>
#include <xmm/resources/frame_errand.hpp>
#include <xmm/resources/frame_port.hpp>
#include <xmm/resources/frame_users.hpp>
#include <xmm/resources/idle_slots.hpp>
#include <xmm/resources/slot_span.hpp>

namespace xmm {

template <class Slots>
class frame_trimmer {
public:
    using lock_type = ranked_mutex<lock_rank::device_frames>;
    using outcome = frame_errand::outcome;

    frame_trimmer(lock_type& lock, frame_port& port, frame_users<Slots>& users,
                  frame_budget& budget, idle_slots<Slots>& idle, frame_dropper<Slots>& dropper,
                  unsigned patience) noexcept
        : lock_{lock},
          port_{port},
          users_{users},
          budget_{budget},
          idle_{idle},
          dropper_{dropper},
          patience_{patience} {}

    // Idle frames of users with that tag (null: of all), the longest idle first, until at most keep_bytes are left.
    // Answers how many bytes went.
    std::size_t trim(std::size_t keep_bytes, const std::uint32_t* tag, bool may_wait) noexcept {
        frame_errand job;
        job.tag = tag;
        std::size_t dropped = 0;
        for (;;) {
            outcome end = outcome::none;
            with(lock_, [&] {
                job.is_listed = false;
                idle_.list(users_, job);
                while (budget_.reserved_bytes() > keep_bytes) {
                    const std::size_t before = budget_.reserved_bytes();
                    end = dropper_.drop_coldest(job, idle_.others());
                    if (end != outcome::done) {
                        break;
                    }
                    dropped += before - budget_.reserved_bytes();
                    end = outcome::none;
                }
            });
            if (end != outcome::wait || !may_wait || !pause(job)) {
                return dropped;
            }
        }
    }
    // All frames of a span without a block. False: some are left.
    [[nodiscard]] bool try_empty(slot_span& span) noexcept {
        for (;;) {
            frame_errand job;
            job.own = &span.user();
            if (with(lock_, [&] { return dropper_.clear(span, job.until); })) {
                return true;
            }
            if (job.until.value == 0) {
                return false;
            }
            if (const status waited = pause(job); is_over(waited.code)) {
                count_as_done(span.user());
            } else if (!waited) {
                return false;
            }
        }
    }
    // The same, and none is left.
    void empty(slot_span& span) noexcept {
        frame_errand job;
        job.own = &span.user();
        while (!with(lock_, [&] { return dropper_.clear(span, job.until); })) {
            if (Slots::is_lost(span.user()) || !pause_for_good(job)) {
                // All that is left is of this queue: a frame goes to another one only when nothing uses it.
                count_as_done(span.user());
            }
        }
    }
    // Between two rounds of any errand.
    status pause(frame_errand& job) noexcept {
        if (job.until.value != 0) {
            with(lock_, [&] { budget_.note_wait(); });
        }
        return job.pause(port_);
    }

private:
    // False: the queue is over, or counts as over.
    bool pause_for_good(frame_errand& job) noexcept {
        const status waited = pause(job);
        if (is_over(waited.code)) {
            return false;
        }
        if (!waited) {
            job.until = {};  // no answer, as if the port could not tell
            (void)pause(job);
        }
        return job.retries < patience_;
    }
    void count_as_done(frame_user& user) noexcept {
        with(lock_, [&] { Slots::set_reached(user); });
    }

    lock_type& lock_;
    frame_port& port_;
    frame_users<Slots>& users_;
    frame_budget& budget_;
    idle_slots<Slots>& idle_;
    frame_dropper<Slots>& dropper_;
    const unsigned patience_;
};

}  // namespace xmm
