// SPDX-License-Identifier: Apache-2.0
// image.hpp - a picture in memory: 8 bits a channel, sRGB with straight alpha.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace xmm::demo {

struct rgba {
    std::uint8_t r = 0, g = 0, b = 0, a = 255;
    friend constexpr bool operator==(rgba, rgba) = default;
};
static_assert(sizeof(rgba) == 4);

struct image {
    std::uint32_t width = 0;
    std::uint32_t height = 0;
    std::vector<rgba> pixels;  // row by row, the top row first

    image() = default;
    image(std::uint32_t columns, std::uint32_t rows, rgba fill = {255, 255, 255, 255})
        : width{columns}, height{rows}, pixels(std::size_t{columns} * rows, fill) {}

    [[nodiscard]] rgba& at(std::uint32_t x, std::uint32_t y) noexcept {
        return pixels[std::size_t{y} * width + x];
    }
    [[nodiscard]] const rgba& at(std::uint32_t x, std::uint32_t y) const noexcept {
        return pixels[std::size_t{y} * width + x];
    }
    friend bool operator==(const image&, const image&) = default;
};

// Lays what is transparent onto white; true if anything was.
inline bool flatten_onto_white(image& picture) noexcept {
    bool is_changed = false;
    for (rgba& pixel : picture.pixels) {
        const auto mix = [alpha = unsigned{pixel.a}](unsigned channel) {
            return static_cast<std::uint8_t>((channel * alpha + 255 * (255 - alpha) + 127) / 255);
        };
        if (pixel.a != 255) {
            pixel = {mix(pixel.r), mix(pixel.g), mix(pixel.b), 255};
            is_changed = true;
        }
    }
    return is_changed;
}

}  // namespace xmm::demo
