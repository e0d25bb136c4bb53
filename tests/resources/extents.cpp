// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/extents.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

#include <array>

#include <doctest/doctest.h>

using namespace xmm;

TEST_CASE("extent_index: finds what was put in, through growth and removal") {
    extent_index index;
    std::vector<extent> blocks(3000);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        blocks[i].range = {(i * i + 1) * extent_unit_bytes, extent_unit_bytes};
        REQUIRE(index.reserve_one());
        index.insert(blocks[i]);
        if (i % 3 == 0) {
            index.remove(blocks[i / 2 / 3 * 3]);
            index.insert(blocks[i / 2 / 3 * 3]);
        }
    }
    for (std::size_t i = 0; i < blocks.size(); i += 2) {
        index.remove(blocks[i]);
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        REQUIRE(index.find(blocks[i].range.begin) == (i % 2 == 0 ? nullptr : &blocks[i]));
    }
    CHECK(index.count() == blocks.size() / 2);
    CHECK(index.find(5) == nullptr);
}

TEST_CASE("extent_bins: the smallest that fits comes first") {
    extent_bins bins;
    std::vector<extent> free(400);
    std::uint64_t random = 1;
    for (extent& one : free) {
        random = random * 6364136223846793005U + 1442695040888963407U;
        one.range = {0, ((random >> 40) % 100'000 + 1) * extent_unit_bytes};
        bins.insert(one);
    }
    for (std::size_t bytes = extent_unit_bytes; bytes < 50'000'000; bytes += bytes / 7 + 512) {
        std::size_t best = ~std::size_t{0};
        std::size_t fitting = 0;
        for (const extent& one : free) {
            best = one.range.bytes >= bytes ? std::min(best, one.range.bytes) : best;
            fitting += one.range.bytes >= bytes ? 1 : 0;
        }
        std::vector<std::size_t> found;
        bins.for_each_from(bytes, [&](extent& one) {
            found.push_back(one.range.bytes);
            return true;
        });
        REQUIRE(found.size() == fitting);
        if (fitting != 0) {
            CHECK(found.front() <= best + best / 8);  // a bin is an eighth of an octave
        }
    }
    for (extent& one : free) {
        bins.remove(one);
    }
    bins.for_each_from(extent_unit_bytes, [](extent&) {
        FAIL("a removed extent is still there");
        return false;
    });
}

TEST_CASE("extent_bins: a bin holds an eighth of an octave, and sizes stay in order") {
    unsigned last = 0;
    for (std::size_t bytes = extent_unit_bytes; bytes < std::size_t{1} << 46;
         bytes += std::max(bytes / 9, extent_unit_bytes)) {
        const std::size_t whole = bytes / extent_unit_bytes * extent_unit_bytes;
        const unsigned bin = extent_bins::bin_of(whole);
        CHECK(bin >= last);
        CHECK(bin <= last + 2);
        CHECK(bin < extent_bins::bin_count);
        last = bin;
    }
    CHECK(extent_bins::bin_of(SIZE_MAX) == extent_bins::bin_count - 1);
}

TEST_CASE("extent_bins: the same ranges have the same signature, whatever came and went") {
    extent_bins bins;
    std::array<extent, 3> extents{};
    extents[0].range = {0x1000'0000, 4096};
    extents[1].range = {0x2000'0000, 4096};
    extents[2].range = {0x3000'0000, 3 << 20};
    const std::uint64_t nothing = bins.signature();
    bins.insert(extents[0]);
    const std::uint64_t one = bins.signature();
    bins.insert(extents[1]);
    bins.insert(extents[2]);
    const std::uint64_t three = bins.signature();
    CHECK(nothing != one);
    CHECK(one != three);
    CHECK(bins.find(extents[1].range) == &extents[1]);
    CHECK(bins.find({extents[1].range.begin, extents[1].range.bytes + 512}) == nullptr);
    bins.remove(extents[0]);
    CHECK(bins.find(extents[0].range) == nullptr);
    CHECK(bins.signature() != three);
    bins.remove(extents[2]);
    bins.insert(extents[0]);
    bins.insert(extents[2]);
    CHECK(bins.signature() == three);
    for (extent& each : extents) {
        bins.remove(each);
    }
    CHECK(bins.signature() == nothing);
    // As many bytes in other places are something else.
    extents[0].range.begin += 4096;
    bins.insert(extents[0]);
    CHECK(bins.signature() != one);
}

TEST_CASE("extent_records: what was reserved can be taken, and comes back empty") {
    extent_records records;
    REQUIRE(records.reserve(3));
    std::vector<extent*> taken;
    for (int i = 0; i < 3; ++i) {
        taken.push_back(records.take());
        taken.back()->requested = 7;
        taken.back()->is_free = true;
    }
    CHECK(taken[0] != taken[1]);
    CHECK(taken[1] != taken[2]);
    for (extent* one : taken) {
        records.give_back(one);
    }
    REQUIRE(records.reserve(3));  // of those
    for (int i = 0; i < 3; ++i) {
        extent* one = records.take();
        CHECK(std::ranges::count(taken, one) == 1);
        CHECK(one->requested == 0);
        CHECK_FALSE(one->is_free);
        CHECK(one->bin_before == nullptr);
    }
}
