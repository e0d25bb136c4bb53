// SPDX-License-Identifier: Apache-2.0
// extents.hpp - the records of an extent heap: extents in order of address, and free ones by size.
//
// Model    A span is a chain of extents without gaps; two free ones never touch. Free extents lie in bins, 8 to
//          an octave of size, each roughly in order of size: an insertion looks at a few entries only.
// Threads  None of their own: the heap's lock guards them.
// Failure  extent_records::reserve answers false without memory; all else cannot fail.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include <xmm/core/types.hpp>
#include <xmm/mapping/slab.hpp>
#include <xmm/resources/lifetimes.hpp>
#include <xmm/resources/slot_span.hpp>

namespace xmm {

inline constexpr std::size_t extent_unit_bytes = 512;

struct extent {
    va_range range;
    slot_span* span = nullptr;
    extent* before = nullptr;  // in order of address, in the span
    extent* after = nullptr;
    extent* bin_before = nullptr;  // in the bin, while free; the next unused record, while neither
    extent* bin_after = nullptr;
    lifetimes::birth born;
    std::size_t requested = 0;  // of a block: what was asked for
    std::uint32_t area = 0;
    bool is_free = false;
    bool is_pending = false;  // given back by the program, but work may still use it
};

// Free extents by size.
class extent_bins {
public:
    static constexpr unsigned bins_an_octave = 8;
    static constexpr unsigned bin_count = 40 * bins_an_octave;
    static constexpr unsigned most_steps = 16;

    [[nodiscard]] static unsigned bin_of(std::size_t bytes) noexcept {
        const std::size_t units = bytes / extent_unit_bytes;
        if (units < bins_an_octave) {
            return static_cast<unsigned>(units);
        }
        const auto octave = static_cast<unsigned>(std::bit_width(units)) - 4;
        const unsigned bin = octave * bins_an_octave + static_cast<unsigned>(units >> octave);
        return bin < bin_count ? bin : bin_count - 1;
    }

    void insert(extent& one) noexcept {
        const unsigned bin = bin_of(one.range.bytes);
        extent* before = nullptr;
        extent* after = first_[bin];
        for (unsigned steps = 0;
             after != nullptr && after->range.bytes < one.range.bytes && steps < most_steps;
             ++steps) {
            before = after;
            after = after->bin_after;
        }
        one.bin_before = before;
        one.bin_after = after;
        (before != nullptr ? before->bin_after : first_[bin]) = &one;
        if (after != nullptr) {
            after->bin_before = &one;
        }
        used_[bin / 64] |= std::uint64_t{1} << (bin % 64);
        signature_ += sign(one.range);
    }
    void remove(extent& one) noexcept {
        const unsigned bin = bin_of(one.range.bytes);
        (one.bin_before != nullptr ? one.bin_before->bin_after : first_[bin]) = one.bin_after;
        if (one.bin_after != nullptr) {
            one.bin_after->bin_before = one.bin_before;
        }
        if (first_[bin] == nullptr) {
            used_[bin / 64] &= ~(std::uint64_t{1} << (bin % 64));
        }
        signature_ -= sign(one.range);
    }
    // Null if it is not there, or far behind in its bin.
    [[nodiscard]] extent* find(va_range range) const noexcept {
        extent* at = first_[bin_of(range.bytes)];
        for (unsigned steps = 0; at != nullptr && steps < most_steps; ++steps) {
            if (at->range == range) {
                return at;
            }
            at = at->bin_after;
        }
        return nullptr;
    }
    // Of the ranges in it: the same ones have the same, whatever came and went in between.
    [[nodiscard]] std::uint64_t signature() const noexcept { return signature_; }
    // From the smallest that is large enough upwards; fn answers whether to go on.
    template <class Fn>
    void for_each_from(std::size_t bytes, Fn&& fn) const {
        for (unsigned bin = next_used(bin_of(bytes)); bin < bin_count; bin = next_used(bin + 1)) {
            for (extent* at = first_[bin]; at != nullptr; at = at->bin_after) {
                if (at->range.bytes >= bytes && !fn(*at)) {
                    return;
                }
            }
        }
    }

private:
    [[nodiscard]] static std::uint64_t sign(va_range range) noexcept {
        const std::uint64_t mixed = (range.begin ^ range.bytes << 20) * 0x9E3779B97F4A7C15;
        return (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93;
    }
    [[nodiscard]] unsigned next_used(unsigned bin) const noexcept {
        while (bin < bin_count) {
            const std::uint64_t rest = used_[bin / 64] >> (bin % 64);
            if (rest != 0) {
                return bin + static_cast<unsigned>(std::countr_zero(rest));
            }
            bin = (bin / 64 + 1) * 64;
        }
        return bin_count;
    }

    extent* first_[bin_count] = {};
    std::uint64_t signature_ = 0;
    std::uint64_t used_[(bin_count + 63) / 64] = {};
};

// Records that are not in use, so that the slab's lock is not taken for each.
class extent_records {
public:
    // Makes sure that `count` calls of take() succeed.
    [[nodiscard]] bool reserve(unsigned count) noexcept {
        while (spare_count_ < count) {
            extent* one = slab_.make();
            if (one == nullptr) {
                return false;
            }
            give_back(one);
        }
        return true;
    }
    [[nodiscard]] extent* take() noexcept {
        extent* one = spare_;
        spare_ = one->bin_before;
        --spare_count_;
        *one = {};
        return one;
    }
    void give_back(extent* one) noexcept {
        one->bin_before = spare_;
        spare_ = one;
        ++spare_count_;
    }

private:
    slab<extent> slab_;
    extent* spare_ = nullptr;
    unsigned spare_count_ = 0;
};

// Blocks by their address: open addressing, at most half full.
class extent_index {
public:
    [[nodiscard]] bool reserve_one() noexcept {
        if (2 * (used_ + 1) <= capacity_) {
            return true;
        }
        const std::size_t grown = capacity_ == 0 ? 256 : 2 * capacity_;
        std::unique_ptr<extent*[]> cells{new (std::nothrow) extent*[grown]()};
        if (!cells) {
            return false;
        }
        std::swap(cells, cells_);
        const std::size_t before = std::exchange(capacity_, grown);
        for (std::size_t i = 0; i < before; ++i) {
            if (cells[i] != nullptr) {
                place(*cells[i]);
            }
        }
        return true;
    }
    void insert(extent& block) noexcept {
        place(block);
        ++used_;
    }
    [[nodiscard]] extent* find(address begin) const noexcept {
        if (capacity_ == 0) {
            return nullptr;
        }
        std::size_t at = home(begin);
        while (cells_[at] != nullptr && cells_[at]->range.begin != begin) {
            at = (at + 1) & (capacity_ - 1);
        }
        return cells_[at];
    }
    void remove(const extent& block) noexcept {
        std::size_t hole = home(block.range.begin);
        while (cells_[hole] != &block) {
            hole = (hole + 1) & (capacity_ - 1);
        }
        // Those behind it move up as far as their home lets them.
        for (std::size_t at = (hole + 1) & (capacity_ - 1); cells_[at] != nullptr;
             at = (at + 1) & (capacity_ - 1)) {
            const std::size_t wanted = home(cells_[at]->range.begin);
            if (((at - wanted) & (capacity_ - 1)) >= ((at - hole) & (capacity_ - 1))) {
                cells_[hole] = cells_[at];
                hole = at;
            }
        }
        cells_[hole] = nullptr;
        --used_;
    }
    [[nodiscard]] std::size_t count() const noexcept { return used_; }

private:
    [[nodiscard]] std::size_t home(address begin) const noexcept {
        const std::uint64_t hash = begin / extent_unit_bytes * 0x9E3779B97F4A7C15;
        return static_cast<std::size_t>(hash >> 20) & (capacity_ - 1);
    }
    void place(extent& block) noexcept {
        std::size_t at = home(block.range.begin);
        while (cells_[at] != nullptr) {
            at = (at + 1) & (capacity_ - 1);
        }
        cells_[at] = &block;
    }

    std::unique_ptr<extent*[]> cells_;
    std::size_t capacity_ = 0;
    std::size_t used_ = 0;
};

}  // namespace xmm
