// SPDX-License-Identifier: Apache-2.0
// size_classes.hpp - the block sizes of a pool: four per doubling.
//
// Model    A block's class follows from bytes and alignment alone, so it is found again when the block is
//          given back and nothing needs to stand beside the block, not even on a device.
//          Blocks lie at multiples of their size, so a class is aligned to the lowest bit of its size.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>

#include <xmm/core/types.hpp>

namespace xmm::detail {

struct size_classes {
    static constexpr std::size_t least_bytes = 32;
    static constexpr std::size_t per_doubling = 4;

    [[nodiscard]] static constexpr std::size_t bytes_of(std::size_t index) noexcept {
        const std::size_t doubling = index / per_doubling;
        const std::size_t step = least_bytes / per_doubling << doubling;
        return step * (per_doubling + index % per_doubling);
    }
    [[nodiscard]] static constexpr std::size_t alignment_of(std::size_t index) noexcept {
        const std::size_t bytes = bytes_of(index);
        return bytes & (~bytes + 1);
    }
    // The smallest class that holds that many bytes at that alignment.
    [[nodiscard]] static constexpr std::size_t index_of(std::size_t bytes,
                                                        std::size_t alignment) noexcept {
        const std::size_t least = std::max({bytes, alignment, least_bytes});
        const auto doubling = static_cast<std::size_t>(std::bit_width(least / least_bytes)) - 1;
        const std::size_t step = least_bytes / per_doubling << doubling;
        std::size_t index = doubling * per_doubling + (least + step - 1) / step - per_doubling;
        while (alignment_of(index) < alignment) {
            ++index;  // at most three: the next power of two is aligned to itself
        }
        return index;
    }
};

}  // namespace xmm::detail
