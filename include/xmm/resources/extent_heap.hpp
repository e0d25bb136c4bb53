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
// See      place_search.hpp finds the place, extent_chains.hpp cuts it out; device_frames.hpp, lifetimes.hpp.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/resources/device_frames.hpp>
#include <xmm/resources/extent_chains.hpp>
#include <xmm/resources/extents.hpp>
#include <xmm/resources/lifetimes.hpp>
#include <xmm/resources/place_search.hpp>
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
        : frames_{&frames},
          options_{chosen},
          user_{queue, chosen.tag, false, chosen.owner},
          places_{chosen.remembers_places} {}
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
            const extent* at = blocks_.find(to_address(pointer));
            at = at != nullptr ? at : chains_.find_extent(to_address(pointer));
            return at == nullptr || at->is_free || at->is_pending ? va_range{} : at->range;
        });
    }
    [[nodiscard]] std::size_t usable_bytes(const void* pointer) const noexcept {
        return find(pointer).bytes;
    }
    [[nodiscard]] bool owns(const void* pointer) const noexcept {
        return with(user_.lock(), [&] { return chains_.find(to_address(pointer)) != nullptr; });
    }

    // fn(va_range, bool is_free) for each extent, span by span in order of address; under the heap's lock.
    template <class Fn>
    void for_each(Fn&& fn) const {
        for_each_extent([&](const extent& one) { fn(one.range, one.is_free); });
    }
    // Where blocks begin, but for those that are pending, as many as there is room for. How many those are.
    [[nodiscard]] std::size_t list_blocks(std::span<address> found) const noexcept {
        std::size_t count = 0;
        std::lock_guard guard{user_.lock()};
        chains_.for_each([&](const extent_chains::chain& one) {
            for (const extent* at = one.first; at != nullptr && count < found.size();
                 at = at->after) {
                if (!at->is_free && !at->is_pending) {
                    found[count++] = at->range.begin;
                }
            }
        });
        return count;
    }
    template <class Fn>
    void for_each_extent(Fn&& fn) const {
        std::lock_guard guard{user_.lock()};
        chains_.for_each([&](const extent_chains::chain& one) {
            one.for_each([&](const extent& at) { fn(at); });
        });
    }

    // Gives spans without a block back, with their frames. Waits for the queue where that is needed; what it cannot
    // say that it has done with stays. Frames that are idle in other spans are the business of device_frames::trim.
    void trim() noexcept {
        std::lock_guard guard{user_.lock()};
        release_spans_locked([&](const extent_chains::chain& one) {
            return one.is_free() && frames_->try_empty_locked(*one.span);
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
    using place = place_search::place;

    static constexpr std::size_t medium_slot_bytes = 4 * page_bytes;
    static constexpr std::size_t large_slot_bytes = 32 * page_bytes;

    [[nodiscard]] result<void*> allocate_locked(std::size_t requested,
                                                std::size_t alignment) noexcept;
    void deallocate_locked(extent& block) noexcept;
    [[nodiscard]] place find_place_locked(std::uint32_t area, std::size_t bytes,
                                          std::size_t alignment) noexcept {
        return places_.find(chains_.areas(), user_.version(), area, bytes, alignment);
    }
    [[nodiscard]] status add_span_locked(std::uint32_t area, std::size_t bytes,
                                         std::size_t slot_bytes) noexcept;
    [[nodiscard]] std::size_t wanted_slot_bytes(std::size_t bytes) const noexcept;
    template <class Pred>
    void release_spans_locked(Pred&& pred) noexcept;

    void release_all() noexcept {
        std::lock_guard guard{user_.lock()};
        release_spans_locked([](const extent_chains::chain&) { return true; });
    }
    void count_live_locked(std::ptrdiff_t bytes) noexcept {
        user_.set_live(user_.live_bytes() + static_cast<std::size_t>(bytes));
    }

    device_frames* const frames_;
    const options options_;
    frame_user user_;  // its lock guards all below
    extent_chains chains_;
    place_search places_;
    extent_index blocks_;
    lifetimes lifetimes_;
};

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

inline result<void*> extent_heap::allocate_locked(std::size_t requested,
                                                  std::size_t alignment) noexcept {
    const std::size_t bytes = align_up(requested, extent_unit_bytes);
    if (!chains_.reserve_records() || !blocks_.reserve_one()) {
        return fail(errc::no_memory, "no memory for the records of blocks");
    }
    const lifetimes::birth born = lifetimes_.note(bytes);
    const bool is_short = lifetimes_.is_short(born, options_.short_life);
    const std::uint32_t area = is_short ? extent_chains::short_area : extent_chains::long_area;
    place where = find_place_locked(area, bytes, alignment);
    if (where.cost != 0) {
        const std::size_t slot_bytes = wanted_slot_bytes(bytes);
        if (where.within == nullptr || slot_bytes > chains_.largest_slot(area)) {
            // A span begins at a slot.
            const std::size_t slack = alignment > slot_bytes ? alignment : 0;
            const status added = add_span_locked(area, bytes + slack, slot_bytes);
            if (!added && where.within == nullptr) {
                return added;
            }
            where = find_place_locked(area, bytes, alignment);
        }
    }
    extent& block = chains_.carve(*where.within, where.begin, bytes);
    if (const status backed = frames_->acquire_locked(*block.span, block.range); !backed) {
        chains_.put_back(block);
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
    chains_.put_back(block);
}

inline status extent_heap::add_span_locked(std::uint32_t area, std::size_t bytes,
                                           std::size_t slot_bytes) noexcept {
    extent_chains::chain* chain = chains_.make_chain();
    if (chain == nullptr) {
        return fail(errc::no_memory, "no memory for the records of blocks");
    }
    // Twice the block: so that it can move up as its neighbours grow.
    const std::size_t wanted = std::max(slot_bytes * options_.slots_a_span, 2 * bytes);
    for (const std::size_t enough : {wanted, bytes + page_bytes}) {
        if (result<slot_span*> span = frames_->reserve_locked(user_, enough, slot_bytes)) {
            chains_.enter(chain, **span, area);
            return {};
        }
    }
    chains_.give_back(chain);
    return fail(errc::no_memory, "no address space for a heap");
}

template <class Pred>
void extent_heap::release_spans_locked(Pred&& pred) noexcept {
    chains_.release_if(
        pred,
        [&](extent& block) {
            blocks_.remove(block);
            count_live_locked(-static_cast<std::ptrdiff_t>(block.range.bytes));
            frames_->release_locked(*block.span, block.range);
        },
        [&](slot_span* span) { frames_->release_locked(span); });
}

inline bool extent_heap::is_valid() const noexcept {
    return with(user_.lock(), [&] {
        bool is_sound = chains_.is_valid();
        std::size_t live = 0;
        std::size_t blocks = 0;
        chains_.for_each([&](const extent_chains::chain& chain) {
            chain.for_each([&](const extent& one) {
                if (!one.is_free) {
                    is_sound = is_sound && chain.span->missing(one.range) == 0 &&
                               blocks_.find(one.range.begin) == &one;
                    live += one.range.bytes;
                    ++blocks;
                }
            });
        });
        return is_sound && live == user_.live_bytes() && blocks == blocks_.count();
    });
}

}  // namespace xmm
