// SPDX-License-Identifier: Apache-2.0
// heap_journal.hpp - what a heap tells of itself: its figures, and the events that a recorder keeps.
//
// Model    A block is counted on the desk of the thread that has it in hand, or, without a desk, on a stripe that
//          such threads share. Moves of frames, and waits for them, are counted where the frames are, and
//          fetched when somebody looks.
// Threads  Any; a desk is its thread's alone. The statistics and the recorder guard themselves.
// Failure  None: an event that finds no memory is lost.
// See      heap_statistics.hpp counts, trace_recorder.hpp records.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <xmm/core/types.hpp>
#include <xmm/resources/device_frames.hpp>
#include <xmm/resources/heap_desk.hpp>
#include <xmm/resources/heap_figures.hpp>
#include <xmm/resources/heap_shelf.hpp>
#include <xmm/resources/heap_statistics.hpp>
#include <xmm/resources/trace_recorder.hpp>

namespace xmm {

class heap_journal {
public:
    [[nodiscard]] heap_statistics& statistics() noexcept { return statistics_; }
    [[nodiscard]] trace_recorder& recorder() noexcept { return recorder_; }
    [[nodiscard]] bool is_recording() const noexcept { return recorder_.is_on(); }

    void note(trace_action action, const heap_shelf& home, address at, std::size_t bytes) noexcept {
        recorder_.record(action, at, bytes, home.queue().value, home.tag.value);
    }
    // fn(stripe&) with the thread's own counts; mine is null where it has no desk.
    template <class Fn>
    void on_counts(heap_desk* mine, Fn&& fn) noexcept {
        if (mine != nullptr) {
            fn(*mine->counts);
        } else {
            statistics_.on_shared(fn);
        }
    }
    void count_given(heap_desk* mine, heap_pool pool, std::size_t bytes,
                     std::size_t requested) noexcept {
        on_counts(mine, [&](auto& counts) { counts.allocated(pool, bytes, requested); });
    }
    [[nodiscard]] heap_figures figures(device_frames& frames) noexcept {
        const frame_counts now = frames.counts();
        count_new(heap_count::frames_moved, now.moved, moves_seen_);
        count_new(heap_count::queue_waits, now.waits, waits_seen_);
        return statistics_.read(frames.idle_bytes());
    }

private:
    // What is new since the last look. relaxed: a number; of two looks at once, the later one makes good what the
    // earlier one took twice.
    void count_new(heap_count what, std::uint64_t now, std::atomic<std::uint64_t>& seen) noexcept {
        statistics_.count(what, now - seen.exchange(now, std::memory_order_relaxed));
    }

    heap_statistics statistics_;
    trace_recorder recorder_;
    std::atomic<std::uint64_t> moves_seen_{0};  // of frames, that statistics_ has, as the next
    std::atomic<std::uint64_t> waits_seen_{0};
};

}  // namespace xmm
