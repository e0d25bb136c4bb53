// SPDX-License-Identifier: Apache-2.0
#include "../../tools/demo/kmeans.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <random>
#include <set>

using namespace xmm::demo;

TEST_CASE("the colour space has its known points and comes back") {
    const colour_space space;
    CHECK(space.from({0, 0, 0, 255}) == colour{0, 0, 0, 0});
    const colour white = space.from({255, 255, 255, 255});
    CHECK(std::abs(white.l - 16384) <= 8);
    CHECK(std::abs(white.a) <= 8);
    CHECK(std::abs(white.b) <= 8);
    const colour red = space.from({255, 0, 0, 255});  // OKLab 0.628, 0.225, 0.126
    CHECK(std::abs(red.l - 10288) <= 20);
    CHECK(std::abs(red.a - 3684) <= 20);
    CHECK(std::abs(red.b - 2063) <= 20);
    std::mt19937 random{3};
    for (int i = 0; i < 2000; ++i) {
        const rgba in{static_cast<std::uint8_t>(random() % 216 + 40),
                      static_cast<std::uint8_t>(random() % 216 + 40),
                      static_cast<std::uint8_t>(random() % 216 + 40), 255};
        const rgba out = space.to(space.from(in));
        REQUIRE(std::abs(in.r - out.r) <= 2);
        REQUIRE(std::abs(in.g - out.g) <= 2);
        REQUIRE(std::abs(in.b - out.b) <= 2);
    }
}

namespace {

std::vector<colour> random_colours(std::size_t count, unsigned seed) {
    std::mt19937 random{seed};
    std::vector<colour> out(count);
    for (colour& one : out) {
        one = {static_cast<std::int16_t>(random() % 16384),
               static_cast<std::int16_t>(random() % 8000 - 4000),
               static_cast<std::int16_t>(random() % 8000 - 4000), 0};
    }
    return out;
}

}  // namespace

TEST_CASE("each pixel goes to the nearest centroid, the lower number among equals") {
    const auto colours = random_colours(1000, 5);
    centroids centres;
    centres.count = 9;
    const auto seeds = random_colours(8, 6);
    std::copy(seeds.begin(), seeds.end(), centres.colours.begin());
    centres.colours[8] = centres.colours[2];  // never chosen: 2 comes first
    std::vector<std::uint8_t> labels(colours.size(), 255);
    cluster_sums sums{};
    assign_pixels(colours.data(), labels.data(), colours.size(), centres, sums);
    cluster_sums expected{};
    for (std::size_t i = 0; i < colours.size(); ++i) {
        std::size_t best = 0;
        long long best_distance = -1;
        for (std::size_t k = 0; k < centres.count; ++k) {
            const long long dl = colours[i].l - centres.colours[k].l,
                            da = colours[i].a - centres.colours[k].a,
                            db = colours[i].b - centres.colours[k].b;
            const long long distance = dl * dl + da * da + db * db;
            if (best_distance < 0 || distance < best_distance) {
                best = k;
                best_distance = distance;
            }
        }
        REQUIRE(labels[i] == best);
        expected[best].l += colours[i].l;
        expected[best].a += colours[i].a;
        expected[best].b += colours[i].b;
        ++expected[best].pixels;
    }
    CHECK(sums == expected);
}

TEST_CASE("cutting the pixels into parts changes nothing") {
    const auto colours = random_colours(5000, 8);
    const centroids centres = seed_centroids(colours, 7);
    std::vector<std::uint8_t> whole(colours.size()), parts(colours.size());
    cluster_sums sums_whole{}, sums_parts{};
    assign_pixels(colours.data(), whole.data(), colours.size(), centres, sums_whole);
    for (std::size_t first = 0; first < colours.size();) {
        const std::size_t count = std::min<std::size_t>(first % 311 + 1, colours.size() - first);
        assign_pixels(colours.data() + first, parts.data() + first, count, centres, sums_parts);
        first += count;
    }
    CHECK(whole == parts);
    CHECK(sums_whole == sums_parts);
}

TEST_CASE("means are rounded to the nearest, and an empty cluster stays") {
    centroids before;
    before.count = 3;
    before.colours[2] = {5, 6, 7, 0};
    cluster_sums sums{};
    sums[0] = {7, -7, 5, 2};
    sums[1] = {10, -10, 1, 4};
    const centroids after = next_centroids(before, sums);
    CHECK(after.colours[0] == colour{4, -4, 3, 0});
    CHECK(after.colours[1] == colour{3, -3, 0, 0});
    CHECK(after.colours[2] == colour{5, 6, 7, 0});
}

TEST_CASE("well separated clouds of colours are found") {
    std::mt19937 random{9};
    const colour centres[] = {
        {2000, 0, 0, 0}, {8000, 3000, 0, 0}, {12000, -3000, 2000, 0}, {15000, 0, -3000, 0}};
    std::vector<colour> colours;
    for (int i = 0; i < 8000; ++i) {
        const colour& c = centres[i % 4];
        colours.push_back({static_cast<std::int16_t>(c.l + static_cast<int>(random() % 401) - 200),
                           static_cast<std::int16_t>(c.a + static_cast<int>(random() % 401) - 200),
                           static_cast<std::int16_t>(c.b + static_cast<int>(random() % 401) - 200),
                           0});
    }
    const clustering found = cluster_on_cpu(colours, 4, 50);
    CHECK(found.has_settled);
    for (std::size_t i = 0; i < 4; ++i) {
        CHECK(std::abs(found.centres.colours[i].l - centres[i].l) <
              20);  // seeds go from dark to bright
        CHECK(found.labels[i] == i);
    }
    const clustering again = cluster_on_cpu(colours, 4, 50);
    CHECK(again.labels == found.labels);
    CHECK(again.centres == found.centres);
}

TEST_CASE("seeds are different colours while there are any, and few pixels are no trouble") {
    const auto colours = random_colours(100000, 12);
    const centroids seeds = seed_centroids(colours, 32);
    std::set<std::array<int, 3>> distinct;
    for (std::uint32_t k = 0; k < seeds.count; ++k) {
        distinct.insert({seeds.colours[k].l, seeds.colours[k].a, seeds.colours[k].b});
    }
    CHECK(distinct.size() == 32);
    const std::vector<colour> single(1, colour{1, 2, 3, 0});
    const clustering one = cluster_on_cpu(single, 5, 10);
    CHECK(one.has_settled);
    CHECK(one.centres.colours[0] == colour{1, 2, 3, 0});
    CHECK(cluster_on_cpu({}, 3, 2).labels.empty());
    CHECK(seed_centroids(colours, 1000).count == most_clusters);
}
