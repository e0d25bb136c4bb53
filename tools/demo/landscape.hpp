// SPDX-License-Identifier: Apache-2.0
// landscape.hpp - the picture that the demo draws when none is named: ridges and a lake at dusk.
//
// Model    Everything follows from the size and the seed. Value noise, summed over octaves, shapes
//          ridges, clouds and water; the lake mirrors what is above it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "image.hpp"

namespace xmm::demo {

namespace detail {

struct tone {
    float r = 0, g = 0, b = 0;  // 0 to 1
};

[[nodiscard]] inline tone blend(tone a, tone b, float share) noexcept {
    share = std::clamp(share, 0.0f, 1.0f);
    return {a.r + (b.r - a.r) * share, a.g + (b.g - a.g) * share, a.b + (b.b - a.b) * share};
}
[[nodiscard]] inline tone add(tone a, tone b, float share) noexcept {
    return {a.r + b.r * share, a.g + b.g * share, a.b + b.b * share};
}
[[nodiscard]] inline float smooth(float low, float high, float value) noexcept {
    const float t = std::clamp((value - low) / (high - low), 0.0f, 1.0f);
    return t * t * (3 - 2 * t);
}

class noise {
public:
    explicit noise(std::uint32_t seed) noexcept : seed_{seed} {}

    // 0 to 1, one bump a unit.
    [[nodiscard]] float at(float x, float y) const noexcept {
        const float floor_x = std::floor(x), floor_y = std::floor(y);
        const auto ix = static_cast<std::int32_t>(floor_x), iy = static_cast<std::int32_t>(floor_y);
        const float fx = x - floor_x, fy = y - floor_y;
        const float sx = fx * fx * (3 - 2 * fx), sy = fy * fy * (3 - 2 * fy);
        const float upper = lattice(ix, iy) + (lattice(ix + 1, iy) - lattice(ix, iy)) * sx;
        const float lower =
            lattice(ix, iy + 1) + (lattice(ix + 1, iy + 1) - lattice(ix, iy + 1)) * sx;
        return upper + (lower - upper) * sy;
    }
    [[nodiscard]] float octaves(float x, float y, int count, float gain = 0.5f) const noexcept {
        float sum = 0, weight = 1, total = 0;
        for (int i = 0; i < count; ++i) {
            sum += at(x, y) * weight;
            total += weight;
            weight *= gain;
            x = x * 2.03f + 17.3f;
            y = y * 2.03f + 9.1f;
        }
        return sum / total;
    }

private:
    [[nodiscard]] float lattice(std::int32_t x, std::int32_t y) const noexcept {
        std::uint32_t h = seed_ ^ (static_cast<std::uint32_t>(x) * 0x8da6b343u) ^
                          (static_cast<std::uint32_t>(y) * 0xd8163841u);
        h = (h ^ (h >> 15)) * 0x2c1b3c6du;
        h = (h ^ (h >> 12)) * 0x297a2d39u;
        return static_cast<float>((h ^ (h >> 15)) >> 8) * (1.0f / 16777216.0f);
    }
    std::uint32_t seed_;
};

class scene {
public:
    static constexpr float shore = 0.70f;  // above it land and sky, below it the lake

    scene(std::uint32_t width, std::uint32_t height, std::uint32_t seed)
        : clouds_{seed * 7u + 1},
          water_{seed * 7u + 2},
          width_{static_cast<float>(width)},
          height_{static_cast<float>(height)} {
        for (std::size_t i = 0; i < ridges.size(); ++i) {
            tops_[i].resize(width);
            const noise shape{seed * 31u + 11u + static_cast<std::uint32_t>(i) * 5u};
            for (std::uint32_t x = 0; x < width; ++x) {
                tops_[i][x] = top(ridges[i], shape, static_cast<float>(x) / height_);
            }
        }
    }

    // The colour at column x and at v of the height (0 is the top edge).
    [[nodiscard]] tone at(float x, float v) const noexcept {
        if (v <= shore) {
            return above(x, v);
        }
        const float depth = (v - shore) / (1 - shore);
        const float u = x / height_;
        // Ripples grow towards the viewer: they shift and stretch what is mirrored.
        const float ripple = water_.octaves(u * 9, 240 * std::sqrt(depth + 0.02f), 3) - 0.5f;
        const float mirrored_x = std::clamp(x + ripple * depth * 0.05f * height_, 0.0f, width_ - 1);
        const float mirrored_v = shore - (v - shore) * 1.35f - ripple * (0.012f + 0.05f * depth);
        const tone mirrored = above(mirrored_x, std::clamp(mirrored_v, 0.0f, shore));
        // Bright things stay bright in the water, and turn warmer.
        const float bright = smooth(0.6f, 1.0f, mirrored.r * 0.4f + mirrored.g * 0.6f);
        tone water =
            blend({mirrored.r, mirrored.g, mirrored.b * (1 - 0.18f * bright)},
                  {0.05f, 0.075f, 0.15f}, (0.22f + 0.50f * depth * depth) * (1 - 0.7f * bright));
        // Glitter below the sun.
        const float beside = std::abs(u - sun_u()) / (0.03f + 0.22f * depth);
        const float spark =
            smooth(0.58f, 0.74f, water_.octaves(u * 30, 420 * std::sqrt(depth + 0.02f), 2));
        water = add(water, {1.0f, 0.72f, 0.42f}, std::exp(-beside * beside) * spark * 0.75f);
        // A thin bright line and mist where the water meets the land.
        return blend(water, {0.93f, 0.72f, 0.60f}, 0.45f * std::exp(-depth * 46));
    }

private:
    struct ridge {
        float base, rise, bumps;  // heights from the top edge; bumps a picture height
        int octaves;
        float trees;  // height of single trees on it
        tone colour;
    };
    static constexpr std::array<ridge, 6> ridges = {{
        {0.545f, 0.200f, 2.1f, 7, 0, {0.545f, 0.475f, 0.600f}},
        {0.585f, 0.175f, 2.9f, 7, 0, {0.400f, 0.375f, 0.530f}},
        {0.625f, 0.130f, 2.3f, 6, 0, {0.260f, 0.300f, 0.430f}},
        {0.655f, 0.095f, 3.1f, 6, 0.004f, {0.150f, 0.230f, 0.310f}},
        {0.688f, 0.070f, 2.6f, 5, 0.012f, {0.075f, 0.155f, 0.190f}},
        {0.722f, 0.060f, 1.9f, 5, 0.024f, {0.030f, 0.085f, 0.095f}},
    }};

    [[nodiscard]] static float top(const ridge& one, const noise& shape, float u) noexcept {
        // Folding the noise makes crests; the highest octaves stay soft.
        float sum = 0, weight = 1, total = 0, x = u * one.bumps + one.base * 40;
        for (int i = 0; i < one.octaves; ++i) {
            const float wave = shape.at(x, static_cast<float>(i) * 3.7f);
            sum += (i < 3 ? 1 - std::abs(2 * wave - 1) : wave) * weight;
            total += weight;
            weight *= 0.46f;
            x = x * 2.1f + 5.2f;
        }
        float height = one.base - one.rise * (sum / total - 0.25f) * 1.5f;
        if (one.trees > 0) {
            // Firs: narrow triangles of uneven height, in clumps.
            for (const float spacing : {0.55f, 0.8f, 1.3f}) {
                const float place = u / (one.trees * spacing);
                const float cell = std::floor(place);
                const float tall =
                    shape.at(cell * 1.7f, 50.5f) * smooth(0.25f, 0.6f, shape.at(u * 9, 90));
                height -=
                    one.trees * 1.6f * tall * std::max(0.0f, 1 - std::abs(place - cell - 0.5f) * 2);
            }
        }
        return height;
    }

    [[nodiscard]] float sun_u() const noexcept { return 0.63f * width_ / height_; }

    [[nodiscard]] tone sky(float u, float v) const noexcept {
        static constexpr struct {
            float v;
            tone colour;
        } stops[] = {{0.00f, {0.085f, 0.125f, 0.290f}}, {0.22f, {0.235f, 0.275f, 0.480f}},
                     {0.38f, {0.600f, 0.455f, 0.560f}}, {0.49f, {0.945f, 0.640f, 0.490f}},
                     {0.58f, {1.000f, 0.815f, 0.560f}}, {1.01f, {1.000f, 0.880f, 0.680f}}};
        unsigned i = 0;
        while (v >= stops[i + 1].v) {
            ++i;
        }
        tone colour = blend(stops[i].colour, stops[i + 1].colour,
                            smooth(0, 1, (v - stops[i].v) / (stops[i + 1].v - stops[i].v)));
        const float du = u - sun_u(), dv = v - 0.405f;
        const float distance = std::sqrt(du * du + dv * dv);
        colour = add(colour, {0.75f, 0.42f, 0.20f}, 0.65f * std::exp(-distance * 7));
        // Clouds, flat and streaked; their undersides catch the sun.
        const float body = clouds_.octaves(u * 1.6f, v * 7 + 3, 6);
        const float below = clouds_.octaves(u * 1.6f, v * 7 + 3.35f, 6);
        const float cover = smooth(0.50f, 0.72f, body) * smooth(0.56f, 0.30f, v);
        const tone lit = blend({0.36f, 0.31f, 0.46f}, {1.0f, 0.66f, 0.50f},
                               0.35f + 3.0f * (body - below) + 0.5f * std::exp(-distance * 3));
        colour = blend(colour, lit, cover * 0.85f);
        const float disc = smooth(0.0335f, 0.0305f, distance);
        return blend(colour, {1.0f, 0.955f, 0.82f}, disc * (1 - 0.5f * cover));
    }

    [[nodiscard]] tone above(float x, float v) const noexcept {
        const float u = x / height_;
        const auto column = static_cast<std::size_t>(std::clamp(x, 0.0f, width_ - 1));
        for (std::size_t i = ridges.size(); i-- > 0;) {
            const float below_top = v - tops_[i][column];
            if (below_top < 0) {
                continue;
            }
            const ridge& one = ridges[i];
            // Mist gathers in the valleys, folds run down the slopes, the crest facing the sun is warm.
            const float fold = clouds_.octaves(u * 26 + below_top * 22, v * 15 - u * 6, 4) - 0.5f;
            const float haze =
                (1 - static_cast<float>(i) / 6) * smooth(0.02f, 0.17f, below_top) * 0.55f;
            tone colour = add(one.colour, {1.0f, 0.9f, 0.9f},
                              fold * (0.10f + 0.012f * static_cast<float>(i)));
            colour = blend(colour, {0.90f, 0.70f, 0.62f}, haze);
            const float towards = std::exp(-std::abs(u - sun_u()) * 1.8f);
            return add(colour, {0.42f, 0.20f, 0.07f}, towards * std::exp(-below_top * 55) * 0.5f);
        }
        return sky(u, v);
    }

    noise clouds_;
    noise water_;
    float width_;
    float height_;
    std::array<std::vector<float>, 6> tops_;
};

}  // namespace detail

[[nodiscard]] inline image draw_landscape(std::uint32_t width, std::uint32_t height,
                                          std::uint32_t seed = 1) {
    image picture{width, height};
    const detail::scene scene{width, height, seed};
    const detail::noise grain{seed * 101u + 3};
    for (std::uint32_t y = 0; y < height; ++y) {
        const float v = (static_cast<float>(y) + 0.5f) / static_cast<float>(height);
        for (std::uint32_t x = 0; x < width; ++x) {
            const detail::tone colour = scene.at(static_cast<float>(x) + 0.5f, v);
            const float speck =
                (grain.at(static_cast<float>(x) * 0.9f, static_cast<float>(y) * 0.9f) - 0.5f) *
                0.018f;
            const auto channel = [speck](float value) {
                return static_cast<std::uint8_t>(
                    std::clamp((value + speck) * 255 + 0.5f, 0.0f, 255.0f));
            };
            picture.at(x, y) = {channel(colour.r), channel(colour.g), channel(colour.b), 255};
        }
    }
    return picture;
}

}  // namespace xmm::demo
