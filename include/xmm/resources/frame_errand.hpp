// SPDX-License-Identifier: Apache-2.0
// frame_errand.hpp - one search for frames: for whom it is, what it passed by, and what it waits for.
//
// Model    A search goes over the idle slots under the lock of device_frames. What it passes by - a user whose lock
//          is taken, a slot whose queue is not done - it notes; when nothing else is left it pauses without
//          the lock, and begins anew.
// Threads  One: that of the call it belongs to.
// Failure  pause: as the port's wait.
// See      idle_slots.hpp, frame_giver.hpp.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>

#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/resources/frame_port.hpp>
#include <xmm/resources/slot_span.hpp>

namespace xmm {

struct frame_errand {
    enum class outcome { done, wait, none };

    // Yields between rounds, then naps; who holds no lock may go on for longer.
    static constexpr unsigned most_retries = 64;

    frame_user* own = nullptr;           // its lock is held
    const std::uint32_t* tag = nullptr;  // ask users with this tag only
    std::size_t slot_bytes = 0;          // the size that can be taken as it is
    std::size_t limit = 0;               // of frames, up to which more are made
    bool is_listed = false;              // in this round
    bool has_skipped = false;            // a user was busy
    bool has_unfinished = false;         // a queue was
    unsigned retries = 0;
    ticket until;  // to wait for; value 0: try again
    status why;

    void begin_list() noexcept {
        is_listed = true;
        has_skipped = false;
        has_unfinished = false;
        until = {};
    }
    // The first that was passed by is the one that has been idle longest.
    void note_unfinished(ticket point) noexcept {
        until = has_unfinished ? until : point;
        has_unfinished = true;
    }
    // All that could be taken has been: is there something to wait for?
    [[nodiscard]] outcome none_left(unsigned patience) noexcept {
        if (has_unfinished && until.value != 0) {
            return outcome::wait;
        }
        const bool is_worth_it = has_unfinished || has_skipped;
        until = {};
        // Who holds no lock can wait for those that do: they may be waiting for a queue. A queue that cannot be asked
        // (during a capture, maybe this thread's) is not worth that.
        const unsigned free_hands = has_skipped ? patience : 2 * most_retries;
        const unsigned most = own != nullptr ? most_retries : free_hands;
        return is_worth_it && retries < most ? outcome::wait : outcome::none;
    }
    // Without the lock.
    status pause(frame_port& port) noexcept {
        if (until.value != 0) {
            return port.wait(until);
        }
        nap(++retries);
        return {};
    }
    // Whoever has that lock may be waiting for ours, or for a queue.
    static void nap(unsigned tries) noexcept {
        if (tries < most_retries) {
            std::this_thread::yield();
        } else {
            std::this_thread::sleep_for(std::chrono::milliseconds{1});
        }
    }
};

}  // namespace xmm
