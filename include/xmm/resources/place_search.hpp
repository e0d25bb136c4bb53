// SPDX-License-Identifier: Apache-2.0
// place_search.hpp - where a block goes: the place whose missing frames cost least.
//
// Model    A place is an address in a free extent, and costs what the frames would that are missing there. Of places
//          that cost the same, the smallest extent that holds the block. What cost nothing is remembered with a
//          key of all free extents and frames: programs repeat themselves, and come back to the same states.
// Threads  None of its own: the heap's lock guards it. Which slots have frames may change meanwhile: then the answer is
//          a guess, as good as the one before.
// Failure  No extent holds the block: then the place is in none.
// See      extent_chains.hpp has the areas, extent_heap.hpp asks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <xmm/core/types.hpp>
#include <xmm/resources/extent_chains.hpp>
#include <xmm/resources/extents.hpp>
#include <xmm/resources/slot_span.hpp>

namespace xmm {

class place_search {
public:
    using all_areas = extent_chains::all_areas;

    struct place {
        extent* within = nullptr;
        address begin = 0;
        std::size_t cost = ~std::size_t{0};  // of the missing frames, in microseconds
    };

    explicit place_search(bool remembers) noexcept : remembers_{remembers} {}

    // frames: the version of what the user's spans have. Not inlined: twice in one function, it slows blocks of many
    // slots.
    [[nodiscard, gnu::noinline]] place find(const all_areas& areas, std::uint64_t frames,
                                            std::uint32_t area, std::size_t bytes,
                                            std::size_t alignment) noexcept {
        if (!remembers_) {
            return search(areas, area, bytes, alignment);
        }
        std::uint64_t key = areas[0].free.signature() + areas[1].free.signature();
        key = (key ^ frames << 32 ^ alignment << 1 ^ area) * 0x9E3779B97F4A7C15;
        key = (key ^ key >> 32 ^ bytes) * 0xD6E8FEB86659FD93;
        remembered& last = memory_[key >> (64 - memory_bits)];
        if (last.key == key) {
            for (const extent_chains::area_state& one : areas) {
                if (extent* whole = one.free.find(last.whole);
                    whole != nullptr && whole->range.contains(va_range{last.begin, bytes}) &&
                    last.begin % alignment == 0) {
                    return {whole, last.begin, 0};
                }
            }
        }
        const place found = search(areas, area, bytes, alignment);
        if (found.cost == 0) {
            last = {key, found.within->range, found.begin};
        }
        return found;
    }

private:
    // Where a block of that size, alignment and area went for nothing when free extents and frames were as the key
    // says. At worst it is a guess: that the extent is there is looked up.
    struct remembered {
        std::uint64_t key = 0;
        va_range whole;
        address begin = 0;
    };
    // Microseconds, as is place::cost. A frame that is taken or made, besides one for each MiB; one that was here
    // before and may be idle elsewhere; one of a size that few have by now, and so may have to be made.
    static constexpr std::size_t move_cost = 40;
    static constexpr std::size_t return_cost = 36;
    static constexpr std::size_t odd_size_cost = 160;
    static constexpr std::size_t few_moves = 100;
    static constexpr unsigned memory_bits = 7;
    static constexpr unsigned most_tries = 256;  // 8 would make three times the moves

    // In the block's own area if that costs nothing. A short-lived one will soon be gone and does no harm in the
    // other area, if that is cheaper; a long-lived one would cut the short area up, which is worse than a few moves.
    [[nodiscard]] static place search(const all_areas& areas, std::uint32_t area, std::size_t bytes,
                                      std::size_t alignment) noexcept {
        place best;
        search_area(areas[area], bytes, alignment, best);
        if (best.cost != 0 && area == extent_chains::short_area) {
            search_area(areas[extent_chains::long_area], bytes, alignment, best);
        } else if (best.cost > few_moves) {
            place other;
            search_area(areas[extent_chains::short_area], bytes, alignment, other);
            best = other.cost == 0 ? other : best;
        }
        return best;
    }
    static void search_area(const extent_chains::area_state& area, std::size_t bytes,
                            std::size_t alignment, place& best) noexcept {
        unsigned tries = 0;
        area.free.for_each_from(bytes, [&](extent& free) {
            judge_extent(area, free, bytes, alignment, best);
            // Only places count: there may be any number of extents that such an alignment does not fit in.
            return best.cost != 0 && (best.within == nullptr || ++tries < most_tries);
        });
    }
    static void judge_extent(const extent_chains::area_state& area, extent& free, std::size_t bytes,
                             std::size_t alignment, place& best) noexcept {
        const slot_span& span = *free.span;
        const address end = free.range.end();
        alignment = preferred_alignment(free, bytes, alignment);
        const address low = align_up(free.range.begin, alignment);
        if (low + bytes > end) {
            return;
        }
        const address high = align_down(end - bytes, alignment);
        try_begin(area, free, low, bytes, best);
        if (best.cost == 0 || high == low) {
            return;
        }
        try_begin(area, free, high, bytes, best);
        if (!span.has_any_frame()) {
            return;  // spares a look at every slot
        }
        // Inside: at the ends of each run of slots that have frames.
        const std::size_t last = span.slot_of(end - 1) + 1;
        std::size_t run = span.next(span.slot_of(free.range.begin), last, true);
        for (unsigned runs = 0; run < last && best.cost != 0 && runs < 64; ++runs) {
            const std::size_t run_end = span.next(run, last, false);
            const address first = align_up(span.slot_begin(run), alignment);
            if (first > low && first < high) {
                try_begin(area, free, first, bytes, best);
            }
            if (span.slot_begin(run_end) > bytes) {
                const address backed = align_down(span.slot_begin(run_end) - bytes, alignment);
                if (backed > low && backed < high && run_end < last) {
                    try_begin(area, free, backed, bytes, best);
                }
            }
            run = span.next(run_end, last, true);
        }
    }
    // A block that fills whole slots (or halves, quarters, ...) begins where one does: its neighbours are then spared
    // the odd rest. Not if that would leave more than a thousandth unused.
    [[nodiscard]] static std::size_t preferred_alignment(const extent& free, std::size_t bytes,
                                                         std::size_t alignment) noexcept {
        std::size_t whole = free.span->slot_bytes();
        if (bytes < whole) {
            return alignment;
        }
        while (whole > alignment && align_up(bytes, whole) - bytes > bytes / 1024) {
            whole /= 2;
        }
        return align_up(free.range.begin, whole) + bytes <= free.range.end()
                   ? std::max(alignment, whole)
                   : alignment;
    }
    static void try_begin(const extent_chains::area_state& area, extent& free, address begin,
                          std::size_t bytes, place& best) noexcept {
        // A move costs the same whatever the size; that the bytes cost too keeps small blocks from opening large slots.
        const std::size_t slot_bytes = free.span->slot_bytes();
        const std::size_t missing = free.span->missing({begin, bytes});
        // A frame that was here before comes back for nothing, if it is to be had.
        const std::size_t returning =
            missing == 0 ? 0 : std::min(missing, free.span->remembering({begin, bytes}));
        const std::size_t odd = slot_bytes < area.largest_slot ? odd_size_cost : 0;
        const std::size_t cost = (missing - returning) * (move_cost + (slot_bytes >> 20) + odd) +
                                 returning * return_cost;
        if (cost < best.cost) {
            best = {&free, begin, cost};
        }
    }

    const bool remembers_;
    remembered memory_[std::size_t{1} << memory_bits] = {};
};

}  // namespace xmm
