// SPDX-License-Identifier: Apache-2.0
#include <xmm/facade/launch.hpp>
#include <xmm/facade/touch.hpp>

#include "faulty_soft.hpp"
#include "rig.hpp"

using namespace xmm;
using namespace xmm::test;

namespace {

// A space over a device whose driver fails on demand.
struct faulty_rig {
    std::unique_ptr<soft::driver> driver =
        std::move(*xmm::detail::make_soft_driver({device_of(16_MiB)}, machine_topology()));
    faulty_soft faulty{*driver};
    space of = space::create_on(faulty).value();
    queue line = of.make_queue(of.devices()[0]).value();
    std::uint64_t* data = static_cast<std::uint64_t*>(*of.map(2_MiB));

    bool is_used() {
        bool found = false;
        of.for_each_granule([&](const granule_view& one) { found = found || one.is_used; });
        return found;
    }
};

}  // namespace

TEST_CASE("launch: bad ranges are refused before anything runs") {
    rig r;
    auto* data = r.map(4_MiB);
    bool ran = false;
    const auto code = [&](std::vector<use> uses) {
        return launch(r.line(), std::span<const use>{uses}, [&](soft::stream&) { ran = true; })
            .code();
    };
    int local = 0;
    CHECK(code({reads(data, SIZE_MAX)}) == errc::invalid_argument);
    CHECK(code({reads(data, 8), writes(&local, 4)}) == errc::not_mapped);
    CHECK(code({reads(data, 4_MiB + 1)}) == errc::not_mapped);
    CHECK(code({reads(nullptr, 1)}) == errc::not_mapped);
    CHECK(!ran);
    CHECK(!r.inspect(data, [](granule& page) { return page.is_used(); }));
    CHECK(code({}) == errc::ok);
    CHECK(ran);
}

TEST_CASE("launch: a use of zero bytes is nothing") {
    for (const bool faults : {true, false}) {
        CAPTURE(faults);
        rig r{{device_of(16_MiB, faults)}};
        auto* data = r.map(8_MiB);
        const std::vector<int> none;
        int local = 0;
        bool ran = false;
        auto point = launch(r.line(),
                            {reads(data, 0), writes(page_of(data, 1) + 5, 0), reads(none),
                             reads_writes(&local, 0), use{{to_address(data), 0}, access::read},
                             writes(page_of(data, 2), 8), reads(nullptr, 0)},
                            [&](soft::stream&) { ran = true; });
        CHECK(point);
        CHECK(ran);
        REQUIRE(r.line().synchronize());
        CHECK(r.state(data) == residency::untouched);
        CHECK(r.state(page_of(data, 1)) == residency::untouched);
        CHECK(!r.inspect(page_of(data, 2), [](granule& page) { return page.is_used(); }));
        CHECK(touch(r.line(), {reads(none), writes(nullptr, 0)}));
        CHECK(safe_point(r.line()));
        // What would want nothing is malformed all the same.
        CHECK(touch(r.line(), {use{{}, access::none}}).code == errc::invalid_argument);
    }
}

TEST_CASE("launch: a use that neither reads nor writes, or wants more, is refused") {
    for (const bool faults : {true, false}) {
        CAPTURE(faults);
        rig r{{device_of(16_MiB, faults)}};
        auto* data = r.map(4_MiB);
        bool ran = false;
        for (const xmm::access who :
             {access::none, access::in_place, access::read | access::in_place,
              access::read_write | access::in_place, static_cast<xmm::access>(8)}) {
            CAPTURE(static_cast<int>(who));
            const use wrong{{to_address(data), 4_MiB}, who};
            CHECK(launch(r.line(), {reads(data, 8), wrong}, [&](soft::stream&) {
                      ran = true;
                  }).code() == errc::invalid_argument);
            CHECK(touch(r.line(), {wrong}).code == errc::invalid_argument);
        }
        CHECK(!ran);
        CHECK(r.state(data) == residency::untouched);
        CHECK(!r.inspect(data, [](granule& page) { return page.is_used(); }));
    }
}

TEST_CASE("launch: another device's own memory is refused before anything runs") {
    for (const bool faults : {true, false}) {
        CAPTURE(faults);
        rig r{{device_of(32_MiB, faults), device_of(32_MiB, faults)}};
        auto* data = r.map(4_MiB);
        xpu_malloc& heap = *r.of().heap(r.device(1)).value();
        auto* block = static_cast<std::uint64_t*>(heap.allocate({.bytes = 3_MiB}).value());
        auto* fixed = r.map(2_MiB, {.granule_bytes = page_bytes, .fixed = r.device(1)});
        for (std::uint64_t* theirs : {block, fixed}) {
            bool ran = false;
            const std::vector<use> uses{reads_writes(data, 4_MiB), reads(theirs, 2_MiB)};
            const auto refused =
                launch(r.line(), std::span<const use>{uses}, [&](soft::stream&) { ran = true; });
            CHECK(refused.code() == errc::busy);
            CHECK(std::string{refused.error().why}.find("its device alone") != std::string::npos);
            CHECK(!ran);
            CHECK(!r.inspect(data, [](granule& page) { return page.is_used(); }));
            CHECK(!r.inspect(theirs, [](granule& page) { return page.is_used(); }));
            CHECK(r.line().synchronize());  // the queue goes on
            r.fill_on_device<std::uint64_t>(data, 4_MiB, 1);
            r.fill_on_device<std::uint64_t>(theirs, 2_MiB, 2, 1);  // as does the memory's own
            // A copy gets there from any queue.
            REQUIRE(r.of().copy(r.line(), data, theirs, 2_MiB));
            CHECK(r.line().synchronize());
            CHECK(count_wrong<std::uint64_t>(data, 2_MiB, 2) == 0);
        }
        CHECK(heap.deallocate(block));
    }
}

TEST_CASE("launch: pages are in use until the work is done") {
    rig r;
    auto* data = r.map(40_MiB);
    std::vector<use> many;
    for (std::size_t page = 0; page < 20; ++page) {
        many.push_back(writes(page_of(data, page) + 5, 16));
    }
    auto end = std::make_shared<signal_flag>();
    auto point = launch(r.line(), std::span<const use>{many},
                        [&](soft::stream& s) { return s.run([end] { end->await(); }); });
    REQUIRE(point);
    const auto used = [&] {
        unsigned count = 0;
        r.of().for_each_granule([&](const granule_view& one) { count += one.is_used ? 1 : 0; });
        return count;
    };
    CHECK(used() == 20);
    end->set();
    REQUIRE(r.line().synchronize());
    CHECK(used() == 0);
}

TEST_CASE("launch: a function that fails hands its failure on and leaves no marks") {
    rig r;
    auto* data = r.map(2_MiB);
    auto point = launch(r.line(), {writes(data, 8)}, [](soft::stream&) -> result<ticket> {
        return fail(errc::unsupported, "not today");
    });
    CHECK(point.code() == errc::unsupported);
    CHECK(std::string{point.error().why} == "not today");
    auto none = launch(r.line(), {writes(data, 8)}, [](int) {});
    CHECK(none.code() == errc::unsupported);
    CHECK(!r.inspect(data, [](granule& page) { return page.is_used(); }));
}

TEST_CASE("launch: ranges of containers, and overloads") {
    rig r;
    auto* data = r.map<int>(2_MiB);
    const std::span<int> all{data, 100};
    CHECK(reads(all).range == va_range{to_address(data), 400});
    CHECK(reads(all).who == access::read);
    CHECK(writes(all).who == access::write);
    CHECK(reads_writes(all).who == access::read_write);
    const device_view<int> view{all};
    auto point = launch(r.line(), {reads_writes(all)},
                        overloads{[](int) {},
                                  [&](soft::stream& s) {
                                      return s.parallel_for(100, [view](std::size_t i) {
                                          view[i] = static_cast<int>(i);
                                      });
                                  }});
    REQUIRE(point);
    REQUIRE(r.line().wait(*point));
    CHECK(data[99] == 99);
}

TEST_CASE("launch: from the function of another launch") {
    for (bool faults : {true, false}) {
        rig r{{device_of(16_MiB, faults)}};
        auto* data = r.map(2_MiB);
        errc inner = errc::ok;
        auto outer = launch(r.line(), {reads(data, 8)}, [&](soft::stream&) {
            inner = launch(r.line(), {reads(data, 8)}, [](soft::stream&) {}).code();
        });
        CHECK(outer);
        CHECK(inner == (faults ? errc::ok : errc::busy));
        CHECK(launch(r.line(), {reads(data, 8)}, [](soft::stream&) {}));
    }
}

TEST_CASE("launch: a queue that gives no ticket gets no work") {
    faulty_rig r;
    for (const errc refusal : {errc::busy, errc::no_memory, errc::device_lost}) {
        CAPTURE(name_of(refusal));
        r.faulty.fail_next(op::record, refusal);
        bool ran = false;
        auto point = launch(r.line, {writes(r.data, 8)}, [&](soft::stream&) { ran = true; });
        CHECK(point.code() == refusal);
        CHECK(!ran);
        CHECK(!r.is_used());
    }
    CHECK(launch(r.line, {writes(r.data, 8)}, [](soft::stream&) {}));
}

TEST_CASE("launch: pages of a kernel whose launch got no ticket are in use until it is done") {
    faulty_rig r;
    for (const bool throws : {false, true}) {
        CAPTURE(throws);
        auto end = std::make_shared<signal_flag>();
        const auto enqueue = [&](soft::stream& s) {
            CHECK(s.run([end] { end->await(); }));
            if (throws) {
                throw 1;
            }
        };
        // The first is asked for before the function is called.
        r.faulty.plan(op::record, {.fail_at = 2, .fail_count = 2});
        errc answer = errc::ok;
        try {
            answer = launch(r.line, {writes(r.data, 8)}, enqueue).code();
        } catch (int) {
        }
        CHECK(answer == (throws ? errc::ok : errc::no_memory));
        CHECK(r.is_used());
        r.of.state().core.uses().retire_finished();
        CHECK(r.is_used());
        r.faulty.plan(op::record, {});
        end->set();
        REQUIRE(r.line.synchronize());
        r.of.state().core.uses().retire_finished();
        CHECK(!r.is_used());
    }
}

TEST_CASE("launch: a kernel outlives a shortage that passes") {
    rig r{{device_of(4_MiB)}};
    auto* data = r.map(8_MiB);
    // The device is full of what cannot leave, and the host's last frame is in somebody's hands.
    REQUIRE(r.of().make_resident(data, 4_MiB, r.device()));
    REQUIRE(r.of().advise(r.device(), data, 4_MiB, advice::pin));
    xmm::node& host = *r.of().state().core.find_node(r.host());
    REQUIRE(r.of().set_budget(r.host(), host.book->used() + 2_MiB));
    while (host.book->drop_free_frame()) {
    }
    REQUIRE(r.of().set_budget(r.host(), host.book->used() + 2_MiB));
    auto taken = host.pool.take(2_MiB);
    REQUIRE(taken);
    std::atomic<bool> has_ended{false};
    std::thread giver{[&] {
        nap(20);
        CHECK(!has_ended);
        host.pool.give_back(**taken);
    }};
    CHECK(r.run(page_of(data, 3), 8, access::write,
                [](device_view<std::uint64_t> view) { view.store(0, 5); }));
    has_ended = true;
    giver.join();
    CHECK(*page_of(data, 3) == 5);
    CHECK(r.of().advise(r.device(), data, 4_MiB, advice::unpin));
}
