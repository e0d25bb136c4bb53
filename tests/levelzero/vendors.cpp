// SPDX-License-Identifier: Apache-2.0
// One program with a software device, a CUDA device and a Level Zero device at the same time: a space for each vendor,
// and copies between any two of them by way of plain memory.
#include <xmm/levelzero.hpp>
#include <xmm/xmm.hpp>

#include "../support/cuda_device.hpp"
#include "rig.hpp"

namespace {

using namespace xmm;
using namespace xmm::literals;

constexpr std::size_t bytes = 6_MiB;

// What the page holds in one space, written by the CPU through its unified pointer.
void write(std::uint64_t* at, std::uint64_t seed) {
    for (std::size_t i = 0; i < bytes / 8; ++i) {
        at[i] = seed + i * 3;
    }
}
bool holds(const std::uint64_t* at, std::uint64_t seed) {
    bool is_right = true;
    for (std::size_t i = 0; i < bytes / 8; ++i) {
        is_right = is_right && at[i] == seed + i * 3;
    }
    return is_right;
}

}  // namespace

TEST_CASE("three vendors in one program: bytes go from any device to any other") {
    if (test::is_skipped_without_maps()) {
        return;
    }
    auto ze = test::open_levelzero(test::soft_drivers().at(0), 1, 88);
    REQUIRE(ze);
    if (!(*ze)->describe(node_id{1})->able.has(ability::host_frames)) {
        MESSAGE("skipped: no unified pointers on this driver");
        return;
    }
    auto cuda_driver = test::open_cuda(1, 89);  // like the other, it outlives the spaces
    std::vector<space> all;
    all.push_back(space::create_on(**ze).value());
    all.push_back(space::create_soft({{.bytes = 64_MiB}}).value());
    if (cuda_driver) {
        all.push_back(space::create_on(**cuda_driver).value());
    } else {
        MESSAGE("without CUDA: ", std::string{cuda_driver.error().why});
        CHECK_FALSE(test::is_set("SOFT_CUDA_DEVICES"));
    }
    std::vector<std::uint64_t*> data;
    for (space& one : all) {
        data.push_back(static_cast<std::uint64_t*>(one.map(bytes).value()));
    }
    std::vector<std::uint64_t> stop(bytes / 8);
    for (std::size_t from = 0; from < all.size(); ++from) {
        for (std::size_t to = 0; to < all.size(); ++to) {
            if (from == to) {
                continue;
            }
            const std::uint64_t seed = 1'000'000 * (10 * from + to + 1);
            write(data[from], seed);
            write(data[to], 0);
            // Both on their devices.
            for (std::size_t i : {from, to}) {
                const node_id device = all[i].devices()[0];
                REQUIRE(all[i].make_resident(data[i], bytes, device));
                REQUIRE(all[i].residency_of(data[i]).value() == device);
            }
            REQUIRE(all[from].copy(stop.data(), data[from], bytes));
            REQUIRE(all[to].copy(data[to], stop.data(), bytes));
            CHECK(all[to].residency_of(data[to]).value() == all[to].devices()[0]);
            CHECK(holds(data[to], seed));
            CHECK(holds(data[from], seed));
        }
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
        CHECK(all[i].is_valid());
        REQUIRE(all[i].unmap(data[i]));
    }
}
