// SPDX-License-Identifier: Apache-2.0
#include "../../tools/replay/read_rmm.hpp"

#include <doctest/doctest.h>

#include <sstream>

#include <xmm/resources/adaptors/logging_resource.hpp>
#include <xmm/resources/export/rmm_csv.hpp>
#include <xmm/resources/host_resource.hpp>

#include "../../tools/replay/read_trace.hpp"
#include "support.hpp"

using namespace xmm::trace_replay;
using namespace xmm::trace_replay::testing;

namespace {

trace read(const std::string& text) {
    const auto all = parse_trace("t", text);
    REQUIRE(all.size() == 1);
    return all[0];
}
std::string rmm_error_of(const std::string& text) {
    return bad_input_of([&] { (void)parse_trace("t", text); });
}
const std::string head = "Thread,Time,Action,Pointer,Size,Stream\n";

}  // namespace

TEST_CASE("RMM's log of today is read") {
    const trace one = read(head +
                           "77,23:59:59.999990,allocate,0x7f00,1048576,0x0\n"
                           "77,23:59:59.999995,allocate failure,0x0,999999999999,0x0\n"
                           "78,00:00:00.000010,allocate,0x8f00,2048,0x55aa10\n"
                           "78,00:00:00.000011,allocate,(nil),0,0x0\n"
                           "78,00:00:00.000011,free,(nil),0,0x0\n"
                           "78,00:00:00.000020,free,0x7f00,1048576,0x0\n");
    CHECK(one.form == "rmm");
    REQUIRE(one.events.size() == 3);
    CHECK(one.events[0].bytes == 1048576);
    CHECK(one.events[1].microseconds - one.events[0].microseconds == 20);  // past midnight
    CHECK(one.events[2].microseconds - one.events[0].microseconds == 30);
    CHECK(one.streams == std::vector<std::uint64_t>{0, 0x55aa10});
    CHECK(one.peak_live_bytes == 1048576 + 2048);
    CHECK_FALSE(one.has_requests);
}

TEST_CASE("older logs of RMM are read: colons before the microseconds, the event log of 0.13") {
    const trace colons = read(head +
                              "1,10:11:12:000005,allocate,0x1000,64,0\n"
                              "1,10:11:13:000006,free,0x1000,64,0\n");
    CHECK(colons.duration_us() == 1'000'001);
    const trace seconds = read(head +
                               "1,1634567890.123456,allocate,0x1000,64,0\n"
                               "1,1634567891.5,free,0x1000,64,0\n");
    CHECK(seconds.duration_us() == 1'376'544);
    const trace old = read(
        "Event Type,Device ID,Address,Stream,Size (bytes),Free Memory,Total Memory,"
        "Current Allocs,Start,End,Elapsed,Location\n"
        "Alloc,0,0x7fae06600000,0,80,0,0,1,1.10549,1.1074,0.00191666,a.py:683\n"
        "Free,0,0x7fae06600000,0,0,0,0,0,1.10798,1.10921,0.00122,a.py, line 9\n");
    REQUIRE(old.events.size() == 2);
    CHECK(old.events[1].bytes == 80);
    CHECK(old.duration_us() == 2490);
}

TEST_CASE("columns may stand in another order, quoted") {
    const trace one = read(
        "\"Time\",\"Pointer\",\"Action\",\"Size\"\n00:00:01.0,\"0x10\",\"allocate\",5\n"
        "00:00:02,0x10,free,5\n");
    CHECK(one.events.size() == 2);
    CHECK(one.duration_us() == 1'000'000);
}

TEST_CASE("what xmm's logging_resource writes is read") {
    temporary_folder folder;
    {
        xmm::host_resource upstream;
        xmm::logging_resource log{upstream, folder.file("log").c_str()};
        void* a = log.allocate(1000, 8);
        void* b = log.allocate(70000, 64);
        log.deallocate(a, 1000, 8);
        log.deallocate(b, 70000, 64);
        log.flush();
    }
    const auto all = read_traces(folder.file("log"));
    REQUIRE(all.size() == 1);
    CHECK(all[0].events.size() == 4);
    CHECK(all[0].peak_live_bytes == 71000);
}

TEST_CASE("a block that was there before the log is allocated when it begins") {
    const trace one = read(head +
                           "1,00:00:01.0,allocate,0x1000,64,0\n"
                           "1,00:00:02.0,free,0x2000,100,0x7\n"
                           "1,00:00:03.0,allocate,0x2000,8,0\n"
                           "1,00:00:04.0,free,0x2000,8,0\n");
    REQUIRE(one.events.size() == 5);
    CHECK(one.duration_us() == 3'000'000);
    CHECK(one.peak_live_bytes == 164);
    CHECK(one.streams.size() == 2);
    // As a heap of ours writes it: recorded from the middle, and sizes of frees as served.
    xmm::recorded_trace made;
    made.times = {.ns = 1000, .wall_ns = 1'700'000'000'000'000'000};
    const auto add = [&](xmm::trace_action action, xmm::address at, std::size_t bytes,
                         std::uint64_t ns) {
        made.events.push_back({.ns = ns, .at = at, .bytes = bytes, .action = action});
    };
    add(xmm::trace_action::free_completed, 0x3000, 512, 1000);
    add(xmm::trace_action::allocate, 0x1000, 100, 2000);
    add(xmm::trace_action::free_requested, 0x2000, 512, 3000);
    add(xmm::trace_action::free_completed, 0x2000, 512, 3000);
    add(xmm::trace_action::free_requested, 0x1000, 256, 4000);
    add(xmm::trace_action::allocate, 0x3000, 50, 5000);
    xmm::snapshot_segment kept;
    kept.blocks.push_back({{0x4000, 1024}, 1000, xmm::block_state::active_allocated});
    kept.blocks.push_back({{0x3000, 256}, 50, xmm::block_state::active_allocated});
    std::ostringstream log;
    xmm::write_rmm_csv(log, made, {&kept, 1});
    const trace own = read(log.str());
    CHECK(own.blocks == 4);
    CHECK(own.events.size() == 6);
    CHECK(own.peak_live_bytes == 1000 + 512 + 100);
}

TEST_CASE("a bad line of a log is refused with its number and the reason") {
    CHECK(rmm_error_of(head) == "t: no allocation in this log");
    CHECK(rmm_error_of(head + "1,00:00:00.1,alloc,0x1,5,0\n") ==
          "t:2: unknown action 'alloc': expected allocate, allocate failure or free");
    CHECK(rmm_error_of(head + "1,00:00:00.1,allocate,0x1,5\n") ==
          "t:2: 5 of the 6 fields of the first line");
    CHECK(rmm_error_of(head + "1,00:00:00.1,allocate,0x1,5,0,9\n") ==
          "t:2: more than the 6 fields of the first line");
    CHECK(rmm_error_of(head + "1,yesterday,allocate,0x1,5,0\n") ==
          "t:2: time 'yesterday' is neither hh:mm:ss.ffffff nor seconds");
    CHECK(rmm_error_of(head + "1,25:00:00.1,allocate,0x1,5,0\n") ==
          "t:2: time '25:00:00.1' is neither hh:mm:ss.ffffff nor seconds");
    CHECK(rmm_error_of(head + "1,00:00:00.1,allocate,0xzz,5,0\n") ==
          "t:2: pointer '0xzz' is not an address");
    CHECK(rmm_error_of(head + "1,00:00:00.1,allocate,0x0,5,0\n") ==
          "t:2: an allocation without an address");
    CHECK(rmm_error_of(head + "1,00:00:00.1,allocate,0x1,5,0\n1,00:00:00.1,allocate,0x1,5,0\n") ==
          "t:3: block 0x1: is allocated again while it is alive");
    CHECK(rmm_error_of(head + "1,00:00:00.1,free,0x1,5,0\n1,00:00:00.1,free,0x1,5,0\n") ==
          "t:3: block 0x1: is freed but not alive");
    CHECK(rmm_error_of(head + "1,00:00:00.1,allocate,0x1,5,0\n1,00:00:00.1,free,0x1,6,0\n") ==
          "t:3: block 0x1: is freed with 6 bytes but has 5");
}
