// SPDX-License-Identifier: Apache-2.0
#include "../../tools/replay/read_csv.hpp"

#include <doctest/doctest.h>

#include "../../tools/replay/generate.hpp"
#include "../../tools/replay/read_trace.hpp"
#include "support.hpp"

using namespace xmm::trace_replay;
using namespace xmm::trace_replay::testing;

namespace {

std::string csv_error_of(const std::string& text) {
    return bad_input_of([&] { (void)parse_trace("t", text); });
}

constexpr const char* small =
    "# "
    "comment\nop,id,size,stream,us\na,0,100,0,3\r\na,1,50,7,10\nf,0,100,0,12\n\na,0,25,0,11\nr,1,"
    "50,7,14\nf,1,50,7,15\n";

}  // namespace

TEST_CASE("a CSV is read, plain and gzipped alike") {
    temporary_folder folder;
    write_bytes(folder.file("plain"), small);
    write_gzip(folder.file("packed"), small);
    for (const char* name : {"plain", "packed"}) {
        CAPTURE(name);
        const auto all = read_traces(folder.file(name));
        REQUIRE(all.size() == 1);
        const trace& one = all[0];
        CHECK(one.form == "csv");
        REQUIRE(one.events.size() == 6);
        CHECK(one.blocks == 3);
        CHECK(one.peak_live_bytes == 150);
        CHECK(one.has_requests);
        CHECK(one.streams == std::vector<std::uint64_t>{0, 7});
        CHECK(one.events[1].stream == 1);
        CHECK(one.events[2].op == trace_op::free_completed);
        CHECK(one.events[3].block == 2);          // the id came back, the block is another
        CHECK(one.events[3].microseconds == 12);  // time stands still where a line is late
        CHECK(one.events[4].op == trace_op::free_requested);
        CHECK(one.events[5].block == 1);
        CHECK(one.duration_us() == 12);
    }
}

TEST_CASE("a bad line of a CSV is refused with its number and the reason") {
    CHECK(csv_error_of("") == "t: is empty");
    CHECK(csv_error_of("# nothing\n") == "t: no events; expected lines op,id,size,stream,us");
    CHECK(csv_error_of("a,0,1,0,3\nx,0,1,0,3\n") ==
          "t:2: unknown operation 'x': expected a, f or r");
    CHECK(csv_error_of("a,0,1,0\n") == "t:1: 4 of the 5 fields op,id,size,stream,us");
    CHECK(csv_error_of("a,0,1,0,1,9\n") == "t:1: more than the 5 fields op,id,size,stream,us");
    CHECK(csv_error_of("a,0,-1,0,1\n") == "t:1: size '-1' is not a number");
    CHECK(csv_error_of("a,0,1x,0,1\n") == "t:1: size '1x' is not a number");
    CHECK(csv_error_of("a,0,99999999999999999999,0,1\n") ==
          "t:1: size '99999999999999999999' is too large");
    CHECK(csv_error_of("a,0,0,0,1\n") == "t:1: block 0: a block of 0 bytes");
    CHECK(csv_error_of("a,0,99999999999999999,0,1\n") ==
          "t:1: block 0: a block of 99999999999999999 bytes is too large");
    CHECK(csv_error_of("a,0,1,0,1\na,0,1,0,1\n") ==
          "t:2: block 0: is allocated again while it is alive");
    CHECK(csv_error_of("f,4,1,0,1\n") == "t:1: block 4: is freed but not alive");
    CHECK(csv_error_of("a,0,1,0,1\nf,0,2,0,1\n") ==
          "t:2: block 0: is freed with 2 bytes but has 1");
    CHECK(csv_error_of("a,0,1,0,1\nr,0,1,0,1\nr,0,1,0,1\n") == "t:3: block 0: is let go of twice");
    CHECK(csv_error_of("a,\x1b[2J,1,0,1\n") == "t:1: id '?[2J' is not a number");
    CHECK(csv_error_of("a,0," + std::string(5000, '1') + ",0,1\n") ==
          "t:1: the line is longer than 4096 characters; is this a trace?");
    CHECK(csv_error_of("PK\x03\x04zip").find("pickle.dump") != std::string::npos);
}

TEST_CASE("a damaged archive is refused") {
    temporary_folder folder;
    std::string text = "a,0,1,0,0\n";
    for (int i = 1; i < 20000; ++i) {
        text += fmt::format("a,{},{},0,{}\n", i, i * 7919 % 100003 + 1, i);
    }
    write_gzip(folder.file("whole"), text);
    std::string packed;
    {
        std::ifstream file{folder.file("whole"), std::ios::binary};
        packed.assign(std::istreambuf_iterator<char>{file}, {});
    }
    const auto error_of_file = [&] {
        return bad_input_of([&] { (void)read_traces(folder.file("damaged")); });
    };
    write_bytes(folder.file("damaged"), packed.substr(0, packed.size() / 2));
    CHECK(error_of_file().find("cut short") != std::string::npos);
    packed[packed.size() / 2] = static_cast<char>(packed[packed.size() / 2] ^ 0x55);
    write_bytes(folder.file("damaged"), packed);
    CHECK(error_of_file().find("damaged: after") != std::string::npos);
    CHECK(bad_input_of([&] {
              (void)read_file(folder.file("whole"), 1000);
          }).find("holds more than 1000 bytes") != std::string::npos);
    CHECK(bad_input_of([&] { (void)read_file(folder.file("")); }).find("is a folder") !=
          std::string::npos);
    CHECK(bad_input_of([&] { (void)read_file(folder.file("none")); }).find("cannot be opened") !=
          std::string::npos);
}

TEST_CASE("made-up loads are the same each time, and the same when read back") {
    for (const std::string& name : generator_names()) {
        CAPTURE(name);
        const trace first = generate_trace(name);
        const trace again = generate_trace(name + ":1");
        const trace other = generate_trace(name + ":2");
        const std::string text = trace_as_csv(first);
        CHECK(text == trace_as_csv(again));
        CHECK(text != trace_as_csv(other));
        CHECK(first.events.size() > 5000);
        const trace read = read_csv("t", text);
        REQUIRE(read.events.size() == first.events.size());
        CHECK(read.streams == first.streams);
        CHECK(read.peak_live_bytes == first.peak_live_bytes);
        CHECK(read.has_requests == first.has_requests);
        bool is_same = true;
        for (std::size_t i = 0; i < read.events.size(); ++i) {
            const trace_event &a = read.events[i], &b = first.events[i];
            is_same = is_same && a.op == b.op && a.block == b.block && a.bytes == b.bytes &&
                      a.stream == b.stream && a.microseconds == b.microseconds;
        }
        CHECK(is_same);
    }
    CHECK(generate_trace("tiny").peak_live_bytes < 25u << 20);
    CHECK(generate_trace("days").duration_us() > std::uint64_t{71} * 3600 * 1'000'000);
    CHECK(generate_trace("threads").streams.size() > 16);
    CHECK(bad_input_of([] { (void)generate_trace("none"); }).find("no load 'none'") !=
          std::string::npos);
    CHECK(bad_input_of([] { (void)generate_trace("tiny:x"); }).find("'x' is not a seed") !=
          std::string::npos);
}
