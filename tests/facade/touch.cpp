// SPDX-License-Identifier: Apache-2.0
#include <xmm/facade/touch.hpp>

#include "../core/child.hpp"
#include "rig.hpp"

using namespace xmm;
using namespace xmm::test;

namespace {

// Work that no launch announces.
soft::stream raw_stream(queue& line) {
    return {*static_cast<soft::driver*>(line.native(soft::driver::native_kind)), line.id()};
}
status add_one(queue& line, std::uint64_t* at) {
    const device_view<std::uint64_t> view{at, 1};
    auto enqueued = raw_stream(line).run([view] { view.store(0, view.load(0) + 1); });
    return enqueued ? status{} : enqueued.error();
}
bool is_used(rig& r, const void* at) {
    return r.inspect(at, [](granule& page) { return page.is_used(); });
}

}  // namespace

TEST_CASE("touch: work without a launch finds its pages until the safe point, whoever wants them") {
    for (const bool faults : {false, true}) {
        CAPTURE(faults);
        rig r{{device_of(8_MiB, faults)}};
        auto* data = r.map(4_MiB);
        auto* others = r.map(16_MiB);
        data[0] = 1;
        *page_of(data, 1) = 10;
        REQUIRE(touch(r.line(), {reads_writes(data, 4_MiB)}));
        CHECK(is_used(r, data));
        queue second = r.of().make_queue(r.device()).value();
        for (std::uint64_t round = 0; round < 3; ++round) {
            REQUIRE(add_one(r.line(), data));
            REQUIRE(add_one(r.line(), page_of(data, 1)));
            REQUIRE(r.line().synchronize());
            // All is done, but more may come: the pages stay, and others make do with what is left.
            CHECK(is_used(r, data));
            for (std::size_t page = 0; page < 8; ++page) {
                auto point =
                    launch(second, {writes(page_of(others, page), 2_MiB)}, [&](soft::stream& s) {
                        const device_view<std::uint64_t> view{page_of(others, page), 1};
                        return s.run([view, round] { view.store(0, round); });
                    });
                REQUIRE(point);
                REQUIRE(second.wait(*point));
            }
        }
        if (!faults) {
            CHECK(r.of().set_budget(r.device(), 2_MiB).code == errc::busy);
            CHECK(r.home(data) == r.device());
            CHECK(r.of().set_budget(r.device(), 8_MiB));
        }
        REQUIRE(safe_point(r.line()));
        CHECK(!is_used(r, data));
        CHECK(r.of().set_budget(r.device(), 2_MiB));
        CHECK(data[0] == 4);
        CHECK(*page_of(data, 1) == 13);
    }
}

TEST_CASE("touch: CPU threads and unmap wait for the safe point") {
    rig r{{device_of(16_MiB, false)}};
    auto* data = r.map(2_MiB);
    auto* leaving = r.map(2_MiB);
    REQUIRE(touch(r.line(), {reads_writes(data, 2_MiB)}));
    REQUIRE(touch(r.line(), {writes(leaving, 2_MiB)}));
    REQUIRE(add_one(r.line(), data));
    REQUIRE(r.line().synchronize());
    std::atomic<bool> has_seen{false}, has_left{false};
    std::thread reader{[&] {
        const std::uint64_t seen = *static_cast<volatile std::uint64_t*>(data);
        has_seen = true;
        CHECK(seen == 2);
    }};
    std::thread unmapper{[&] {
        CHECK(r.of().unmap(leaving));
        has_left = true;
    }};
    nap(20);
    CHECK(!has_seen);
    CHECK(!has_left);
    REQUIRE(add_one(r.line(), data));
    REQUIRE(safe_point(r.line()));
    reader.join();
    unmapper.join();
}

TEST_CASE("touch: what cannot be touched leaves all as it was") {
    rig r{{device_of(4_MiB, false)}};
    auto* data = r.map(4_MiB);
    auto* own = r.map(2_MiB);
    int local = 0;
    CHECK(touch(r.line(), {reads(data, 0)}));  // nothing
    CHECK(touch(r.line(), {reads(data, 8), writes(&local, 4)}).code == errc::not_mapped);
    CHECK(touch(r.line(), {reads(data, SIZE_MAX)}).code == errc::invalid_argument);
    CHECK(!is_used(r, data));
    queue gone = r.of().make_queue(r.device()).value();
    queue moved = std::move(gone);
    CHECK(touch(gone, {reads(data, 8)}).code == errc::invalid_argument);
    CHECK(safe_point(gone).code == errc::invalid_argument);
    // From the function of a launch.
    status inner;
    REQUIRE(launch(r.line(), {reads(own, 8)},
                   [&](soft::stream&) { inner = touch(moved, {reads(data, 8)}); }));
    CHECK(inner.code == errc::busy);
    REQUIRE(r.line().synchronize());
    CHECK(!is_used(r, data));
    // Touched by nobody: a safe point is a synchronize.
    CHECK(safe_point(moved));
}

TEST_CASE("touch: many ranges, many times, and a queue that ends without a safe point") {
    rig r{{device_of(64_MiB, false)}};
    auto* data = r.map(64_MiB);
    auto line = std::make_unique<queue>(r.of().make_queue(r.device()).value());
    std::vector<use> uses;
    for (std::size_t page = 0; page < 20; ++page) {
        uses.push_back(writes(page_of(data, page), 4096));
    }
    REQUIRE(touch(*line, uses));
    REQUIRE(touch(*line, {uses[0], uses[0]}));
    REQUIRE(touch(*line, std::span<const use>{}));
    for (std::size_t page = 0; page < 20; ++page) {
        REQUIRE(add_one(*line, page_of(data, page)));
        CHECK(is_used(r, page_of(data, page)));
    }
    CHECK(!is_used(r, page_of(data, 20)));
    // Of another queue: its safe point is its own.
    REQUIRE(touch(r.line(), {uses[3]}));
    line.reset();
    CHECK(!is_used(r, data));
    CHECK(is_used(r, page_of(data, 3)));
    REQUIRE(safe_point(r.line()));
    CHECK(!is_used(r, page_of(data, 3)));
    for (std::size_t page = 0; page < 20; ++page) {
        CHECK(*page_of(data, page) == 1);
    }
}

TEST_CASE("touch: a lost device ends what was touched") {
    rig r{{device_of(8_MiB, false)}};
    auto* data = r.map(2_MiB);
    auto* missing = r.map(2_MiB);
    REQUIRE(touch(r.line(), {reads_writes(data, 2_MiB)}));
    REQUIRE(add_one(r.line(), missing));  // not touched: the device is lost
    CHECK(safe_point(r.line()).code == errc::device_lost);
    CHECK(!is_used(r, data));
    CHECK(r.of().unmap(data));
}

TEST_CASE("touch: the CPU's touch of what went with a device says so") {
    if (!is_fresh_process()) {
        const ending how = in_fresh_process();
        CAPTURE(how.text);
        CHECK(how.is_crash());
        CHECK(how.text.find("lost: ") != std::string::npos);
        CHECK(how.text.find("no memory: ") == std::string::npos);
        return;
    }
    rig r{{device_of(8_MiB, false)}};
    auto* data = r.map(2_MiB);
    auto* missing = r.map(2_MiB);
    REQUIRE(touch(r.line(), {reads_writes(data, 2_MiB)}));
    REQUIRE(add_one(r.line(), data));
    REQUIRE(add_one(r.line(), missing));
    CHECK(safe_point(r.line()).code == errc::device_lost);
    std::printf("%llu\n", static_cast<unsigned long long>(data[0]));
}

TEST_CASE("touch: work that nobody named is reported while a page leaves its device") {
    if (!is_fresh_process()) {
        ::setenv("XMM_CONF", "check_launches:on", 1);
        const ending how = in_fresh_process();
        ::unsetenv("XMM_CONF");
        CAPTURE(how.text);
        CHECK(!how.is_crash());
        // Once, of the second queue.
        const std::size_t told = how.text.find("that no launch has named");
        CHECK(told != std::string::npos);
        CHECK(how.text.find("that no launch has named", told + 1) == std::string::npos);
        return;
    }
    rig r{{device_of(8_MiB, false)}};
    auto* data = r.map(4_MiB);
    auto* other = r.map(2_MiB);
    const auto evict = [&] {
        CHECK(r.of().make_resident(data, 4_MiB, r.device()));
        CHECK(r.of().make_resident(data, 4_MiB, r.host()));
    };
    // Named, by a launch and by a touch; and a wait, which touches nothing.
    auto named = r.start_kernel(other, std::uint64_t{7});
    evict();
    queue waits = r.of().make_queue(r.device()).value();
    REQUIRE(waits.wait_for(named.done));
    evict();
    REQUIRE(r.finish(named));
    signal_flag go;
    const auto hold = [&](queue& line) { REQUIRE(raw_stream(line).run([&] { go.await(); })); };
    REQUIRE(touch(r.line(), {reads(other, 8)}));
    hold(r.line());
    evict();
    std::fprintf(stderr, "so far nothing\n");
    hold(waits);
    evict();
    evict();
    go.set();
    REQUIRE(safe_point(r.line()));
    REQUIRE(waits.synchronize());
}
