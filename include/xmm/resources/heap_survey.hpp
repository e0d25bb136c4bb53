// SPDX-License-Identifier: Apache-2.0
// heap_survey.hpp - takes the snapshot of a heap: its frames, what lies in them, what was recorded until now.
//
// Model    Frames first, with the small blocks in them, by their marks; then the blocks of each shelf's extent
//          heap; then what was given back and is not free yet. Each part is exact; blocks that come and go
//          meanwhile may be missed.
// Threads  Any. Each part is read under its own lock: device_frames, then each extent heap's, then leaves.
// Failure  Throws std::bad_alloc.
// See      heap_snapshot.hpp puts it together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <xmm/core/types.hpp>
#include <xmm/resources/block_points.hpp>
#include <xmm/resources/heap_shelf.hpp>
#include <xmm/resources/heap_snapshot.hpp>
#include <xmm/resources/heap_state.hpp>
#include <xmm/resources/returned_blocks.hpp>

namespace xmm {

class heap_survey {
public:
    heap_survey(heap_state& heap, const returned_blocks& returned) noexcept
        : heap_{heap}, returned_{returned} {}

    [[nodiscard]] heap_snapshot take(node_id node) {
        heap_.journal.recorder().record(trace_action::snapshot, 0, 0);
        heap_snapshot taken;
        taken.node = node;
        taken.trace = heap_.journal.recorder().trace();
        add_frames();
        heap_.shelves.for_each([&](heap_shelf& one) { add_blocks_of(one); });
        add_returned();
        builder_.add_blocks_of(taken.trace);  // for what was asked for of small blocks
        taken.segments = builder_.build();
        return taken;
    }

private:
    struct seen_frame {
        va_range slot;
        segment_owner owner;
    };
    // As many as there is room for; all of them are counted.
    template <class T>
    class noted {
    public:
        // With room for what was counted the last time, and some more.
        void begin() {
            list_.clear();
            list_.reserve(count_ + count_ / 8);
            count_ = 0;
        }
        void add(const T& one) noexcept {
            if (count_++ < list_.capacity()) {
                list_.push_back(one);
            }
        }
        [[nodiscard]] bool has_all() const noexcept { return count_ == list_.size(); }
        [[nodiscard]] const std::vector<T>& list() const noexcept { return list_; }

    private:
        std::vector<T> list_;
        std::size_t count_ = 0;
    };

    // Counted and noted under the lock of the frames, where nothing may be allocated; anew where more came meanwhile.
    void add_frames() {
        noted<seen_frame> frames;
        noted<va_range> blocks;
        do {
            frames.begin();
            blocks.begin();
            heap_.frames.for_each_frame([&](va_range slot, const frame_user& user) {
                frames.add({slot,
                            {.stream = user.queue().value,
                             .tag = static_cast<std::uint16_t>(user.tag()),
                             .is_small = user.is_of_one_span()}});
                // A span that has frames still has its note: that goes after them.
                if (const span_note* note = heap_.notes.find(slot.begin);
                    note != nullptr && note->is_small()) {
                    note->marks.for_each(slot, [&](va_range block) { blocks.add(block); });
                }
            });
        } while (!frames.has_all() || !blocks.has_all());
        for (const seen_frame& one : frames.list()) {
            builder_.add_frame(one.slot, one.owner);
        }
        for (const va_range block : blocks.list()) {
            builder_.add_block(block, block.bytes, block_state::active_allocated);
        }
    }
    void add_blocks_of(heap_shelf& home) {
        home.large.for_each_extent([&](const extent& one) {
            if (!one.is_free) {
                builder_.add_block(one.range, one.requested,
                                   one.is_pending ? block_state::active_pending_free
                                                  : block_state::active_allocated);
            }
        });
    }
    void add_returned() {
        returned_.for_each([&](const pending_block& one) {
            if (one.block.block_class >= 0) {  // of the others the extent heap has told
                builder_.add_block({one.block.at, one.block.bytes}, one.block.requested,
                                   block_state::active_pending_free);
            }
        });
    }

    heap_state& heap_;
    const returned_blocks& returned_;
    snapshot_builder builder_;
};

}  // namespace xmm
