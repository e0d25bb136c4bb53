// SPDX-License-Identifier: Apache-2.0
#include "../../tools/demo/block_plan.hpp"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <vector>

using namespace xmm::demo;

TEST_CASE("best fit takes the smallest stretch that is large enough and merges neighbours") {
    best_fit heap;
    CHECK(heap.allocate(1000) == 0);
    CHECK(heap.allocate(100) == 1000);
    CHECK(heap.allocate(400) == 1100);
    CHECK(heap.allocate(100) == 1500);
    heap.deallocate(0, 1000);
    heap.deallocate(1100, 400);
    CHECK(heap.allocate(300) == 1100);  // 400 fits better than 1000
    CHECK(heap.allocate(100) == 1400);  // and what was left of it fits exactly
    CHECK(heap.extent() == 1600);
    heap.deallocate(1000, 100);  // joins the stretch before it
    CHECK(heap.allocate(1100) == 0);
    heap.deallocate(1500, 100);
    CHECK(heap.allocate(500) == 1500);  // a free stretch at the end is grown
    CHECK(heap.extent() == 2000);
}

TEST_CASE("blocks of best fit never overlap") {
    std::mt19937 random{7};
    best_fit heap;
    std::map<std::size_t, std::size_t> blocks;
    for (int i = 0; i < 4000; ++i) {
        if (blocks.empty() || random() % 5 < 3) {
            const std::size_t bytes = (random() % 64 + 1) * 256;
            const std::size_t offset = heap.allocate(bytes);
            const auto after = blocks.lower_bound(offset);
            REQUIRE((after == blocks.end() || offset + bytes <= after->first));
            REQUIRE((after == blocks.begin() ||
                     std::prev(after)->first + std::prev(after)->second <= offset));
            REQUIRE(offset + bytes <= heap.extent());
            blocks.emplace(offset, bytes);
        } else {
            auto one = blocks.begin();
            std::advance(one, random() % blocks.size());
            heap.deallocate(one->first, one->second);
            blocks.erase(one);
        }
    }
    for (const auto& [offset, bytes] : blocks) {
        heap.deallocate(offset, bytes);
    }
    CHECK(heap.allocate(heap.extent()) == 0);  // all of it is one stretch again
}

TEST_CASE("a plan scales to the target, frees everything and counts right") {
    trace source;
    const auto add = [&](trace_op op, std::uint32_t block, std::uint64_t bytes) {
        source.events.push_back({op, 0, block, bytes, 0});
    };
    add(trace_op::allocate, 0, 1u << 30);
    add(trace_op::allocate, 1, 3u << 30);
    add(trace_op::allocate, 2, 4);
    add(trace_op::free_requested, 1, 3u << 30);
    add(trace_op::free_done, 1, 3u << 30);
    add(trace_op::allocate, 3, 2u << 30);
    const block_plan plan = plan_blocks(source, 4u << 20);
    CHECK(plan.blocks == 4);
    CHECK(plan.trace_peak_bytes == (4ull << 30) + 4);
    CHECK(plan.scale == doctest::Approx(1.0 / 1024));
    CHECK(plan.peak_bytes <= (4u << 20) + 4 * block_alignment);
    CHECK(plan.extent_bytes >= plan.peak_bytes);
    REQUIRE(plan.steps.size() == 8);
    CHECK(plan.steps[2].bytes == block_alignment);  // the smallest block there is
    std::size_t live = 0;
    for (const plan_step& step : plan.steps) {
        CHECK(step.bytes % block_alignment == 0);
        CHECK(step.offset % block_alignment == 0);
        CHECK(step.offset + step.bytes <= plan.extent_bytes);
        live += step.is_allocation ? step.bytes : 0;
        live -= step.is_allocation ? 0 : step.bytes;
    }
    CHECK(live == 0);

    const block_plan first = plan_blocks(source, std::size_t{64} << 30, 2);  // never scaled up
    CHECK(first.scale == 1);
    CHECK(first.blocks == 2);
    CHECK(first.steps.size() == 4);
}

TEST_CASE("a page is dead once no live block touches it") {
    page_use pages{1000, 100};
    const auto block = [](std::size_t offset, std::size_t bytes) {
        return plan_step{true, 0, offset, bytes};
    };
    pages.allocate(block(0, 250));
    pages.allocate(block(250, 50));
    pages.allocate(block(300, 700));
    CHECK(pages.take_dead().empty());
    pages.deallocate(block(0, 250));  // its last page still has the second block
    auto dead = pages.take_dead();
    REQUIRE(dead.size() == 1);
    CHECK(dead[0].first == 0);
    CHECK(dead[0].count == 2);
    CHECK(pages.take_dead().empty());  // told once
    pages.deallocate(block(250, 50));
    pages.deallocate(block(300, 700));
    pages.allocate(block(550, 10));  // page 5 came to life again
    dead = pages.take_dead();
    REQUIRE(dead.size() == 2);
    CHECK(dead[0].first == 2);
    CHECK(dead[0].count == 3);
    CHECK(dead[1].first == 6);
    CHECK(dead[1].count == 4);
}

TEST_CASE("the pattern's sum is what adding its words gives") {
    for (const std::uint32_t block : {0u, 1u, 77u, 4294967295u}) {
        const block_pattern pattern{block};
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < 1000; ++i) {
            REQUIRE(pattern.sum(i) == sum);
            sum += pattern(i);
        }
    }
    CHECK(block_pattern{1}(0) != block_pattern{2}(0));
    CHECK(block_pattern{1}(0) != block_pattern{1}(1));
}
