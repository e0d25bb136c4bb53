// SPDX-License-Identifier: Apache-2.0
// page_parts.hpp - the parts of a granule's record that stand for frames and mappings, changed one at a time.
//
// Model    A step changes the record and what it stands for together: a mapping is entered or cleared at the
//          driver, a frame joins or leaves the granule and its node's list. What is made of such steps: move.hpp,
//          steered.hpp and arena_frames.hpp.
// Threads  Any, with the page lock held, unless said.
// Failure  A mapping that could not be entered or cleared is as before, and is remembered so.
#pragma once

#include <algorithm>
#include <span>

#include <xmm/mapping/address_space.hpp>
#include <xmm/placement/frame_stock.hpp>

namespace xmm {

class page_parts {
public:
    explicit page_parts(address_space& space) noexcept : space_{space} {}

    [[nodiscard]] frame_stock& stock() noexcept { return stock_; }

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
            return space_.frame_at(one, {.is_any_host = true});
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
        one.check_locked();
        return {};
    }

protected:
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
    // For who debugs launches: see launch_watch.
    void look_for_users(const node& at, va_range leaving) noexcept {
        if (space_.uses().watch().is_on() && !at.is_host && !at.can(ability::device_faults) &&
            !is_steered(at)) {
            space_.uses().watch().look(at.id, leaving);
        }
    }
    status clear_locked(granule& one, unsigned accessor) noexcept {
        if (one.mapped[accessor] == access::none) {
            return {};
        }
        node& at = space_.at_slot(accessor);
        look_for_users(at, one.va);
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
    frame_stock stock_;
};

}  // namespace xmm
