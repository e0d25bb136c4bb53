// SPDX-License-Identifier: Apache-2.0
// kmeans.hpp - k-means over the colours of a picture, in whole numbers.
//
// Model    Colours are points of OKLab, a space in which distance is close to how different two
//          colours look, as 16-bit integers. Everything after the conversion is integer
//          arithmetic, and sums of integers do not depend on their order: a kernel and the CPU
//          come to the same bits.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "image.hpp"

namespace xmm::demo {

struct colour {
    std::int16_t l = 0, a = 0, b = 0;
    std::int16_t spare = 0;
    friend constexpr bool operator==(colour, colour) = default;
};
static_assert(sizeof(colour) == 8);

inline constexpr std::size_t most_clusters =
    64;  // a label is a byte, and the centroids travel by value

struct centroids {
    std::uint32_t count = 0;
    std::array<colour, most_clusters> colours{};
    friend constexpr bool operator==(const centroids&, const centroids&) = default;
};

// What one step of k-means adds up for each cluster.
struct cluster_sum {
    std::int64_t l = 0, a = 0, b = 0;
    std::int64_t pixels = 0;
    friend constexpr bool operator==(const cluster_sum&, const cluster_sum&) = default;
};
using cluster_sums = std::array<cluster_sum, most_clusters>;

// Turns sRGB into colour and back. The tables are filled once; 130 KiB.
class colour_space {
public:
    colour_space() : root_(std::size_t{full} + 1) {
        for (unsigned value = 0; value < 256; ++value) {
            const double c = value / 255.0;
            linear_[value] = static_cast<std::int32_t>(std::lround(
                (c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4)) * full));
        }
        for (std::int32_t value = 0; value <= full; ++value) {
            root_[static_cast<std::size_t>(value)] =
                static_cast<std::int32_t>(std::lround(std::cbrt(value / double{full}) * unit));
        }
    }

    [[nodiscard]] colour from(rgba pixel) const noexcept {
        const std::int64_t r = linear_[pixel.r], g = linear_[pixel.g], b = linear_[pixel.b];
        const std::int64_t l = root(27015 * r + 35149 * g + 3372 * b);
        const std::int64_t m = root(13887 * r + 44610 * g + 7038 * b);
        const std::int64_t s = root(5787 * r + 18463 * g + 41286 * b);
        return {scaled(13792 * l + 52011 * m - 267 * s),
                scaled(129630 * l - 159160 * m + 29530 * s),
                scaled(1698 * l + 51300 * m - 52997 * s), 0};
    }
    [[nodiscard]] rgba to(colour one) const noexcept {
        const double lightness = one.l / double{unit}, a = one.a / double{unit},
                     b = one.b / double{unit};
        const auto cube = [](double x) { return x * x * x; };
        const double l = cube(lightness + 0.3963377774 * a + 0.2158037573 * b);
        const double m = cube(lightness - 0.1055613458 * a - 0.0638541728 * b);
        const double s = cube(lightness - 0.0894841775 * a - 1.2914855480 * b);
        const auto channel = [](double x) {
            const double c = x <= 0.0031308 ? 12.92 * x : 1.055 * std::pow(x, 1 / 2.4) - 0.055;
            return static_cast<std::uint8_t>(std::lround(std::clamp(c, 0.0, 1.0) * 255));
        };
        return {channel(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
                channel(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
                channel(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s), 255};
    }

private:
    static constexpr std::int32_t full = 32768;  // linear light 1.0
    static constexpr std::int32_t unit = 16384;  // OKLab 1.0

    // Weights are in 1/65536.
    [[nodiscard]] std::int64_t root(std::int64_t weighted) const noexcept {
        const std::int64_t value = std::clamp<std::int64_t>((weighted + 32768) >> 16, 0, full);
        return root_[static_cast<std::size_t>(value)];
    }
    [[nodiscard]] static std::int16_t scaled(std::int64_t weighted) noexcept {
        return static_cast<std::int16_t>((weighted + 32768) >> 16);
    }

    std::array<std::int32_t, 256> linear_{};
    std::vector<std::int32_t> root_;
};

// Labels a stretch of pixels with the nearest centroid, the lower number among equals, and adds them
// to the sums. The inner loops run over pixels, so that they vectorise.
inline void assign_pixels(const colour* colours, std::uint8_t* labels, std::size_t count,
                          const centroids& centres, cluster_sums& sums) noexcept {
    constexpr std::size_t block = 128;
    std::array<std::int32_t, block> l, a, b, best, label;
    for (std::size_t first = 0; first < count; first += block) {
        const std::size_t size = std::min(block, count - first);
        for (std::size_t i = 0; i < size; ++i) {
            const colour one = colours[first + i];
            l[i] = one.l;
            a[i] = one.a;
            b[i] = one.b;
            best[i] = INT32_MAX;
            label[i] = 0;
        }
        for (std::uint32_t k = 0; k < centres.count; ++k) {
            const std::int32_t kl = centres.colours[k].l, ka = centres.colours[k].a,
                               kb = centres.colours[k].b;
            for (std::size_t i = 0; i < size; ++i) {
                const std::int32_t dl = l[i] - kl, da = a[i] - ka, db = b[i] - kb;
                const std::int32_t distance = dl * dl + da * da + db * db;
                label[i] = distance < best[i] ? static_cast<std::int32_t>(k) : label[i];
                best[i] = distance < best[i] ? distance : best[i];
            }
        }
        for (std::size_t i = 0; i < size; ++i) {
            labels[first + i] = static_cast<std::uint8_t>(label[i]);
            cluster_sum& sum = sums[static_cast<std::size_t>(label[i])];
            sum.l += l[i];
            sum.a += a[i];
            sum.b += b[i];
            ++sum.pixels;
        }
    }
}

// The means of the sums, rounded to the nearest; a cluster without pixels keeps its centroid.
[[nodiscard]] inline centroids next_centroids(const centroids& before,
                                              const cluster_sums& sums) noexcept {
    centroids out = before;
    for (std::uint32_t k = 0; k < before.count; ++k) {
        const cluster_sum& sum = sums[k];
        if (sum.pixels > 0) {
            const auto mean = [&sum](std::int64_t total) {
                const std::int64_t half = total >= 0 ? sum.pixels / 2 : -(sum.pixels / 2);
                return static_cast<std::int16_t>((total + half) / sum.pixels);
            };
            out.colours[k] = {mean(sum.l), mean(sum.a), mean(sum.b), 0};
        }
    }
    return out;
}

// k-means++ on at most 4096 evenly spaced pixels: each next seed is drawn with a chance that grows
// with its distance from those before. The same colours give the same seeds, from dark to bright.
[[nodiscard]] inline centroids seed_centroids(std::span<const colour> colours,
                                              std::uint32_t clusters) {
    centroids out;
    out.count = std::min<std::uint32_t>(clusters, most_clusters);
    if (colours.empty()) {
        return out;
    }
    std::uint64_t state = 0x853c49e6748fea9bu;
    const auto draw = [&state](std::uint64_t limit) {  // below limit
        state += 0x9e3779b97f4a7c15u;
        std::uint64_t z = state;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return (z ^ (z >> 31)) % limit;
    };
    const std::size_t count = std::min<std::size_t>(colours.size(), 4096);
    std::vector<colour> sample(count);
    for (std::size_t i = 0; i < count; ++i) {
        sample[i] = colours[i * colours.size() / count];
    }
    std::vector<std::uint64_t> distances(count, UINT64_MAX);
    out.colours[0] = sample[draw(count)];
    for (std::uint32_t k = 1; k < out.count; ++k) {
        std::uint64_t total = 0;
        for (std::size_t i = 0; i < count; ++i) {
            const std::int64_t dl = sample[i].l - out.colours[k - 1].l;
            const std::int64_t da = sample[i].a - out.colours[k - 1].a;
            const std::int64_t db = sample[i].b - out.colours[k - 1].b;
            distances[i] =
                std::min(distances[i], static_cast<std::uint64_t>(dl * dl + da * da + db * db));
            total += distances[i];
        }
        std::size_t chosen = 0;
        if (total > 0) {
            std::uint64_t rest = draw(total);
            while (rest >= distances[chosen]) {
                rest -= distances[chosen++];
            }
        }
        out.colours[k] = sample[chosen];
    }
    std::sort(out.colours.begin(), out.colours.begin() + out.count, [](colour x, colour y) {
        return x.l != y.l ? x.l < y.l : x.a != y.a ? x.a < y.a : x.b < y.b;
    });
    return out;
}

struct clustering {
    centroids centres;  // those that the labels were assigned by
    std::vector<std::uint8_t> labels;
    std::uint32_t iterations = 0;
    bool has_settled = false;  // the last step changed no centroid
};

// The plain CPU run that results are checked against.
[[nodiscard]] inline clustering cluster_on_cpu(std::span<const colour> colours,
                                               std::uint32_t clusters,
                                               std::uint32_t most_iterations) {
    clustering out;
    out.labels.resize(colours.size());
    centroids next = seed_centroids(colours, clusters);
    while (out.iterations < most_iterations && !out.has_settled) {
        out.centres = next;
        auto sums = std::make_unique<cluster_sums>();
        assign_pixels(colours.data(), out.labels.data(), colours.size(), out.centres, *sums);
        next = next_centroids(out.centres, *sums);
        out.has_settled = next == out.centres;
        ++out.iterations;
    }
    return out;
}

// The colour that each cluster is painted with.
[[nodiscard]] inline std::array<rgba, most_clusters> palette_of(const centroids& centres,
                                                                const colour_space& space) {
    std::array<rgba, most_clusters> out{};
    for (std::uint32_t k = 0; k < centres.count; ++k) {
        out[k] = space.to(centres.colours[k]);
    }
    return out;
}

}  // namespace xmm::demo
