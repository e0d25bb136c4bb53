// SPDX-License-Identifier: Apache-2.0
#include "../../tools/replay/xmm_heap.hpp"

#include <doctest/doctest.h>

#include <atomic>

#include "../../tools/replay/options.hpp"
#include "../../tools/replay/read_trace.hpp"
#include "../../tools/replay/run_trace.hpp"

using namespace xmm::trace_replay;

namespace {

run_result replay(const trace& source, const std::string& name, simulation_options with = {}) {
    const prices list = prices::idle();
    const auto one = make_candidate(name, {&list, with});
    REQUIRE(one);
    std::atomic<std::uint64_t> done{0};
    run_result out = run_trace(source, name, *one, done);
    CHECK(done == source.events.size());
    return out;
}

// Waste would hide in the bill's three parts only.
void check_figures(const run_result& one) {
    CHECK_FALSE(one.out_of_memory_at);
    CHECK(one.peak_reserved_bytes >= one.peak_live_bytes);
    CHECK(one.driver_us == doctest::Approx(one.move_us + one.wait_us + one.beyond_peak_us));
    CHECK(one.early_us <= one.first_creation_us * 1.000001);
    CHECK(one.first_creation_us > 0);
}

}  // namespace

TEST_CASE("recorded traces: close to what is live, and no worse than PyTorch's default") {
    struct bound {
        const char* trace;
        double ratio;
    };
    for (const auto& [name, ratio] : {bound{"opt13b_b8", 1.02},
                                      {"vit_l", 1.02},
                                      {"opt13b_lora_var", 1.02},
                                      {"serving", 1.05},
                                      {"offload", 1.02}}) {
        const auto all = read_traces(find_traces({name}).front());
        REQUIRE(all.size() == 1);
        const run_result native = replay(all[0], "native-model");
        for (const char* allocator : {"xmm", "xmm-nojemalloc"}) {
            CAPTURE(name);
            CAPTURE(allocator);
            const run_result own = replay(all[0], allocator);
            check_figures(own);
            CHECK(own.ratio() <= ratio);
            CHECK(own.peak_reserved_bytes <
                  native.peak_reserved_bytes + native.peak_reserved_bytes / 50);
        }
    }
}

TEST_CASE("made-up loads: never more than expandable segments keep") {
    for (const std::string& name : generator_names()) {
        const trace source = generate_trace(name);
        const run_result expandable = replay(source, "expandable-model");
        for (const char* allocator : {"xmm", "xmm-nojemalloc"}) {
            CAPTURE(name);
            CAPTURE(allocator);
            const run_result own = replay(source, allocator);
            check_figures(own);
            // A frame or two of slack.
            CHECK(own.peak_reserved_bytes <=
                  expandable.peak_reserved_bytes + expandable.peak_reserved_bytes / 100);
        }
    }
}

TEST_CASE("a queue that lags, and a device that cannot alias, cost time and not correctness") {
    const trace source = generate_trace("handover:5");
    const run_result usual = replay(source, "xmm-nojemalloc");
    CHECK(usual.wait_us == 0);
    simulation_options with;
    with.lag_us = 500;
    const run_result late = replay(source, "xmm-nojemalloc", with);
    check_figures(late);
    with.can_alias = false;
    const run_result slow = replay(source, "xmm-nojemalloc", with);
    check_figures(slow);
    CHECK(slow.wait_us > 0);
    CHECK(slow.wait_us >= late.wait_us);
}

TEST_CASE("a full device is reported with the event that got nothing") {
    const trace source = generate_trace("sawtooth:3");
    simulation_options with;
    with.device_bytes = std::size_t{1} << 30;
    for (const std::string& name : allocator_names()) {
        CAPTURE(name);
        const run_result one = replay(source, name, with);
        REQUIRE(one.out_of_memory_at);
        CHECK(source.events[*one.out_of_memory_at].op == trace_op::allocate);
        CHECK(one.peak_reserved_bytes <= with.device_bytes);
        CHECK(one.peak_reserved_bytes > with.device_bytes * 9 / 10);
    }
}

TEST_CASE("a free that the trace does not see the end of is over with the trace") {
    const auto all = parse_trace("t",
                                 "op,id,size,stream,us\n"
                                 "a,0,4194304,0,0\n"
                                 "r,0,4194304,0,1\n"
                                 "a,1,4194304,0,2\n");
    REQUIRE(all.size() == 1);
    for (const char* allocator : {"xmm", "xmm-nojemalloc"}) {
        CAPTURE(allocator);
        const run_result one = replay(all[0], allocator, {.device_bytes = 4 << 20});
        CHECK_FALSE(one.out_of_memory_at);
        CHECK(one.wait_us <= 2);
    }
}
