// SPDX-License-Identifier: Apache-2.0
// steered.hpp - pages that a driver owns, and moves when told.
//
// Model    The records (see frame_stock.hpp) are as those of other pages and mean less: a frame, where the page
//          was placed last; a mapping, that the accessor was brought to it. The CPU reaches such a page at any time
//          and unseen: what it has touched since is somewhere, until the page is named or placed again, which costs
//          little if it is there still. So a device's ledger counts at least what we have placed there.
//          Where no driver owns pages, each of these does nothing, or answers so.
// Threads  As page_parts.hpp; place_again and forget take the page locks themselves.
// Failure  As the driver's advice: what it refused is as before.
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include <xmm/placement/contents.hpp>
#include <xmm/placement/page_parts.hpp>

namespace xmm {

class steered_pages : public page_parts {
public:
    explicit steered_pages(address_space& space) noexcept : page_parts{space}, contents_{space} {}

    [[nodiscard]] bool is_steering() noexcept { return is_steered(space_.at_slot(cpu_accessor)); }
    // The host where a page of the CPU's goes: near the device that is likely to use it. A driver's own pages stay
    // there unless they are placed on a device, and devices reach them on it.
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

    // With the page lock: whether a reader there may get a copy of a read-mostly page, the data staying where it is. Of
    // a driver's pages a host always has one, so that it is known where they are once the copies end.
    [[nodiscard]] bool can_copy_locked(granule& one, const node& to) noexcept {
        if (!is_steered(to) || to.is_host || one.current() == residency::duplicated) {
            return true;
        }
        return one.current() == residency::on_host;
    }

protected:
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

    contents contents_;
};

}  // namespace xmm
