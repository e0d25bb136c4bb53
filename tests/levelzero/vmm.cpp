// SPDX-License-Identifier: Apache-2.0
// The Level Zero backend on the software driver: what each operator does to the driver, and in what order.
#include "rig.hpp"

#include <atomic>
#include <chrono>
#include <thread>

using namespace xmm;
using namespace xmm::test;

TEST_CASE("a device's frame moves between its standing address and the program's, with its bytes") {
    if (is_skipped_without_maps()) {
        return;
    }
    levelzero_rig r;
    const va_range range = r.reserve(3);
    const frame a = r.create(r.device);
    r.fill(a.standing, 1);
    REQUIRE(r.enter(r.device, page_of(range, 0), a));
    CHECK(r.load(range.begin) == 1);
    CHECK(r.read(a.standing) == 1);  // by name, wherever it is mapped
    REQUIRE(r.store(range.begin, 2));
    r.fill(a.standing + 8, 2, page_bytes - 8);
    CHECK(r.read(a.standing) == 2);
    // Never at two addresses.
    CHECK(r.enter(r.device, page_of(range, 1), a).code == errc::unsupported);
    CHECK(r.load(range.begin) == 2);
    REQUIRE(r.clear(r.device, page_of(range, 0)));
    CHECK(r.read(a.standing) == 2);
    REQUIRE(r.enter(r.device, page_of(range, 1), a));
    CHECK(r.load(range.begin + page_bytes) == 2);
    // Another frame takes its place, and the first one keeps its bytes.
    const frame b = r.create(r.device);
    r.fill(b.standing, 3);
    REQUIRE(r.enter(r.device, page_of(range, 1), b));
    CHECK(r.load(range.begin + page_bytes) == 3);
    CHECK(r.read(a.standing) == 2);
    CHECK(r.enter(r.host, page_of(range, 2), a).code == errc::unsupported);
    REQUIRE(r.clear(r.device, range));
    r.b.va_release(range);
    r.b.frame_drop(a);
    r.b.frame_drop(b);
}

TEST_CASE("frames of many pages, side by side in one copy") {
    if (is_skipped_without_maps()) {
        return;
    }
    levelzero_rig r;
    const va_range range = r.reserve(16);
    const frame a = r.create(r.device, 4);
    const frame b = r.create(r.device, 2);
    CHECK(b.standing == a.standing + a.bytes);
    REQUIRE(r.enter(r.device, {range.begin, a.bytes}, a));  // so the two are apart now
    r.fill(a.standing, 7, a.bytes + b.bytes);
    CHECK(r.load(range.begin + a.bytes - 8) == 7);
    CHECK(r.read(a.standing, a.bytes + b.bytes) == 7);
    CHECK(r.b.wait(*r.b.zero(r.queue, std::array{va_range{a.standing + 8, a.bytes}})));
    CHECK(r.load(range.begin) == 7);
    CHECK(r.load(range.begin + 8) == 0);
    CHECK(r.read(b.standing + 8, b.bytes - 8) == 7);
    REQUIRE(r.clear(r.device, range));
    r.b.va_release(range);
    r.b.frame_drop(a);
    r.b.frame_drop(b);
}

TEST_CASE("a copy under way keeps its frame where it is, and a drop waits for it") {
    if (is_skipped_without_maps()) {
        return;
    }
    levelzero_rig r;
    const va_range range = r.reserve(1);
    const frame a = r.create(r.device);
    const queue_id side = *r.b.queue_create(r.device, queue_priority::urgent);
    std::atomic<bool> may_go{false};
    const auto wait_for_it = [](void* flag) noexcept {
        while (!static_cast<std::atomic<bool>*>(flag)->load()) {
            std::this_thread::yield();
        }
    };
    std::vector<std::uint64_t> plain(page_bytes / 8, 5);
    auto gate = r.b.call(side, wait_for_it, &may_go);
    REQUIRE(gate);
    auto copied = r.copy(side, a.standing, to_address(plain.data()), page_bytes);
    REQUIRE(copied);
    const status refused = r.enter(r.device, range, a);
    CHECK(refused.code == errc::busy);
    CHECK_FALSE(r.b.is_done(*copied));
    std::thread opener{[&] {
        std::this_thread::sleep_for(std::chrono::milliseconds{20});
        may_go = true;
    }};
    const frame same = a;
    r.b.frame_drop(same);  // not before the copy is over
    CHECK(r.b.is_done(*copied));
    opener.join();
    CHECK(r.b.wait(*copied));
    r.b.queue_destroy(side);
    r.b.va_release(range);
}

TEST_CASE("host frames: the CPU and the device at one address, and each may go first") {
    if (is_skipped_without_maps()) {
        return;
    }
    levelzero_rig r;
    if (!r.b.describe(r.device)->able.has(ability::host_frames)) {
        const status why = r.b.why_no_host_frames();
        MESSAGE("no host frames: ", std::string{why.why});
        CHECK((is_set("SOFT_ZE_MINOR") || is_set("ZE_ENABLE_PARAMETER_VALIDATION")));
        const frame plain = r.create(r.host);
        r.fill(plain.standing, 3);
        CHECK(*static_cast<std::uint64_t*>(to_pointer(plain.standing)) == 3);
        const va_range range = r.reserve(1);
        CHECK(r.enter(r.host, range, plain).code == errc::unsupported);
        CHECK(r.enter(r.device, range, plain).code == errc::unsupported);
        r.b.va_release(range);
        r.b.frame_drop(plain);
        return;
    }
    const va_range range = r.reserve(1);
    const frame h = r.create(r.host);
    auto* word = static_cast<std::uint64_t*>(to_pointer(range.begin));
    auto* standing = static_cast<std::uint64_t*>(to_pointer(h.standing));
    *standing = 1;
    REQUIRE(r.enter(r.device, range, h));
    CHECK(r.load(range.begin) == 1);
    REQUIRE(r.enter(r.host, range, h, access::read));
    CHECK(*word == 1);
    REQUIRE(r.store(range.begin, 2));
    CHECK(*word == 2);
    const frame other = r.create(r.host);
    CHECK(r.enter(r.host, range, other).code == errc::busy);  // the device sees the first one there
    REQUIRE(r.clear(r.device, range));
    CHECK(*word == 2);
    REQUIRE(r.enter(r.host, range, other));
    CHECK(*standing == 2);
    *word = 3;
    CHECK(r.read(other.standing, 8) == 3);
    const frame d = r.create(r.device);
    CHECK(r.enter(r.device, range, d).code == errc::busy);  // the CPU sees a host's
    REQUIRE(r.clear(r.host, range));
    REQUIRE(r.enter(r.device, range, d));
    REQUIRE(r.clear(r.device, range));
    r.b.va_release(range);
    for (const frame& one : {h, other, d}) {
        r.b.frame_drop(one);
    }
}

TEST_CASE("a node has no more frames than memory, whatever the driver would give") {
    if (is_skipped()) {
        return;
    }
    levelzero_rig r;
    const std::size_t bytes = r.b.describe(r.device)->bytes;
    std::vector<frame> all;
    status outcome;
    while (outcome && all.size() < 1000) {
        auto made = r.b.frame_create(r.device, 8 * page_bytes);
        outcome = made.error();
        if (made) {
            all.push_back(*made);
        }
    }
    CHECK(outcome.code == errc::no_memory);
    CHECK(all.size() == bytes / (8 * page_bytes));
    CHECK(r.b.bytes_in_use(r.device) == all.size() * 8 * page_bytes);
    CHECK(r.soft.held(0) <= bytes);
    for (const frame& one : all) {
        r.b.frame_drop(one);
    }
}

TEST_CASE("without virtual memory: plain frames, copies, and a description that says so") {
    if (is_skipped() || !is_set("SOFT_ZE_NO_VIRTUAL_MEMORY")) {
        return;
    }
    levelzero_rig r;
    CHECK_FALSE(r.b.has_virtual_memory());
    const node_description about = *r.b.describe(r.device);
    CHECK(std::string{about.name.data()}.find("no virtual memory") != std::string::npos);
    CHECK_FALSE(about.able.has(ability::host_frames));
    CHECK(r.b.va_examine({0, page_bytes}, page_bytes).code() == errc::unsupported);
    const frame a = r.create(r.device);
    const frame large = r.create(r.device, 16);  // more than the driver gives unless asked twice
    const frame h = r.create(r.host);
    r.fill(a.standing, 5);
    REQUIRE(r.b.wait(*r.copy(r.queue, large.standing + 3 * page_bytes, a.standing, page_bytes)));
    REQUIRE(r.b.wait(*r.copy(r.queue, h.standing, large.standing + 3 * page_bytes, page_bytes)));
    CHECK(*static_cast<std::uint64_t*>(to_pointer(h.standing)) == 5);
    CHECK(r.load(a.standing) == 5);
    const run one{{address{1} << 40, page_bytes}, a, access::read_write};
    CHECK(r.b.pmap_enter(r.device, {&one, 1}).outcome.code == errc::unsupported);
    for (const frame& each : {a, large, h}) {
        r.b.frame_drop(each);
    }
}

TEST_CASE("queues: an engine that copies until the first kernel, and one order through both") {
    if (is_skipped()) {
        return;
    }
    levelzero_rig r;
    const frame a = r.create(r.device);
    for (int round = 0; round < 20; ++round) {
        const queue_id fresh = *r.b.queue_create(r.device, queue_priority::background);
        const levelzero::stream line{r.b, fresh};
        std::vector<std::uint64_t> plain(page_bytes / 8, 100u + static_cast<unsigned>(round));
        auto copied = r.copy(fresh, a.standing, to_address(plain.data()), page_bytes);
        REQUIRE(copied);
        std::uint64_t seen = 0;
        // A kernel, which the engine that copies would refuse, right behind the copy.
        REQUIRE(r.words->load(line, a.standing + page_bytes - 8, seen));
        CHECK(seen == plain[0]);
        CHECK(r.b.is_done(*copied));
        r.b.queue_destroy(fresh);
    }
    r.b.frame_drop(a);
}

TEST_CASE("queues: a priority that an engine does not have is the ordinary one") {
    if (is_skipped()) {
        return;
    }
    levelzero_rig r;
    const auto refuse_once = [&] {
        r.soft.fail("zeCommandListCreateImmediate", 0, 1,
                    levelzero::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE);
    };
    refuse_once();
    auto urgent = r.b.queue_create(r.device, queue_priority::urgent);
    REQUIRE(urgent);
    CHECK(r.b.wait(*r.b.record(*urgent)));
    refuse_once();
    CHECK(r.b.queue_create(r.device, queue_priority::normal).code() == errc::unsupported);
    r.b.queue_destroy(*urgent);
}

TEST_CASE("queues wait for each other and for host calls, and tickets outlive them") {
    if (is_skipped()) {
        return;
    }
    levelzero_rig r;
    const frame a = r.create(r.device);
    const queue_id other = *r.b.queue_create(r.device, queue_priority::urgent);
    ticket last;
    // More than events are made at once, so that they are used again.
    for (std::uint64_t round = 1; round <= 600; ++round) {
        struct step {
            levelzero_rig* r;
            std::uint64_t word;
        } mine{&r, round};
        auto called = r.b.call(
            r.queue,
            [](void* self) noexcept {
                auto& me = *static_cast<step*>(self);
                me.word = me.word * 3;
            },
            &mine);
        REQUIRE(called);
        auto written = r.copy(r.queue, a.standing, to_address(&mine.word), 8);
        REQUIRE(written);
        REQUIRE(r.b.make_wait(other, *written));
        std::uint64_t seen = 0;
        auto read = r.copy(other, to_address(&seen), a.standing, 8);
        REQUIRE(read);
        REQUIRE(r.b.wait(*read));
        REQUIRE(seen == round * 3);
        last = *read;
    }
    r.b.queue_destroy(other);
    CHECK(r.b.is_done(last));
    CHECK(r.b.wait(last));
    r.b.frame_drop(a);
}

TEST_CASE("reservations: aligned as asked, given back whole, and no address is given twice") {
    if (is_skipped_without_maps()) {
        return;
    }
    levelzero_rig r;
    std::vector<va_range> all;
    for (std::size_t alignment : {page_bytes, 64 * page_bytes, 512 * page_bytes}) {
        auto got = r.b.va_examine({0, 3 * page_bytes}, alignment);
        REQUIRE(got);
        CHECK(got->begin % alignment == 0);
        for (const va_range& one : all) {
            CHECK_FALSE(one.overlaps(*got));
        }
        all.push_back(*got);
        CHECK_FALSE(r.b.va_examine(*got, page_bytes));
    }
    const va_range again = all[0];
    for (const va_range& one : all) {
        r.b.va_release(one);
    }
    auto same = r.b.va_examine(again, page_bytes);
    REQUIRE(same);
    CHECK(*same == again);
    r.b.va_release(again);
}

TEST_CASE("two devices of a driver: each has its own memory, and sees no other's") {
    if (is_skipped_without_maps()) {
        return;
    }
    levelzero_rig r{2};
    REQUIRE(r.b.nodes().size() == 2);
    const node_id second = r.b.nodes()[1];
    const va_range range = r.reserve(1);
    const frame a = r.create(r.device);
    const frame b = r.create(second);
    CHECK(r.enter(second, range, a).code == errc::unsupported);
    REQUIRE(r.enter(r.device, range, a));
    CHECK(r.enter(second, range, b).code == errc::busy);
    REQUIRE(r.clear(r.device, range));
    REQUIRE(r.enter(second, range, b));
    REQUIRE(r.clear(second, range));
    CHECK_FALSE(r.b.describe(r.device)->able.has(ability::peer));
    r.b.frame_drop(a);
    r.b.frame_drop(b);
    r.b.va_release(range);
}

TEST_CASE("tiles are nodes of their own, or one together") {
    if (is_skipped() || !is_set("SOFT_ZE_TILES")) {
        return;
    }
    const auto apart = soft_drivers(levelzero::tiles::apart);
    const auto together = soft_drivers(levelzero::tiles::together);
    REQUIRE(apart.size() == together.size());
    CHECK(apart[0].devices.size() == 2 * together[0].devices.size());
    auto parts = open_levelzero(apart[0], 2);
    auto whole = open_levelzero(together[0], 1, 2);
    REQUIRE((parts && whole));
    CHECK((*parts)->describe(node_id{1})->bytes * 2 == (*whole)->describe(node_id{1})->bytes);
    CHECK(std::string{(*parts)->describe(node_id{2})->name.data()} ==
          "software Level Zero device 0.1");
    for (auto* one : {&*parts, &*whole}) {
        auto made = (**one).frame_create(node_id{1}, page_bytes);
        REQUIRE(made);
        (**one).frame_drop(*made);
    }
}

TEST_CASE("two drivers: two backends beside each other, and a copy between them by the host") {
    if (is_skipped() || soft_drivers().size() < 2) {
        return;
    }
    auto found = soft_drivers();
    levelzero_rig r;
    auto other = open_levelzero(found[1], 1, 2);
    REQUIRE(other);
    levelzero::vmm& b = **other;
    const frame here = r.create(r.device);
    const frame there = *b.frame_create(node_id{1}, page_bytes);
    const queue_id line = *b.queue_create(node_id{1}, queue_priority::normal);
    r.fill(here.standing, 9);
    std::vector<std::uint64_t> stop(page_bytes / 8);
    REQUIRE(r.b.wait(*r.copy(r.queue, to_address(stop.data()), here.standing, page_bytes)));
    const piece in{{there.standing, page_bytes}, {to_address(stop.data()), page_bytes}};
    REQUIRE(b.wait(*b.memcpy(line, {&in, 1})));
    std::vector<std::uint64_t> back(page_bytes / 8);
    const piece out{{to_address(back.data()), page_bytes}, {there.standing, page_bytes}};
    REQUIRE(b.wait(*b.memcpy(line, {&out, 1})));
    CHECK(back == stop);
    CHECK(back[5] == 9);
    // Each knows its own queues and tickets only.
    CHECK(b.record(r.queue).code() == errc::invalid_argument);
    CHECK(b.make_wait(line, *r.b.record(r.queue)).code == errc::invalid_argument);
    b.queue_destroy(line);
    b.frame_drop(there);
    r.b.frame_drop(here);
}

TEST_CASE("many threads move, copy and drop frames of one device at once") {
    if (is_skipped_without_maps()) {
        return;
    }
    levelzero_rig r;
    std::atomic<int> failures{0};
    std::vector<std::thread> all;
    for (std::uint64_t number = 1; number <= 4; ++number) {
        all.emplace_back([&, number] {
            const va_range range = r.reserve(2);
            const queue_id line = *r.b.queue_create(r.device, queue_priority::normal);
            std::vector<std::uint64_t> out(page_bytes / 8);
            std::vector<std::uint64_t> back(out.size());
            for (std::uint64_t round = 0; round < 25; ++round) {
                const frame f = r.create(r.device);
                std::fill(out.begin(), out.end(), number * 1000 + round);
                auto in = r.copy(line, f.standing, to_address(out.data()), page_bytes);
                const status entered = r.enter(r.device, page_of(range, round % 2), f);
                auto home = r.copy(line, to_address(back.data()), f.standing, page_bytes);
                failures += in && home && r.b.wait(*home) && back == out ? 0 : 1;
                failures += entered || entered.code == errc::busy ? 0 : 1;
                failures += r.clear(r.device, range) ? 0 : 1;
                r.b.frame_drop(f);
            }
            r.b.queue_destroy(line);
            r.b.va_release(range);
        });
    }
    for (std::thread& one : all) {
        one.join();
    }
    CHECK(failures == 0);
}
