// SPDX-License-Identifier: Apache-2.0
// frame_stock.hpp - where the frames of a node come from and where they go back to.
//
// Model    Where frames are owned, that is the node's pool. Where a driver owns the pages (a steered node) it is
//          nothing but the ledger: a stand-in is a record of a frame with handle 0, and says that we have told the
//          driver to keep so many bytes there. So pages, lists and reclaim are the same for both.
// Threads  Any; the page lock may be held.
// Failure  As frame_pool::take.
#pragma once

#include <utility>

#include <xmm/mapping/node.hpp>
#include <xmm/mapping/slab.hpp>

namespace xmm {

// Whose driver owns the pages, and moves them when told: all nodes of a space, or none.
[[nodiscard]] inline bool is_steered(const node& one) noexcept { return !one.driver.has_frames(); }

class frame_stock {
public:
    [[nodiscard]] result<frame_record*> take(node& from, std::size_t bytes) noexcept {
        return is_steered(from) ? take_stand_in(from, bytes) : from.pool.take(bytes);
    }
    // The same, counted among those that are coming until it has an owner, or is given back.
    [[nodiscard]] result<frame_record*> take_counted(node& from, std::size_t bytes) noexcept {
        // relaxed: who looks for it has found the pool empty, and so sees it. Before the frame leaves the pool.
        from.coming.fetch_add(1, std::memory_order_relaxed);
        result<frame_record*> taken = take(from, bytes);
        if (taken) {
            (*taken)->is_coming = true;
        } else {
            from.note_refusal();
        }
        return taken;
    }
    // It backs nothing any more; a stand-in's bytes have left the node.
    void give_back(node& to, frame_record& record) noexcept {
        const bool was_coming = std::exchange(record.is_coming, false);
        if (is_steered(to)) {
            give_back_stand_in(to, record);
        } else {
            to.pool.give_back(record);
        }
        if (was_coming) {
            to.note_arrival();
        }
    }

private:
    void give_back_stand_in(node& to, frame_record& record) noexcept {
        XMM_ASSERT(record.owner == nullptr, "a stand-in given back still backs pages");
        to.book->release(record.backing.bytes);
        record.backing = {};
        stand_ins_.give_back(&record);
    }
    result<frame_record*> take_stand_in(node& from, std::size_t bytes) noexcept {
        while (!from.book->try_reserve(bytes)) {
            // Pools of other spaces may keep frames of a host.
            if (!from.book->drop_free_frame()) {
                return fail(errc::no_memory, "the node's budget is used up");
            }
        }
        frame_record* made = stand_ins_.make();
        if (made == nullptr) {
            from.book->release(bytes);
            return fail(errc::no_memory, "the host has no memory for a frame's record");
        }
        made->backing = {.bytes = bytes, .node = from.id};
        made->slot = from.slot;
        made->is_host = from.is_host;
        made->is_coming = false;
        made->owner = nullptr;
        made->placed_ns = 0;
        made->link = {};
        return made;
    }

    slab<frame_record> stand_ins_;
};

}  // namespace xmm
