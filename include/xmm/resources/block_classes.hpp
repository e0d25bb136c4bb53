// SPDX-License-Identifier: Apache-2.0
// block_classes.hpp - the sizes in which small device blocks come.
//
// Model    Whole units of 256 bytes, four sizes a doubling: 256, 512, 768, 1024, 1280, ... 28, 32 KiB. They are
//          jemalloc's classes at an alignment of 256, so a block wastes what jemalloc would.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace xmm {

class block_classes {
public:
    static constexpr std::size_t unit = 256;
    static constexpr std::size_t largest_bytes = std::size_t{32} << 10;
    static constexpr unsigned count = 24;

    // The smallest class that holds that many bytes: 0 to largest_bytes.
    [[nodiscard]] static constexpr unsigned index_of(std::size_t bytes) noexcept {
        return table[(bytes + unit - 1) / unit];
    }
    [[nodiscard]] static constexpr std::size_t bytes_of(unsigned index) noexcept {
        return sizes[index];
    }

private:
    static constexpr std::array<std::uint16_t, count> sizes = [] {
        std::array<std::uint16_t, count> made{};
        std::size_t bytes = unit;
        std::size_t step = unit;
        for (auto& one : made) {
            one = static_cast<std::uint16_t>(bytes);
            step *= bytes == 8 * step ? 2 : 1;
            bytes += step;
        }
        return made;
    }();
    static constexpr std::array<std::uint8_t, largest_bytes / unit + 1> table = [] {
        std::array<std::uint8_t, largest_bytes / unit + 1> made{};
        unsigned index = 0;
        for (std::size_t units = 1; units < made.size(); ++units) {
            index += units * unit > sizes[index] ? 1 : 0;
            made[units] = static_cast<std::uint8_t>(index);
        }
        return made;
    }();
    static_assert(sizes[count - 1] == largest_bytes);
};

}  // namespace xmm
