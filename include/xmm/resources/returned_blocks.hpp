// SPDX-License-Identifier: Apache-2.0
// returned_blocks.hpp - what the program gave back: taken from its hands, waiting for queues, then free.
//
// Model    take: the program has the block no more. Then it is free at once, or it waits for points of queues
//          (waiting), or for queues that cannot say now how far they are (parked). finish: back on its shelf, or in
//          the thread's magazine. Whoever comes by drains what has become free.
// Threads  Any. The two lists have a lock each (rank leaf); between them and its shelf a block is a piece of work in
//          hand. Queues are asked and waited for without a lock.
// Failure  give_back, park: the block stays the program's, with a status that says why. Without host memory to
//          remember a block its queues are waited for.
// See      block_points.hpp says for what a block waits.
#pragma once

#include <cstddef>

#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/mapping/slab.hpp>
#include <xmm/os/registry.hpp>
#include <xmm/resources/block_classes.hpp>
#include <xmm/resources/block_points.hpp>
#include <xmm/resources/heap_desk.hpp>
#include <xmm/resources/heap_shelf.hpp>
#include <xmm/resources/heap_state.hpp>
#include <xmm/resources/parked_blocks.hpp>
#include <xmm/resources/small_stock.hpp>
#include <xmm/resources/work_in_hand.hpp>

namespace xmm {

class returned_blocks {
public:
    returned_blocks(heap_state& heap, small_stock& small) noexcept
        : heap_{heap}, small_{small}, points_{heap.port} {}

    [[nodiscard]] queue_uses& uses() noexcept { return points_.uses(); }

    // not_mapped: no address of this heap. invalid_argument: no block in the program's hands begins there. Not inlined:
    // who has a cached block passes it by.
    [[gnu::noinline]] status give_back(address at, queue_id last_user, heap_desk* mine) noexcept {
        if (registry::is_forked_child()) {
            return fail(errc::forked, "this is a forked child: the heap is its parent's");
        }
        span_note* note = heap_.notes.find(at);
        if (note == nullptr) {
            return fail(errc::not_mapped, "not a block of this heap");
        }
        const heap_shelf& home = *note->owner();
        pending_block kept;
        if (block_points::is_unordered(home, last_user) || uses().has_any()) {
            if (status known = points_.note(home, at, last_user, kept); !known) {
                // One that is parked has queues that cannot say, but is the program's no more.
                return heap_.notes.find_block(at).home != nullptr ? known : no_block();
            }
        }
        if (!note->is_small() && kept.count == 0 && !heap_.journal.is_recording()) {
            return free_large_at_once(*note, at, mine);
        }
        result<returned_block> taken = take(*note, at, mine);
        if (!taken) {
            return taken.error();
        }
        uses().drop(at);
        if (kept.count == 0) {
            finish(*taken, mine);
        } else {
            kept.block = *taken;
            finish_later(kept, mine);
        }
        return {};
    }
    // give_back failed and said `why`. The program has the block no more; the queues that may use it stay noted for it,
    // the last user among them: so it is known of each whether it ended with all its work done.
    status park(address at, queue_id last_user, status why, heap_desk* mine) noexcept {
        span_note* note = heap_.notes.find(at);
        pending_block* record = note != nullptr ? records_.make() : nullptr;
        if (record == nullptr) {
            return why;
        }
        const work_in_hand::piece ours{in_hand_};
        *record = {};
        result<returned_block> taken = take_for_later(*note, at, last_user, why, mine);
        if (!taken) {
            records_.give_back(record);
            return taken.error();
        }
        record->block = *taken;
        if (!try_settle(*record, mine)) {
            parked_.add(*record, record->block.refuser);
        }
        return {};
    }

    // Takes what has become free.
    void drain(heap_desk* mine) noexcept {
        if (parked_.has_any() || waiting_.has_any()) {
            drain_by(mine, [&](pending_list& over) { waiting_.take_finished(heap_.port, over); });
        }
    }
    // Also what other threads are about to take. A block that one of them puts into the next line is found there.
    void await_and_drain(heap_desk* mine) noexcept {
        for (unsigned lines = 0; lines <= pending_block::most_points; ++lines) {
            drain_by(mine, [&](pending_list& all) {
                if (waiting_.has_any() && waiting_.await_all(heap_.port, all)) {
                    heap_.journal.statistics().count(heap_count::sync_all_streams);
                }
            });
            if (!in_hand_.await()) {
                return;
            }
        }
    }
    // fn(const pending_block&) for each that is not free yet, under the list's lock.
    template <class Fn>
    void for_each(Fn&& fn) const {
        waiting_.for_each(fn);
        parked_.for_each(fn);
    }

private:
    static status no_block() noexcept {
        return fail(errc::invalid_argument, "no block begins there, or it was given back already");
    }
    [[nodiscard]] static heap_pool pool_of(const returned_block& one) noexcept {
        return one.block_class < 0 ? heap_pool::large : heap_pool::small;
    }

    // The program has the block no more from here on.
    result<returned_block> take(span_note& note, address at, heap_desk* mine) noexcept {
        returned_block taken{&note, at};
        if (note.is_small()) {
            taken.block_class = note.marks.take(at);
            if (taken.block_class < 0) {
                return no_block();
            }
            taken.bytes = block_classes::bytes_of(static_cast<unsigned>(taken.block_class));
            taken.requested = taken.bytes;
        } else if (!note.owner()->large.begin_free(at, taken.bytes, taken.requested)) {
            return no_block();
        }
        heap_.journal.note(trace_action::free_requested, *note.owner(), at, taken.requested);
        heap_.journal.on_counts(
            mine, [&](auto& counts) { counts.free_requested(pool_of(taken), taken.bytes); });
        return taken;
    }
    result<returned_block> take_for_later(span_note& note, address at, queue_id last_user,
                                          status why, heap_desk* mine) noexcept {
        if (heap_.notes.find_block(at).home == nullptr) {
            return no_block();
        }
        bool is_noted = false;
        if (block_points::is_unordered(*note.owner(), last_user)) {
            const result<ticket> point = heap_.port.record(last_user);
            const bool may_work = point || !is_over(point.code());
            is_noted = may_work && !uses().is_lent(at, last_user);
            if (is_noted && !uses().add(at, last_user)) {
                return why;
            }
        }
        result<returned_block> taken = take(note, at, mine);
        if (!taken && is_noted) {
            uses().drop(
                at, last_user);  // given back twice at once: the next block there was never lent
        }
        return taken;
    }
    // take and finish under one lock. Not while events are recorded: those go before the deed.
    status free_large_at_once(span_note& note, address at, heap_desk* mine) noexcept {
        returned_block one{&note, at};
        // Before: from then on the address, and what is noted for it, may be the next block's.
        uses().drop(at);
        if (!note.owner()->large.try_free(at, one.bytes, one.requested)) {
            return no_block();
        }
        heap_.journal.on_counts(
            mine, [&](auto& counts) { counts.freed(heap_pool::large, one.bytes, one.requested); });
        return {};
    }
    // No work uses the block any more, or only such as the shelf's own queue runs before what comes next.
    void finish(const returned_block& one, heap_desk* mine) noexcept {
        heap_shelf& home = *one.note->owner();
        heap_.journal.note(trace_action::free_completed, home, one.at, one.requested);
        heap_.journal.on_counts(mine, [&](auto& counts) {
            counts.free_completed(pool_of(one), one.bytes, one.requested);
        });
        if (one.block_class < 0) {
            home.large.end_free(one.at);
        } else {
            small_.put_back(home, one.at, static_cast<unsigned>(one.block_class), mine);
        }
    }
    void finish_later(const pending_block& kept, heap_desk* mine) noexcept {
        pending_block* record = records_.make();
        if (record == nullptr) {
            pending_kind::await_points(heap_.port, kept);  // no memory to remember it
            finish(kept.block, mine);
            return;
        }
        *record = kept;
        if (!waiting_.add(*record)) {
            records_.give_back(record);
            pending_kind::await_points(heap_.port, kept);
            finish(kept.block, mine);
        }
    }

    template <class Take>
    void drain_by(heap_desk* mine, Take&& take) noexcept {
        const work_in_hand::piece ours{in_hand_};
        if (parked_.has_any()) {
            ask_again_for_parked(mine);
        }
        pending_list over;
        take(over);
        while (pending_block* one = over.pop_front()) {
            finish(one->block, mine);
            records_.give_back(one);
        }
    }
    // For a block that is parked nowhere. False: a queue, its refuser, cannot say still.
    bool try_settle(pending_block& one, heap_desk* mine) noexcept {
        const returned_block block = one.block;
        one.count = 0;
        if (!points_.note(*block.note->owner(), block.at, {}, one)) {
            return false;
        }
        uses().drop(block.at);
        const pending_block known = one;
        records_.give_back(&one);
        if (known.count == 0) {
            finish(block, mine);
        } else {
            finish_later(known, mine);
        }
        return true;
    }
    void ask_again_for_parked(heap_desk* mine) noexcept {
        pending_list strays;
        parked_.take_strays(strays);
        while (pending_block* one = strays.pop_front()) {
            if (!try_settle(*one, mine)) {
                parked_.add(*one, one->block.refuser);
            }
        }
        queue_id refuser;
        std::size_t line = 0;
        while (pending_block* one = parked_.take_head(line, refuser)) {
            if (try_settle(*one, mine)) {
                continue;
            }
            if (one->block.refuser == refuser) {
                parked_.put_back(*one, refuser);
                ++line;
            } else {
                parked_.add(*one, one->block.refuser);
            }
        }
    }

    heap_state& heap_;
    small_stock& small_;
    block_points points_;
    slab<pending_block> records_;
    pending_kind waiting_;
    parked_blocks<pending_block, pending_list> parked_;
    work_in_hand in_hand_;  // what is in neither of the two, nor back on its shelf
};

}  // namespace xmm
