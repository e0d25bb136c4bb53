// SPDX-License-Identifier: Apache-2.0
// release.hpp - give up a region: frames to their pools, mappings cleared, addresses released.
//
// Model    Each page is waited for until nothing moves, holds or uses it, then emptied for good: a fault
//          or hint that comes later finds no region there.
// Threads  One thread a region (address_space::claim_for_unmap); any number of regions at once.
//          Where a driver owns the pages, their bytes leave the ledgers once it has taken back the addresses.
// Failure  no_memory if the OS refuses to clear the CPU's mappings (vm.max_map_count) one by one and all at once: the
//          region is still there and its remaining pages are intact.
#pragma once

#include <xmm/placement/move.hpp>

namespace xmm {

class releaser {
public:
    releaser(address_space& space, mover& moves) noexcept : space_{space}, moves_{moves} {}

    // `leaving` was claimed for unmap by this thread.
    status release(region& leaving) noexcept {
        frame_list stand_ins;
        // The second round finds neighbours cleared, with which a hole can merge. As a whole the region parts none of
        // its mappings.
        status outcome = release_pages(leaving, stand_ins);
        if (!outcome) {
            outcome = release_pages(leaving, stand_ins);
        }
        if (!outcome && moves_.clear_for_cpu(leaving.va)) {
            outcome = release_pages(leaving, stand_ins);
        }
        if (!outcome) {
            space_.give_up_unmap(leaving);
        } else {
            moves_.forget_mappings(leaving.va);  // nothing moves there any more that would add some
            space_.unmap(leaving);
        }
        while (frame_record* one = stand_ins.pop_front()) {
            moves_.stock().give_back(space_.at_slot(one->slot), *one);
        }
        return outcome;
    }

private:
    status release_pages(region& leaving, frame_list& stand_ins) noexcept {
        status all;
        for (address at = leaving.va.begin; at < leaving.va.end();) {
            const va_range span = leaving.granule_at(at);
            if (status one = release_page(at, span, stand_ins); !one) {
                all = one;
            }
            at = span.end();
        }
        return all;
    }
    status release_page(address at, va_range span, frame_list& stand_ins) noexcept {
        hold_waiter holders;
        for (;;) {
            granule* found = nullptr;
            enum { done, rest, holds, uses } next = done;
            status outcome;
            // Not with_granule: a slot of an arena whose frame is gone may still bear the marks of launches.
            found = space_.find(at);
            with(found->lock, [&] {
                granule& page = *found;
                if (page.is_moving()) {
                    next = rest;
                } else if (page.is_held()) {
                    next = holds;
                } else if (page.is_used()) {
                    next = uses;
                } else if (page.is_memory_locked(at)) {
                    outcome = moves_.discard_locked(page, residency_step::unmap,
                                                    residency::released, &stand_ins);
                } else {
                    outcome = moves_.end_lent_locked(page);  // of an arena's slot
                }
            });
            switch (next) {
                case done: return outcome;
                case rest: found->await_rest(); break;
                case holds: holders.await(*found); break;
                case uses: space_.uses().await_unused(*found, span); break;
            }
        }
    }

    address_space& space_;
    mover& moves_;
};

}  // namespace xmm
