// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/export/chrome_trace.hpp>
#include <xmm/resources/export/replay_csv.hpp>
#include <xmm/resources/export/rmm_csv.hpp>
#include <xmm/resources/export/torch_snapshot.hpp>

#include <doctest/doctest.h>

#include <cstdlib>
#include <limits>
#include <sstream>
#include <string>

using namespace xmm;

// The files as a whole are read back by export/check.py.

namespace {

struct trace_writer {
    recorded_trace trace;

    trace_writer() { trace.times = {.ns = 1'000'000, .wall_ns = 1'700'000'000'123'456'789}; }
    void add(trace_action action, address at, std::size_t bytes, std::uint64_t us,
             std::uint64_t stream = 0) {
        trace.events.push_back({.ns = 1'000'000 + us * 1000,
                                .at = at,
                                .bytes = bytes,
                                .stream = stream,
                                .thread = 42,
                                .action = action});
    }
};

std::string pickled(auto&& fn) {
    std::ostringstream out;
    detail::pickle_writer writer{out};
    fn(writer);
    writer.finish();
    return out.str();
}

using namespace std::string_literals;

}  // namespace

TEST_CASE("RMM's log: header, fields and numbers as its logging adaptor writes them") {
    trace_writer made;
    made.add(trace_action::segment_map, 0x7f0000000000, 1 << 21, 0);
    made.add(trace_action::allocate, 0x7f0000000200, 1000, 1, 0x55d0c0de);
    made.add(trace_action::out_of_memory, 12345, 1'000'000'000'000, 2, 0);
    made.add(trace_action::free_requested, 0x7f0000000200, 1000, 877'000);
    made.add(trace_action::free_completed, 0x7f0000000200, 1000, 877'100);
    ::setenv("TZ", "UTC", 1);
    ::tzset();
    std::ostringstream out;
    write_rmm_csv(out, made.trace);
    CHECK(out.str() ==
          "Thread,Time,Action,Pointer,Size,Stream\n"
          "42,22:13:20.123457,allocate,0x7f0000000200,1000,0x55d0c0de\n"
          "42,22:13:20.123458,allocate failure,(nil),1000000000000,0\n"
          "42,22:13:21.000456,free,0x7f0000000200,1000,0\n");
    ::unsetenv("TZ");
    ::tzset();
}

TEST_CASE(
    "a trace for replay: dense numbers, streams by first use, what was there before comes first") {
    trace_writer made;
    made.add(trace_action::snapshot, 0, 0, 1);
    made.add(trace_action::free_requested, 0x9000, 900, 10, 0xabc);  // allocated before
    made.add(trace_action::free_completed, 0x9000, 900, 10, 0xabc);
    made.add(trace_action::allocate, 0x9000, 100, 12, 0xdef);
    made.add(trace_action::allocate, 0xa000, 200, 13);
    made.add(trace_action::free_requested, 0x9000, 100, 15, 0xabc);
    made.add(trace_action::free_requested, 0xa000, 200, 16);
    made.add(trace_action::free_completed, 0xa000, 200, 16);
    made.add(trace_action::free_completed, 0x9000, 100, 20, 0xdef);
    snapshot_builder builder;
    builder.add_frame({0x8000, 0x4000}, {.stream = 0xabc});
    builder.add_block({0xb000, 0x1000}, 4000, block_state::active_allocated);
    std::ostringstream out;
    write_replay_csv(out, made.trace, builder.build());
    CHECK(out.str() ==
          "# a = allocated, r = free requested, f = free completed; sizes are those requested\n"
          "op,id,size,stream,us\n"
          "a,0,900,1,0\n"
          "a,1,4000,1,0\n"
          "f,0,900,1,0\n"
          "a,2,100,2,2\n"
          "a,3,200,0,3\n"
          "r,2,100,2,5\n"
          "f,3,200,0,6\n"
          "f,2,100,2,10\n");
}

TEST_CASE("numbers are pickled in as few bytes as the sign allows") {
    CHECK(pickled([](auto& p) { p.number(0); }) == "\x80\x02K\0."s);
    CHECK(pickled([](auto& p) { p.number(255); }) == "\x80\x02K\xff."s);
    CHECK(pickled([](auto& p) { p.number(256); }) == "\x80\x02M\0\x01."s);
    CHECK(pickled([](auto& p) { p.number(65536); }) == "\x80\x02\x8a\x03\0\0\x01."s);
    CHECK(pickled([](auto& p) { p.number(0x800000); }) == "\x80\x02\x8a\x04\0\0\x80\0."s);
    CHECK(pickled([](auto& p) { p.number(-1); }) == "\x80\x02\x8a\x01\xff."s);
    CHECK(pickled([](auto& p) { p.number(-128); }) == "\x80\x02\x8a\x01\x80."s);
    CHECK(pickled([](auto& p) { p.number(-129); }) == "\x80\x02\x8a\x02\x7f\xff."s);
    CHECK(pickled([](auto& p) { p.number(std::numeric_limits<std::int64_t>::min()); }) ==
          "\x80\x02\x8a\x08\0\0\0\0\0\0\0\x80."s);
    CHECK(pickled([](auto& p) { p.number(std::numeric_limits<std::uint64_t>::max()); }) ==
          "\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0."s);
    CHECK(pickled([](auto& p) { p.real(1.5); }) == "\x80\x02G\x3f\xf8\0\0\0\0\0\0."s);
}

TEST_CASE("a text that comes again is a reference") {
    CHECK(pickled([](auto& p) {
              p.list(std::vector{"ab", "ab"}, [&](auto s) { p.string(s); });
          }) == "\x80\x02](X\x02\0\0\0abq\0h\0e."s);
}

TEST_CASE("names are made UTF-8, and JSON strings are escaped") {
    CHECK(detail::clean_utf8("plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80") ==
          "plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
    const std::string bad = "\xef\xbf\xbd";
    CHECK(detail::clean_utf8("a\xff"
                             "b") == "a" + bad + "b");
    CHECK(detail::clean_utf8("\xc3") == bad);
    CHECK(detail::clean_utf8("\xc0\xaf") == bad + bad);            // longer than need be
    CHECK(detail::clean_utf8("\xed\xa0\x80") == bad + bad + bad);  // half a pair
    CHECK(detail::clean_utf8("\xf4\x90\x80\x80").size() == 12);    // beyond the last
    CHECK(detail::json_string("a\"b\\c\n\x01") == "\"a\\\"b\\\\c\\u000a\\u0001\"");
}

TEST_CASE("a viewer gets only what it can take back") {
    heap_snapshot end;
    snapshot_builder builder;
    builder.add_frame({0x1000, 0x1000}, {});
    builder.add_frame({0x2000, 0x1000}, {});
    builder.add_block({0x1000, 0x100}, 0x100, block_state::active_allocated);
    builder.add_block({0x1100, 0x100}, 0x100, block_state::active_pending_free);
    end.segments = builder.build();
    trace_writer made;
    std::vector<bool> fits;
    const auto add = [&](bool is_kept, trace_action action, address at, std::size_t bytes) {
        made.add(action, at, bytes, fits.size());
        fits.push_back(is_kept);
    };
    add(true, trace_action::segment_map, 0x1000, 0x1000);
    add(true, trace_action::segment_map, 0x3000, 0x1000);
    add(true, trace_action::allocate, 0x3000, 8);
    add(true, trace_action::allocate, 0x1100, 0x100);
    add(true, trace_action::free_requested, 0x3000, 8);
    add(false, trace_action::segment_map, 0x1000, 0x1000);  // a block lies there
    add(true, trace_action::free_completed, 0x3000, 8);
    add(true, trace_action::segment_unmap, 0x3000, 0x1000);
    add(true, trace_action::segment_map, 0x2000, 0x1000);
    add(false, trace_action::segment_unmap, 0x1000, 0x1000);  // is still there
    add(false, trace_action::segment_map, 0x8000, 0x1000);    // never was
    add(false, trace_action::free_completed, 0x8000, 8);      // no memory
    add(false, trace_action::free_requested, 0x1000, 0x100);  // not in the snapshot yet
    add(true, trace_action::allocate, 0x1000, 0x100);
    add(false, trace_action::free_requested, 0x1100,
        0x100);  // no block twice: the later one counts
    add(true, trace_action::free_requested, 0x1100, 0x100);
    add(true, trace_action::out_of_memory, 0, 1);
    end.trace = made.trace;
    std::vector<trace_event> expected;
    for (std::size_t i = 0; i < fits.size(); ++i) {
        if (fits[i]) {
            expected.push_back(made.trace.events[i]);
        }
    }
    CHECK(detail::viewer_history::of(end) == expected);
}

TEST_CASE("a failure is at no address: what it was recorded at are the bytes that were free") {
    heap_snapshot device;
    trace_writer made;
    made.add(trace_action::out_of_memory, 0x1234567, 300 << 20, 0);
    device.trace = made.trace;
    std::ostringstream torch, chrome;
    write_torch_snapshot(torch, device);
    write_chrome_trace(chrome, device);
    const std::size_t said = torch.str().find("device_free");
    REQUIRE(said != std::string::npos);
    CHECK(torch.str().substr(said, 20).find("\x8a\x04\x67\x45\x23\x01"s) != std::string::npos);
    CHECK(torch.str().find("addr") == std::string::npos);
    CHECK(chrome.str().find(R"("args":{"bytes":314572800,)") != std::string::npos);
    CHECK(chrome.str().find("address") == std::string::npos);
}

TEST_CASE("an empty heap is exported too") {
    std::ostringstream rmm, replay, torch, chrome;
    const heap_snapshot nothing;
    write_rmm_csv(rmm, nothing.trace);
    write_replay_csv(replay, nothing.trace, nothing.segments);
    write_torch_snapshot(torch, nothing);
    write_chrome_trace(chrome, nothing);
    CHECK(rmm.str() == "Thread,Time,Action,Pointer,Size,Stream\n");
    CHECK(replay.str().ends_with("op,id,size,stream,us\n"));
    CHECK(torch.str().front() == '\x80');
    CHECK(torch.str().back() == '.');
    CHECK(chrome.str().front() == '{');
}
