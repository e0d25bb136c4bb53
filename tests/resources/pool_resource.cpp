// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/pool_resource.hpp>

#include <cstdlib>
#include <functional>
#include <new>
#include <set>
#include <thread>

#include <doctest/doctest.h>

#include <xmm/resources/host_resource.hpp>
#include <xmm/resources/space_resource.hpp>
#include <xmm/resources/unified_pool.hpp>

#include "fake_space.hpp"
#include "watched_new.hpp"

using namespace xmm;
using namespace xmm::literals;
using test::fake_space;

namespace {

// Plain memory; `meanwhile` runs once, inside the next request.
class slow_upstream final : public memory_resource {
public:
    static constexpr reach static_reach = reach::host;
    slow_upstream() : memory_resource{"slow", any_host, reach::host} {}

    std::function<void()> meanwhile;
    int live = 0;

private:
    void* do_allocate_on(stream_ref, std::size_t bytes, std::size_t alignment) override {
        void* pointer = std::aligned_alloc(alignment, bytes);
        ++live;
        if (meanwhile) {
            std::exchange(meanwhile, {})();
        }
        return pointer;
    }
    void do_deallocate_on(stream_ref, void* pointer, std::size_t, std::size_t) noexcept override {
        std::free(pointer);
        --live;
    }
};

}  // namespace

TEST_CASE("size_classes: each request gets the smallest class that fits") {
    using classes = detail::size_classes;
    static_assert(classes::bytes_of(0) == 32);
    static_assert(classes::bytes_of(1) == 40);
    static_assert(classes::bytes_of(4) == 64);
    static_assert(classes::index_of(33, 1) == 1);
    static_assert(classes::bytes_of(classes::index_of(33, 16)) == 48);
    static_assert(classes::bytes_of(classes::index_of(33, 64)) == 64);
    static_assert(classes::bytes_of(classes::index_of(1, 4096)) == 4096);
    for (std::size_t alignment = 1; alignment <= 4096; alignment *= 2) {
        for (std::size_t bytes = 1; bytes < 70'000; bytes += 1 + bytes / 37) {
            const std::size_t index = classes::index_of(bytes, alignment);
            REQUIRE(classes::bytes_of(index) >= bytes);
            REQUIRE(classes::alignment_of(index) >= alignment);
            for (std::size_t smaller = 0; smaller < index; ++smaller) {
                REQUIRE((classes::bytes_of(smaller) < bytes ||
                         classes::alignment_of(smaller) < alignment));
            }
        }
    }
}

TEST_CASE("pool_resource: many small blocks share few pages") {
    fake_space space;
    unified_pool pool{space.port(), fake_space::device};
    std::vector<void*> blocks;
    for (int i = 0; i < 10'000; ++i) {
        blocks.push_back(pool.allocate_sync(100));
    }
    CHECK(space.counted().maps == 1);
    CHECK(space.last_request().preferred == fake_space::device);
    for (void* block : blocks) {
        pool.deallocate_sync(block, 100);
    }
    // The same blocks serve again.
    std::set<void*> known{blocks.begin(), blocks.end()};
    for (int i = 0; i < 10'000; ++i) {
        REQUIRE(known.contains(blocks[static_cast<std::size_t>(i)] = pool.allocate_sync(100)));
    }
    CHECK(std::set<void*>{blocks.begin(), blocks.end()}.size() == blocks.size());
    CHECK(space.counted().maps == 1);
    CHECK(pool.reserved_bytes() == 2_MiB);
    pool.release();
    CHECK(pool.reserved_bytes() == 0);
    CHECK(space.live_blocks() == 0);
    pool.deallocate_sync(pool.allocate_sync(100), 100);
    CHECK(space.live_blocks() == 1);
}

TEST_CASE("pool_resource: large blocks and large alignments go straight to the upstream") {
    fake_space space;
    unified_pool pool{space.port()};
    void* large = pool.allocate_sync(1_MiB);
    CHECK(space.last_request().bytes == 1_MiB);
    void* aligned = pool.allocate_sync(100, 64_KiB);
    CHECK(space.last_request().bytes == 100);
    CHECK(pool.reserved_bytes() == 0);
    pool.deallocate_sync(large, 1_MiB);
    pool.deallocate_sync(aligned, 100, 64_KiB);
    CHECK(space.live_blocks() == 0);
}

TEST_CASE("pool_resource: chunks grow with the pool") {
    fake_space space;
    unified_pool pool{space.port(), no_node, {.chunk_bytes = 2_MiB, .largest_chunk_bytes = 8_MiB}};
    for (int i = 0; i < 400; ++i) {
        (void)pool.allocate_sync(256_KiB);
    }
    CHECK(pool.reserved_bytes() >= 100_MiB);
    CHECK(pool.reserved_bytes() <= 110_MiB);
    CHECK(space.counted().maps < 25);
    CHECK_THROWS_AS((unified_pool{space.port(), no_node, {.chunk_bytes = 4096}}),
                    std::invalid_argument);
}

TEST_CASE("pool_resource: over a device it touches nothing") {
    fake_space space;  // device memory there has no access rights at all
    device_resource device{space.port(), fake_space::device};
    pool_resource pool{device};
    static_assert(!std::is_base_of_v<std::pmr::memory_resource, decltype(pool)>);
    std::set<void*> blocks;
    for (std::size_t bytes = 1; bytes < 10'000; bytes += 7) {
        CHECK(blocks.insert(pool.allocate_sync(bytes, 1)).second);
    }
    CHECK(std::ranges::all_of(blocks,
                              [](void* at) { return to_address(at) % device_alignment == 0; }));
}

TEST_CASE("pool_resource: a block given back on a queue waits for it, except for that queue") {
    fake_space space;
    unified_resource unified{space.port()};
    pool_resource pool{unified, {.chunk_bytes = 64_KiB}};
    const std::size_t bytes = 16_KiB;  // four to a chunk
    const stream_ref a = space.stream(fake_space::queue_a);
    const stream_ref b = space.stream(fake_space::queue_b);
    std::vector<void*> blocks;
    for (int i = 0; i < 4; ++i) {
        blocks.push_back(pool.allocate(a, bytes));
    }
    space.submit(fake_space::queue_a);
    pool.deallocate(a, blocks[0], bytes);
    pool.deallocate(a, blocks[1], bytes);

    SUBCASE("the queue itself has it back at once") {
        void* again = pool.allocate(a, bytes);
        CHECK((again == blocks[0] || again == blocks[1]));
        CHECK(space.counted().waits == 0);
    }
    SUBCASE("another queue and the CPU get other memory") {
        void* for_b = pool.allocate(b, bytes);
        CHECK(for_b != blocks[0]);
        CHECK(for_b != blocks[1]);
        CHECK(space.counted().maps == 2);
        void* for_cpu = pool.allocate_sync(bytes);
        CHECK(for_cpu != blocks[0]);
        CHECK(for_cpu != blocks[1]);
    }
    SUBCASE("once the queue has passed, anyone gets it") {
        space.complete(fake_space::queue_a);
        const std::set<void*> got{pool.allocate_sync(bytes), pool.allocate(b, bytes)};
        CHECK(got == std::set<void*>{blocks[0], blocks[1]});
        CHECK(space.counted().maps == 1);
    }
    SUBCASE("a queue that the upstream does not know is waited for") {
        static int waits = 0;
        waits = 0;
        const stream_ref unknown{queue_id{99}, nullptr, [](void*, queue_id) noexcept -> status {
                                     ++waits;
                                     return {};
                                 }};
        pool.deallocate(unknown, blocks[2], bytes);
        CHECK(waits == 1);
        CHECK(pool.allocate_sync(bytes) == blocks[2]);
    }
}

TEST_CASE("pool_resource: a block given back while its queue cannot say is that queue's alone") {
    fake_space space{page_bytes};
    unified_resource unified{space.port()};
    pool_resource pool{unified};
    const stream_ref a = space.stream(fake_space::queue_a);
    const std::size_t bytes = 512_KiB;
    std::vector<void*> blocks;
    for (int i = 0; i < 4; ++i) {
        blocks.push_back(pool.allocate(a, bytes));
    }
    space.submit(fake_space::queue_a);
    space.capture(fake_space::queue_a);
    pool.deallocate(a, blocks[2], bytes);
    CHECK_THROWS_AS((void)pool.allocate_sync(bytes), out_of_memory);
    SUBCASE("the queue has it back") { CHECK(pool.allocate(a, bytes) == blocks[2]); }
    SUBCASE("others wait for the queue when it can say") {
        space.capture(fake_space::queue_a, false);
        CHECK(pool.allocate_sync(bytes) == blocks[2]);
        CHECK(space.counted().waits == 1);
    }
    SUBCASE("the queue ends before it can say: nobody has it again") {
        space.capture(fake_space::queue_a, false);
        space.lose(fake_space::queue_a);
        CHECK_THROWS_AS((void)pool.allocate_sync(bytes), out_of_memory);
        const stream_ref b = space.stream(fake_space::queue_b);
        CHECK_THROWS_AS((void)pool.allocate(b, bytes), out_of_memory);
        pool.release();
        CHECK(space.live_blocks() == 0);
        CHECK(pool.allocate_sync(bytes) != nullptr);
    }
    SUBCASE("of a queue that the upstream does not know it stays, till all goes") {
        const stream_ref unknown{queue_id{99}, nullptr, [](void*, queue_id) noexcept -> status {
                                     return fail(errc::busy, "being captured");
                                 }};
        pool.deallocate(unknown, blocks[1], bytes);
        CHECK_THROWS_AS((void)pool.allocate_sync(bytes), out_of_memory);
    }
}

TEST_CASE(
    "pool_resource: queues are asked for the head of what waits for them, not for all of it") {
    constexpr std::size_t count = 1000;
    fake_space space;
    unified_resource unified{space.port()};
    pool_resource pool{unified};
    const stream_ref a = space.stream(fake_space::queue_a);
    const stream_ref b = space.stream(fake_space::queue_b);
    std::set<void*> blocks;
    while (blocks.size() < count) {
        blocks.insert(pool.allocate(a, 1_KiB));
    }
    const auto give_back = [&] {
        for (void* block : blocks) {
            pool.deallocate(a, block, 1_KiB);
        }
        return space.counted().questions;
    };
    space.submit(fake_space::queue_a);
    SUBCASE("the queue itself has all of it again, and is asked nothing") {
        const std::size_t before = give_back();
        std::set<void*> again;
        for (std::size_t i = 0; i < 2 * count; ++i) {
            again.insert(pool.allocate(a, 1_KiB));
        }
        CHECK(again.size() == 2 * count);
        CHECK(std::includes(again.begin(), again.end(), blocks.begin(), blocks.end()));
        CHECK(space.counted().questions - before < count / 10);
    }
    SUBCASE("another queue") {
        const std::size_t before = give_back();
        for (std::size_t i = 0; i < count; ++i) {
            CHECK(!blocks.contains(pool.allocate(b, 1_KiB)));
        }
        CHECK(space.counted().questions - before <= 3 * count);
        space.complete(fake_space::queue_a);
        std::size_t had = 0;
        for (std::size_t i = 0; i < 2 * count; ++i) {
            had += blocks.contains(pool.allocate(b, 1_KiB)) ? 1 : 0;
        }
        CHECK(had == count);
    }
    SUBCASE("while it cannot say") {
        space.capture(fake_space::queue_a);
        const std::size_t before = give_back();
        for (std::size_t i = 0; i < count; ++i) {
            CHECK(!blocks.contains(pool.allocate(b, 1_KiB)));
        }
        CHECK(space.counted().questions - before <= 3 * count);
        space.capture(fake_space::queue_a, false);
        space.complete(fake_space::queue_a);
        std::size_t had = 0;
        for (std::size_t i = 0; i < 2 * count; ++i) {
            had += blocks.contains(pool.allocate(b, 1_KiB)) ? 1 : 0;
        }
        CHECK(had == count);
    }
}

TEST_CASE("pool_resource: when memory runs out, queues are waited for before it fails") {
    fake_space space{2 * page_bytes};
    unified_resource unified{space.port()};
    pool_resource pool{unified};
    const stream_ref a = space.stream(fake_space::queue_a);
    const std::size_t bytes = 512_KiB;
    std::vector<void*> blocks;
    for (int i = 0; i < 8; ++i) {
        blocks.push_back(pool.allocate(a, bytes));
    }
    CHECK_THROWS_AS((void)pool.allocate_sync(bytes), out_of_memory);
    space.submit(fake_space::queue_a);
    pool.deallocate(a, blocks[3], bytes);
    CHECK(pool.allocate_sync(bytes) == blocks[3]);
    CHECK(space.counted().waits == 1);
    CHECK_THROWS_AS((void)pool.allocate_sync(bytes), out_of_memory);
}

TEST_CASE("pool_resource: threads that come at once to an empty pool get different blocks") {
    host_resource host;
    pool_resource pool{host};
    std::vector<std::vector<void*>> got(4);
    std::vector<std::thread> threads;
    for (auto& mine : got) {
        threads.emplace_back([&] {
            for (int i = 0; i < 3000; ++i) {
                mine.push_back(pool.allocate_sync(64));
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    std::set<void*> all;
    for (const auto& mine : got) {
        all.insert(mine.begin(), mine.end());
    }
    CHECK(all.size() == 12'000);
    for (void* pointer : all) {
        pool.deallocate_sync(pointer, 64);
    }
}

TEST_CASE("pool_resource: no chunk and no slab is lost where the host has no memory for a record") {
    for (const bool another_comes : {true, false}) {
        CAPTURE(another_comes);
        slow_upstream upstream;
        {
            pool_resource pool{upstream, {.chunk_bytes = 64_KiB}};
            void* other = nullptr;
            upstream.meanwhile = [&] {
                if (another_comes) {
                    other =
                        pool.allocate_sync(128);  // takes what was prepared for a chunk's record
                }
                test::watched_new.left = 0;
            };
            const int before = another_comes ? 1 : 0;
            bool was_refused = false;
            try {
                (void)pool.allocate_sync(64);
            } catch (const std::bad_alloc&) {
                was_refused = true;
            }
            test::watched_new.left = SIZE_MAX;
            CHECK(was_refused);
            CHECK(upstream.live == before);
            CHECK(pool.reserved_bytes() == before * 64_KiB);
            // One chunk is enough for all that fit into it.
            std::set<void*> all;
            for (std::size_t i = 0; i < 64_KiB / 64; ++i) {
                all.insert(pool.allocate_sync(64));
            }
            CHECK(all.size() == 64_KiB / 64);
            CHECK(upstream.live == before + 1);
            for (void* pointer : all) {
                pool.deallocate_sync(pointer, 64);
            }
            pool.deallocate_sync(other, 128);
        }
        CHECK(upstream.live == 0);
    }
}
