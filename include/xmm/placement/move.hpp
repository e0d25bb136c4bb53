// SPDX-License-Identifier: Apache-2.0
// move.hpp - the one way a page changes its place: fault, prefetch, reclaim, hints and copies use it.
//
// Model    A mover claims a granule (transit), gets a frame for it, and hands both over here: take write
//          access from all accessors, copy between standing addresses, then flip under the page lock:
//          clear the old mappings, change the record, enter the new mapping, wake who waits. An optional
//          move that was written to meanwhile drops the copy and leaves the page where it is.
// Threads  Any. No lock is held across a copy; page locks of a batch are taken in address order.
// Failure  All or nothing for each granule: on failure its data and record are as before and the new frame
//          is back in its pool. Mappings may be fewer or read-only: the next access asks for them again.
// See      page_parts.hpp: the steps that it takes; steered.hpp: pages that a driver owns; arena_frames.hpp: those of
//          allocators; contents.hpp: the copies.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <utility>

#include <xmm/placement/arena_frames.hpp>
#include <xmm/placement/contents.hpp>

namespace xmm {

class mover : public arena_frames {
public:
    using arena_frames::arena_frames;

    // Moves all of a batch, first touches included, and ends their transits. `is_quiet` work yields the
    // link to faults until somebody waits for one of the granules. Returns how many arrived.
    unsigned move(std::span<page_move> batch, bool is_quiet) noexcept {
        XMM_ASSERT(batch.size() <= max_batch, "batch too long");
        for (page_move& one : batch) {
            one.bytes = one.to->backing.bytes;
            one.outcome = take_write_access(*one.moved, one.keeps_copy);
            if (one.keeps_copy && is_steered(space_.at_slot(one.to->slot))) {
                // Copies of pages that devices are told to map take long to go.
                forget_mappings(one.moved->va);
            }
        }
        contents_.bring(batch, is_quiet);
        return flip(batch);
    }

    // With the page lock: whether no unfinished launch depends on a mapping that its device, since it takes
    // no faults, could not ask for again. A driver that owns the pages would bring them back, uncounted.
    [[nodiscard]] bool can_lose_mappings_locked(const granule& one) noexcept {
        for (unsigned slot = space_.host_count();
             slot < space_.node_count() && one.is_firmly_used(); ++slot) {
            const node& device = space_.at_slot(slot);
            if (one.mapped[slot] != access::none &&
                (is_steered(device) || !device.can(ability::moves_under_access))) {
                return false;
            }
        }
        return true;
    }

    // With the page lock: leaves one frame of a duplicated granule, on that slot, mapped nowhere.
    status collapse_locked(granule& one, unsigned keep) noexcept {
        XMM_ASSERT(one.frames[keep] != nullptr, "collapsed onto a node without a copy");
        if (status ended = end_copies_locked(one, false); !ended) {
            return ended;
        }
        if (status cleared = clear_all_locked(one); !cleared) {
            return cleared;
        }
        for (unsigned slot = 0; slot < max_slots; ++slot) {
            if (slot != keep && one.frames[slot] != nullptr) {
                drop_frame_locked(one, slot);
            }
        }
        set_home_locked(one, residency_step::collapse, keep);
        one.check_locked();
        return {};
    }

    // With the page lock: drops the clean copy on that slot, which is not the home.
    status drop_copy_locked(granule& one, unsigned slot) noexcept {
        XMM_ASSERT(one.current() == residency::duplicated && one.home != slot, "not a clean copy");
        if (status ended = end_copies_locked(one, count_frames(one) > 2); !ended) {
            return ended;
        }
        // A host's copy may be mapped by the CPU and by devices without one of their own.
        const status cleared =
            space_.at_slot(slot).is_host ? clear_all_locked(one) : clear_locked(one, slot);
        if (!cleared) {
            return cleared;
        }
        drop_frame_locked(one, slot);
        if (count_frames(one) == 1) {
            set_home_locked(one, residency_step::collapse, one.home);
        }
        one.check_locked();
        return {};
    }

    // The CPU's mappings in a region that leaves, all at once and without the locks of its pages: nobody may use it
    // any more. The pages do not know of it; it spares them a call that was refused.
    [[nodiscard]] bool clear_for_cpu(va_range region) noexcept {
        return clear(space_.at_slot(cpu_accessor), {&region, 1}).outcome.is_ok();
    }

private:
    // Readers may stay until the flip, where it is cheap to let them; a copy that stays keeps them anyway.
    status take_write_access(granule& one, bool keeps_copy) noexcept {
        std::lock_guard guard{one.lock};
        for (unsigned accessor = 0; accessor < space_.node_count(); ++accessor) {
            if (!has_write(one.mapped[accessor])) {
                continue;
            }
            const bool is_cleared = !keeps_copy && space_.at_slot(accessor).about.is_lowering_dear;
            const status lowered = is_cleared ? clear_locked(one, accessor)
                                              : enter_locked(one, accessor, access::read);
            if (!lowered) {
                return lowered;
            }
        }
        return {};
    }

    // ---- flip

    unsigned flip(std::span<page_move> batch) noexcept {
        std::array<page_move*, max_batch> order;
        for (std::size_t i = 0; i < batch.size(); ++i) {
            order[i] = &batch[i];
        }
        const std::span<page_move*> sorted{order.data(), batch.size()};
        std::sort(sorted.begin(), sorted.end(), [](const page_move* a, const page_move* b) {
            return std::less<>{}(a->moved, b->moved);  // as the ranks are checked
        });
        std::array<frame_record*, max_batch> freed;
        unsigned freed_count = 0;
        std::array<node*, max_batch> reached;  // by frames that were counted on their way
        unsigned reached_count = 0;
        unsigned arrived = 0;

        for (page_move* one : sorted) {
            one->moved->lock.lock();
        }
        for (page_move* one : sorted) {
            if (one->outcome && one->moved->is_optional && one->moved->was_touched) {
                one->outcome = fail(errc::busy, "written to while it was on its way");
                space_.at_slot(one->to->slot).moves_given_up.add(1);
            }
        }
        clear_old_mappings(sorted);
        for (page_move* one : sorted) {
            if (one->outcome) {
                frame_record* old = change_record_locked(*one);
                if (old != nullptr) {
                    freed[freed_count++] = old;
                }
                ++arrived;
                if (std::exchange(one->to->is_coming, false)) {
                    reached[reached_count++] = &space_.at_slot(one->to->slot);
                }
            } else {
                freed[freed_count++] = one->to;
                relink_locked(*one->moved);
                if (one->keeps_copy && one->moved->current() != residency::duplicated) {
                    static_cast<void>(tell_end_of_copies(*one->moved));
                }
            }
        }
        enter_new_mappings(sorted);
        for (page_move* one : sorted) {
            one->moved->check_locked();
            one->moved->end_transit_locked();
            one->moved->lock.unlock();
        }
        for (unsigned i = 0; i < freed_count; ++i) {
            stock_.give_back(space_.at_slot(freed[i]->slot), *freed[i]);
        }
        for (unsigned i = 0; i < reached_count; ++i) {
            reached[i]->note_arrival();
        }
        return arrived;
    }

    // One call an accessor. What could not be cleared stays where it is.
    void clear_old_mappings(std::span<page_move*> sorted) noexcept {
        std::array<va_range, max_batch> ranges;
        std::array<page_move*, max_batch> owners;
        for (unsigned accessor = 0; accessor < space_.node_count(); ++accessor) {
            unsigned count = 0;
            for (page_move* one : sorted) {
                // A copy that stays keeps its readers, except those that are to see the new frame: its own
                // accessor, and, since hosts' frames stand in for each other, who has none of its own.
                const bool is_stand_in =
                    one->to->is_host && one->moved->frames[accessor] == nullptr;
                const bool goes = !one->keeps_copy || accessor == one->to->slot || is_stand_in;
                if (one->outcome && goes && one->moved->mapped[accessor] != access::none) {
                    ranges[count] = one->moved->va;
                    owners[count++] = one;
                }
            }
            if (count == 0) {
                continue;
            }
            node& at = space_.at_slot(accessor);
            for (unsigned i = 0; i < count; ++i) {
                look_for_users(at, ranges[i]);
            }
            const progress cleared = clear(at, {ranges.data(), count});
            for (unsigned i = 0; i < count; ++i) {
                if (i < cleared.done) {
                    owners[i]->moved->mapped[accessor] = access::none;
                } else {
                    owners[i]->outcome = cleared.outcome;
                }
            }
        }
    }

    // Returns the frame that is free now, if one is.
    frame_record* change_record_locked(page_move& one) noexcept {
        granule& page = *one.moved;
        frame_record* old = page.home_frame();
        node& target = space_.at_slot(one.to->slot);
        one.to->owner = &page;
        one.to->backing.zeroed &= old == nullptr && !one.is_overwritten;
        page.frames[one.to->slot] = one.to;
        target.active.move_to_recent(*one.to);
        if (is_steered(target)) {
            note_placed_locked(page, target);
        }
        if (one.keeps_copy && old != nullptr) {
            page.step_locked(residency_step::duplicate, residency::duplicated);
            relink_locked(page);
            // A driver that owns the pages gives devices that read over the link copies from now on: they ask again.
            for (unsigned slot = space_.host_count();
                 slot < space_.node_count() && is_steered(target); ++slot) {
                page.mapped[slot] = page.frames[slot] != nullptr ? page.mapped[slot] : access::none;
            }
            return nullptr;
        }
        const auto step = old != nullptr ? residency_step::move : residency_step::first_touch;
        if (old != nullptr) {
            unlink_locked(page, page.home);
        } else {
            target.first_touches.add(page.va.bytes / page_bytes);
        }
        page.home = one.to->slot;
        page.step_locked(step, target.is_host ? residency::on_host : residency::on_device);
        return old;
    }

    void enter_new_mappings(std::span<page_move*> sorted) noexcept {
        std::array<run, max_batch> runs;
        std::array<page_move*, max_batch> owners;
        for (unsigned accessor = 0; accessor < space_.node_count(); ++accessor) {
            unsigned count = 0;
            for (page_move* one : sorted) {
                if (one->outcome && one->accessor == accessor &&
                    clear_other_views_locked(*one->moved, accessor)) {
                    if (frame_record* seen = visible_frame(*one->moved, accessor)) {
                        runs[count] = {one->moved->va, seen->backing, one->who};
                        owners[count++] = one;
                    }
                }
            }
            if (count > 0) {
                node& at = space_.at_slot(accessor);
                const progress entered = enter(at, {runs.data(), count});
                for (std::size_t i = 0; i < entered.done; ++i) {
                    visible_frame(*owners[i]->moved, accessor)->backing.zeroed = false;
                    owners[i]->moved->mapped[accessor] = runs[i].who;
                }
                // The rest has arrived all the same; its first access faults and asks again.
            }
        }
    }
};

}  // namespace xmm
