// SPDX-License-Identifier: Apache-2.0
#include "../../tools/replay/cuda_device.hpp"

#include <doctest/doctest.h>

#include <atomic>

#include "../../tools/replay/allocators.hpp"
#include "../../tools/replay/backends.hpp"
#include "../../tools/replay/generate.hpp"
#include "../../tools/replay/run_trace.hpp"
#include "../support/cuda_device.hpp"
#include "support.hpp"

using namespace xmm;
using namespace xmm::literals;
using namespace xmm::trace_replay;

namespace {

bool is_skipped() {
    const status state = test::cuda_state();
    if (!state) {
        MESSAGE("skipped, no CUDA: ", std::string{state.why}, " (", state.driver_code, ")");
    }
    return !state;
}

// A load of many moves that fits on the smallest of devices.
trace small_trace(const char* name) {
    trace out = generate_trace(name);
    scale_trace(out, static_cast<double>(out.peak_live_bytes) / static_cast<double>(96_MiB));
    return out;
}

run_result replay(const replay_backend& on, const trace& source, const char* name,
                  bool is_timed = true) {
    const prices list = prices::idle();
    simulation_options with = on.simulation();
    with.is_timed = is_timed;
    const auto one = make_candidate(name, {&list, with});
    REQUIRE(one);
    std::atomic<std::uint64_t> done{0};
    return run_trace(source, name, *one, done);
}

constexpr std::array memory_calls = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap",
                                     "cuMemRelease"};

std::uint64_t calls_of(const test::soft_cuda_controls& soft) {
    std::uint64_t sum = 0;
    for (const char* name : memory_calls) {
        sum += soft.calls(name);
    }
    return sum;
}

}  // namespace

TEST_CASE("CUDA: a replay makes, maps and drops what it bills, and leaves nothing") {
    if (is_skipped()) {
        return;
    }
    const replay_backend on{"cuda", 0};
    REQUIRE(on.is_real());
    CHECK_FALSE(on.device_name().empty());
    const test::soft_cuda_controls soft = test::find_soft_cuda();
    for (const char* load : {"steps:7", "handover:5", "sawtooth:3"}) {
        const trace source = small_trace(load);
        const run_result listed = [&] {
            const replay_backend none{"simulated", 0};
            return replay(none, source, "xmm-nojemalloc", false);
        }();
        for (const char* name : {"xmm", "xmm-nojemalloc"}) {
            CAPTURE(load);
            CAPTURE(name);
            const std::size_t held = soft ? soft.held(0) : 0;
            if (soft) {
                soft.reset();
            }
            const run_result real = replay(on, source, name);
            CHECK_FALSE(real.out_of_memory_at);
            CHECK(real.peak_reserved_bytes >= real.peak_live_bytes);
            CHECK(real.first_creation_us > 0);
            CHECK(real.driver_us ==
                  doctest::Approx(real.move_us + real.wait_us + real.beyond_peak_us));
            if (name == std::string{"xmm-nojemalloc"}) {
                // The driver's addresses come in another order than simulated ones, and fits hang on that.
                CHECK(real.peak_reserved_bytes <= listed.peak_reserved_bytes * 11 / 10);
                CHECK((real.frames_moved > 0) == (listed.frames_moved > 0));
                CHECK(real.first_creation_us != doctest::Approx(listed.first_creation_us));
            }
            if (soft) {
                CHECK(soft.held(0) == held);
                // The heap's end, after the figures are taken, clears and drops what is left of it.
                const std::uint64_t made = soft.calls("cuMemCreate");
                CHECK(made == soft.calls("cuMemRelease"));
                CHECK(made > 0);
                CHECK(real.driver_calls <= calls_of(soft));
                CHECK(real.driver_calls >=
                      made + soft.calls("cuMemMap") + soft.calls("cuMemSetAccess"));
            }
        }
    }
}

TEST_CASE("CUDA: each call of the port is billed as the calls that it made") {
    if (is_skipped()) {
        return;
    }
    const test::soft_cuda_controls soft = test::find_soft_cuda();
    if (!soft) {
        MESSAGE("skipped, no software CUDA to count calls");
        return;
    }
    const replay_backend on{"cuda", 0};
    const prices list = prices::idle();
    driver_bill bill{list};
    simulation_options with = on.simulation();
    with.is_timed = true;
    simulated_frames port{bill, with};
    const auto range = port.reserve(8_MiB, 4_MiB);
    REQUIRE(range);
    soft.reset();
    const auto check = [&] { CHECK(bill.calls() == calls_of(soft)); };
    const auto one = port.create(4_MiB);
    REQUIRE(one);
    check();
    REQUIRE(port.map(*range, *one, 4_MiB));
    check();
    REQUIRE(port.map(*range + 4_MiB, *one, 4_MiB));  // lent, and moved
    CHECK(bill.frames_moved() == 1);
    port.unmap(*range, *one, 4_MiB);
    check();
    port.unmap(*range + 4_MiB, *one, 4_MiB);
    port.drop(*one, 4_MiB);
    check();
    CHECK(bill.move_us() > 0);
    port.release({*range, 8_MiB});
    SUBCASE("a driver that refuses leaves frame and bill as they were") {
        const auto again = port.reserve(4_MiB, 4_MiB);
        REQUIRE(again);
        const std::size_t held = soft.held(0);
        REQUIRE(soft.fail("cuMemCreate", 0, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY) == 0);
        CHECK(port.create(4_MiB).code() == errc::no_memory);
        CHECK(bill.reserved() == 0);
        const auto kept = port.create(4_MiB);
        REQUIRE(kept);
        REQUIRE(soft.fail("cuMemSetAccess", 0, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY) == 0);
        CHECK(port.map(*again, *kept, 4_MiB).code == errc::no_memory);
        REQUIRE(port.map(*again, *kept, 4_MiB));
        port.unmap(*again, *kept, 4_MiB);
        port.drop(*kept, 4_MiB);
        CHECK(soft.held(0) == held);
        port.release({*again, 4_MiB});
    }
    soft.reset();
}

TEST_CASE("CUDA: a device without room is a trace's end, said with the event") {
    if (is_skipped()) {
        return;
    }
    const test::soft_cuda_controls soft = test::find_soft_cuda();
    if (!soft) {
        MESSAGE("skipped, no software CUDA to run full");
        return;
    }
    const replay_backend on{"cuda", 0};
    const std::size_t held = soft.held(0);
    soft.reset();
    REQUIRE(soft.fail("cuMemCreate", 3, 1'000'000, cuda::CUDA_ERROR_OUT_OF_MEMORY) == 0);
    const trace source = small_trace("sawtooth:3");
    const run_result full = replay(on, source, "xmm-nojemalloc");
    soft.reset();
    REQUIRE(full.out_of_memory_at);
    CHECK(source.events[*full.out_of_memory_at].op == trace_op::allocate);
    CHECK(soft.held(0) == held);
    CHECK_FALSE(replay(on, source, "xmm-nojemalloc").out_of_memory_at);
}

TEST_CASE(
    "CUDA: prices are those of the driver's calls, at the sizes that the device has room for") {
    if (is_skipped()) {
        return;
    }
    const prices measured = measure_prices("cuda");
    CHECK(measured.name == "measured");
    for (std::size_t call = 0; call < driver_call_count; ++call) {
        CHECK(measured.of(static_cast<driver_call>(call), 2_MiB) > 0);
        CHECK(measured.calls[call].points.size() == measured.calls[0].points.size());
    }
    if (const test::soft_cuda_controls soft = test::find_soft_cuda()) {
        const replay_backend on{"cuda", 0};
        const std::size_t held = soft.held(0);
        for (const char* name : {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemAlloc"}) {
            CAPTURE(name);
            soft.reset();
            REQUIRE(soft.fail(name, 15, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY) == 0);
            CHECK(on.measure().calls[0].points.size() == 1);
            CHECK(soft.held(0) == held);
            REQUIRE(soft.fail(name, 0, 1, cuda::CUDA_ERROR_NOT_SUPPORTED) == 0);
            CHECK(testing::bad_input_of([&] { (void)on.measure(); }).find("code 801") !=
                  std::string::npos);
            CHECK(soft.held(0) == held);
        }
        soft.reset();
        REQUIRE(soft.fail("cuMemCreate", 0, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY) == 0);
        CHECK(testing::bad_input_of([&] { (void)on.measure(); }).find("no room") !=
              std::string::npos);
        soft.reset();
    }
}

TEST_CASE("a trace that is larger than the device is refused with the scale that makes it fit") {
    trace source = generate_trace("steps:7");
    const std::uint64_t peak = source.peak_live_bytes;
    CHECK(why_too_large(source, peak, 1).empty());
    const auto proposed = [&](std::uint64_t free_bytes, double scale) {
        const std::string why = why_too_large(source, free_bytes, scale);
        CAPTURE(why);
        CHECK(why.starts_with(source.name + ": "));
        const std::size_t at = why.find("--scale ");
        REQUIRE(at != std::string::npos);
        return std::stod(why.substr(at + 8));
    };
    const double once = proposed(peak / 4, 1);
    CHECK(once >= 4.4);
    CHECK(once < 4.6);
    scale_trace(source, once);
    CHECK(why_too_large(source, peak / 4, once).empty());
    // One that is scaled already: the whole scale is said.
    const double twice = proposed(source.peak_live_bytes / 2, once);
    CHECK(twice >= once * 2.2);
    CHECK(twice < once * 2.2 + 0.2);
}

TEST_CASE("scaled blocks are multiples of 256 bytes, and the trace stays consistent") {
    trace source = generate_trace("handover:5");
    const trace before = source;
    scale_trace(source, 1);
    CHECK(source.peak_live_bytes == before.peak_live_bytes);
    scale_trace(source, 1000);
    std::uint64_t live = 0;
    std::uint64_t peak = 0;
    for (std::size_t i = 0; i < source.events.size(); ++i) {
        const auto& event = source.events[i];
        CHECK(event.bytes % 256 == 0);
        CHECK(event.bytes >= 256);
        CHECK(event.bytes < before.events[i].bytes / 1000 + 257);
        live += event.op == trace_op::allocate ? event.bytes : 0;
        live -= event.op == trace_op::free_completed ? event.bytes : 0;
        peak = std::max(peak, live);
    }
    CHECK(source.peak_live_bytes == peak);
}
