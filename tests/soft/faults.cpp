// SPDX-License-Identifier: Apache-2.0
#include "../../backends/soft/faults.hpp"

#include "rig.hpp"

using namespace xmm;
using namespace xmm::test;

namespace {

// Creates a frame on the device at the first touch.
struct first_touch {
    rig& r;
    va_range range;
    node_id where;
    std::mutex lock;
    int count = 0;

    fault_outcome operator()(node_id accessor, address at, xmm::access) {
        std::lock_guard hold{lock};
        if (!range.contains(at)) {
            return fault_outcome::not_mapped;
        }
        auto made = r.driver.frame_create(where, page_bytes);
        if (!made) {
            return fault_outcome::no_memory;
        }
        r.frames.push_back(*made);
        r.enter(accessor, align_down(at, page_bytes), *made);
        ++count;
        return fault_outcome::resolved;
    }
};

}  // namespace

TEST_CASE("a kernel's first touch waits until the sink has answered") {
    rig r;
    first_touch sink{r, r.reserve(4 * page_bytes), rig::near, {}, 0};
    REQUIRE(r.driver.on_device_fault(sink_of(sink)));
    const device_view<int> view{pointer<int>(sink.range.begin), sink.range.bytes / sizeof(int)};
    auto point = r.stream().run([=] {
        for (std::size_t i = 0; i < view.size(); i += 1024) {
            view[i] = static_cast<int>(i);
        }
    });
    REQUIRE(point);
    CHECK(r.driver.wait(*point));
    CHECK(sink.count == 4);
    CHECK(r.driver.statistics(rig::near).faults == 4);
    CHECK(at<int>(r.frames[1].standing) == static_cast<int>(page_bytes / sizeof(int)));
    r.driver.off_device_fault(&sink);
}

TEST_CASE("sinks are asked in turn until one knows the address") {
    rig r;
    first_touch one{r, r.reserve(page_bytes), rig::near, {}, 0};
    first_touch other{r, r.reserve(page_bytes), rig::host, {}, 0};
    REQUIRE(r.driver.on_device_fault(sink_of(one)));
    REQUIRE(r.driver.on_device_fault(sink_of(other)));
    const device_view<int> view{pointer<int>(other.range.begin), 1};
    const soft::stream stream = r.stream();
    auto point = stream.run([=] { view[0] = 1; });
    REQUIRE(point);
    CHECK(r.driver.wait(*point));
    CHECK(one.count == 0);
    CHECK(other.count == 1);
    r.driver.off_device_fault(&one);
    r.driver.off_device_fault(&other);
    const device_view<int> first{pointer<int>(one.range.begin), 1};
    auto second = stream.run([=] { first[0] = 1; });
    REQUIRE(second);
    CHECK(r.driver.wait(*second).code == errc::device_lost);
    CHECK(one.count == 0);
}

TEST_CASE("an access that nobody can serve loses its queue and no other") {
    soft::device_options options;
    options.bytes = 4_MiB;
    rig r{options};
    first_touch sink{r, r.reserve(8 * page_bytes), rig::near, {}, 0};
    REQUIRE(r.driver.on_device_fault(sink_of(sink)));
    const soft::stream bad = r.stream();
    const soft::stream good = r.stream();
    const device_view<int> view{pointer<int>(sink.range.begin), sink.range.bytes / sizeof(int)};
    const auto touch = [&](const soft::stream& on, std::size_t pages) {
        auto point = on.parallel_for(
            pages, [=](std::size_t page) { view[page * page_bytes / sizeof(int)] = 1; });
        REQUIRE(point);
        return *point;
    };
    const ticket fits = touch(bad, 2);
    CHECK(r.driver.wait(fits));
    const ticket too_much = touch(bad, 3);
    const frame other = r.frames.front();
    auto after = r.driver.memcpy(bad.queue(), {});  // may be too late already
    (void)after;
    CHECK(r.driver.wait(too_much).code == errc::device_lost);
    CHECK(r.driver.is_done(too_much));
    CHECK(r.driver.wait(fits));
    CHECK(bad.run([] {}).code() == errc::device_lost);
    CHECK(r.driver.record(bad.queue()).code() == errc::device_lost);
    const va_range some{other.standing, 4096};
    CHECK(r.driver.zero(bad.queue(), {&some, 1}).code() == errc::device_lost);
    CHECK_FALSE(r.driver.is_lost(rig::near));
    CHECK(r.driver.wait(touch(good, 2)));
    // Whoever waits for the lost queue goes on.
    CHECK(r.driver.make_wait(good.queue(), too_much));
    CHECK(good.synchronize());
    r.driver.off_device_fault(&sink);
}

TEST_CASE("without faults a miss loses the device") {
    soft::device_options options;
    options.faults = false;
    rig r{options};
    CHECK(r.driver.on_device_fault({}).code == errc::unsupported);
    CHECK_FALSE(r.driver.describe(rig::near)->able.has(ability::device_faults));
    CHECK_FALSE(r.driver.describe(rig::near)->able.has(ability::moves_under_access));
    const va_range range = r.reserve(2 * page_bytes);
    r.enter(rig::near, range.begin, r.create(rig::near));
    const device_view<int> view{pointer<int>(range.begin), range.bytes / sizeof(int)};
    const soft::stream stream = r.stream();
    const soft::stream sibling = r.stream();
    const soft::stream elsewhere = r.stream(rig::far);
    auto mapped = stream.run([=] { view[0] = 1; });
    REQUIRE(mapped);
    CHECK(r.driver.wait(*mapped));
    auto missing = stream.run([=] { view[page_bytes / sizeof(int)] = 1; });
    REQUIRE(missing);
    CHECK(r.driver.wait(*missing).code == errc::device_lost);
    CHECK(r.driver.is_lost(rig::near));
    CHECK(sibling.run([] {}).code() == errc::device_lost);
    CHECK(r.driver.frame_create(rig::near, page_bytes).code() == errc::device_lost);
    CHECK(elsewhere.synchronize());
    auto fine = elsewhere.run([] {});
    REQUIRE(fine);
    CHECK(r.driver.wait(*fine));
}

TEST_CASE("work behind the loss is skipped, host calls are not") {
    rig r;
    const soft::stream stream = r.stream();
    const va_range range = r.reserve(page_bytes);
    const device_view<int> view{pointer<int>(range.begin), 1};
    std::atomic<bool> go{false};
    std::atomic<int> calls{0};
    std::atomic<bool> ran{false};
    auto lost = stream.run([&go, view] {
        while (!go.load()) {
            std::this_thread::yield();
        }
        view[0] = 1;
    });
    auto called = r.driver.call(
        stream.queue(), [](void* context) noexcept { ++*static_cast<std::atomic<int>*>(context); },
        &calls);
    auto skipped = stream.run([&] { ran = true; });
    go = true;
    REQUIRE(lost);
    REQUIRE(called);
    REQUIRE(skipped);
    CHECK(r.driver.wait(*skipped).code == errc::device_lost);
    CHECK(r.driver.wait(*called).code == errc::device_lost);
    CHECK(calls == 1);
    CHECK_FALSE(ran);
}

TEST_CASE("a wild address is a fault like any other") {
    rig r;
    const soft::stream stream = r.stream();
    for (address wild : {address{0}, ~address{0} - 7, address{1} << soft::address_bits}) {
        const soft::stream fresh = r.stream();
        const device_view<std::uint64_t> view{pointer<std::uint64_t>(wild), 1};
        auto point = fresh.run([=] { view[0] = 1; });
        REQUIRE(point);
        CHECK(r.driver.wait(*point).code == errc::device_lost);
    }
    CHECK(stream.synchronize());
}

TEST_CASE("off_device_fault waits for calls in progress, and none comes after") {
    rig r;
    const va_range range = r.reserve(page_bytes);
    const frame one = r.create(rig::near);
    std::atomic<int> inside{0};
    std::atomic<bool> closed{false};
    std::atomic<bool> late{false};
    auto slow = [&](node_id, address, xmm::access) {
        late = late || closed;
        ++inside;
        nap(30);
        r.enter(rig::near, range.begin, one);
        --inside;
        return fault_outcome::resolved;
    };
    REQUIRE(r.driver.on_device_fault(sink_of(slow)));
    const device_view<int> view{pointer<int>(range.begin), 1};
    auto point = r.stream().run([=] { view[0] = 1; });
    REQUIRE(point);
    while (inside == 0) {
        std::this_thread::yield();
    }
    r.driver.off_device_fault(&slow);
    CHECK(inside == 0);
    closed = true;
    CHECK(r.driver.wait(*point));
    r.clear(rig::near, range);
    auto again = r.stream().run([=] { view[0] = 1; });
    REQUIRE(again);
    CHECK(r.driver.wait(*again).code == errc::device_lost);
    CHECK_FALSE(late);
}

TEST_CASE("places for sinks are many, and used again") {
    soft::fault_sinks sinks;
    int names[64];
    const auto sink = [](int& name) {
        return device_fault_sink{&name, [](void*, node_id, address, xmm::access) noexcept {
                                     return fault_outcome::not_mapped;
                                 }};
    };
    int added = 0;
    while (added < 64 && sinks.add(sink(names[added]))) {
        ++added;
    }
    CHECK(added == 32);
    sinks.remove(&names[7]);
    CHECK(sinks.add(sink(names[40])));
    CHECK(sinks.add(sink(names[41])).code == errc::no_memory);
    CHECK(sinks.call(node_id{1}, 0, xmm::access::read) == fault_outcome::not_mapped);
}
