// SPDX-License-Identifier: Apache-2.0
// lifetimes.hpp - how long the next block will live, learned from those before it.
//
// Model    Programs repeat themselves: the same sizes in the same order, step after step and layer after
//          layer. A block's context is its size with the sizes allocated just before it; the table keeps, for
//          each context, how many allocations the latest block of that context lived through.
// Threads  None of its own: its owner's lock guards it.
// Failure  Without memory for the table nothing is known, and so nothing is short-lived.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace xmm {

class lifetimes {
public:
    // What a block keeps until it goes.
    struct birth {
        std::uint32_t context = 0;
        std::uint32_t at = 0;
    };

    lifetimes() noexcept : table_{new(std::nothrow) entry[entry_count]()} {}

    // A block of this size is allocated now.
    [[nodiscard]] birth note(std::size_t bytes) noexcept {
        std::uint64_t hash = bytes * multiplier;
        for (unsigned i = 1; i <= depth; ++i) {
            hash = (hash ^ (hash >> 29) ^ recent_[(clock_ - i) % kept]) * multiplier;
        }
        recent_[clock_ % kept] = bytes * multiplier;
        return {static_cast<std::uint32_t>(hash >> 32), clock_++};
    }
    // Whether a block of that context lived less than this many allocations the last time.
    [[nodiscard]] bool is_short(birth born, std::uint32_t allocations) const noexcept {
        if (!table_) {
            return false;
        }
        const entry& known = table_[born.context % entry_count];
        return known.context == born.context && known.life < allocations;
    }
    void note_end(birth born) noexcept {
        if (table_) {
            table_[born.context % entry_count] = {born.context, clock_ - born.at};
        }
    }

private:
    struct entry {
        std::uint32_t context = 0;
        std::uint32_t life = ~std::uint32_t{0};
    };
    static constexpr std::size_t entry_count =
        8192;                             // steps have hundreds to thousands of contexts
    static constexpr unsigned depth = 6;  // sizes before; 4 mix up contexts, 12 learn too slowly
    static constexpr unsigned kept = 8;   // a power of two: the clock may wrap
    static constexpr std::uint64_t multiplier = 0x9E3779B97F4A7C15;

    std::unique_ptr<entry[]> table_;
    std::uint64_t recent_[kept] = {};
    std::uint32_t clock_ = 0;  // counts allocations
};

}  // namespace xmm
