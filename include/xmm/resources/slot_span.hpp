// SPDX-License-Identifier: Apache-2.0
// slot_span.hpp - a reservation of equal slots, and the one who uses it.
//
// Model    A slot has a frame or none, and a count of the blocks that overlap it. With a frame and no block
//          it is idle: still mapped, and its frame may be taken for another slot. A frame_user is one heap
//          on one queue, and after that queue's end on another one; its spans share its lock.
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

    // A user of one span only is made and owned by device_frames. The owner is for a span_observer.
    explicit frame_user(queue_id queue, std::uint32_t tag = 0, bool is_of_one_span = false,
                        void* owner = nullptr) noexcept
        : queue_{queue.value}, tag_{tag}, is_of_one_span_{is_of_one_span}, owner_{owner} {}
    frame_user(const frame_user&) = delete;
    frame_user& operator=(const frame_user&) = delete;

    // relaxed: it changes only between two queues' work, see device_frames::set_queue.
    [[nodiscard]] queue_id queue() const noexcept {
        return {queue_.load(std::memory_order_relaxed)};
    }
    [[nodiscard]] std::uint32_t tag() const noexcept { return tag_; }
    [[nodiscard]] bool is_of_one_span() const noexcept { return is_of_one_span_; }
    [[nodiscard]] void* owner() const noexcept { return owner_; }
    [[nodiscard]] lock_type& lock() const noexcept { return lock_; }

    // What its blocks take now, in bytes. Its lock is held.
    void set_live(std::size_t bytes) noexcept {
        // relaxed, both: written under the lock, and read elsewhere as a measure.
        live_.store(bytes, std::memory_order_relaxed);
        if (bytes > live_peak_.load(std::memory_order_relaxed)) {
            live_peak_.store(bytes, std::memory_order_relaxed);
        }
    }
    [[nodiscard]] std::size_t live_bytes() const noexcept {
        return live_.load(std::memory_order_relaxed);
    }
    // Another one whenever what missing(), remembering() and next() of its spans answer may be another.
    [[nodiscard]] std::uint64_t version() const noexcept {
        // acquire: pairs with the release in count_version, so that what is asked next is no older.
        return version_.load(std::memory_order_acquire);
    }
    [[nodiscard]] std::size_t live_peak() const noexcept {
        return live_peak_.load(std::memory_order_relaxed);
    }

private:
    friend class device_frames;
    friend class slot_span;
    friend class stale_mappings;

    // Whether the queue's work up to that release is done; if not, what to wait for. Under (D).
    [[nodiscard]] bool is_finished(frame_port& port, std::uint64_t stamp, ticket& until) noexcept {
        return points_.is_reached(port, queue(), stamp, listed_, until);
    }

    mutable lock_type lock_;            // (U) in the legend below, (D) is the lock of device_frames
    std::atomic<std::uint32_t> queue_;  // (A)   written under U and D
    const std::uint32_t tag_;           //       constant
    const bool is_of_one_span_;         //       constant
    void* const owner_;                 //       constant
    slot_span* spans_ = nullptr;        // (U,D) first of its spans; two letters: written under both
    std::uint64_t stamp_ = 0;           // (U)   of the latest release
    std::atomic<std::size_t> live_{0};  // (A)   written under U
    std::atomic<std::size_t> live_peak_{0};  // (A)   written under U
    std::atomic<std::uint64_t> version_{0};  // (A)   written under D
    frame_user* next_ = nullptr;             // (D)   next of the users that have frames
    bool is_listed_ = false;                 // (D)   it is among them
    std::uint64_t listed_ = 0;               // (D)   stamp_ when its slots were last looked at
    queue_points points_;                    // (D)
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

    [[nodiscard]] bool has_any_frame() const noexcept { return mapped_count_ != 0; }
    // How many of the slots that the range overlaps have no frame.
    [[nodiscard]] std::size_t missing(va_range part) const noexcept {
        std::size_t missing = 0;
        for_each_word(slot_of(part.begin), slot_of(part.end() - 1),
                      [&](std::size_t word, std::uint64_t asked) {
                          missing += count_bits(asked & ~mapped_[word]);
                      });
        return missing;
    }
    // How many of them are still mapped to the frame that they had last: it may come back without a call.
    [[nodiscard]] std::size_t remembering(va_range part) const noexcept {
        std::size_t count = 0;
        for_each_word(slot_of(part.begin), slot_of(part.end() - 1),
                      [&](std::size_t word, std::uint64_t asked) {
                          // relaxed: a guess
                          const std::uint64_t stale = stale_[word].load(std::memory_order_relaxed);
                          count += count_bits(asked & stale);
                      });
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
        const std::size_t words = (count_ + 63) / 64;
        mapped_.reset(new (std::nothrow) std::uint64_t[words]());
        used_.reset(new (std::nothrow) std::uint64_t[words]());
        more_.reset(new (std::nothrow) std::uint32_t[count_]());
        stamps_.reset(new (std::nothrow) std::uint64_t[count_]());
        word_stamps_.reset(new (std::nothrow) std::uint64_t[words]());
        frames_.reset(new (std::nothrow) port_frame[count_]());
        stale_.reset(new (std::nothrow) std::atomic<std::uint64_t>[words]());
        return mapped_ && used_ && more_ && stamps_ && word_stamps_ && frames_ && stale_;
    }
    // Most words have none or all, and without a compiler's option for it popcount is a call.
    [[nodiscard]] static std::size_t count_bits(std::uint64_t word) noexcept {
        if (word == 0 || word == ~std::uint64_t{0}) {
            return word == 0 ? 0 : 64;
        }
        return static_cast<std::size_t>(std::popcount(word));
    }
    // visit(word, mask) for each word of a bit map that the slots from first to last have a part in.
    template <class Visit>
    static void for_each_word(std::size_t first, std::size_t last, Visit&& visit) noexcept {
        for (std::size_t word = first / 64; word <= last / 64; ++word) {
            std::uint64_t mask = ~std::uint64_t{0};
            if (word == first / 64) {
                mask &= ~std::uint64_t{0} << (first % 64);
            }
            if (word == last / 64) {
                mask &= ~std::uint64_t{0} >> (63 - last % 64);
            }
            visit(word, mask);
        }
    }
    // Of a slot that has none, and of one that has one.
    void set_mapped(std::size_t slot) noexcept {
        mapped_[slot / 64] |= std::uint64_t{1} << (slot % 64);
        ++mapped_count_;
        count_version();
    }
    void clear_mapped(std::size_t slot) noexcept {
        mapped_[slot / 64] &= ~(std::uint64_t{1} << (slot % 64));
        --mapped_count_;
        count_version();
    }
    // Under D, as the next.
    [[nodiscard]] bool is_stale(std::size_t slot) const noexcept {
        // relaxed, here and below: other readers but guess.
        return (stale_[slot / 64].load(std::memory_order_relaxed) >> (slot % 64) & 1) != 0;
    }
    void set_stale(std::size_t slot, bool is_stale) noexcept {
        const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
        const std::uint64_t word = stale_[slot / 64].load(std::memory_order_relaxed);
        stale_[slot / 64].store(is_stale ? word | bit : word & ~bit, std::memory_order_relaxed);
        count_version();
    }
    void count_version() noexcept { user_->version_.fetch_add(1, std::memory_order_release); }
    [[nodiscard]] bool has_block(std::size_t slot) const noexcept {
        return (used_[slot / 64] >> (slot % 64) & 1) != 0;
    }
    [[nodiscard]] bool is_idle(std::size_t slot) const noexcept {
        return has_frame(slot) && !has_block(slot);
    }
    // Only the slots at the ends can be shared with other blocks.
    void add_block(std::size_t first, std::size_t last) noexcept {
        add_end(first);
        if (last != first) {
            add_end(last);
        }
        if (last > first + 1) {
            for_each_word(first + 1, last - 1,
                          [&](std::size_t word, std::uint64_t mask) { used_[word] |= mask; });
        }
    }
    // What was added as one block may go in parts, and the other way round.
    void drop_block(std::size_t first, std::size_t last, std::uint64_t stamp) noexcept {
        drop_end(first);
        if (last != first) {
            drop_end(last);
        }
        if (last > first + 1) {
            for_each_word(first + 1, last - 1, [&](std::size_t word, std::uint64_t mask) {
                XMM_ASSERT((used_[word] & mask) == mask, "released where nothing was acquired");
                used_[word] &= ~mask;
            });
        }
        for_each_word(first, last, [&](std::size_t word, std::uint64_t mask) {
            if (mask == ~std::uint64_t{0}) {
                word_stamps_[word] = stamp;
                return;
            }
            for (; mask != 0; mask &= mask - 1) {
                stamps_[word * 64 + static_cast<std::size_t>(std::countr_zero(mask))] = stamp;
            }
        });
    }
    void add_end(std::size_t slot) noexcept {
        const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
        more_[slot] += (used_[slot / 64] & bit) != 0 ? 1 : 0;
        used_[slot / 64] |= bit;
    }
    void drop_end(std::size_t slot) noexcept {
        XMM_ASSERT(has_block(slot), "released where nothing was acquired");
        if (more_[slot] != 0) {
            --more_[slot];
        } else {
            used_[slot / 64] &= ~(std::uint64_t{1} << (slot % 64));
        }
    }
    // The release that was last here: stamps only grow.
    [[nodiscard]] std::uint64_t stamp_of(std::size_t slot) const noexcept {
        return std::max(stamps_[slot], word_stamps_[slot / 64]);
    }

    frame_user* const user_;
    const va_range range_;
    const unsigned shift_;
    const std::size_t count_;
    std::unique_ptr<frame_user> own_user_;          // of a span that was reserved without one
    slot_span* next_ = nullptr;                     // (U,D) next of the same user
    std::size_t mapped_count_ = 0;                  // (U,D) slots that have a frame
    std::unique_ptr<std::uint64_t[]> mapped_;       // (U,D) a bit a slot
    std::unique_ptr<std::uint64_t[]> used_;         // (U)   a bit a slot: a block overlaps it
    std::unique_ptr<std::uint32_t[]> more_;         // (U)   how many more than one do
    std::unique_ptr<std::uint64_t[]> stamps_;       // (U)   the release that was last here, or ...
    std::unique_ptr<std::uint64_t[]> word_stamps_;  // (U) ... in all 64 slots at once
    std::unique_ptr<port_frame[]> frames_;          // (D)   of slots that have one
    std::unique_ptr<std::atomic<std::uint64_t>[]>
        stale_;  // (A) a bit a slot: still mapped to a frame that went elsewhere; written under D
};

}  // namespace xmm
