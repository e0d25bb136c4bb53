// SPDX-License-Identifier: Apache-2.0
// real_space.cpp - resources over a space whose pages move: containers keep their contents.
#include <xmm/facade/resource_port.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <doctest/doctest.h>

#include <xmm/resources/adaptors/prefetch_resource.hpp>
#include <xmm/resources/allocator.hpp>
#include <xmm/resources/debug_resource.hpp>
#include <xmm/resources/unified_pool.hpp>
#include <xmm/xmm.hpp>

using namespace xmm;
using namespace xmm::literals;

namespace {

struct two_devices {
    space one = std::move(
        space::create_soft({{.bytes = 64_MiB, .granule_bytes = 2_MiB}, {.bytes = 64_MiB, .granule_bytes = 2_MiB}})
            .value());
    node_id a = one.devices()[0];
    node_id b = one.devices()[1];
    space_port port = port_of(one);

    // Everything of the space goes to that node, wherever it was.
    void move_everything(node_id to) {
        std::vector<va_range> all;
        one.for_each_granule([&](const granule_view& view) {
            if (view.home != no_node && !view.is_pinned) {
                all.push_back(view.va);
            }
        });
        for (const va_range range : all) {
            // Unmapped meanwhile, or no room: nothing moves then.
            static_cast<void>(one.make_resident(to_pointer(range.begin), range.bytes, to));
        }
    }
    std::size_t resident_on(node_id node) {
        std::size_t bytes = 0;
        one.for_each_granule([&](const granule_view& view) { bytes += view.home == node ? view.va.bytes : 0; });
        return bytes;
    }
};

// Several containers of unified memory beside the same ones of plain memory.
struct containers {
    std::pmr::vector<std::uint64_t> numbers;
    std::pmr::list<std::pmr::string> texts;
    std::pmr::map<int, std::pmr::string> ordered;
    std::pmr::unordered_map<int, std::uint64_t> hashed;
    std::pmr::deque<std::pmr::vector<int>> queue;

    explicit containers(std::pmr::memory_resource* from)
        : numbers{from}, texts{from}, ordered{from}, hashed{from}, queue{from} {}

    // One step of a random program; the same seed does the same.
    void step(std::mt19937& random) {
        const auto number = static_cast<int>(random() % 500);
        switch (random() % 8) {
            case 0:
            case 1: numbers.push_back(random()); break;
            case 2: texts.emplace_back(20 + random() % 200, static_cast<char>('a' + random() % 26)); break;
            case 3: ordered[number].append("another piece of text, too long for a small string"); break;
            case 4: hashed[number] += random(); break;
            case 5: queue.emplace_back(random() % 100, number); break;
            case 6:
                if (!texts.empty()) {
                    texts.pop_front();
                }
                ordered.erase(number);
                break;
            default:
                if (!queue.empty()) {
                    queue.pop_front();
                }
                hashed.erase(number);
                break;
        }
    }
    friend bool operator==(const containers& a, const containers& b) {
        return a.numbers == b.numbers && a.texts == b.texts && a.ordered == b.ordered &&
               a.hashed == b.hashed && a.queue == b.queue;
    }
};

}  // namespace

TEST_CASE_FIXTURE(two_devices, "real space: every pmr container keeps its contents while pages move between steps") {
    unified_pool pool{port, a};
    {
        containers moved{&pool};
        containers stays{std::pmr::new_delete_resource()};
        std::mt19937 first{1};
        std::mt19937 second{1};
        const std::vector<node_id> places{a, b, one.hosts()[0]};
        for (int round = 0; round < 60; ++round) {
            for (int i = 0; i < 200; ++i) {
                moved.step(first);
                stays.step(second);
            }
            const node_id to = places[static_cast<std::size_t>(round) % places.size()];
            move_everything(to);
            REQUIRE(resident_on(to) >= page_bytes);
            REQUIRE(moved == stays);
        }
        CHECK(one.contains(moved.numbers.data()));
        CHECK(one.contains(&moved.ordered.begin()->second));
        CHECK(one.is_valid());
    }
    pool.release();
    CHECK(one.usage(a)->used == one.usage(a)->free_frames);
    CHECK(resident_on(a) + resident_on(b) == 0);
}

TEST_CASE_FIXTURE(two_devices, "real space: containers work on while another thread moves their pages") {
    unified_pool pool{port, a};
    std::atomic<bool> is_over{false};
    std::atomic<int> rounds{0};
    std::thread mover{[&] {
        // relaxed: a flag and a count, nothing else hangs on them.
        for (int i = 0; !is_over.load(std::memory_order_relaxed); ++i) {
            move_everything(i % 2 == 0 ? a : b);
            rounds.fetch_add(1, std::memory_order_relaxed);
            std::this_thread::sleep_for(std::chrono::milliseconds{1});
        }
    }};
    bool is_same = true;
    std::vector<std::thread> users;
    for (std::uint32_t seed = 0; seed < 2; ++seed) {
        users.emplace_back([&, seed] {
            containers moved{&pool};
            containers stays{std::pmr::new_delete_resource()};
            std::mt19937 first{seed};
            std::mt19937 second{seed};
            for (int i = 0; i < 4000 || rounds.load(std::memory_order_relaxed) < 20; ++i) {
                moved.step(first);
                stays.step(second);
            }
            if (!(moved == stays)) {
                is_same = false;
            }
        });
    }
    for (std::thread& user : users) {
        user.join();
    }
    is_over.store(true, std::memory_order_relaxed);
    mover.join();
    CHECK(is_same);
    CHECK(rounds >= 20);
    CHECK(one.is_valid());
}

TEST_CASE_FIXTURE(two_devices, "real space: a kernel and the CPU share a pmr vector") {
    unified_pool pool{port, a};
    queue line = std::move(one.make_queue(a).value());
    std::pmr::vector<std::uint32_t> numbers(300'000, &pool);
    std::iota(numbers.begin(), numbers.end(), 0U);
    for (int round = 0; round < 3; ++round) {
        const device_view<std::uint32_t> view{numbers.data(), numbers.size()};
        const auto launched = launch(line, {reads_writes(numbers)}, [&](soft::stream& device) {
            return device.parallel_for(numbers.size(), [view](std::size_t i) { view[i] += 1U; });
        });
        REQUIRE(launched.has_value());
        REQUIRE(line.synchronize().is_ok());
        for (std::uint32_t& number : numbers) {
            ++number;
        }
    }
    bool is_right = true;
    for (std::uint32_t i = 0; i < numbers.size(); ++i) {
        is_right = is_right && numbers[i] == i + 6;
    }
    CHECK(is_right);
}

TEST_CASE_FIXTURE(two_devices, "real space: device memory is filled by copies and never touched by the CPU") {
    device_resource device{port, b};
    allocator<std::uint64_t, device_resource> there{device};
    std::uint64_t* block = there.allocate(100'000);
    CHECK(*one.residency_of(block) == b);
    CHECK(device.usage().used >= 800'000);
    std::vector<std::uint64_t> out(100'000);
    std::vector<std::uint64_t> back(100'000);
    std::iota(out.begin(), out.end(), 7U);
    CHECK(one.copy(block, out.data(), 800'000));
    CHECK(one.copy(back.data(), block, 800'000));
    CHECK(back == out);
    there.deallocate(block, 100'000);
    CHECK_FALSE(one.contains(block));
    CHECK(device.usage().limit > 0);
    CHECK_THROWS_AS((device_resource{port, one.hosts()[0]}), std::invalid_argument);
    CHECK_THROWS_AS((device_resource{port, node_id{999}}), std::invalid_argument);
}

TEST_CASE_FIXTURE(two_devices, "real space: page-locked memory stays where it is") {
    pinned_resource pinned{port, one.hosts()[0]};
    std::pmr::vector<int> numbers(3'000'000, 5, &pinned);
    CHECK(*one.residency_of(numbers.data()) == one.hosts()[0]);
    move_everything(a);
    CHECK_FALSE(one.make_resident(numbers.data(), numbers.size() * sizeof(int), a).is_ok());
    CHECK(*one.residency_of(numbers.data()) == one.hosts()[0]);
    queue line = std::move(one.make_queue(a).value());
    std::pmr::vector<std::int64_t> sum(1, &pinned);
    const device_view<const int> in{numbers.data(), numbers.size()};
    const device_view<std::int64_t> out{sum.data(), 1};
    REQUIRE(launch(line, {reads(numbers), writes(sum)}, [&](soft::stream& device) {
                return device.run([in, out] {
                    std::int64_t total = 0;
                    in.for_each_span(0, in.size(), [&](std::span<const int> part, std::size_t) {
                        total += std::accumulate(part.begin(), part.end(), std::int64_t{0});
                    });
                    out[0] = total;
                });
            }).has_value());
    REQUIRE(line.synchronize().is_ok());
    CHECK(sum[0] == 15'000'000);
}

TEST_CASE_FIXTURE(two_devices, "real space: given back on a queue while its kernel still writes") {
    unified_resource unified{port, a};
    queue line = std::move(one.make_queue(a).value());
    constexpr std::size_t count = 1'000'000;
    for (int round = 0; round < 5; ++round) {
        auto* block = static_cast<std::uint32_t*>(unified.allocate(line, count * sizeof(std::uint32_t)));
        const device_view<std::uint32_t> view{block, count};
        // Named nowhere: only the order of the queue keeps the pages.
        REQUIRE(launch(line, {}, [&](soft::stream& device) {
                    return device.parallel_for(count, [view](std::size_t i) {
                        view[i] = static_cast<std::uint32_t>(i);
                    });
                }).has_value());
        unified.deallocate(line, block, count * sizeof(std::uint32_t));
    }
    CHECK(line.synchronize().is_ok());  // no kernel met an address that is gone
    unified.collect();
    CHECK(resident_on(a) == 0);
}

TEST_CASE_FIXTURE(two_devices, "real space: more than a device holds, and more than there is") {
    unified_pool pool{port, a};
    std::pmr::vector<std::uint64_t> numbers(&pool);
    numbers.resize(80_MiB / sizeof(std::uint64_t), 3);
    CHECK(std::accumulate(numbers.begin(), numbers.end(), std::uint64_t{0}) == 3 * numbers.size());
    move_everything(a);
    CHECK(one.usage(a)->used <= 64_MiB);
    CHECK(std::accumulate(numbers.begin(), numbers.end(), std::uint64_t{0}) == 3 * numbers.size());

    device_resource device{port, b};
    try {
        (void)device.allocate_sync(1_GiB);
        FAIL("a gigabyte of 64 MiB");
    } catch (const out_of_memory& refusal) {
        CHECK(refusal.node() == b);
        CHECK(refusal.limit() > 0);
        CHECK(refusal.limit() <= 64_MiB);
    }
    CHECK(one.usage(b)->used - one.usage(b)->free_frames == 0);
    device.deallocate_sync(device.allocate_sync(32_MiB), 32_MiB);
}

TEST_CASE_FIXTURE(two_devices, "real space: large alignments, prefetch, and debugging while pages move") {
    unified_resource unified{port, a};
    void* aligned = unified.allocate_sync(1_MiB, 64_MiB);
    CHECK(to_address(aligned) % 64_MiB == 0);
    unified.deallocate_sync(aligned, 1_MiB, 64_MiB);

    prefetch_resource eager{unified, port, a};
    void* early = eager.allocate_sync(8_MiB);
    for (int i = 0; i < 5000 && resident_on(a) < 8_MiB; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    CHECK(resident_on(a) == 8_MiB);
    eager.deallocate_sync(early, 8_MiB);

    unified_pool pool{port, a};
    debug_resource debug{pool};
    {
        containers moved{&debug};
        containers stays{std::pmr::new_delete_resource()};
        std::mt19937 first{3};
        std::mt19937 second{3};
        for (int round = 0; round < 10; ++round) {
            for (int i = 0; i < 100; ++i) {
                moved.step(first);
                stays.step(second);
            }
            move_everything(round % 2 == 0 ? a : b);
            REQUIRE(debug.check() == 0);
        }
        CHECK(moved == stays);
    }
    CHECK(debug.live_count() == 0);
}
