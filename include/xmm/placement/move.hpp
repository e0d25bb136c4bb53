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
//
// Where a driver owns the pages (see frame_stock.hpp) the records are the same and mean less: a frame, where the page
// was placed last; a mapping, that the accessor was brought to it. The CPU reaches such a page at any time and unseen:
// what it has touched since is somewhere, until the page is named or placed again, which costs little if it is there
// still. So a device's ledger counts at least what we have placed there.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <span>

#include <xmm/placement/contents.hpp>
#include <xmm/placement/frame_stock.hpp>

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

    // ---- pages that a driver owns

    [[nodiscard]] bool is_steering() noexcept { return is_steered(space_.at_slot(cpu_accessor)); }
    // The host where such a page stays unless it is placed on a device, and which devices reach it on.
    [[nodiscard]] node& host_of(const granule& one) noexcept {
        const unsigned first_device = space_.host_count();
        const unsigned near = one.preferred != no_slot             ? one.preferred
                              : first_device < space_.node_count() ? first_device
                                                                   : cpu_accessor;
        return space_.host_near(space_.at_slot(near));
    }
    // With the page lock: what nobody has placed yet is on its host, as far as anybody knows. The driver is not asked.
    [[nodiscard]] status note_on_host_locked(granule& one) noexcept {
        if (one.current() != residency::untouched || one.is_moving() || !is_steering()) {
            return {};
        }
        node& host = host_of(one);
        result<frame_record*> taken = stock_.take(host, one.va.bytes);
        if (!taken) {
            return taken.error();
        }
        (*taken)->owner = &one;
        one.frames[host.slot] = *taken;
        set_home_locked(one, residency_step::first_touch, host.slot);
        host.active.move_to_recent(**taken);
        host.first_touches.add(one.va.bytes / page_bytes);
        return {};
    }
    // With the page lock: whether the device may have lost pages of it to the CPU, although it has its frame.
    [[nodiscard]] bool is_worth_placing_locked(const granule& one, const node& on) const noexcept {
        return !on.is_host && is_steered(on) && one.frames[on.slot] != nullptr && !one.is_moving();
    }
    // For granules in transit whose frames are there already; ends the transits.
    status place_again(node& device, std::span<granule*> those, bool is_quiet) noexcept {
        XMM_ASSERT(those.size() <= max_batch, "batch too long");
        std::array<va_range, max_batch> ranges;
        std::transform(those.begin(), those.end(), ranges.begin(),
                       [](const granule* one) { return one->va; });
        const status placed =
            contents_.place_again(device, {ranges.data(), those.size()}, is_quiet);
        for (granule* one : those) {
            with(one->lock, [&] { one->end_transit_locked(); });
        }
        return placed;
    }
    // For one in transit: the contents are given up, and it is untouched. Ends the transit.
    status forget(granule& one) noexcept {
        status gone = contents_.forget(one);
        std::lock_guard guard{one.lock};
        if (gone) {
            gone = end_copies_locked(one, false);
        }
        if (gone) {
            gone = discard_locked(one, residency_step::discard, residency::untouched);
        }
        one.end_transit_locked();
        return gone;
    }
    // Pages of a driver's: where a region's will stay, and devices reach them, unless we place them.
    status keep_on_host(va_range range, const node& host) noexcept {
        return is_steered(host) ? host.driver.advise({&range, 1}, driver_advice::preferred, host.id)
                                : status{};
    }
    [[nodiscard]] frame_stock& stock() noexcept { return stock_; }

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
        return {};
    }

    // With the page lock: gives up contents, frames and mappings. Stand-ins go to `leaving`, if that is given: for who
    // takes their bytes from the devices later.
    status discard_locked(granule& one, residency_step step, residency to,
                          frame_list* leaving = nullptr) noexcept {
        if (status cleared = clear_all_locked(one); !cleared) {
            return cleared;
        }
        for (unsigned slot = 0; slot < max_slots; ++slot) {
            if (one.frames[slot] == nullptr) {
                continue;
            }
            if (leaving != nullptr && is_steered(space_.at_slot(slot))) {
                leaving->push_back(*unlink_locked(one, slot));
            } else {
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
        if (progress entered = enter(at, {&whole, 1}); !entered) {
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

    // With the page lock: whether a reader there may get a copy of a read-mostly page, the data staying where it is. Of
    // a driver's pages a host always has one, so that it is known where they are once the copies end.
    [[nodiscard]] bool can_copy_locked(granule& one, const node& to) noexcept {
        if (!is_steered(to) || to.is_host || one.current() == residency::duplicated) {
            return true;
        }
        return one.current() == residency::on_host;
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
        std::sort(sorted.begin(), sorted.end(), [](const page_move* a, const page_move* b) {
            return std::less<>{}(a->moved, b->moved);  // no two of one object
        });
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
                if (one->keeps_copy && one->moved->current() != residency::duplicated) {
                    static_cast<void>(tell_end_of_copies(*one->moved));
                }
            }
        }
        enter_new_mappings(sorted);
        for (page_move* one : sorted) {
            one->moved->end_transit_locked();
            one->moved->lock.unlock();
        }
        for (unsigned i = 0; i < freed_count; ++i) {
            stock_.give_back(space_.at_slot(freed[i]->slot), *freed[i]);
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

    // ---- parts of a record, page lock held

    // A driver that owns the pages maps them itself.
    static progress enter(const node& at, std::span<const run> runs) noexcept {
        return is_steered(at) ? progress{runs.size(), {}} : at.driver.pmap_enter(at.id, runs);
    }
    static progress clear(const node& at, std::span<const va_range> ranges) noexcept {
        return is_steered(at) ? progress{ranges.size(), {}} : at.driver.pmap_clear(at.id, ranges);
    }

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
        if (progress cleared = clear(at, {&one.va, 1}); !cleared) {
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
        stock_.give_back(space_.at_slot(slot), *unlink_locked(one, slot));
    }
    // A driver that owns the pages has copies while it is told of them; without, one is left: the host's, which is
    // there in any case (see can_copy_locked). What the devices lose had nothing of its own, so nothing is copied.
    status end_copies_locked(granule& one, bool some_stay) noexcept {
        if (one.current() != residency::duplicated) {
            return {};
        }
        status told = tell_end_of_copies(one);
        if (told && some_stay && is_steering()) {
            node& host = host_of(one);
            told = host.driver.advise({&one.va, 1}, driver_advice::read_mostly, host.id);
        }
        return told;
    }
    status tell_end_of_copies(granule& one) noexcept {
        node& host = host_of(one);
        if (!is_steered(host)) {
            return {};
        }
        const status told =
            host.driver.advise({&one.va, 1}, driver_advice::unset_read_mostly, host.id);
        // The devices' mappings of the host's page went with their copies.
        return told ? keep_on_host(one.va, host) : told;
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
    frame_stock stock_;
};

}  // namespace xmm
