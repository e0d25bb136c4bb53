// SPDX-License-Identifier: Apache-2.0
#include "../../tools/replay/torch_models.hpp"

#include <doctest/doctest.h>

#include "../../tools/replay/options.hpp"
#include "../../tools/replay/read_trace.hpp"
#include "../../tools/replay/report.hpp"
#include "../../tools/replay/run_trace.hpp"

using namespace xmm::trace_replay;

namespace {

// Beside the library's of the same names.
using xmm::trace_replay::trace_event;
using xmm::trace_replay::trace_op;

constexpr std::uint64_t KiB = 1024;
constexpr std::uint64_t MiB = 1024 * KiB;

// Drives a model by hand.
template <class Model>
struct bench {
    prices list = prices::idle();
    Model model;
    std::uint64_t live = 0;
    std::uint32_t next = 0;
    std::vector<trace_event> blocks;

    explicit bench(std::uint64_t device_bytes = 0) : model{list, device_bytes} {}
    bool try_allocate(std::uint64_t bytes, std::uint32_t stream = 0) {
        const trace_event event{trace_op::allocate, stream, next, bytes, 0};
        model.bill().set_live(live + bytes);
        if (!model.allocate(event)) {
            return false;
        }
        live += bytes;
        blocks.push_back(event);
        ++next;
        return true;
    }
    std::uint32_t allocate(std::uint64_t bytes, std::uint32_t stream = 0) {
        REQUIRE(try_allocate(bytes, stream));
        return next - 1;
    }
    void free(std::uint32_t block) {
        live -= blocks[block].bytes;
        model.free_completed(blocks[block]);
    }
    std::uint64_t reserved() { return model.bill().reserved(); }
};

run_result replay_model(const trace& source, const std::string& name) {
    const prices list = prices::idle();
    candidate_options with;
    with.list = &list;
    const auto one = make_candidate(name, with);
    REQUIRE(one);
    std::atomic<std::uint64_t> done{0};
    return run_trace(source, name, *one, done);
}

}  // namespace

TEST_CASE("the models reserve what PyTorch did on eight real runs, within 2 %") {
    struct figures {
        const char* trace;
        double native, expandable;  // GB, measured
    };
    for (const figures& one : {figures{"opt13b_b8", 29.02, 28.42},
                               {"opt13b_b32", 59.24, 58.23},
                               {"opt13b_ckpt_b64", 46.29, 49.28},
                               {"opt13b_lora_var", 55.28, 42.79},
                               {"vit_l", 44.98, 29.97},
                               {"opt13b_generate", 6.69, 5.12},
                               {"offload", 17.75, 17.02},
                               {"serving", 12.23, 11.60}}) {
        CAPTURE(one.trace);
        const auto all = read_traces(find_traces({one.trace}).front());
        REQUIRE(all.size() == 1);
        const auto native = replay_model(all[0], "native-model");
        const auto expandable = replay_model(all[0], "expandable-model");
        CHECK(static_cast<double>(native.peak_reserved_bytes) / 1e9 ==
              doctest::Approx(one.native).epsilon(0.02));
        CHECK(static_cast<double>(expandable.peak_reserved_bytes) / 1e9 ==
              doctest::Approx(one.expandable).epsilon(0.02));
        CHECK(native.events == all[0].events.size());
        CHECK_FALSE(native.out_of_memory_at);
    }
}

TEST_CASE("native: segments by the size of the request") {
    for (const auto& [bytes, segment] : {std::pair{1ul, 2 * MiB},
                                         {MiB, 2 * MiB},
                                         {MiB + 1, 20 * MiB},
                                         {10 * MiB - 512, 20 * MiB},
                                         {10 * MiB - 1, 10 * MiB},
                                         {10 * MiB, 10 * MiB},
                                         {10 * MiB + 1, 12 * MiB},
                                         {33 * MiB, 34 * MiB}}) {
        CAPTURE(bytes);
        bench<native_model> it;
        (void)it.allocate(bytes);
        CHECK(it.reserved() == segment);
    }
}

TEST_CASE("native: a block is split, merges, and serves its own stream and pool only") {
    bench<native_model> it;
    const auto a = it.allocate(4 * MiB);
    const auto b = it.allocate(4 * MiB);
    CHECK(it.reserved() == 20 * MiB);  // both in one segment
    it.free(a);
    (void)it.allocate(512);  // another pool
    CHECK(it.reserved() == 22 * MiB);
    (void)it.allocate(4 * MiB, 1);  // another stream
    CHECK(it.reserved() == 42 * MiB);
    it.free(b);  // all 20 MiB are one block again
    (void)it.allocate(20 * MiB);
    CHECK(it.reserved() == 42 * MiB);
}

TEST_CASE("native: what is left of a large block stays with it up to 1 MiB") {
    bench<native_model> it;
    const auto a = it.allocate(40 * MiB);
    it.free(a);
    const auto b = it.allocate(39 * MiB);  // 1 MiB is not worth splitting
    (void)it.allocate(MiB + 1);
    CHECK(it.reserved() == 60 * MiB);
    it.free(b);
    (void)it.allocate(39 * MiB - 512);  // now it is
    (void)it.allocate(MiB + 512);
    CHECK(it.reserved() == 60 * MiB);
}

TEST_CASE("native: whole free segments go back when the device is full, and only then") {
    bench<native_model> it{100 * MiB};
    const auto a = it.allocate(40 * MiB);
    const auto b = it.allocate(40 * MiB);
    it.free(a);
    CHECK(it.reserved() == 80 * MiB);
    (void)it.allocate(50 * MiB);  // takes the place of the 40 that are free
    CHECK(it.reserved() == 90 * MiB);
    CHECK(it.model.bill().driver_us() > 0);
    CHECK_FALSE(it.try_allocate(20 * MiB));
    it.free(b);
    CHECK(it.try_allocate(20 * MiB));
}

TEST_CASE("expandable: handles of 2 and 20 MiB at the end of a range") {
    bench<expandable_model> it;
    (void)it.allocate(1);
    CHECK(it.reserved() == 2 * MiB);
    (void)it.allocate(21 * MiB);
    CHECK(it.reserved() == 42 * MiB);
    (void)it.allocate(19 * MiB);  // the rest of the second handle
    CHECK(it.reserved() == 42 * MiB);
    (void)it.allocate(2 * MiB, 1);  // a stream has a range of its own
    CHECK(it.reserved() == 62 * MiB);
}

TEST_CASE("expandable: a free block at the end grows, best fit goes before growing") {
    bench<expandable_model> it;
    const auto a = it.allocate(30 * MiB);
    const auto b = it.allocate(10 * MiB);
    CHECK(it.reserved() == 40 * MiB);
    it.free(b);
    (void)it.allocate(25 * MiB);  // 10 MiB that were free and 20 more
    CHECK(it.reserved() == 60 * MiB);
    it.free(a);
    (void)it.allocate(30 * MiB);
    CHECK(it.reserved() == 60 * MiB);
}

TEST_CASE("expandable: holes are backed again after their handles went back") {
    bench<expandable_model> it{100 * MiB};
    const auto a = it.allocate(40 * MiB);
    const auto b = it.allocate(40 * MiB);
    (void)b;
    it.free(a);
    (void)it.allocate(2 * MiB, 1);
    CHECK(it.reserved() == 100 * MiB);
    (void)it.allocate(30 * MiB, 1);  // 40 MiB go back, 20 of them come
    CHECK(it.reserved() == 80 * MiB);
    (void)it.allocate(15 * MiB);  // the first handle of the hole, before the end of the range
    CHECK(it.reserved() == 100 * MiB);
    CHECK_FALSE(it.try_allocate(30 * MiB));
}

TEST_CASE("expandable: sizes that are made up cost no time and no memory by the handle") {
    constexpr std::uint64_t vast = std::uint64_t{1} << 45;
    constexpr std::uint64_t handles = 100 * vast / (20 * MiB);  // and one that is not whole
    bench<expandable_model> it;
    for (int i = 0; i < 100; ++i) {
        (void)it.allocate(vast, static_cast<std::uint32_t>(i % 3));
    }
    CHECK(it.reserved() > it.live);
    CHECK(it.reserved() < it.live + 100 * 20 * MiB);
    CHECK(it.model.bill().calls() > 2 * handles);
    CHECK(it.model.bill().calls() < 2 * (handles + 200));
    for (std::uint32_t i = 0; i < 100; ++i) {
        it.free(i);
    }
    bench<expandable_model> full{2 * vast};
    full.free(full.allocate(vast));
    (void)full.allocate(vast + vast / 2, 1);  // all that was cached goes back
    CHECK(full.reserved() < vast + vast / 2 + 20 * MiB);
}

TEST_CASE("the bill of many frames at once is that of one after the other") {
    const prices list = prices::idle();
    driver_bill together{list};
    driver_bill apart{list};
    for (driver_bill* one : {&together, &apart}) {
        one->set_live(100);
        (void)one->add_create(64, 10);
        one->add_drop(48, 3);
        one->set_live(110);
    }
    (void)together.add_create(16 * 8, 8 * 5.0,
                              17);  // below the height of before, across it, beyond what is live
    for (int i = 0; i < 8; ++i) {
        (void)apart.add_create(16, 5, i == 0 ? 3 : 2);
    }
    for (driver_bill* one : {&together, &apart}) {
        one->set_live(120);
    }
    CHECK(together.calls() == apart.calls());
    CHECK(together.reserved() == apart.reserved());
    CHECK(together.peak_reserved() == apart.peak_reserved());
    CHECK(together.first_creation_us() == doctest::Approx(apart.first_creation_us()));
    CHECK(together.early_us() == doctest::Approx(apart.early_us()));
    CHECK(together.early_us() > 0);
    CHECK(together.beyond_peak_us() == doctest::Approx(apart.beyond_peak_us()));
    CHECK(together.beyond_peak_us() > 0);
}

TEST_CASE("the bill tells first creation from waste") {
    const prices list = prices::idle();
    driver_bill bill{list};
    bill.set_live(10);
    (void)bill.add_create(8, 100);  // within what is live
    CHECK(bill.first_creation_us() == 100);
    CHECK(bill.early_us() == 0);
    const auto second = bill.add_create(8, 100);  // 6 of 8 bytes beyond
    CHECK(bill.beyond_peak_us() == doctest::Approx(75));
    bill.add_to_create(second, 40);
    CHECK(bill.beyond_peak_us() == doctest::Approx(105));
    CHECK(bill.first_creation_us() == doctest::Approx(135));
    bill.set_live(3);  // the most so far counts
    bill.add_drop(8, 7);
    bill.add_move(5, 2);
    bill.add_moved_frame();
    bill.add_wait(1000);
    CHECK(bill.driver_us() == doctest::Approx(105 + 7 + 5 + 1000));
    CHECK(bill.reserved() == 8);
    CHECK(bill.peak_reserved() == 16);
    CHECK(bill.calls() == 6);
    CHECK(bill.frames_moved() == 1);
    bill.set_live(14);  // 4 of those 6 bytes came early
    CHECK(bill.beyond_peak_us() == doctest::Approx(35));
    CHECK(bill.early_us() == doctest::Approx(70));
    bill.set_live(100);
    (void)bill.add_create(8, 10);  // made again, though within what is live
    CHECK(bill.beyond_peak_us() == doctest::Approx(10));
    (void)bill.add_create(8, 10);
    CHECK(bill.first_creation_us() == doctest::Approx(250));
    CHECK(bill.create_us() == doctest::Approx(260));
}

TEST_CASE("prices follow the logarithm of the size") {
    const prices idle = prices::idle();
    CHECK(idle.of(driver_call::create, 2 * MiB) == 8);
    CHECK(idle.of(driver_call::create, 8 * MiB) == doctest::Approx(8.8));
    CHECK(idle.of(driver_call::create, 1) == 8);
    CHECK(idle.of(driver_call::drop, 2048 * MiB) == 154);
    CHECK(prices::loaded().of(driver_call::unmap, 32 * MiB) == 100);
    const prices own = prices::from_json("p", R"({"create": 3, "unmap": {"2": 10, "8": 30}})");
    CHECK(own.of(driver_call::create, 32 * MiB) == 3);
    CHECK(own.of(driver_call::unmap, 4 * MiB) == doctest::Approx(20));
    CHECK(own.of(driver_call::drop, 2 * MiB) == 10);
    for (const char* bad : {"", "[1]", R"({"fly": 1})", R"({"map": "x"})", R"({"map": {}})",
                            R"({"map": {"x": 1}})", R"({"map": {"2": -1}})", R"({"map": -3})"}) {
        CAPTURE(bad);
        CHECK_THROWS_AS((void)prices::from_json("p", bad), bad_input);
    }
}

TEST_CASE("the timeline keeps the most of each stretch") {
    timeline one{1000};
    one.note(0, 5);
    one.note(0, 3);
    one.note(500, 9);
    one.note(1000, 1);
    const auto& most = one.most();
    CHECK(most.front() == 5);
    CHECK(most[100] == 3);  // what was there last
    CHECK(most[timeline::columns / 2 - 1] == 9);
    CHECK(most[timeline::columns - 2] == 9);
    CHECK(most.back() == 9);  // the last stretch began with it
}

TEST_CASE("a report has the figures of its run") {
    run_result one;
    one.trace = "some/where/run.csv.gz";
    one.allocator = "a";
    one.events = 3;
    one.streams = 1;
    one.peak_live_bytes = 1000;
    one.peak_reserved_bytes = 1500;
    one.driver_us = 50;
    one.duration_us = 1000;
    const auto json = result_json(one);
    CHECK(json["trace"] == "run");
    CHECK(json["file"] == "some/where/run.csv.gz");
    CHECK(json["ratio"] == 1.5);
    CHECK_FALSE(json.contains("out_of_memory_at"));
    CHECK(results_table({one}).find("5.000 %") != std::string::npos);
    CHECK(summary_table({one}).empty());
    run_result two = one;
    two.source = 1;
    two.streams = 2;
    two.peak_reserved_bytes = 3000;
    CHECK(summary_table({one, two}).find("3.0000") != std::string::npos);
    two.out_of_memory_at = 1;
    CHECK(results_table({two}).find("none left at event 2") != std::string::npos);
    CHECK(summary_table({one, two}).find("1 of 2") != std::string::npos);
    CHECK(result_json(two)["out_of_memory_at"] == 1);
}
