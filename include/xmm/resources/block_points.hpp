// SPDX-License-Identifier: Apache-2.0
// block_points.hpp - when a block that is given back is free: after which points of which queues.
//
// Model    Work of the block's own queue runs in order, and needs no point. Each other queue that used the block -
//          the last one, and those that it was lent to - is asked for a point now, unless it has done all.
// Threads  Any. The uses are under their own locks; queues are asked without one.
// Failure  note(): what the port says of a queue that cannot tell now (it is being captured, or too much waits in
//          it); busy of one that is gone without a word; invalid_argument of a last user that is another space's. Then
//          nothing is known but that queue, which is the block's refuser, and the block stays as it is. Of a last user
//          that is gone nothing can be said: whoever keeps a block for later notes it as one that the block was lent
//          to.
// See      queue_uses.hpp has who was lent a block, pending_blocks.hpp waits for the points.
#pragma once

#include <algorithm>
#include <cstddef>

#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/resources/frame_port.hpp>
#include <xmm/resources/heap_shelf.hpp>
#include <xmm/resources/pending_blocks.hpp>
#include <xmm/resources/queue_uses.hpp>

namespace xmm {

// What is known of a block that the program has no more.
struct returned_block {
    span_note* note = nullptr;
    address at = 0;
    int block_class = -1;       // -1: of the extent heap
    queue_id refuser{};         // of a parked one: the queue that could not say
    std::size_t bytes = 0;      // as served
    std::size_t requested = 0;  // of small blocks: as served
};
using pending_kind = pending_blocks<returned_block>;
using pending_block = pending_kind::entry;
using pending_list = pending_kind::entry_list;

class block_points {
public:
    explicit block_points(frame_port& port) noexcept : port_{port} {}

    [[nodiscard]] queue_uses& uses() noexcept { return uses_; }
    // Whether that queue runs apart from what the shelf's own does; 0: it does not.
    [[nodiscard]] static bool is_unordered(const heap_shelf& home, queue_id last_user) noexcept {
        return last_user.value != 0 && !(last_user == home.queue());
    }

    // Points after which no queue but the shelf's own uses the block. Most blocks have none, and pass this by.
    [[gnu::noinline]] status note(const heap_shelf& home, address at, queue_id last_user,
                                  pending_block& kept) noexcept {
        queue_uses::queue_list lent;
        std::size_t count = uses_.list(at, lent);
        if (is_unordered(home, last_user) &&
            std::find(lent.begin(), lent.begin() + count, last_user) == lent.begin() + count) {
            if (status noted = note_last_user(last_user, kept); !noted) {
                kept.block.refuser = last_user;
                return noted;
            }
        }
        while (count > 0) {
            if (status noted = note_lender(at, lent[--count], kept); !noted) {
                kept.block.refuser = lent[count];
                return noted;
            }
        }
        return {};
    }

private:
    // One that is over has done all its work, unless it is no queue of ours: of such work nothing can be known.
    status note_last_user(queue_id queue, pending_block& kept) noexcept {
        const status noted = note_point(queue, kept);
        if (noted.code != errc::invalid_argument) {
            return noted;
        }
        return port_.was_ours(queue)
                   ? status{}
                   : fail(errc::invalid_argument, "the queue is none of this space's");
    }
    // When a queue ends with its work done, it is noted no more before it is gone: see xpu_malloc::forget.
    status note_lender(address at, queue_id queue, pending_block& kept) noexcept {
        const status noted = note_point(queue, kept);
        if (noted.code != errc::invalid_argument) {
            return noted;
        }
        return uses_.is_lent(at, queue)
                   ? fail(errc::busy, "a queue that used the block is gone, and may have work left")
                   : status{};
    }
    status note_point(queue_id queue, pending_block& kept) noexcept {
        result<ticket> point = port_.record(queue);
        if (!point) {
            return point.code() == errc::device_lost ? status{} : point.error();
        }
        if (port_.is_done(*point)) {
            return {};
        }
        if (kept.count == pending_block::most_points) {
            return port_.wait(*point);  // a seventh queue is waited for
        }
        kept.points[kept.count++] = *point;
        return {};
    }

    frame_port& port_;
    queue_uses uses_;
};

}  // namespace xmm
