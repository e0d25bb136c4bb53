// SPDX-License-Identifier: Apache-2.0
#include "../../tools/replay/simulated_frames.hpp"

#include <doctest/doctest.h>

#include "../../tools/replay/backends.hpp"
#include "../support/sanitizer.hpp"

using namespace xmm;
using namespace xmm::literals;
using namespace xmm::trace_replay;

namespace {

struct rig {
    prices list = prices::idle();
    driver_bill bill{list};
    simulated_frames port;
    explicit rig(simulation_options options = {}) : port{bill, options} { bill.set_live(1_GiB); }

    address reserve(std::size_t bytes, std::size_t slot) {
        auto got = port.reserve(bytes, slot);
        REQUIRE(got);
        CHECK(*got % slot == 0);
        return *got;
    }
    port_frame create(std::size_t bytes) {
        auto got = port.create(bytes);
        REQUIRE(got);
        return *got;
    }
};

}  // namespace

TEST_CASE("simulated addresses are apart, ascend, and cannot be touched") {
    rig it;
    const address a = it.reserve(64_GiB, 512_MiB);
    const address b = it.reserve(2_MiB, 2_MiB);
    // More than a stretch; a sanitizer leaves no room for that.
    const std::size_t vast = std::size_t{20} << (test::has_sanitizer ? 30 : 40);
    const address c = it.reserve(vast, 32_MiB);
    CHECK(b >= a + 64_GiB);
    CHECK((c >= b + 2_MiB || c + vast <= a));
    int pipe_ends[2];
    REQUIRE(::pipe(pipe_ends) == 0);
    CHECK(::write(pipe_ends[1], to_pointer(a), 1) == -1);  // EFAULT: no access
    ::close(pipe_ends[0]);
    ::close(pipe_ends[1]);
    CHECK_FALSE(it.port.reserve(std::size_t{1} << 60, 2_MiB));
}

TEST_CASE("a frame's calls are billed: first creation, a move, its end") {
    rig it;
    const address a = it.reserve(64_MiB, 32_MiB);
    const port_frame one = it.create(32_MiB);
    const port_frame two = it.create(32_MiB);  // before the first is mapped
    REQUIRE(it.port.map(a, one, 32_MiB));
    REQUIRE(it.port.map(a + 32_MiB, two, 32_MiB));
    CHECK(it.bill.driver_us() == 0);
    CHECK(it.bill.first_creation_us() == doctest::Approx(2 * (9.6 + 1 + 24)));
    CHECK(it.bill.calls() == 6);
    it.port.unmap(a, one, 32_MiB);
    REQUIRE(it.port.map(a, one, 32_MiB));
    CHECK(it.bill.frames_moved() == 1);
    CHECK(it.bill.move_us() == doctest::Approx(14.4 + 1 + 24));
    it.port.unmap(a, one, 32_MiB);
    it.port.unmap(a + 32_MiB, two, 32_MiB);
    it.port.drop(one, 32_MiB);
    it.port.drop(two, 32_MiB);
    CHECK(it.bill.reserved() == 0);
    CHECK(it.bill.peak_reserved() == 64_MiB);
    CHECK(it.bill.move_us() == doctest::Approx(14.4 + 1 + 24 + 2 * (14.4 + 17.6)));
}

TEST_CASE("a simulated device runs full") {
    simulation_options options;
    options.device_bytes = 64_MiB;
    rig it{options};
    const port_frame one = it.create(32_MiB);
    const port_frame two = it.create(32_MiB);
    CHECK(it.port.create(2_MiB).code() == errc::no_memory);
    it.port.drop(two, 32_MiB);
    const port_frame small = it.create(2_MiB);
    it.port.drop(one, 32_MiB);
    it.port.drop(small, 2_MiB);
}

TEST_CASE("tickets follow the trace's clock") {
    simulation_options options;
    options.lag_us = 100;
    rig it{options};
    const queue_id queue{3};
    it.port.set_clock(1000);
    const ticket usual = *it.port.record(queue);
    it.port.set_completion(queue_id{4}, 5000);
    const ticket told = *it.port.record(queue_id{4});
    const ticket again = *it.port.record(queue);
    it.port.set_completion(queue_id{5}, UINT64_MAX);
    CHECK_FALSE(it.port.is_done(*it.port.record(queue_id{5})));
    CHECK(it.port.is_done(*it.port.record(queue_id{0})));
    CHECK(it.port.is_done(ticket{}));
    CHECK_FALSE(it.port.is_done(usual));
    REQUIRE(it.port.wait(usual));
    CHECK(it.bill.wait_us() == 100);
    CHECK(it.port.is_done(usual));  // it was waited for, though the trace's clock stands
    REQUIRE(it.port.wait(usual));
    CHECK(it.bill.wait_us() == 100);
    it.port.set_clock(1100);
    CHECK(it.port.is_done(usual));
    CHECK(it.port.is_done(again));
    CHECK_FALSE(it.port.is_done(told));
    it.port.set_clock(5000);
    CHECK(it.port.is_done(told));
    REQUIRE(it.port.wait(told));
    CHECK(it.bill.wait_us() == 100);
}

TEST_CASE("in front of a backend its frames are made for real, and timed if asked to") {
    const replay_backend soft{"soft", 1_GiB};
    REQUIRE(soft.ref());
    for (const bool is_timed : {false, true}) {
        simulation_options options;
        options.backing = soft.ref();
        options.node = soft.node();
        options.is_timed = is_timed;
        rig it{options};
        const auto made = [&] {
            auto about = static_cast<soft::driver*>(soft.ref().native(soft::driver::native_kind));
            return about->statistics(soft.node());
        };
        const address a = it.reserve(64_MiB, 32_MiB);
        const port_frame one = it.create(32_MiB);
        CHECK(made().frame_bytes == 32_MiB);
        REQUIRE(it.port.map(a, one, 32_MiB));
        CHECK(made().mapped_bytes == 32_MiB);
        it.port.unmap(a, one, 32_MiB);
        REQUIRE(it.port.map(a + 32_MiB, one, 32_MiB));
        it.port.unmap(a + 32_MiB, one, 32_MiB);
        CHECK(made().mapped_bytes == 0);
        it.port.drop(one, 32_MiB);
        CHECK(made().frame_bytes == 0);
        it.port.release({a, 64_MiB});
        const bool is_as_listed = it.bill.first_creation_us() == doctest::Approx(9.6 + 1 + 24);
        CHECK(is_as_listed == !is_timed);
        CHECK(it.bill.first_creation_us() > 0);
    }
    const prices measured = measure_prices("soft");
    for (std::size_t call = 0; call < driver_call_count; ++call) {
        const auto kind = static_cast<driver_call>(call);
        CHECK((measured.of(kind, 2_MiB) > 0) == (kind != driver_call::map));
    }
    CHECK_THROWS_AS((void)measure_prices("simulated"), bad_input);
}
