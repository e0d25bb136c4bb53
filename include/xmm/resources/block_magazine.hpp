// SPDX-License-Identifier: Apache-2.0
// block_magazine.hpp - free small blocks that one thread keeps for one queue: a stack for each class.
//
// Model    About 64 KiB of each class, 2 to 64 blocks: up to 1.5 MiB a thread and queue. What was given back last is
//          handed out first.
// Threads  One at a time.
// Failure  None: a full stack says so, an empty one answers null.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include <xmm/resources/block_classes.hpp>

namespace xmm {

namespace detail {

// Where the stack of each class begins among all of a magazine's.
inline constexpr auto magazine_stacks = [] {
    constexpr std::size_t kept_bytes = std::size_t{64} << 10;
    std::array<std::uint16_t, block_classes::count + 1> first{};
    for (unsigned one = 0; one < block_classes::count; ++one) {
        const std::size_t blocks = kept_bytes / block_classes::bytes_of(one);
        first[one + 1] =
            static_cast<std::uint16_t>(first[one] + std::clamp<std::size_t>(blocks, 2, 64));
    }
    return first;
}();

}  // namespace detail

class block_magazine {
public:
    [[nodiscard]] static constexpr unsigned capacity_of(unsigned block_class) noexcept {
        return detail::magazine_stacks[block_class + 1] - detail::magazine_stacks[block_class];
    }

    [[nodiscard]] void* pop(unsigned block_class) noexcept {
        std::uint8_t& count = counts_[block_class];
        return count == 0 ? nullptr : blocks_[detail::magazine_stacks[block_class] + --count];
    }
    // False: full.
    [[nodiscard]] bool push(unsigned block_class, void* block) noexcept {
        std::uint8_t& count = counts_[block_class];
        if (count == capacity_of(block_class)) {
            return false;
        }
        blocks_[detail::magazine_stacks[block_class] + count++] = block;
        return true;
    }
    // fn(block_class, block) for the older half of a class; it is gone then.
    template <class Fn>
    void drop_half(unsigned block_class, Fn&& fn) {
        drop(block_class, (counts_[block_class] + 1u) / 2, fn);
    }
    template <class Fn>
    void drop_all(Fn&& fn) {
        for (unsigned one = 0; one < block_classes::count; ++one) {
            drop(one, counts_[one], fn);
        }
    }
    [[nodiscard]] bool is_empty() const noexcept {
        return std::ranges::all_of(counts_, [](std::uint8_t count) { return count == 0; });
    }

private:
    template <class Fn>
    void drop(unsigned block_class, unsigned count, Fn&& fn) {
        void** const stack = blocks_.data() + detail::magazine_stacks[block_class];
        const std::span<void*> old{stack, count};
        std::ranges::for_each(old, [&](void* block) { fn(block_class, block); });
        std::copy(stack + count, stack + counts_[block_class], stack);
        counts_[block_class] = static_cast<std::uint8_t>(counts_[block_class] - count);
    }

    std::array<std::uint8_t, block_classes::count> counts_{};
    std::array<void*, detail::magazine_stacks[block_classes::count]> blocks_;
};

}  // namespace xmm
