// SPDX-License-Identifier: Apache-2.0
// heap_state.hpp - what the parts of one device's malloc share, from the port up to the shelves.
//
// Model    Shelves draw on the frames, these on the port; the journal is told of it all, and the notes know which
//          shelf has which addresses. The parts above (small_stock, returned_blocks, malloc_ladder, heap_survey)
//          are made with it, and keep nothing of it for themselves.
// Threads  Any: each member guards itself, with the lock that its own header names.
// Failure  None of its own.
// See      xpu_malloc.hpp owns it, and the parts.
#pragma once

#include <cstddef>

#include <xmm/core/types.hpp>
#include <xmm/resources/device_frames.hpp>
#include <xmm/resources/flush_epoch.hpp>
#include <xmm/resources/frame_port.hpp>
#include <xmm/resources/heap_journal.hpp>
#include <xmm/resources/heap_shelf.hpp>
#include <xmm/resources/malloc_request.hpp>
#include <xmm/resources/span_notes.hpp>
#include <xmm/resources/trace_recorder.hpp>
#include <xmm/resources/watched_port.hpp>

namespace xmm {

struct heap_state {
    // The port outlives it.
    heap_state(frame_port& to, device_frames_options chosen, bool uses_jemalloc) noexcept
        : port{to, journal.statistics(), &note_frame, this},
          frames{port, chosen, &notes},
          shelves{frames, uses_jemalloc} {}
    heap_state(const heap_state&) = delete;
    heap_state& operator=(const heap_state&) = delete;

    // In this order: each uses those before it, and goes before them.
    heap_journal journal;
    flush_epoch flushes;
    span_notes notes{flushes};
    watched_port port;
    device_frames frames;
    shelf_table shelves;

private:
    static void note_frame(void* self, trace_action action, address slot,
                           std::size_t bytes) noexcept {
        auto& heap = *static_cast<heap_state*>(self);
        if (heap.journal.is_recording()) {
            const span_note* note = heap.notes.find(slot);
            const queue_id queue = note != nullptr ? note->owner()->queue() : queue_id{};
            const pool_tag tag = note != nullptr ? note->owner()->tag : pool_tag{};
            heap.journal.recorder().record(action, slot, bytes, queue.value, tag.value);
        }
    }
};

}  // namespace xmm
