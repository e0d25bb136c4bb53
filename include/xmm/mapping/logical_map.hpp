// SPDX-License-Identifier: Apache-2.0
// logical_map.hpp - the regions and page records of one space.
//
// Model    A region's granules are found by address alone; records and regions live in slabs, so a
//          pointer got without a lock is safe to lock, and `covers` tells whether it still is the one.
// Threads  find is lock-free; add and remove are the space's, under its own lock.
// Failure  add is all or nothing.
#pragma once

#include <xmm/mapping/granule.hpp>
#include <xmm/mapping/radix_tree.hpp>
#include <xmm/mapping/region.hpp>
#include <xmm/mapping/slab.hpp>

namespace xmm {

class logical_map {
public:
    [[nodiscard]] granule* find(address at) const noexcept { return tree_.find(at); }

    // Makes the records of a new region and publishes them.
    template <class Prepare>
    [[nodiscard]] status add(region& added, Prepare&& prepare) noexcept {
        for (address at = added.va.begin; at < added.va.end();) {
            const va_range span = added.granule_at(at);
            granule* one = granules_.make();
            status outcome = one != nullptr
                                 ? status{}
                                 : fail(errc::no_memory, "the host has no memory for page records");
            if (outcome) {
                with(one->lock, [&] {
                    one->va = span;
                    one->owner = &added;
                    one->step_locked(residency_step::map, residency::untouched);
                    prepare(*one);
                });
                outcome = tree_.insert(span, *one);
                if (!outcome) {
                    retire(*one);
                }
            }
            if (!outcome) {
                remove({added.va.begin, at - added.va.begin});
                return outcome;
            }
            at = span.end();
        }
        return {};
    }

    // Forgets the granules of a range; each must own no frame and have no mapping.
    void remove(va_range range) noexcept {
        for (address at = range.begin; at < range.end();) {
            granule* one = find(at);
            XMM_ASSERT(one != nullptr, "removed pages that were never added");
            const va_range span = with(one->lock, [&] { return one->va; });
            tree_.erase(span);
            retire(*one);
            at = span.end();
        }
    }

    [[nodiscard]] region* make_region() noexcept { return regions_.make(); }
    void drop_region(region& one) noexcept { regions_.give_back(&one); }
    [[nodiscard]] std::size_t granule_count() const noexcept { return granules_.live(); }

private:
    void retire(granule& one) noexcept {
        with(one.lock, [&] {
            if (one.current() != residency::released) {
                one.step_locked(residency_step::unmap, residency::released);
            }
            XMM_ASSERT(one.is_valid_locked(), "a record with frames or mappings was released");
            one.va = {};
            one.owner = nullptr;
            one.pins = 0;
            one.is_fixed = false;
            one.is_arena = false;
            one.is_read_mostly = false;
            one.preferred = no_slot;
        });
        granules_.give_back(&one);
    }

    radix_tree<granule> tree_;
    slab<granule> granules_;
    slab<region> regions_;
};

}  // namespace xmm
