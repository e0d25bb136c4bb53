// SPDX-License-Identifier: Apache-2.0
// Devices that take no faults: a launch maps all its pages, and none is taken from a running kernel.
#include <xmm/placement/engine.hpp>

#include "../core/child.hpp"
#include "../facade/rig.hpp"

using namespace xmm;
using namespace xmm::test;

TEST_CASE("no_faults: a launch maps every page before the kernel runs") {
    rig r{{device_of(32_MiB, false)}};
    auto* data = r.map(8_MiB);
    fill<std::uint64_t>(data, 4_MiB, 1);  // half on the host, half untouched
    bool is_all_mapped = false;
    const device_view<std::uint64_t> view{data, 8_MiB / 8};
    auto point = launch(r.line(), {reads_writes(data, 8_MiB)}, [&](soft::stream& s) {
        is_all_mapped = true;
        for (std::size_t page = 0; page < 4; ++page) {
            is_all_mapped &= r.mapped(page_of(data, page), r.device()) == access::read_write;
        }
        return s.run(
            [view] { view.update(view.size() - 1, [](std::uint64_t old) { return old + 3; }); });
    });
    REQUIRE(point);
    CHECK(is_all_mapped);
    REQUIRE(r.line().wait(*point));
    CHECK(r.state(data) == residency::on_device);
    CHECK(data[8_MiB / 8 - 1] == 3);
    CHECK(count_wrong<std::uint64_t>(data, 4_MiB, 1) == 0);
    CHECK(r.of().state().own_driver->statistics(r.device()).faults == 0);
}

TEST_CASE("no_faults: a launch larger than the device goes on over the link") {
    rig r{{device_of(8_MiB, false)}};
    auto* data = r.map(24_MiB);
    r.fill_on_device<std::uint64_t>(data, 24_MiB, 7);
    CHECK(r.counters(r.device()).mapped_in_place > 0);
    CHECK(r.usage(r.device()).used <= 8_MiB);
    CHECK(r.count_wrong_on_device<std::uint64_t>(data, 24_MiB, 7) == 0);
    CHECK(count_wrong<std::uint64_t>(data, 24_MiB, 7) == 0);
}

TEST_CASE("no_faults: pages of finished launches make room for the next") {
    rig r{{device_of(8_MiB, false)}};
    auto* a = r.map(8_MiB);
    auto* b = r.map(8_MiB);
    r.fill_on_device<std::uint64_t>(a, 8_MiB, 1);
    r.fill_on_device<std::uint64_t>(b, 8_MiB, 2);
    CHECK(r.home(b) == r.device());
    CHECK(r.home(a) == r.host());
    CHECK(r.counters(r.device()).mapped_in_place == 0);
    CHECK(count_wrong<std::uint64_t>(a, 8_MiB, 1) == 0);
}

TEST_CASE("no_faults: nothing moves what a running kernel uses") {
    rig r{{device_of(16_MiB, false)}};
    auto* data = r.map(4_MiB);
    auto* other = r.map(32_MiB);
    auto kernel = r.start_kernel<std::uint64_t>(data, 1);
    auto second = r.of().make_queue(r.device());
    REQUIRE(second);
    const device_view<std::uint64_t> view{other, 32_MiB / 8};
    auto point = launch(*second, {writes(other, 32_MiB)}, [&](soft::stream& s) {  // pressure
        return s.run([view] {
            for (std::size_t i = 0; i < view.size(); i += page_bytes / 8) {
                view.store(i, i);
            }
        });
    });
    REQUIRE(point);
    REQUIRE(second->wait(*point));
    CHECK(r.home(data) == r.device());
    REQUIRE(r.of().advise(r.host(), data, 4_MiB, advice::will_need));
    CHECK(r.home(data) == r.device());
    REQUIRE(r.of().advise(r.host(), data, 4_MiB, advice::dont_need));
    CHECK(r.home(data) == r.device());
    CHECK(r.of().set_budget(r.device(), 0).code == errc::busy);
    CHECK(r.home(data) == r.device());
    REQUIRE(r.finish(kernel));
    CHECK(r.of().set_budget(r.device(), 0));
    CHECK(r.home(data) == r.host());
    CHECK(data[0] == 2);
    for (std::size_t page = 0; page < 16; ++page) {
        CHECK(page_of(other, page)[0] == page * page_bytes / 8);
    }
}

TEST_CASE("no_faults: a CPU touch waits for the kernel that uses the page") {
    rig r{{device_of(16_MiB, false)}};
    auto* data = r.map(2_MiB);
    auto kernel = r.start_kernel<std::uint64_t>(data, 10);
    std::atomic<std::uint64_t> seen{0};
    std::thread reader{[&] { seen = static_cast<volatile std::uint64_t*>(data)[0]; }};
    nap(30);
    CHECK(seen == 0);
    REQUIRE(r.finish(kernel));
    reader.join();
    CHECK(seen == 11);
}

TEST_CASE("no_faults: where an address has one view, the copies of a page are seen in turn") {
    soft::device_options one = device_of(16_MiB, false);
    one.split_views = false;
    rig r{{one, one}};
    auto* data = r.map(2_MiB, {.granule_bytes = page_bytes, .is_read_mostly = true});
    fill<std::uint64_t>(data, 2_MiB, 1);
    // Who has another frame in view than the one named.
    const auto others_see = [&](node_id viewer) {
        unsigned count = 0;
        for (node_id other : {r.host(), r.device(0), r.device(1)}) {
            count += other != viewer && r.mapped(data, other) != access::none ? 1 : 0;
        }
        return count;
    };
    REQUIRE(r.of().advise(r.device(), data, 2_MiB, advice::will_need));
    CHECK(r.state(data) == residency::duplicated);
    CHECK(r.count_wrong_on_device<std::uint64_t>(data, 2_MiB, 1) == 0);
    CHECK(r.mapped(data, r.device()) == access::read);
    CHECK(others_see(r.device()) == 0);
    CHECK(count_wrong<std::uint64_t>(data, 2_MiB, 1) == 0);
    CHECK(r.mapped(data, r.host()) == access::read);
    CHECK(others_see(r.host()) == 0);
    CHECK(r.count_wrong_on_device<std::uint64_t>(data, 2_MiB, 1, 1) == 0);
    CHECK(others_see(r.device(1)) == 0);
    CHECK(r.state(data) == residency::duplicated);  // nothing was copied back or lost for it

    // A kernel that uses its copy keeps the view; who else looks waits.
    auto kernel = r.start_kernel<std::uint64_t>(data, 0, 0, access::read);
    CHECK(others_see(r.device()) == 0);
    std::atomic<std::uint64_t> seen{0};
    std::thread reader{[&] { seen = static_cast<volatile std::uint64_t*>(data)[1]; }};
    nap(30);
    CHECK(seen == 0);
    CHECK(r.mapped(data, r.device()) == access::read);
    REQUIRE(r.finish(kernel));
    reader.join();
    CHECK(seen == 2);
    data[0] = 9;  // a write ends the copies
    CHECK(r.state(data) == residency::on_host);
    CHECK(r.read_on_device(data) == 9);
}

TEST_CASE("no_faults: two devices, and host memory that one of them has mapped") {
    rig r{{device_of(16_MiB, false), device_of(16_MiB, false)}};
    auto* data = r.map(2_MiB, {.granule_bytes = 2_MiB, .preferred = r.host()});
    auto kernel = r.start_kernel<std::uint64_t>(data, 10, 0);
    CHECK(r.home(data) == r.host());
    REQUIRE(r.of().advise(r.host(), data, 2_MiB, advice::unset_preferred));
    // The other device would have it moved over, but it is in use.
    r.write_on_device<std::uint64_t>(data + 1, 5, 1);
    CHECK(r.finish(kernel, 0));
    CHECK(data[0] == 11);
    CHECK(data[1] == 5);
    CHECK(!r.of().state().own_driver->is_lost(r.device(0)));
}

TEST_CASE("no_faults: a device that faults beside one that does not") {
    rig r{{device_of(16_MiB, true), device_of(16_MiB, false)}};
    auto* data = r.map(2_MiB, {.granule_bytes = 2_MiB, .is_read_mostly = true});
    r.write_on_device<std::uint64_t>(data, 3, 0);
    auto kernel = r.start_kernel<std::uint64_t>(data, 0, 1, access::read);
    REQUIRE(r.state(data) == residency::duplicated);
    CHECK(!r.of().set_budget(r.device(0), 0));  // the home: dropping it would take all mappings
    CHECK(r.finish(kernel, 1));
    REQUIRE(r.line(1).synchronize());
    CHECK(r.of().set_budget(r.device(0), 0));
    CHECK(data[0] == 3);
}

TEST_CASE("no_faults: a kernel that touches what it did not declare loses the device") {
    if (!is_fresh_process()) {
        const ending how = in_fresh_process();
        CAPTURE(how.text);
        CHECK(!how.is_crash());
        CHECK(how.says("misses a page"));
        CHECK(how.says("device lost"));
        return;
    }
    rig r{{device_of(16_MiB, false)}};
    auto* data = r.map(6_MiB);
    fill<std::uint64_t>(data, 6_MiB, 1);
    auto* kept = page_of(data, 2);
    r.write_on_device<std::uint64_t>(kept, 9);
    const device_view<std::uint64_t> view{data, 4_MiB / 8};
    auto point = launch(r.line(), {writes(data, 2_MiB)}, [&](soft::stream& s) {
        return s.run([view] { view.store(3_MiB / 8, 1); });
    });
    // Lost by then or a moment later.
    CHECK((point ? r.line().wait(*point) : point.error()).code == errc::device_lost);
    CHECK(r.line().synchronize().code == errc::device_lost);
    auto again =
        launch(r.line(), {writes(data, 2_MiB)}, [&](soft::stream& s) { return s.run([] {}); });
    CHECK(again.code() == errc::device_lost);
    auto pinned = r.of().map(2_MiB, {.granule_bytes = 2_MiB, .fixed = r.device()});
    CHECK(pinned.code() == errc::device_lost);
    // What never was on the device is as it was.
    CHECK(page_of(data, 1)[5] == 1 + page_bytes / 8 + 5);
    CHECK(r.of().is_valid());
    CHECK(r.of().unmap(data));
}

TEST_CASE(
    "no_faults: a launch that reads and writes one read-mostly granule does not wait for itself") {
    rig r{{device_of(32_MiB, false)}};
    auto* data = r.map(2_MiB, {.granule_bytes = page_bytes, .is_read_mostly = true});
    data[0] = 5;
    REQUIRE(r.of().advise(r.device(), data, 2_MiB, advice::will_need));
    REQUIRE(r.state(data) == residency::duplicated);
    const device_view<std::uint64_t> view{data, 200};
    auto point = launch(
        r.line(), {reads(data, 800), writes(data + 100, 800)},
        [&](soft::stream& s) { return s.run([view] { view.store(100, view.load(0) + 1); }); });
    REQUIRE(point);
    REQUIRE(r.line().wait(*point));
    CHECK(data[100] == 6);
    CHECK(data[0] == 5);
}

TEST_CASE("no_faults: a lost device does not take the host's memory with it") {
    rig r{{device_of(32_MiB, false)}};
    auto* old = r.map(8_MiB);
    fill<std::uint64_t>(old, 8_MiB, 9);
    REQUIRE(r.of().unmap(old));  // leaves frames that are not zero
    auto* data = r.map(8_MiB);
    auto* undeclared = r.map(2_MiB);
    const device_view<std::uint64_t> view{undeclared, 1};
    auto point =
        launch(r.line(), {}, [&](soft::stream& s) { return s.run([view] { view.store(0, 1); }); });
    // Lost by then or a moment later.
    CHECK((point ? r.line().wait(*point) : point.error()).code == errc::device_lost);
    CHECK(count_nonzero(data, 4_MiB) == 0);
    fill<std::uint64_t>(data, 4_MiB, 1);
    CHECK(r.of().copy(page_of(data, 2), data, 4_MiB));
    CHECK(count_wrong<std::uint64_t>(page_of(data, 2), 4_MiB, 1) == 0);
    CHECK(r.of().make_resident(data, 2_MiB, r.device()).code == errc::device_lost);
    CHECK(count_wrong<std::uint64_t>(data, 4_MiB, 1) == 0);
}

TEST_CASE(
    "no_faults: where an address has one view, a copy on another host is seen by all at once") {
    auto machine = topology::discover("numa:2 core:1 pu:1");
    REQUIRE(machine);
    soft::device_options one = device_of(16_MiB, false);
    one.split_views = false;
    rig r{{one}, {.policy = "mapped", .machine = &*machine}};
    const node_id far = r.of().hosts()[1];
    auto* data =
        r.map(2_MiB, {.granule_bytes = page_bytes, .preferred = far, .is_read_mostly = true});
    data[0] = 5;
    REQUIRE(r.home(data) == far);
    CHECK(r.read_on_device(data) == 5);
    REQUIRE(r.mapped(data, r.device()) != access::none);
    REQUIRE(!r.has_frame(data, r.device()));
    REQUIRE(r.of().advise(r.host(), data, 2_MiB, advice::will_need));
    REQUIRE(r.state(data) == residency::duplicated);
    // The CPU sees the copy; the device, which saw the first one, has to look again.
    CHECK(r.mapped(data, r.device()) == access::none);
    CHECK(data[0] == 5);
    CHECK(r.read_on_device(data) == 5);
    data[0] = 6;
    CHECK(r.read_on_device(data) == 6);
}

TEST_CASE(
    "no_faults: who holds pages for the host lets go of them while a launch uses the next one") {
    auto second = xmm::detail::make_soft_driver({device_of(16_MiB, false)}, machine_topology());
    REQUIRE(second);
    auto made = space::create_soft({device_of(16_MiB)});
    REQUIRE(made);
    REQUIRE(made->attach(**second));
    auto line = made->make_queue(made->devices()[1]);
    auto other = made->make_queue(made->devices()[1]);
    REQUIRE(line);
    REQUIRE(other);
    auto* data = static_cast<std::uint64_t*>(*made->map(4_MiB, {.granule_bytes = page_bytes}));
    auto* next = page_of(data, 1);
    data[0] = 1;  // on a host whose frames that device cannot map
    auto end = std::make_shared<signal_flag>();
    auto running = launch(*line, {reads(next, 8)},
                          [&](soft::stream& s) { return s.run([end] { end->await(); }); });
    REQUIRE(running);
    signal_flag is_held, is_launched;
    std::thread holder{[&] {
        const auto held = made->access_on_host(data, 4_MiB);
        CHECK(held);
        is_held.set();
    }};
    nap(50);  // it waits for the kernel
    std::thread launcher{[&] {
        auto point = launch(*other, {reads(next, 8), reads(data, 8)}, [](soft::stream&) {});
        CHECK(point);
        CHECK(other->synchronize());
        is_launched.set();
    }};
    nap(50);  // it has marked the page that is waited for, and wants the one before it
    end->set();
    if (!is_held.await() || !is_launched.await()) {
        std::puts("they wait for each other");
        std::abort();
    }
    holder.join();
    launcher.join();
    CHECK(data[0] == 1);
    CHECK(made->is_valid());
}

TEST_CASE("no_faults: CPU touches that wait for a kernel keep no other touch waiting") {
    if (!is_fresh_process()) {
        const char* set = std::getenv("XMM_CONF");
        const std::string before = set != nullptr ? set : "";
        for (const char* way : {"userfaultfd:on", "userfaultfd:off"}) {
            CAPTURE(way);
            ::setenv("XMM_CONF", (before + "," + way).c_str(), 1);
            const ending how = in_fresh_process();
            INFO(how.text);
            CHECK_FALSE(how.is_crash());
        }
        ::setenv("XMM_CONF", before.c_str(), 1);
        return;
    }
    rig r{{device_of(16_MiB, false)}};
    auto* data = r.map(2_MiB);
    auto* other = r.map(2_MiB);
    r.write_on_device<std::uint64_t>(other, 5);
    auto kernel = r.start_kernel<std::uint64_t>(data, 10);
    std::atomic<unsigned> seen{0};
    std::vector<std::thread> readers;
    for (unsigned i = 0; i < 12; ++i) {  // more than there are service threads
        readers.emplace_back(
            [&] { seen += static_cast<volatile std::uint64_t*>(data)[0] == 11 ? 1 : 0; });
    }
    nap(50);
    signal_flag is_served;
    readers.emplace_back([&] {
        if (static_cast<volatile std::uint64_t*>(other)[0] == 5) {
            is_served.set();
        }
    });
    for (int i = 0; i < 2000 && !is_served.is_set(); ++i) {
        nap(1);
    }
    CHECK(is_served.is_set());
    CHECK(seen == 0);
    REQUIRE(r.finish(kernel));
    for (std::thread& one : readers) {
        one.join();
    }
    CHECK(seen == 12);
}
