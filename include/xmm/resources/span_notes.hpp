// SPDX-License-Identifier: Apache-2.0
// span_notes.hpp - from an address to what a heap knows of it: the shelf that has it, and the block around it.
//
// Model    Each reservation has a note in a tree over addresses, from before its first block until its last is gone;
//          a reservation of small blocks has marks as well, and its note is on a list of its shelf.
// Threads  Any. A look-up takes no lock; find_block takes the shelf's. Notes come and go under the lock of their
//          reservation's frame user, which device_frames holds when it tells.
// Failure  A reservation that there is no memory to note fails.
// See      heap_shelf.hpp has the note itself; block_marks.hpp the marks.
#pragma once

#include <xmm/core/lock.hpp>
#include <xmm/core/types.hpp>
#include <xmm/mapping/radix_tree.hpp>
#include <xmm/mapping/slab.hpp>
#include <xmm/resources/device_frames.hpp>
#include <xmm/resources/flush_epoch.hpp>
#include <xmm/resources/heap_shelf.hpp>

namespace xmm {

class span_notes final : public span_observer {
public:
    // It tells desks to forget the marks of spans that go.
    explicit span_notes(flush_epoch& flushes) noexcept : flushes_{flushes} {}

    // Null: no address of this heap.
    [[nodiscard]] span_note* find(address at) const noexcept { return spans_.find(at); }

    struct noted_block {
        const heap_shelf* home = nullptr;  // null: no block in the program's hands is there
        va_range range;
    };
    // The block around an address. Whoever asks may have no block there, so that others may give the addresses
    // back meanwhile and the note serve other ones. A shelf stays, and under its lock no note of its small blocks goes.
    [[nodiscard]] noted_block find_block(address at) const noexcept {
        const span_note* note = find(at);
        if (note == nullptr) {
            return {};
        }
        heap_shelf& home = *note->owner();
        va_range range;
        if (note->is_small()) {
            with(home.lock, [&] {
                if (find(at) == note && note->owner() == &home && note->is_small()) {
                    range = note->marks.find(at);
                }
            });
        } else {
            range = home.large.find_inside(to_pointer(at));
        }
        return range.is_empty() ? noted_block{} : noted_block{&home, range};
    }

    bool reserved(const slot_span& span) noexcept override {
        const frame_user& user = span.user();
        // Not looked up: it may be changing hands.
        auto* owner = static_cast<heap_shelf*>(user.owner());
        span_note* note = owner != nullptr ? notes_.make() : nullptr;
        if (note == nullptr) {
            return false;
        }
        note->set(*owner, user.is_of_one_span());
        if ((note->is_small() && !note->marks.open(span.range())) ||
            !spans_.insert(span.range(), *note)) {
            drop(*note);
            return false;
        }
        if (note->is_small()) {
            with(owner->lock, [&] { owner->small_notes.push_back(*note); });
        }
        return true;
    }
    void released(const slot_span& span) noexcept override {
        span_note* note = find(span.range().begin);
        spans_.erase(span.range());
        if (note->is_small()) {
            flushes_.ask_for_flush();
            with(note->owner()->lock, [&] { note->owner()->small_notes.remove(*note); });
        }
        drop(*note);
    }

private:
    void drop(span_note& note) noexcept {
        note.marks.close();
        notes_.give_back(&note);
    }

    flush_epoch& flushes_;
    radix_tree<span_note> spans_;
    slab<span_note> notes_;
};

}  // namespace xmm
