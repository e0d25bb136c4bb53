// SPDX-License-Identifier: Apache-2.0
// extent_chains.hpp - the spans of an extent heap, each a chain of extents: cut for a block, merged behind it.
//
// Model    A chain covers its span without gaps, and no two free extents touch. A span belongs to an area, and its
//          free extents lie in that area's bins: short-lived blocks are kept apart from the others.
// Threads  None of its own: the heap's lock guards it.
// Failure  reserve and enter say so without memory, and all is as it was; all else cannot fail.
// See      extents.hpp has the records and the bins, place_search.hpp says where to cut.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <xmm/core/types.hpp>
#include <xmm/mapping/slab.hpp>
#include <xmm/resources/extents.hpp>
#include <xmm/resources/slot_span.hpp>

namespace xmm {

class extent_chains {
public:
    static constexpr std::uint32_t long_area = 0;
    static constexpr std::uint32_t short_area = 1;

    struct area_state {
        extent_bins free;
        std::size_t largest_slot = 0;  // of its spans
    };
    using all_areas = std::array<area_state, 2>;

    struct chain {
        slot_span* span = nullptr;
        extent* first = nullptr;
        std::uint32_t area = 0;
        chain* next = nullptr;

        [[nodiscard]] bool is_free() const noexcept {
            return first->is_free && first->after == nullptr;
        }
        // fn(extent&) in order of address; the extent may be gone after it.
        template <class Fn>
        void for_each(Fn&& fn) const {
            for (extent* at = first; at != nullptr;) {
                extent* const next_one = at->after;
                fn(*at);
                at = next_one;
            }
        }
    };

    [[nodiscard]] const all_areas& areas() const noexcept { return areas_; }
    [[nodiscard]] std::size_t largest_slot(std::uint32_t area) const noexcept {
        return areas_[area].largest_slot;
    }

    // Before anything else is done for a block: cutting and entering it need records. False: no memory.
    [[nodiscard]] bool reserve_records() noexcept { return records_.reserve(3); }
    // A record for a span; null without memory. It is entered, or given back.
    [[nodiscard]] chain* make_chain() noexcept { return chains_.make(); }
    void give_back(chain* unused) noexcept { chains_.give_back(unused); }
    // The whole span is one free extent.
    void enter(chain* as, slot_span& span, std::uint32_t area) noexcept {
        extent& all = make_free(span.range(), span, area, nullptr, nullptr);
        areas_[area].largest_slot = std::max(areas_[area].largest_slot, span.slot_bytes());
        *as = {&span, &all, area, first_};
        first_ = as;
    }

    // The block at that address of a free extent; what is left of it on either side stays free.
    extent& carve(extent& block, address begin, std::size_t bytes) noexcept {
        areas_[block.area].free.remove(block);
        const va_range whole = block.range;
        block.range = {begin, bytes};
        block.is_free = false;
        if (begin > whole.begin) {
            const va_range rest{whole.begin, begin - whole.begin};
            extent& low = make_free(rest, *block.span, block.area, block.before, &block);
            if (low.before == nullptr) {
                chain_of(block.span)->first = &low;
            }
        }
        if (block.range.end() < whole.end()) {
            const va_range rest{block.range.end(), whole.end() - block.range.end()};
            make_free(rest, *block.span, block.area, &block, block.after);
        }
        return block;
    }
    // Free again, and one with its free neighbours.
    void put_back(extent& block) noexcept {
        extent_bins& free = areas_[block.area].free;
        if (extent* low = block.before; low != nullptr && low->is_free) {
            free.remove(*low);
            block.range = {low->range.begin, low->range.bytes + block.range.bytes};
            block.before = low->before;
            if (block.before != nullptr) {
                block.before->after = &block;
            } else {
                chain_of(block.span)->first = &block;
            }
            records_.give_back(low);
        }
        if (extent* high = block.after; high != nullptr && high->is_free) {
            free.remove(*high);
            block.range.bytes += high->range.bytes;
            block.after = high->after;
            if (block.after != nullptr) {
                block.after->before = &block;
            }
            records_.give_back(high);
        }
        block.is_free = true;
        free.insert(block);
    }

    // fn(const chain&), the latest span first.
    template <class Fn>
    void for_each(Fn&& fn) const {
        for (const chain* at = first_; at != nullptr; at = at->next) {
            fn(*at);
        }
    }
    // Of the span that the address lies in; null if it lies in none.
    [[nodiscard]] const chain* find(address at) const noexcept {
        const chain* found = first_;
        while (found != nullptr && !found->span->range().contains(at)) {
            found = found->next;
        }
        return found;
    }
    // The extent that the address lies in. Looks through a span.
    [[nodiscard]] const extent* find_extent(address at) const noexcept {
        const chain* home = find(at);
        const extent* found = home != nullptr ? home->first : nullptr;
        while (found != nullptr && !found->range.contains(at)) {
            found = found->after;
        }
        return found;
    }
    // Takes out the chains that pred(const chain&) says. block_gone(extent&) for each block that is left in them, then
    // span_gone(slot_span*).
    template <class Pred, class BlockGone, class SpanGone>
    void release_if(Pred&& pred, BlockGone&& block_gone, SpanGone&& span_gone) noexcept {
        for (chain** link = &first_; *link != nullptr;) {
            chain* one = *link;
            if (!pred(static_cast<const chain&>(*one))) {
                link = &one->next;
                continue;
            }
            *link = one->next;
            one->for_each([&](extent& at) {
                if (at.is_free) {
                    areas_[at.area].free.remove(at);
                } else {
                    block_gone(at);
                }
                records_.give_back(&at);
            });
            span_gone(one->span);
            chains_.give_back(one);
        }
        look_at_slots();
    }

    // Each chain covers its span, and is linked and merged as it should be.
    [[nodiscard]] bool is_valid() const noexcept {
        bool is_sound = true;
        for_each([&](const chain& one) { is_sound = is_sound && is_valid(one); });
        return is_sound;
    }

private:
    extent& make_free(va_range range, slot_span& span, std::uint32_t area, extent* before,
                      extent* after) noexcept {
        extent& one = *records_.take();
        one.range = range;
        one.span = &span;
        one.area = area;
        one.is_free = true;
        one.before = before;
        one.after = after;
        if (before != nullptr) {
            before->after = &one;
        }
        if (after != nullptr) {
            after->before = &one;
        }
        areas_[area].free.insert(one);
        return one;
    }
    [[nodiscard]] chain* chain_of(const slot_span* span) const noexcept {
        chain* found = first_;
        while (found->span != span) {
            found = found->next;
        }
        return found;
    }
    void look_at_slots() noexcept {
        for (area_state& one : areas_) {
            one.largest_slot = 0;
        }
        for_each([&](const chain& one) {
            std::size_t& largest = areas_[one.area].largest_slot;
            largest = std::max(largest, one.span->slot_bytes());
        });
    }
    [[nodiscard]] static bool is_valid(const chain& one) noexcept {
        bool is_sound = true;
        address at = one.span->range().begin;
        const extent* before = nullptr;
        one.for_each([&](const extent& now) {
            const bool is_linked = now.before == before && now.range.begin == at &&
                                   now.range.bytes > 0 && now.span == one.span &&
                                   now.area == one.area;
            const bool is_merged = before == nullptr || !before->is_free || !now.is_free;
            is_sound = is_sound && is_linked && is_merged;
            at = now.range.end();
            before = &now;
        });
        return is_sound && at == one.span->range().end();
    }

    all_areas areas_;
    chain* first_ = nullptr;
    slab<chain> chains_;
    extent_records records_;
};

}  // namespace xmm
