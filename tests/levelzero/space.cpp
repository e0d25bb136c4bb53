// SPDX-License-Identifier: Apache-2.0
// Spaces on Level Zero devices, on the software driver: the floors above on this backend, and launches through it.
#include <xmm/levelzero.hpp>
#include <xmm/xmm.hpp>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "rig.hpp"

namespace {

using namespace xmm;
using namespace xmm::literals;
using test::host_kernel;

// A space of its own over some devices, so that budgets and counts are the test's.
struct rig {
    const soft_ze::controls& soft = *test::find_soft_ze(test::soft_drivers().at(0).handle);
    std::uint64_t misuses = soft.misuses();
    std::unique_ptr<levelzero_vmm> driver;
    space of;
    node_id device = of.devices()[0];
    node_id host = of.hosts()[0];
    test::levelzero_words words;

    explicit rig(std::size_t budget = 32_MiB, std::size_t devices = 1)
        : driver{std::move(test::open_levelzero(test::soft_drivers().at(0), devices, 77).value())},
          of{space::create_on(*driver, {.policy = "first_touch"}).value()} {
        CHECK(of.set_budget(device, budget));
    }
    ~rig() {
        CHECK(of.set_budget(device, no_budget));
        CHECK(of.is_valid());
        CHECK(soft.misuses() == misuses);
    }
    queue make_queue() { return std::move(of.make_queue(device).value()); }
    std::uint64_t* map(std::size_t bytes, const map_options& wanted = {}) {
        return static_cast<std::uint64_t*>(of.map(bytes, wanted).value());
    }
    node_id home(const void* at) { return of.residency_of(at).value(); }
    status load(queue& line, const std::uint64_t* at, std::uint64_t& value) {
        auto point = launch<levelzero_stream>(line, {reads(at, 8)}, [&](levelzero_stream& s) {
            return words.load(s, to_address(at), value);
        });
        return point ? line.wait(*point) : point.error();
    }
    status store(queue& line, std::uint64_t* at, std::uint64_t value) {
        auto point = launch<levelzero_stream>(line, {writes(at, 8)}, [&](levelzero_stream& s) {
            return words.store(s, to_address(at), value);
        });
        return point ? line.wait(*point) : point.error();
    }
};

// Unified pointers need host frames that devices can map.
bool is_skipped_without_host_frames() {
    if (test::is_skipped_without_maps()) {
        return true;
    }
    auto opened = test::open_levelzero(test::soft_drivers().at(0), 1, 78);
    REQUIRE(opened);
    if (!(*opened)->describe(node_id{1})->able.has(ability::host_frames)) {
        const status why = (*opened)->why_no_host_frames();
        MESSAGE("skipped, no unified pointers: ", std::string{why.why});
        return true;
    }
    return false;
}

}  // namespace

TEST_CASE("one pointer: the CPU writes, a kernel reads and writes, the CPU reads") {
    if (is_skipped_without_host_frames()) {
        return;
    }
    rig r;
    queue line = r.make_queue();
    std::uint64_t* data = r.map(8_MiB);
    std::iota(data, data + 8_MiB / 8, std::uint64_t{0});
    CHECK(r.home(data) == r.host);
    std::uint64_t seen = 0;
    REQUIRE(r.load(line, data + 12345, seen));
    CHECK(seen == 12345);
    CHECK(r.home(data + 12345) == r.device);
    REQUIRE(r.store(line, data + 12345, 7));
    CHECK(data[12345] == 7);
    CHECK(data[12346] == 12346);
    CHECK(r.home(data) == r.host);
    REQUIRE(r.of.unmap(data));
}

TEST_CASE("a kernel over two arrays that exceed the budget, launched stretch by stretch") {
    if (is_skipped_without_host_frames()) {
        return;
    }
    rig r{16_MiB};
    queue line = r.make_queue();
    constexpr std::size_t bytes = 32_MiB;
    constexpr std::size_t count = bytes / 8;
    constexpr std::size_t stretch = 4_MiB / 8;
    std::uint64_t* a = r.map(bytes, {.granule_bytes = 2_MiB});
    std::uint64_t* b = r.map(bytes, {.granule_bytes = 2_MiB});
    std::iota(a, a + count, std::uint64_t{1});
    host_kernel triple{[](soft_ze::kernel_call& call) {
        auto* from = call.argument<std::uint64_t*>(0);
        auto* to = call.argument<std::uint64_t*>(1);
        const std::size_t words = std::size_t{call.groups[0]} * 1024;
        std::size_t i = 0;
        (void)call.for_each(to, words, [&](std::uint64_t& out) {
            std::uint64_t in = 0;
            (void)call.load(from + i++, in);
            out = in * 3;
        });
    }};
    for (std::size_t at = 0; at < count; at += stretch) {
        auto point = launch<levelzero_stream>(
            line, {reads(a + at, stretch * 8), writes(b + at, stretch * 8)},
            [&](levelzero_stream& s) { return triple.launch(s, stretch / 1024, a + at, b + at); });
        REQUIRE(point);
    }
    REQUIRE(line.synchronize());
    CHECK(r.of.is_valid());
    bool is_right = true;
    for (std::size_t i = 0; i < count; ++i) {
        is_right = is_right && b[i] == 3 * (i + 1);
    }
    CHECK(is_right);
    CHECK(r.soft.held(0) <= 16_MiB);
    CHECK(r.of.statistics().nodes[1].counters.bytes_in > 0);
    REQUIRE(r.of.unmap(a));
    REQUIRE(r.of.unmap(b));
}

TEST_CASE("gmemcpy between unified pointers, plain memory, and in a queue's order") {
    if (is_skipped_without_host_frames()) {
        return;
    }
    rig r;
    queue line = r.make_queue();
    std::vector<std::uint64_t> plain(4_MiB / 8);
    std::iota(plain.begin(), plain.end(), std::uint64_t{9});
    std::uint64_t* a = r.map(4_MiB);
    std::uint64_t* b = r.map(4_MiB);
    REQUIRE(r.of.make_resident(a, 4_MiB, r.device));
    REQUIRE(r.of.copy(a, plain.data(), 4_MiB));
    REQUIRE(r.of.copy(b + 1, a, 4_MiB - 8));
    CHECK(b[1] == 9);
    CHECK(b[4_MiB / 8 - 1] == 4_MiB / 8 + 7);
    auto point = r.of.copy(line, plain.data() + 3, b + 5, 800);
    REQUIRE(point);
    CHECK(line.wait(*point));
    CHECK(plain[3] == 13);
    CHECK(r.of.copy_failures() == 0);
    REQUIRE(r.of.unmap(a));
    REQUIRE(r.of.unmap(b));
}

TEST_CASE("read-mostly pages have copies, of which one accessor at a time sees his") {
    if (is_skipped_without_host_frames()) {
        return;
    }
    rig r;
    queue line = r.make_queue();
    std::uint64_t* data = r.map(2_MiB, {.is_read_mostly = true});
    data[1] = 5;
    std::uint64_t seen = 0;
    for (int round = 0; round < 3; ++round) {
        REQUIRE(r.load(line, data + 1, seen));
        CHECK(seen == 5);
        CHECK(data[1] == 5);
    }
    CHECK(r.of.statistics().nodes[1].counters.bytes_in == 2_MiB);  // copied once
    data[1] = 6;
    REQUIRE(r.load(line, data + 1, seen));
    CHECK(seen == 6);
    REQUIRE(r.store(line, data + 1, 7));
    CHECK(data[1] == 7);
    REQUIRE(r.of.unmap(data));
}

TEST_CASE("two devices in one space: pages go from one to the other by way of the host") {
    if (is_skipped_without_host_frames()) {
        return;
    }
    rig r{32_MiB, 2};
    REQUIRE(r.of.devices().size() == 2);
    queue first = r.make_queue();
    queue second = std::move(r.of.make_queue(r.of.devices()[1]).value());
    std::uint64_t* data = r.map(4_MiB);
    data[3] = 1;
    test::levelzero_words others;
    for (std::uint64_t round = 0; round < 5; ++round) {
        std::uint64_t seen = 0;
        REQUIRE(r.load(first, data + 3, seen));
        CHECK(seen == 1 + 2 * round);
        REQUIRE(r.store(first, data + 3, seen + 1));
        CHECK(r.home(data) == r.device);
        auto point =
            launch<levelzero_stream>(second, {reads_writes(data, 64)}, [&](levelzero_stream& s) {
                const status loaded = others.load(s, to_address(data + 3), seen);
                return loaded ? others.store(s, to_address(data + 3), seen + 1) : loaded;
            });
        REQUIRE(point);
        REQUIRE(second.wait(*point));
        CHECK(r.home(data) == r.of.devices()[1]);
    }
    CHECK(data[3] == 11);
    REQUIRE(r.of.unmap(data));
}

TEST_CASE("CPU threads and launches on the same pages at once") {
    if (is_skipped_without_host_frames()) {
        return;
    }
    rig r;
    constexpr std::size_t pages = 8;
    constexpr std::size_t stride = page_bytes / 8;
    std::uint64_t* data = r.map(pages * page_bytes, {.granule_bytes = 2_MiB});
    std::atomic<int> failures{0};
    std::atomic<bool> is_over{false};
    std::thread cpu{[&] {  // words of its own
        for (std::uint64_t i = 0; !is_over; ++i) {
            data[i % pages * stride + 1000] += 1;
            std::this_thread::yield();
        }
    }};
    {
        queue line = r.make_queue();
        for (std::uint64_t i = 0; i < 60; ++i) {
            std::uint64_t* at = data + i % pages * stride + i;
            failures += r.store(line, at, i) ? 0 : 1;
            std::uint64_t seen = 0;
            failures += r.load(line, at, seen) && seen == i ? 0 : 1;
        }
    }
    is_over = true;
    cpu.join();
    CHECK(failures == 0);
    REQUIRE(r.of.unmap(data));
}

TEST_CASE("device-only memory: the heap of a device gives blocks that kernels reach") {
    if (test::is_skipped_without_maps()) {
        return;
    }
    rig r;
    auto heap = r.of.heap(r.device);
    REQUIRE(heap);
    queue line = r.make_queue();
    std::vector<void*> blocks;
    for (std::size_t bytes : {1000ul, 70'000ul, 3'000'000ul, 9'000'000ul}) {
        auto block = (*heap)->allocate({.bytes = bytes, .queue = line.id()});
        REQUIRE(block);
        blocks.push_back(*block);
    }
    for (void* one : blocks) {
        CHECK(launch<levelzero_stream>(line, {}, [&](levelzero_stream& s) {
            return r.words.store(s, to_address(one), to_address(one));
        }));
    }
    for (void* one : blocks) {
        std::uint64_t seen = 0;
        CHECK(r.of.copy(&seen, one, sizeof seen));
        CHECK(seen == to_address(one));
    }
    for (void* one : blocks) {
        CHECK((*heap)->deallocate(one, line.id()));
    }
}

TEST_CASE("a function for several kinds of devices, and a space of each kind at one time") {
    if (is_skipped_without_host_frames()) {
        return;
    }
    rig r;
    auto software = space::create_soft({{.bytes = 64_MiB}});
    REQUIRE(software);
    queue here = r.make_queue();
    queue there = std::move(software->make_queue(software->devices()[0]).value());
    std::uint64_t* ours = r.map(2_MiB);
    auto* theirs = static_cast<std::uint64_t*>(software->map(2_MiB).value());
    ours[0] = theirs[0] = 20;
    host_kernel increment{[](soft_ze::kernel_call& call) {
        (void)call.for_each(call.argument<std::uint64_t*>(0), 1,
                            [](std::uint64_t& word) { ++word; });
    }};
    const auto add_one = [&](std::uint64_t* word) {
        return overloads{
            [&increment, word](levelzero_stream& s) { return increment.launch(s, 1, word); },
            [word](soft::stream& s) {
                return s.run([view = device_view{word, 1}] { view[0] += 2; }).error();
            }};
    };
    REQUIRE(launch<levelzero_stream>(here, {reads_writes(ours, 8)}, add_one(ours)));
    REQUIRE(launch<levelzero_stream>(there, {reads_writes(theirs, 8)}, add_one(theirs)));
    REQUIRE(here.synchronize());
    REQUIRE(there.synchronize());
    CHECK(ours[0] == 21);
    CHECK(theirs[0] == 22);
    // What the launcher's kind is not takes no launch, and nothing was enqueued.
    CHECK(launch(here, {reads(ours, 8)}, [](soft::stream&) {}).code() == errc::unsupported);
    // From a page on one vendor's device to a page on another's, by the host.
    std::vector<std::uint64_t> stop(2_MiB / 8);
    REQUIRE(r.of.make_resident(ours, 2_MiB, r.device));
    REQUIRE(software->make_resident(theirs, 2_MiB, software->devices()[0]));
    REQUIRE(r.of.copy(stop.data(), ours, 2_MiB));
    REQUIRE(software->copy(theirs, stop.data(), 2_MiB));
    CHECK(theirs[0] == 21);
    CHECK(software->is_valid());
    REQUIRE(r.of.unmap(ours));
    REQUIRE(software->unmap(theirs));
}
