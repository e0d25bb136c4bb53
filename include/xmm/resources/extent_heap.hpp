// SPDX-License-Identifier: Apache-2.0
// extent_heap.hpp - best fit over addresses; frames follow demand.
//
// Model    One heap serves one queue of a device at a time. Address space is free and plenty, frames are not: a
//          block goes where the fewest frames are missing, and of such places into the smallest free extent.
//          Blocks that will soon be gone, judged by those before them, live in an area of their own, so that the
//          others stay together. Slots grow with the peak of live bytes: a move costs the same whatever the slot's
//          size, while half a slot is lost at the end of each run of blocks.
// Threads  Any. One lock, rank extent_heap; two heaps do not slow each other until frames have to move.
// Failure  no_memory, and all is as it was. deallocate cannot fail; a pointer that is no block's asserts.
// See      device_frames.hpp, lifetimes.hpp, extents.hpp.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/resources/device_frames.hpp>
#include <xmm/resources/extents.hpp>
#include <xmm/resources/lifetimes.hpp>
#include <xmm/resources/slot_span.hpp>

namespace xmm {

struct extent_heap_options {
    std::uint32_t tag = 0;
    void* owner = nullptr;  // of its spans, for a span_observer
    // A block whose predecessor lived for fewer allocations than this is short-lived; 0: none is.
    std::uint32_t short_life = 80;
    // Slots are of 2, 8 or 64 MiB. Sizes near each other would lose more by making frames anew than they spare in
    // moves. Of 8 from where the device's peak of live bytes holds so many; of 64 when the heap's own peak does: each
    // heap loses at the ends of its own runs, and where there are many, they are many.
    std::uint32_t medium_slots_a_peak = 185;
    std::uint32_t large_slots_a_peak = 90;
    // Address space is reserved for so many slots at once.
    std::uint32_t slots_a_span = 256;
    // Where a block went for nothing is remembered, for when all is as it was then. False is for tests.
    bool remembers_places = true;
};

class extent_heap {
public:
    using options = extent_heap_options;
    static constexpr std::size_t most_bytes = std::size_t{1} << 46;  // of a block
    // More would cost gigabytes of records of slots that nobody uses.
    static constexpr std::size_t most_alignment = std::size_t{1} << 32;

    explicit extent_heap(device_frames& frames, queue_id queue, options chosen = {}) noexcept
        : frames_{&frames}, options_{chosen}, user_{queue, chosen.tag, false, chosen.owner} {}
    extent_heap(const extent_heap&) = delete;
    extent_heap& operator=(const extent_heap&) = delete;
    // Blocks that are left go with it.
    ~extent_heap() { release_all(); }

    // At least 512 bytes aligned; alignment is a power of two. The block may be used by work of
    // this heap's queue at once, by other queues' after that.
    [[nodiscard]] result<void*> allocate(std::size_t bytes,
                                         std::size_t alignment = extent_unit_bytes) noexcept {
        if (bytes == 0 || bytes > most_bytes || !std::has_single_bit(alignment) ||
            alignment > most_alignment) {
            return fail(errc::invalid_argument, "zero bytes, too many, or an odd alignment");
        }
        return with(user_.lock(),
                    [&] { return allocate_locked(bytes, std::max(alignment, extent_unit_bytes)); });
    }
    // All use of the block is done, or was submitted to this heap's queue.
    void deallocate(void* pointer) noexcept {
        std::lock_guard guard{user_.lock()};
        extent* block = blocks_.find(to_address(pointer));
        XMM_ASSERT(block != nullptr, "deallocated a pointer that is no block of this heap");
        if (block != nullptr) {
            deallocate_locked(*block);
        }
    }

    // The program gives the block back, while work may still use it: end_free comes later. False, and nothing has
    // changed, if no block in the program's hands begins there.
    [[nodiscard]] bool begin_free(address at, std::size_t& bytes, std::size_t& requested) noexcept {
        std::lock_guard guard{user_.lock()};
        extent* block = blocks_.find(at);
        if (block == nullptr || block->is_pending) {
            return false;
        }
        block->is_pending = true;
        bytes = block->range.bytes;
        requested = block->requested;
        return true;
    }
    void end_free(address at) noexcept { deallocate(to_pointer(at)); }
    // Both at once.
    [[nodiscard]] bool try_free(address at, std::size_t& bytes, std::size_t& requested) noexcept {
        std::lock_guard guard{user_.lock()};
        extent* block = blocks_.find(at);
        if (block == nullptr || block->is_pending) {
            return false;
        }
        bytes = block->range.bytes;
        requested = block->requested;
        deallocate_locked(*block);
        return true;
    }

    // Of the block that begins there; empty if none does.
    [[nodiscard]] va_range find(const void* pointer) const noexcept {
        return with(user_.lock(), [&] {
            const extent* block = blocks_.find(to_address(pointer));
            return block != nullptr ? block->range : va_range{};
        });
    }
    // Of the block that the address lies in; empty if it lies in none. Looks through a span, but for a block's begin.
    [[nodiscard]] va_range find_inside(const void* pointer) const noexcept {
        return with(user_.lock(), [&] {
            if (const extent* block = blocks_.find(to_address(pointer)); block != nullptr) {
                return block->is_pending ? va_range{} : block->range;
            }
            for (const span_chain* chain = spans_; chain != nullptr; chain = chain->next) {
                if (!chain->span->range().contains(to_address(pointer))) {
                    continue;
                }
                for (const extent* at = chain->first; at != nullptr; at = at->after) {
                    if (!at->is_free && at->range.contains(to_address(pointer))) {
                        return at->is_pending ? va_range{} : at->range;
                    }
                }
            }
            return va_range{};
        });
    }
    [[nodiscard]] std::size_t usable_bytes(const void* pointer) const noexcept {
        return find(pointer).bytes;
    }
    [[nodiscard]] bool owns(const void* pointer) const noexcept {
        return with(user_.lock(), [&] {
            for (const span_chain* chain = spans_; chain != nullptr; chain = chain->next) {
                if (chain->span->range().contains(to_address(pointer))) {
                    return true;
                }
            }
            return false;
        });
    }

    // fn(va_range, bool is_free) for each extent, span by span in order of address; under the heap's lock.
    template <class Fn>
    void for_each(Fn&& fn) const {
        for_each_extent([&](const extent& one) { fn(one.range, one.is_free); });
    }
    template <class Fn>
    void for_each_extent(Fn&& fn) const {
        std::lock_guard guard{user_.lock()};
        for (const span_chain* chain = spans_; chain != nullptr; chain = chain->next) {
            for (const extent* at = chain->first; at != nullptr; at = at->after) {
                fn(*at);
            }
        }
    }

    // Gives spans without a block back, with their frames. Waits for the queue where that is needed; what it cannot
    // say that it has done with stays. Frames that are idle in other spans are the business of device_frames::trim.
    void trim() noexcept {
        std::lock_guard guard{user_.lock()};
        release_spans_locked([&](const span_chain& chain) {
            return chain.first->is_free && chain.first->after == nullptr &&
                   frames_->try_empty_locked(*chain.span);
        });
    }

    [[nodiscard]] std::size_t live_bytes() const noexcept { return user_.live_bytes(); }
    [[nodiscard]] std::size_t block_count() const noexcept {
        return with(user_.lock(), [&] { return blocks_.count(); });
    }
    [[nodiscard]] queue_id queue() const noexcept { return user_.queue(); }
    // Its queue is over, all its work done: the heap and its blocks are another one's from here on.
    void set_queue(queue_id queue) noexcept { frames_->set_queue(user_, queue); }
    [[nodiscard]] std::uint32_t tag() const noexcept { return user_.tag(); }
    [[nodiscard]] bool is_valid() const noexcept;

private:
    struct span_chain {
        slot_span* span = nullptr;
        extent* first = nullptr;
        std::uint32_t area = 0;
        span_chain* next = nullptr;
    };
    struct area_state {
        extent_bins free;
        std::size_t largest_slot = 0;
    };
    // Where a block of that size, alignment and area went for nothing when free extents and frames were as the key
    // says: programs repeat themselves. At worst it is a guess: that the extent is there is looked up.
    struct remembered {
        std::uint64_t key = 0;
        va_range whole;
        address begin = 0;
    };
    // A place for a block: where in which free extent, and what its missing frames would cost.
    struct place {
        extent* within = nullptr;
        address begin = 0;
        std::size_t cost = ~std::size_t{0};
    };
    static constexpr std::uint32_t long_area = 0;
    static constexpr std::uint32_t short_area = 1;
    static constexpr std::size_t medium_slot_bytes = 4 * page_bytes;
    static constexpr std::size_t large_slot_bytes = 32 * page_bytes;
    // Microseconds, as is place::cost. A frame that is taken or made, besides one for each MiB; one that was here
    // before and may be idle elsewhere; one of a size that few have by now, and so may have to be made.
    static constexpr std::size_t move_cost = 40;
    static constexpr std::size_t return_cost = 36;
    static constexpr std::size_t odd_size_cost = 160;
    static constexpr std::size_t few_moves = 100;
    static constexpr unsigned memory_bits = 7;
    static constexpr unsigned most_tries = 256;  // 8 would make three times the moves

    [[nodiscard]] result<void*> allocate_locked(std::size_t requested,
                                                std::size_t alignment) noexcept;
    void deallocate_locked(extent& block) noexcept;

    [[nodiscard]] place find_place_locked(std::uint32_t area, std::size_t bytes,
                                          std::size_t alignment) noexcept;
    [[nodiscard]] place search_place_locked(std::uint32_t area, std::size_t bytes,
                                            std::size_t alignment) const noexcept;
    void search_area_locked(std::uint32_t area, std::size_t bytes, std::size_t alignment,
                            place& best) const noexcept;
    void judge_extent_locked(extent& free, std::size_t bytes, std::size_t alignment,
                             place& best) const noexcept;
    void try_begin_locked(extent& free, address begin, std::size_t bytes,
                          place& best) const noexcept;
    [[nodiscard]] status add_span_locked(std::uint32_t area, std::size_t bytes,
                                         std::size_t slot_bytes) noexcept;
    [[nodiscard]] std::size_t wanted_slot_bytes(std::size_t bytes) const noexcept;

    extent& make_free_locked(va_range range, slot_span& span, std::uint32_t area, extent* before,
                             extent* after) noexcept;
    extent& carve_locked(const place& where, std::size_t bytes) noexcept;
    void put_back_locked(extent& block) noexcept;
    [[nodiscard]] span_chain* chain_of(const slot_span* span) const noexcept {
        span_chain* chain = spans_;
        while (chain->span != span) {
            chain = chain->next;
        }
        return chain;
    }
    template <class Pred>
    void release_spans_locked(Pred&& pred) noexcept;
    void release_all() noexcept;

    void count_live_locked(std::ptrdiff_t bytes) noexcept {
        user_.set_live(user_.live_bytes() + static_cast<std::size_t>(bytes));
    }

    device_frames* const frames_;
    const options options_;
    frame_user user_;  // its lock guards all below
    area_state areas_[2];
    remembered memory_[std::size_t{1} << memory_bits] = {};
    span_chain* spans_ = nullptr;
    slab<span_chain> chains_;
    extent_records records_;
    extent_index blocks_;
    lifetimes lifetimes_;
};

// ---- where a block goes

inline std::size_t extent_heap::wanted_slot_bytes(std::size_t bytes) const noexcept {
    const std::size_t soon = user_.live_bytes() + bytes;
    const std::size_t own = std::max(user_.live_peak(), soon);
    if (own / options_.large_slots_a_peak >= large_slot_bytes) {
        return large_slot_bytes;
    }
    const std::size_t peak = std::max(frames_->noted_live_peak(), own);
    return peak / options_.medium_slots_a_peak >= medium_slot_bytes ? medium_slot_bytes
                                                                    : page_bytes;
}

inline void extent_heap::try_begin_locked(extent& free, address begin, std::size_t bytes,
                                          place& best) const noexcept {
    // A move costs the same whatever the size; that the bytes cost too keeps small blocks from opening large slots.
    const std::size_t slot_bytes = free.span->slot_bytes();
    const std::size_t missing = free.span->missing({begin, bytes});
    // A frame that was here before comes back for nothing, if it is to be had.
    const std::size_t known =
        missing == 0 ? 0 : std::min(missing, free.span->remembering({begin, bytes}));
    const std::size_t odd = slot_bytes < areas_[free.area].largest_slot ? odd_size_cost : 0;
    const std::size_t cost =
        (missing - known) * (move_cost + (slot_bytes >> 20) + odd) + known * return_cost;
    if (cost < best.cost) {
        best = {&free, begin, cost};
    }
}

inline void extent_heap::judge_extent_locked(extent& free, std::size_t bytes, std::size_t alignment,
                                             place& best) const noexcept {
    const slot_span& span = *free.span;
    const std::size_t slot_bytes = span.slot_bytes();
    const address end = free.range.end();
    if (bytes >= slot_bytes) {
        // A block that fills whole slots (or halves, quarters, ...) begins where one does: its neighbours
        // are then spared the odd rest. Not if that would leave more than a thousandth unused.
        std::size_t whole = slot_bytes;
        while (whole > alignment && align_up(bytes, whole) - bytes > bytes / 1024) {
            whole /= 2;
        }
        if (align_up(free.range.begin, whole) + bytes <= end) {
            alignment = std::max(alignment, whole);
        }
    }
    const address low = align_up(free.range.begin, alignment);
    if (low + bytes > end) {
        return;
    }
    const address high = align_down(end - bytes, alignment);
    try_begin_locked(free, low, bytes, best);
    if (best.cost == 0 || high == low) {
        return;
    }
    try_begin_locked(free, high, bytes, best);
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
            try_begin_locked(free, first, bytes, best);
        }
        if (span.slot_begin(run_end) > bytes) {
            const address backed = align_down(span.slot_begin(run_end) - bytes, alignment);
            if (backed > low && backed < high && run_end < last) {
                try_begin_locked(free, backed, bytes, best);
            }
        }
        run = span.next(run_end, last, true);
    }
}

inline void extent_heap::search_area_locked(std::uint32_t area, std::size_t bytes,
                                            std::size_t alignment, place& best) const noexcept {
    unsigned tries = 0;
    areas_[area].free.for_each_from(bytes, [&](extent& free) {
        judge_extent_locked(free, bytes, alignment, best);
        // Only places count: there may be any number of extents that such an alignment does not fit in.
        return best.cost != 0 && (best.within == nullptr || ++tries < most_tries);
    });
}

// In the block's own area if that costs nothing. A short-lived one will soon be gone and does no harm in the
// other area, if that is cheaper; a long-lived one would cut the short area up, which is worse than a few moves.
inline extent_heap::place extent_heap::search_place_locked(std::uint32_t area, std::size_t bytes,
                                                           std::size_t alignment) const noexcept {
    place best;
    search_area_locked(area, bytes, alignment, best);
    if (best.cost != 0 && area == short_area) {
        search_area_locked(long_area, bytes, alignment, best);
    } else if (best.cost > few_moves) {
        place other;
        search_area_locked(short_area, bytes, alignment, other);
        best = other.cost == 0 ? other : best;
    }
    return best;
}

inline extent_heap::place extent_heap::find_place_locked(std::uint32_t area, std::size_t bytes,
                                                         std::size_t alignment) noexcept {
    if (!options_.remembers_places) {
        return search_place_locked(area, bytes, alignment);
    }
    std::uint64_t key = areas_[0].free.signature() + areas_[1].free.signature();
    key = (key ^ user_.version() << 32 ^ alignment << 1 ^ area) * 0x9E3779B97F4A7C15;
    key = (key ^ key >> 32 ^ bytes) * 0xD6E8FEB86659FD93;
    remembered& last = memory_[key >> (64 - memory_bits)];
    if (last.key == key) {
        for (area_state& one : areas_) {
            if (extent* whole = one.free.find(last.whole);
                whole != nullptr && whole->range.contains(va_range{last.begin, bytes}) &&
                last.begin % alignment == 0) {
                return {whole, last.begin, 0};
            }
        }
    }
    const place found = search_place_locked(area, bytes, alignment);
    if (found.cost == 0) {
        last = {key, found.within->range, found.begin};
    }
    return found;
}

inline result<void*> extent_heap::allocate_locked(std::size_t requested,
                                                  std::size_t alignment) noexcept {
    const std::size_t bytes = align_up(requested, extent_unit_bytes);
    if (!records_.reserve(3) || !blocks_.reserve_one()) {
        return fail(errc::no_memory, "no memory for the records of blocks");
    }
    const lifetimes::birth born = lifetimes_.note(bytes);
    const bool is_short = lifetimes_.is_short(born, options_.short_life);
    const std::uint32_t area = is_short ? short_area : long_area;
    place where = find_place_locked(area, bytes, alignment);
    if (where.cost != 0) {
        const std::size_t slot_bytes = wanted_slot_bytes(bytes);
        if (where.within == nullptr || slot_bytes > areas_[area].largest_slot) {
            // A span begins at a slot.
            const std::size_t slack = alignment > slot_bytes ? alignment : 0;
            const status added = add_span_locked(area, bytes + slack, slot_bytes);
            if (!added && where.within == nullptr) {
                return added;
            }
            where = find_place_locked(area, bytes, alignment);
        }
    }
    extent& block = carve_locked(where, bytes);
    if (const status backed = frames_->acquire_locked(*block.span, block.range); !backed) {
        put_back_locked(block);
        return backed;
    }
    block.born = born;
    block.requested = requested;
    block.is_pending = false;
    blocks_.insert(block);
    count_live_locked(static_cast<std::ptrdiff_t>(bytes));
    return to_pointer(block.range.begin);
}

inline void extent_heap::deallocate_locked(extent& block) noexcept {
    blocks_.remove(block);
    lifetimes_.note_end(block.born);
    count_live_locked(-static_cast<std::ptrdiff_t>(block.range.bytes));
    frames_->release_locked(*block.span, block.range);
    put_back_locked(block);
}

inline status extent_heap::add_span_locked(std::uint32_t area, std::size_t bytes,
                                           std::size_t slot_bytes) noexcept {
    span_chain* chain = chains_.make();
    if (chain == nullptr) {
        return fail(errc::no_memory, "no memory for the records of blocks");
    }
    // Twice the block: so that it can move up as its neighbours grow.
    const std::size_t wanted = std::max(slot_bytes * options_.slots_a_span, 2 * bytes);
    for (const std::size_t enough : {wanted, bytes + page_bytes}) {
        if (result<slot_span*> span = frames_->reserve_locked(user_, enough, slot_bytes)) {
            extent& all = make_free_locked((*span)->range(), **span, area, nullptr, nullptr);
            areas_[area].largest_slot = std::max(areas_[area].largest_slot, slot_bytes);
            *chain = {*span, &all, area, spans_};
            spans_ = chain;
            return {};
        }
    }
    chains_.give_back(chain);
    return fail(errc::no_memory, "no address space for a heap");
}

// ---- the chain of extents

inline extent& extent_heap::make_free_locked(va_range range, slot_span& span, std::uint32_t area,
                                             extent* before, extent* after) noexcept {
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

inline extent& extent_heap::carve_locked(const place& where, std::size_t bytes) noexcept {
    extent& block = *where.within;
    areas_[block.area].free.remove(block);
    const va_range whole = block.range;
    block.range = {where.begin, bytes};
    block.is_free = false;
    if (where.begin > whole.begin) {
        const va_range rest{whole.begin, where.begin - whole.begin};
        extent& low = make_free_locked(rest, *block.span, block.area, block.before, &block);
        if (low.before == nullptr) {
            chain_of(block.span)->first = &low;
        }
    }
    if (block.range.end() < whole.end()) {
        const va_range rest{block.range.end(), whole.end() - block.range.end()};
        make_free_locked(rest, *block.span, block.area, &block, block.after);
    }
    return block;
}

inline void extent_heap::put_back_locked(extent& block) noexcept {
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

template <class Pred>
void extent_heap::release_spans_locked(Pred&& pred) noexcept {
    for (span_chain** link = &spans_; *link != nullptr;) {
        span_chain* chain = *link;
        if (!pred(*chain)) {
            link = &chain->next;
            continue;
        }
        *link = chain->next;
        for (extent* at = chain->first; at != nullptr;) {
            extent* next = at->after;
            if (at->is_free) {
                areas_[at->area].free.remove(*at);
            } else {
                blocks_.remove(*at);
                count_live_locked(-static_cast<std::ptrdiff_t>(at->range.bytes));
                frames_->release_locked(*at->span, at->range);
            }
            records_.give_back(at);
            at = next;
        }
        frames_->release_locked(chain->span);
        chains_.give_back(chain);
    }
    for (std::uint32_t area = 0; area < 2; ++area) {
        areas_[area].largest_slot = 0;
        for (const span_chain* chain = spans_; chain != nullptr; chain = chain->next) {
            if (chain->area == area) {
                areas_[area].largest_slot =
                    std::max(areas_[area].largest_slot, chain->span->slot_bytes());
            }
        }
    }
}

inline void extent_heap::release_all() noexcept {
    std::lock_guard guard{user_.lock()};
    release_spans_locked([](const span_chain&) { return true; });
}

inline bool extent_heap::is_valid() const noexcept {
    return with(user_.lock(), [&] {
        std::size_t live = 0;
        std::size_t blocks = 0;
        for (const span_chain* chain = spans_; chain != nullptr; chain = chain->next) {
            address at = chain->span->range().begin;
            const extent* before = nullptr;
            for (const extent* one = chain->first; one != nullptr; one = one->after) {
                const bool is_linked = one->before == before && one->range.begin == at &&
                                       one->range.bytes > 0 && one->span == chain->span &&
                                       one->area == chain->area;
                const bool is_merged = before == nullptr || !before->is_free || !one->is_free;
                if (!is_linked || !is_merged) {
                    return false;
                }
                if (!one->is_free) {
                    if (chain->span->missing(one->range) != 0 ||
                        blocks_.find(one->range.begin) != one) {
                        return false;
                    }
                    live += one->range.bytes;
                    ++blocks;
                }
                at = one->range.end();
                before = one;
            }
            if (at != chain->span->range().end()) {
                return false;
            }
        }
        return live == user_.live_bytes() && blocks == blocks_.count();
    });
}

}  // namespace xmm
