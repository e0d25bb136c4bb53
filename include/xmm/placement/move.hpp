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
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include <xmm/placement/contents.hpp>

namespace xmm {

class mover {
public:
    explicit mover(address_space& space) noexcept : space_{space}, contents_{space} {}

    // Moves all of a batch, first touches included, and ends their transits. `is_quiet` work yields the
    // link to faults until somebody waits for one of the granules. Returns how many arrived.
    unsigned move(std::span<page_move> batch, bool is_quiet) noexcept {
        XMM_ASSERT(batch.size() <= max_batch, "batch too long");
        for (page_move& one : batch) {
            one.bytes = one.to->backing.bytes;
            one.outcome = take_write_access(*one.moved, one.keeps_copy);
        }
        contents_.bring(batch, is_quiet);
        return flip(batch);
    }

    // With the page lock: whether no unfinished launch depends on a mapping that its device, since it takes
    // no faults, could not ask for again.
    [[nodiscard]] bool can_lose_mappings_locked(const granule& one) noexcept {
        for (unsigned slot = space_.host_count();
             slot < space_.node_count() && one.is_firmly_used(); ++slot) {
            if (one.mapped[slot] != access::none &&
                !space_.at_slot(slot).can(ability::moves_under_access)) {
                return false;
            }
        }
        return true;
    }

    // With the page lock: leaves one frame of a duplicated granule, on that slot, mapped nowhere.
    status collapse_locked(granule& one, unsigned keep) noexcept {
        XMM_ASSERT(one.frames[keep] != nullptr, "collapsed onto a node without a copy");
        if (status cleared = clear_all_locked(one); !cleared) {
            return cleared;
        }
        for (unsigned slot = 0; slot < max_slots; ++slot) {
            if (slot != keep && one.frames[slot] != nullptr) {
                drop_frame_locked(one, slot);
            }
        }
        set_home_locked(one, residency_step::collapse, keep);
        return {};
    }

    // With the page lock: drops the clean copy on that slot, which is not the home.
    status drop_copy_locked(granule& one, unsigned slot) noexcept {
        XMM_ASSERT(one.current() == residency::duplicated && one.home != slot, "not a clean copy");
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
        return {};
    }

    // With the page lock: gives up contents, frames and mappings.
    status discard_locked(granule& one, residency_step step, residency to) noexcept {
        if (status cleared = clear_all_locked(one); !cleared) {
            return cleared;
        }
        for (unsigned slot = 0; slot < max_slots; ++slot) {
            if (one.frames[slot] != nullptr) {
                drop_frame_locked(one, slot);
            }
        }
        one.home = no_slot;
        one.step_locked(step, to);
        return {};
    }

    // With the page lock: an untouched granule gets that frame, whatever it holds, and its node's accessor a
    // mapping of it. On failure neither has the other. On no list: what an arena has, reclaim need not see.
    [[nodiscard]] status give_frame_locked(granule& one, frame_record& given) noexcept {
        XMM_ASSERT(one.current() == residency::untouched && !one.has_mapping(),
                   "a granule with a frame got another");
        node& at = space_.at_slot(given.slot);
        given.owner = &one;
        given.backing.zeroed = false;
        one.frames[given.slot] = &given;
        set_home_locked(one, residency_step::first_touch, given.slot);
        status entered = enter_locked(one, at.accessor(), access::read_write);
        if (!entered) {
            static_cast<void>(
                take_frame_locked(one));  // nothing is mapped that could not be cleared
        }
        return entered;
    }
    // With the page lock: parts a granule from its one frame, which backs nothing then; the contents go.
    [[nodiscard]] result<frame_record*> take_frame_locked(granule& one) noexcept {
        XMM_ASSERT(one.home_frame() != nullptr && count_frames(one) == 1, "not a single frame");
        if (status cleared = clear_all_locked(one); !cleared) {
            return cleared;
        }
        frame_record* taken = unlink_locked(one, one.home);
        one.home = no_slot;
        one.step_locked(residency_step::discard, residency::untouched);
        return taken;
    }

    // With the page lock: parts a granule from its one frame, as take_frame_locked; its mappings stay.
    [[nodiscard]] frame_record& lend_frame_locked(granule& one) noexcept {
        XMM_ASSERT(one.home_frame() != nullptr && count_frames(one) == 1, "not a single frame");
        frame_record* lent = unlink_locked(one, one.home);
        one.home = no_slot;
        one.step_locked(residency_step::discard, residency::untouched);
        return *lent;
    }
    // With the page lock: the frame that it lent, and that is mapped there still.
    void take_back_locked(granule& one, frame_record& lent) noexcept {
        XMM_ASSERT(one.current() == residency::untouched, "a granule with a frame got another");
        lent.owner = &one;
        one.frames[lent.slot] = &lent;
        set_home_locked(one, residency_step::first_touch, lent.slot);
    }
    // With the page lock: no mapping is left of what it lent.
    status end_lent_locked(granule& one) noexcept {
        XMM_ASSERT(count_frames(one) == 0, "a granule that has a frame");
        return clear_all_locked(one);
    }

    // With the page lock: lets the accessor reach the frame that is nearest to it.
    status enter_locked(granule& one, unsigned accessor, access who) noexcept {
        if (one.mapped[accessor] == who) {
            return {};
        }
        frame_record* seen = visible_frame(one, accessor);
        XMM_ASSERT(seen != nullptr, "nothing to map");
        const run whole{one.va, seen->backing, who};
        node& at = space_.at_slot(accessor);
        if (status alone = clear_other_views_locked(one, accessor); !alone) {
            return alone;
        }
        if (progress entered = at.driver.pmap_enter(at.id, {&whole, 1}); !entered) {
            return entered.outcome;
        }
        seen->backing.zeroed = false;
        one.mapped[accessor] = who;
        return {};
    }

    // The frame that an accessor would map: its own, else a host's that its driver can map.
    [[nodiscard]] frame_record* visible_frame(granule& one, unsigned accessor) noexcept {
        if (accessor == cpu_accessor) {
            for (unsigned slot = 0; slot < space_.host_count(); ++slot) {
                if (one.frames[slot] != nullptr) {
                    return one.frames[slot];
                }
            }
            return nullptr;
        }
        if (one.frames[accessor] != nullptr) {
            return one.frames[accessor];
        }
        for (unsigned slot = 0; slot < space_.host_count(); ++slot) {
            if (one.frames[slot] != nullptr &&
                space_.at_slot(slot).driver == space_.at_slot(accessor).driver) {
                return one.frames[slot];
            }
        }
        return nullptr;
    }

    // With the page lock: each of its frames goes to the recent end of its node's list, also one that a mover
    // had popped.
    void relink_locked(granule& one) noexcept {
        if (one.is_arena) {
            return;
        }
        for (unsigned slot = 0; slot < space_.node_count(); ++slot) {
            if (one.frames[slot] != nullptr) {
                space_.at_slot(slot).active.move_to_recent(*one.frames[slot]);
            }
        }
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
        std::sort(sorted.begin(), sorted.end(),
                  [](const page_move* a, const page_move* b) { return a->moved < b->moved; });
        std::array<frame_record*, max_batch> freed;
        unsigned freed_count = 0;
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
            } else {
                freed[freed_count++] = one->to;
                relink_locked(*one->moved);
            }
        }
        enter_new_mappings(sorted);
        for (page_move* one : sorted) {
            one->moved->end_transit_locked();
            one->moved->lock.unlock();
        }
        for (unsigned i = 0; i < freed_count; ++i) {
            space_.at_slot(freed[i]->slot).pool.give_back(*freed[i]);
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
            const progress cleared = at.driver.pmap_clear(at.id, {ranges.data(), count});
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
        if (one.keeps_copy && old != nullptr) {
            page.step_locked(residency_step::duplicate, residency::duplicated);
            relink_locked(page);
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
                const progress entered = at.driver.pmap_enter(at.id, {runs.data(), count});
                for (std::size_t i = 0; i < entered.done; ++i) {
                    visible_frame(*owners[i]->moved, accessor)->backing.zeroed = false;
                    owners[i]->moved->mapped[accessor] = runs[i].who;
                }
                // The rest has arrived all the same; its first access faults and asks again.
            }
        }
    }

    // ---- parts of a record, page lock held

    // Where accessors have to see one frame at an address, those that see another one than this accessor is about to
    // give way; busy: a kernel depends on what it sees.
    status clear_other_views_locked(granule& one, unsigned accessor) noexcept {
        if (one.current() != residency::duplicated) {
            return {};
        }
        for (unsigned other = 0; other < space_.node_count(); ++other) {
            const bool is_with_cpu = other == cpu_accessor || accessor == cpu_accessor;
            const node& device = space_.at_slot(other == cpu_accessor ? accessor : other);
            if (other == accessor || one.mapped[other] == access::none ||
                device.can(ability::split_views) ||
                (is_with_cpu && device.can(ability::split_cpu_view)) ||
                visible_frame(one, other) == visible_frame(one, accessor)) {
                continue;
            }
            if (other != cpu_accessor && one.is_firmly_used()) {
                return fail(errc::busy, "a kernel uses another copy of the page");
            }
            if (status cleared = clear_locked(one, other); !cleared) {
                return cleared;
            }
        }
        return {};
    }
    status clear_locked(granule& one, unsigned accessor) noexcept {
        if (one.mapped[accessor] == access::none) {
            return {};
        }
        node& at = space_.at_slot(accessor);
        if (progress cleared = at.driver.pmap_clear(at.id, {&one.va, 1}); !cleared) {
            return cleared.outcome;
        }
        one.mapped[accessor] = access::none;
        return {};
    }
    status clear_all_locked(granule& one) noexcept {
        for (unsigned accessor = 0; accessor < space_.node_count(); ++accessor) {
            if (status cleared = clear_locked(one, accessor); !cleared) {
                return cleared;
            }
        }
        return {};
    }
    frame_record* unlink_locked(granule& one, unsigned slot) noexcept {
        frame_record* record = one.frames[slot];
        space_.at_slot(slot).active.remove(*record);
        record->owner = nullptr;
        one.frames[slot] = nullptr;
        return record;
    }
    void drop_frame_locked(granule& one, unsigned slot) noexcept {
        space_.at_slot(slot).pool.give_back(*unlink_locked(one, slot));
    }
    void set_home_locked(granule& one, residency_step step, unsigned slot) noexcept {
        one.home = static_cast<std::uint8_t>(slot);
        one.step_locked(step,
                        space_.at_slot(slot).is_host ? residency::on_host : residency::on_device);
    }
    static unsigned count_frames(const granule& one) noexcept {
        return static_cast<unsigned>(std::count_if(one.frames.begin(), one.frames.end(),
                                                   [](auto* f) { return f != nullptr; }));
    }

    address_space& space_;
    contents contents_;
};

}  // namespace xmm
