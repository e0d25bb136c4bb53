// SPDX-License-Identifier: Apache-2.0
// resource.hpp - what every memory resource must do: a suite that a class joins with a fixture.
//
// Model    A fixture makes one resource afresh for each part of the suite:
//            using resource_type = ...;
//            resource_type& resource();            the one under test
//            resource_type& equal();               an equal one (may be the same)
//            resource_type& other();               one that is not equal
//            std::size_t too_many_bytes();         more than it can ever give
//            std::size_t live();                   0 once everything is given back and caches are flushed
//            static constexpr std::size_t most_alignment, block_bytes;   what the mixed parts ask for
//          then TEST_CASE_TEMPLATE_INVOKE(resource_contract, fixture_a, fixture_b).
//          The suite itself is compiled for the two base classes only; what depends on the class is static.
//          Memory that the CPU reaches is written and read back; of other memory only addresses count.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory_resource>
#include <random>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <xmm/concepts/resource.hpp>
#include <xmm/resources/memory_resource.hpp>

namespace xmm::test {

template <class R>
inline constexpr bool is_touched = includes(R::static_reach, reach::host);

struct held_block {
    void* pointer;
    std::size_t bytes;
    std::size_t alignment;
    std::uint64_t seed;
};

// Fills both ends of a block, enough to notice an overlap with another one.
template <class R>
void fill(const held_block& block) {
    if constexpr (is_touched<R>) {
        const std::size_t count = std::min(block.bytes, sizeof block.seed);
        std::memcpy(block.pointer, &block.seed, count);
        std::memcpy(static_cast<char*>(block.pointer) + block.bytes - count, &block.seed, count);
    }
}
template <class R>
[[nodiscard]] bool is_intact(const held_block& block) {
    if constexpr (is_touched<R>) {
        const std::size_t count = std::min(block.bytes, sizeof block.seed);
        const auto* end = static_cast<const char*>(block.pointer) + block.bytes - count;
        // A block shorter than two seeds was overwritten by its own second half.
        const bool is_begin_whole = block.bytes < 2 * sizeof block.seed ||
                                    std::memcmp(block.pointer, &block.seed, count) == 0;
        return is_begin_whole && std::memcmp(end, &block.seed, count) == 0;
    }
    return true;
}

template <class R>
[[nodiscard]] held_block take(R& resource, std::size_t bytes, std::size_t alignment,
                              std::uint64_t seed) {
    const held_block block{resource.allocate_sync(bytes, alignment), bytes, alignment, seed};
    fill<R>(block);
    return block;
}
template <class R>
void give(R& resource, const held_block& block) {
    resource.deallocate_sync(block.pointer, block.bytes, block.alignment);
}
[[nodiscard]] inline bool is_aligned(const void* pointer, std::size_t alignment) {
    return to_address(pointer) % alignment == 0;
}
[[nodiscard]] inline bool overlap_somewhere(std::vector<held_block> blocks) {
    std::ranges::sort(blocks, {},
                      [](const held_block& block) { return to_address(block.pointer); });
    return std::ranges::adjacent_find(blocks, [](const held_block& a, const held_block& b) {
               return to_address(a.pointer) + a.bytes > to_address(b.pointer);
           }) != blocks.end();
}

// Random requests and returns; a third of the steps gives a random live block back.
template <class R>
[[nodiscard]] std::size_t churn(R& resource, std::uint32_t seed, std::size_t steps,
                                std::size_t most_bytes, std::size_t most_alignment) {
    std::mt19937 random{seed};
    std::vector<held_block> live;
    std::size_t faults = 0;
    for (std::size_t step = 0; step < steps; ++step) {
        if (random() % 3 == 0 && !live.empty()) {
            std::swap(live[random() % live.size()], live.back());
            faults += is_intact<R>(live.back()) ? 0 : 1;
            give(resource, live.back());
            live.pop_back();
        } else {
            const std::size_t bytes = (1 + random() % most_bytes) >> (random() % 12);
            const std::size_t alignment =
                std::min(std::size_t{1} << (random() % 13), most_alignment);
            live.push_back(take(resource, std::max<std::size_t>(bytes, 1), alignment, random()));
            faults += is_aligned(live.back().pointer, alignment) ? 0 : 1;
        }
    }
    faults += overlap_somewhere(live) ? 1 : 0;
    for (const held_block& block : live) {
        faults += is_intact<R>(block) ? 0 : 1;
        give(resource, block);
    }
    return faults;
}

// A fixture behind virtual functions.
template <class Base>
struct contract_subject {
    virtual ~contract_subject() = default;
    virtual Base& resource() = 0;
    virtual Base& equal() = 0;
    virtual Base& other() = 0;
    virtual std::size_t too_many_bytes() = 0;
    virtual std::size_t live() = 0;
    std::size_t most_alignment;
    std::size_t block_bytes;
};

template <class Fixture, class Base>
struct contract_subject_of final : contract_subject<Base> {
    Fixture fixture;
    contract_subject_of() {
        this->most_alignment = Fixture::most_alignment;
        this->block_bytes = Fixture::block_bytes;
    }
    Base& resource() override { return fixture.resource(); }
    Base& equal() override { return fixture.equal(); }
    Base& other() override { return fixture.other(); }
    std::size_t too_many_bytes() override { return fixture.too_many_bytes(); }
    std::size_t live() override { return fixture.live(); }
};

template <class Base>
void check_contract(contract_subject<Base>& fixture) {
    Base& one = fixture.resource();
    // volatile: compilers warn of sizes that they can see.
    volatile std::size_t hidden = std::numeric_limits<std::size_t>::max();
    const std::size_t huge = hidden;

    SUBCASE("says what it is") {
        CHECK(includes(one.reachable_by(), Base::static_reach));
        CHECK(one.node() != no_node);
        CHECK(std::string_view{one.name()} != "");
    }
    SUBCASE("equality") {
        CHECK(one == one);
        CHECK(one.is_equal(one));
        CHECK(one == fixture.equal());
        CHECK_FALSE(one == fixture.other());
        CHECK_FALSE(fixture.other() == one);
        const held_block block = take(one, 100, 16, 1);
        give(fixture.equal(), block);
    }
    SUBCASE("one block of each size is aligned and whole") {
        for (std::size_t bytes :
             {1UL, 2UL, 7UL, 64UL, 100UL, 4095UL, 4096UL, 70'000UL, 3UL << 20}) {
            CAPTURE(bytes);
            const held_block block = take(one, bytes, host_alignment, bytes);
            CHECK(block.pointer != nullptr);
            CHECK(is_aligned(block.pointer, is_touched<Base> ? host_alignment : device_alignment));
            CHECK(is_intact<Base>(block));
            give(one, block);
        }
    }
    SUBCASE("each alignment up to two pages, for small and large blocks") {
        for (std::size_t alignment = 1; alignment <= fixture.most_alignment; alignment *= 2) {
            for (std::size_t bytes : {std::size_t{1}, std::size_t{1000}, alignment + 1}) {
                CAPTURE(alignment);
                CAPTURE(bytes);
                const held_block block = take(one, bytes, alignment, 42);
                CHECK(is_aligned(block.pointer, alignment));
                CHECK(is_intact<Base>(block));
                give(one, block);
            }
        }
    }
    SUBCASE("an alignment that is no power of two is refused") {
        for (std::size_t alignment : {std::size_t{0}, std::size_t{3}, std::size_t{48}, huge}) {
            CAPTURE(alignment);
            CHECK_THROWS_AS((void)one.allocate_sync(100, alignment), std::invalid_argument);
            CHECK_THROWS_AS((void)one.allocate_sync(0, alignment), std::invalid_argument);
        }
    }
    SUBCASE("zero bytes give a pointer that costs nothing") {
        std::vector<void*> nothings;
        for (int i = 0; i < 1000; ++i) {
            nothings.push_back(one.allocate_sync(0, 64));
            CHECK(nothings.back() != nullptr);
            CHECK(is_aligned(nothings.back(), 64));
        }
        CHECK(fixture.live() == 0);
        for (void* nothing : nothings) {
            one.deallocate_sync(nothing, 0, 64);
        }
    }
    SUBCASE("sizes that no machine has are refused, without overflow") {
        const std::size_t half = huge / 2;
        for (std::size_t bytes :
             {huge, huge - 1, huge - page_bytes, half + 1, half, half - page_bytes}) {
            for (std::size_t alignment : {std::size_t{1}, std::size_t{4096}, page_bytes}) {
                CAPTURE(bytes);
                CHECK_THROWS_AS((void)one.allocate_sync(bytes, alignment), out_of_memory);
            }
        }
        CHECK_THROWS_AS((void)one.allocate_sync(1, huge / 2 + 1), out_of_memory);
        CHECK(fixture.live() == 0);
    }
    SUBCASE("exhaustion takes all or nothing") {
        const held_block before = take(one, 1000, 16, 5);
        const std::size_t bytes = fixture.too_many_bytes();
        try {
            (void)one.allocate_sync(bytes);
            FAIL("more than there is was given");
        } catch (const out_of_memory& refusal) {
            CHECK(refusal.bytes() >= bytes);
            CHECK(std::string_view{refusal.what()}.find("out of memory") != std::string_view::npos);
        }
        CHECK(is_intact<Base>(before));
        const held_block after = take(one, 1000, 16, 6);
        CHECK(is_intact<Base>(before));
        give(one, after);
        give(one, before);
    }
    SUBCASE("blocks do not overlap, in any order of return") {
        for (int order = 0; order < 3; ++order) {
            std::vector<held_block> blocks;
            for (std::size_t i = 0; i < 40; ++i) {
                blocks.push_back(take(one, 1 + i * 997 % fixture.block_bytes, 8, i));
            }
            CHECK_FALSE(overlap_somewhere(blocks));
            if (order == 1) {
                std::ranges::reverse(blocks);
            } else if (order == 2) {
                std::ranges::shuffle(blocks, std::mt19937{1});
            }
            for (const held_block& block : blocks) {
                CHECK(is_intact<Base>(block));
                give(one, block);
            }
        }
    }
    SUBCASE("random requests and returns") {
        CHECK(churn(one, 1, 400, fixture.block_bytes, fixture.most_alignment) == 0);
    }
    SUBCASE("threads") {
        std::vector<std::size_t> faults(4);
        std::vector<std::thread> threads;
        for (std::uint32_t i = 0; i < faults.size(); ++i) {
            threads.emplace_back([&, i] {
                faults[i] = churn(one, i, 150, fixture.block_bytes, fixture.most_alignment);
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        CHECK(faults == std::vector<std::size_t>(4));
    }
    SUBCASE("a block may be given back by another thread") {
        const held_block block = take(one, 5000, 64, 9);
        std::thread{[&] { give(one, block); }}.join();
        give(one, take(one, 5000, 64, 10));
    }
    SUBCASE("a call without a stream and one with none are the same") {
        void* pointer = one.allocate(stream_ref{}, 300, 16);
        one.deallocate_sync(pointer, 300, 16);
        pointer = one.allocate_sync(300, 16);
        one.deallocate(stream_ref{}, pointer, 300, 16);
    }
    SUBCASE("null is given back without effect") { one.deallocate_sync(nullptr, 100, 16); }
    SUBCASE("for pmr or for raw bytes") {
        std::pmr::memory_resource* pmr = nullptr;
        if constexpr (is_touched<Base>) {
            pmr = &one;
            std::pmr::vector<int> numbers{pmr};
            for (int i = 0; i < 1000; ++i) {
                numbers.push_back(i);
            }
            CHECK(numbers[999] == 999);
        } else {
            pmr = one.raw_pmr();
            CHECK(pmr->is_equal(*fixture.equal().raw_pmr()));
            CHECK_FALSE(pmr->is_equal(*fixture.other().raw_pmr()));
        }
        CHECK_FALSE(pmr->is_equal(*std::pmr::new_delete_resource()));
        void* pointer = pmr->allocate(1000, 512);
        CHECK(is_aligned(pointer, 512));
        pmr->deallocate(pointer, 1000, 512);
        CHECK_THROWS_AS((void)pmr->allocate(huge), std::bad_alloc);
    }
    CHECK(fixture.live() == 0);
}

template <class Fixture>
void check_resource() {
    using resource_type = typename Fixture::resource_type;
    using base = detail::base_for<resource_type::static_reach>;
    static_assert(resource<resource_type>);
    static_assert(std::is_base_of_v<base, resource_type>);
    static_assert(is_touched<resource_type> ==
                  std::is_base_of_v<std::pmr::memory_resource, resource_type>);

    contract_subject_of<Fixture, base> subject;
    CHECK(includes(subject.resource().reachable_by(), resource_type::static_reach));
    check_contract<base>(subject);
}

TEST_CASE_TEMPLATE_DEFINE("resource contract", Fixture, resource_contract) {
    check_resource<Fixture>();
}

}  // namespace xmm::test
