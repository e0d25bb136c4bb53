// SPDX-License-Identifier: Apache-2.0
// slot_span.hpp - a reservation of equal slots, and the one who uses it.
//
// Model    A slot has a frame or none, and a count of the blocks that overlap it. With a frame and no block
//          it is idle: still mapped, and its frame may be taken for another slot. A frame_user is one heap
//          on one queue; its spans share its lock.
// Threads  The counts of a span, and which of its slots have frames, are guarded by its user's lock. Frames
//          are given and taken under the lock of device_frames as well.
// See      device_frames.hpp gives and takes the frames.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include <xmm/core/list.hpp>
#include <xmm/core/lock.hpp>
#include <xmm/core/types.hpp>
#include <xmm/resources/frame_port.hpp>
#include <xmm/resources/queue_points.hpp>

namespace xmm {

class slot_span;
class stale_mappings;

// One heap on one queue, as device_frames knows it. Its stamps number its releases, so that "all work up to
// the release with this stamp" can be asked for.
class frame_user {
public:
    using lock_type = ranked_mutex<lock_rank::extent_heap>;

    // A user of one span only is made and owned by device_frames.
    explicit frame_user(queue_id queue, std::uint32_t tag = 0, bool is_of_one_span = false) noexcept
        : queue_{queue}, tag_{tag}, is_of_one_span_{is_of_one_span} {}
    frame_user(const frame_user&) = delete;
    frame_user& operator=(const frame_user&) = delete;

    [[nodiscard]] queue_id queue() const noexcept { return queue_; }
    [[nodiscard]] std::uint32_t tag() const noexcept { return tag_; }
    [[nodiscard]] bool is_of_one_span() const noexcept { return is_of_one_span_; }
    [[nodiscard]] lock_type& lock() const noexcept { return lock_; }

private:
    friend class device_frames;
    friend class slot_span;
    friend class stale_mappings;

    // Whether the queue's work up to that release is done; if not, what to wait for. Under (D).
    [[nodiscard]] bool is_finished(frame_port& port, std::uint64_t stamp, ticket& until) noexcept {
        return points_.is_reached(port, queue_, stamp, listed_, until);
    }

    mutable lock_type lock_;      // (U) in the legend below, (D) is the lock of device_frames
    const queue_id queue_;        //       constant
    const std::uint32_t tag_;     //       constant
    const bool is_of_one_span_;   //       constant
    slot_span* spans_ = nullptr;  // (U,D) first of its spans; two letters: written under both
    std::uint64_t stamp_ = 0;     // (U)   of the latest release
    frame_user* next_ = nullptr;  // (D)   next of the users that have spans
    std::uint64_t listed_ = 0;    // (D)   stamp_ when its slots were last looked at
    queue_points points_;         // (D)
};

class slot_span {
public:
    [[nodiscard]] va_range range() const noexcept { return range_; }
    [[nodiscard]] std::size_t slot_bytes() const noexcept { return std::size_t{1} << shift_; }
    [[nodiscard]] std::size_t slot_count() const noexcept { return count_; }
    [[nodiscard]] frame_user& user() const noexcept { return *user_; }

    [[nodiscard]] std::size_t slot_of(address at) const noexcept {
        return (at - range_.begin) >> shift_;
    }
    [[nodiscard]] address slot_begin(std::size_t slot) const noexcept {
        return range_.begin + (slot << shift_);
    }

    // All below: the user's lock is held.
    [[nodiscard]] bool has_frame(std::size_t slot) const noexcept {
        return (mapped_[slot / 64] >> (slot % 64) & 1) != 0;
    }

    // How many of the slots that the range overlaps have no frame.
    [[nodiscard]] std::size_t missing(va_range part) const noexcept {
        const std::size_t first = slot_of(part.begin);
        const std::size_t last = slot_of(part.end() - 1);
        const std::size_t first_word = first / 64;
        const std::size_t last_word = last / 64;
        std::size_t missing = 0;
        for (std::size_t word = first_word; word <= last_word; ++word) {
            std::uint64_t asked = ~std::uint64_t{0};
            if (word == first_word) {
                asked &= ~std::uint64_t{0} << (first % 64);
            }
            if (word == last_word) {
                asked &= ~std::uint64_t{0} >> (63 - last % 64);
            }
            missing += static_cast<std::size_t>(std::popcount(asked & ~mapped_[word]));
        }
        return missing;
    }
    // How many of them are still mapped to the frame that they had last: it may come back without a call.
    [[nodiscard]] std::size_t remembering(va_range part) const noexcept {
        std::size_t count = 0;
        for (std::size_t slot = slot_of(part.begin); slot <= slot_of(part.end() - 1); ++slot) {
            count += stale_[slot].load(std::memory_order_relaxed) ? 1 : 0;  // relaxed: a guess
        }
        return count;
    }
    // The next slot at or after `slot`, before `end`, that has a frame (or has none); `end` if there is none.
    [[nodiscard]] std::size_t next(std::size_t slot, std::size_t end,
                                   bool with_frame) const noexcept {
        while (slot < end) {
            const std::uint64_t word = with_frame ? mapped_[slot / 64] : ~mapped_[slot / 64];
            const std::uint64_t rest = word >> (slot % 64);
            if (rest != 0) {
                return std::min(end, slot + static_cast<std::size_t>(std::countr_zero(rest)));
            }
            slot = (slot / 64 + 1) * 64;
        }
        return end;
    }

private:
    friend class device_frames;
    friend class stale_mappings;

    slot_span(frame_user& user, va_range range, unsigned shift) noexcept
        : user_{&user}, range_{range}, shift_{shift}, count_{range.bytes >> shift} {}

    // False if there is no memory for the slots' records.
    [[nodiscard]] bool make_slots() noexcept {
        mapped_.reset(new (std::nothrow) std::uint64_t[(count_ + 63) / 64]());
        blocks_.reset(new (std::nothrow) std::uint32_t[count_]());
        stamps_.reset(new (std::nothrow) std::uint64_t[count_]());
        frames_.reset(new (std::nothrow) port_frame[count_]());
        stale_.reset(new (std::nothrow) std::atomic<bool>[count_]());
        return mapped_ && blocks_ && stamps_ && frames_ && stale_;
    }
    void set_mapped(std::size_t slot) noexcept {
        mapped_[slot / 64] |= std::uint64_t{1} << (slot % 64);
    }
    void clear_mapped(std::size_t slot) noexcept {
        mapped_[slot / 64] &= ~(std::uint64_t{1} << (slot % 64));
    }
    [[nodiscard]] bool is_idle(std::size_t slot) const noexcept {
        return has_frame(slot) && blocks_[slot] == 0;
    }
    // Only the slots at the ends can be shared with other blocks.
    void add_block(std::size_t first, std::size_t last) noexcept {
        ++blocks_[first];
        if (last != first) {
            std::fill(&blocks_[first] + 1, &blocks_[last], 1U);
            ++blocks_[last];
        }
    }
    void drop_block(std::size_t first, std::size_t last, std::uint64_t stamp) noexcept {
        XMM_ASSERT(blocks_[first] > 0 && blocks_[last] > 0, "released where nothing was acquired");
        --blocks_[first];
        if (last != first) {
            std::fill(&blocks_[first] + 1, &blocks_[last], 0U);
            --blocks_[last];
        }
        std::fill(&stamps_[first], &stamps_[last] + 1, stamp);
    }

    frame_user* const user_;
    const va_range range_;
    const unsigned shift_;
    const std::size_t count_;
    std::unique_ptr<frame_user> own_user_;     // of a span that was reserved without one
    slot_span* next_ = nullptr;                // (U,D) next of the same user
    std::unique_ptr<std::uint64_t[]> mapped_;  // (U,D) a bit a slot
    std::unique_ptr<std::uint32_t[]> blocks_;  // (U)   blocks that overlap the slot
    std::unique_ptr<std::uint64_t[]> stamps_;  // (U)   the release that was last here
    std::unique_ptr<port_frame[]> frames_;     // (D)   of slots that have one
    std::unique_ptr<std::atomic<bool>[]>
        stale_;  // (A) still mapped to a frame that went elsewhere; written under D
};

}  // namespace xmm
