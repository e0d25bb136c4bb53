// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/trace_recorder.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <xmm/os/registry.hpp>

using namespace xmm;

TEST_CASE("nothing is recorded until it is started, nor after it is stopped") {
    trace_recorder recorder;
    CHECK(!recorder.is_on());
    recorder.record(trace_action::allocate, 0x1000, 10);
    CHECK(recorder.count() == 0);
    CHECK(recorder.trace().events.empty());

    REQUIRE(recorder.start(8).is_ok());
    CHECK(recorder.is_on());
    recorder.record(trace_action::allocate, 0x2000, 20, 7, 3);
    recorder.stop();
    recorder.record(trace_action::allocate, 0x3000, 30);

    const recorded_trace trace = recorder.trace();
    REQUIRE(trace.events.size() == 1);
    const trace_event& event = trace.events[0];
    CHECK(event.at == 0x2000);
    CHECK(event.bytes == 20);
    CHECK(event.stream == 7);
    CHECK(event.tag == 3);
    CHECK(event.action == trace_action::allocate);
    CHECK(event.thread == static_cast<std::uint32_t>(::gettid()));
    CHECK(event.ns >= trace.times.ns);
    CHECK(trace.lost == 0);

    REQUIRE(recorder.start(8).is_ok());
    CHECK(recorder.trace().events.empty());
}

TEST_CASE("a full ring forgets the oldest and says how many") {
    trace_recorder recorder;
    REQUIRE(recorder.start(5).is_ok());
    for (std::size_t i = 0; i < 12; ++i) {
        recorder.record(trace_action::segment_map, 0x1000 + i, 1);
    }
    const recorded_trace trace = recorder.trace();
    REQUIRE(trace.events.size() == 5);
    CHECK(trace.lost == 7);
    for (std::size_t i = 0; i < 5; ++i) {
        CHECK(trace.events[i].at == 0x1000 + 7 + i);
    }
}

TEST_CASE("no ring, or one beyond all measure, is refused and nothing changes") {
    trace_recorder recorder;
    CHECK(recorder.start(0).code == errc::invalid_argument);
    CHECK(recorder.start(~std::size_t{}).code == errc::invalid_argument);
    CHECK(!recorder.is_on());
    REQUIRE(recorder.start(4).is_ok());
    recorder.record(trace_action::snapshot, 0, 0);
    CHECK(!recorder.start(0));
    CHECK(recorder.is_on());
    CHECK(recorder.count() == 1);
}

TEST_CASE("a free has the size of its allocation") {
    trace_recorder recorder;
    REQUIRE(recorder.start(16).is_ok());
    recorder.record(trace_action::free_requested, 0x1000, 512);  // allocated before
    recorder.record(trace_action::free_completed, 0x1000, 512);
    recorder.record(trace_action::allocate, 0x1000, 300);
    recorder.record(trace_action::free_requested, 0x1000, 512);
    recorder.record(trace_action::free_completed, 0x1000, 512);
    recorder.record(trace_action::allocate, 0x1000, 77);
    recorder.record(trace_action::free_requested, 0x1000, 512);
    std::vector<std::size_t> bytes;
    for (const trace_event& event : recorder.trace().events) {
        bytes.push_back(event.bytes);
    }
    CHECK(bytes == std::vector<std::size_t>{512, 512, 300, 300, 300, 77, 77});
}

TEST_CASE("events of many threads are in the order of their times, also while they are copied") {
    constexpr int threads = 3;
    constexpr std::size_t each = 3000;
    trace_recorder recorder;
    REQUIRE(recorder.start(each).is_ok());
    std::atomic<int> running{threads};
    std::vector<std::thread> writers;
    for (int t = 0; t < threads; ++t) {
        writers.emplace_back([&, t] {
            for (std::size_t i = 0; i < each; ++i) {
                recorder.record(trace_action::segment_map, address{1} + static_cast<address>(t), i);
            }
            running.fetch_sub(1);
        });
    }
    const auto is_ordered = [](const recorded_trace& trace) {
        std::vector<std::size_t> next(threads + 1);
        for (std::size_t i = 0; i < trace.events.size(); ++i) {
            const trace_event& event = trace.events[i];
            const bool is_later =
                (i == 0 || trace.events[i - 1].ns <= event.ns) && event.bytes >= next[event.at];
            next[event.at] = event.bytes + 1;
            if (!is_later) {
                return false;
            }
        }
        return true;
    };
    bool is_sound = true;
    while (running.load() != 0) {
        is_sound = is_sound && is_ordered(recorder.trace());
        std::this_thread::yield();
    }
    for (std::thread& writer : writers) {
        writer.join();
    }
    const recorded_trace trace = recorder.trace();
    CHECK(is_sound);
    CHECK(is_ordered(trace));
    CHECK(trace.events.size() == each);
    CHECK(trace.lost == each * (threads - 1));
}

TEST_CASE("a child of fork records nothing, finds nothing and is told so") {
    static_cast<void>(registry::is_forked_child());  // the registry is this process's
    trace_recorder recorder;
    REQUIRE(recorder.start(8).is_ok());
    recorder.record(trace_action::allocate, 0x1000, 10);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::alarm(20);
        recorder.record(trace_action::allocate, 0x2000, 10);
        bool is_well = !recorder.is_on() && recorder.count() == 0;
        is_well = is_well && recorder.trace().events.empty();
        is_well = is_well && recorder.start(8).code == errc::forked;
        recorder.stop();
        ::_exit(is_well ? 0 : 1);
    }
    int how = -1;
    CHECK(::waitpid(child, &how, 0) == child);
    CHECK(how == 0);
    CHECK(recorder.count() == 1);
}
