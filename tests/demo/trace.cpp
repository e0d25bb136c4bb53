// SPDX-License-Identifier: Apache-2.0
#include "../../tools/demo/trace.hpp"

#include <doctest/doctest.h>

#include "support.hpp"

using namespace xmm::demo;
using namespace xmm::demo::testing;

namespace {

std::string error_of(const std::string& text) {
    temporary_folder folder;
    const std::string path = folder.file("t.csv");
    write_file(path, text);
    std::string what = bad_input_of([&] { (void)read_trace(path); });
    // Without the folder, so that tests can name the whole message.
    const std::size_t at = what.find("t.csv");
    return at == std::string::npos ? what : what.substr(at);
}

constexpr const char* small =
    "# "
    "comment\na,0,100,0,3\r\na,1,50,7,10\nf,0,100,0,12\n\na,0,25,0,13\nr,1,50,7,14\nf,1,50,7,15\n";

}  // namespace

TEST_CASE("a trace is read, plain and gzipped alike") {
    temporary_folder folder;
    write_file(folder.file("plain.csv"), small);
    write_gzip(folder.file("packed.csv.gz"), small);
    for (const char* name : {"plain.csv", "packed.csv.gz"}) {
        CAPTURE(name);
        const trace one = read_trace(folder.file(name));
        REQUIRE(one.events.size() == 6);
        CHECK(one.blocks == 3);
        CHECK(one.peak_bytes == 150);
        CHECK(one.total_bytes == 175);
        CHECK(one.events[0].op == trace_op::allocate);
        CHECK(one.events[0].bytes == 100);
        CHECK(one.events[0].microseconds == 3);
        CHECK(one.events[1].stream == 7);
        CHECK(one.events[2].op == trace_op::free_done);
        CHECK(one.events[2].block == 0);
        CHECK(one.events[3].block == 2);  // the id came back, the block is another
        CHECK(one.events[4].op == trace_op::free_requested);
        CHECK(one.events[5].block == 1);
    }
}

TEST_CASE("the last line needs no line end") {
    temporary_folder folder;
    write_file(folder.file("t.csv"), "a,0,1,0,0");
    CHECK(read_trace(folder.file("t.csv")).events.size() == 1);
}

TEST_CASE("the names of the fields may stand above them, once") {
    temporary_folder folder;
    write_file(folder.file("t.csv"), "# mine\nop,id,size,stream,us\na,0,1,0,0\n");
    CHECK(read_trace(folder.file("t.csv")).events.size() == 1);
    CHECK(error_of("a,0,1,0,0\nop,id,size,stream,us\n") ==
          "t.csv:2: unknown operation 'op': expected a, f or r");
}

TEST_CASE("malformed lines are refused with file, line and reason") {
    CHECK(error_of("a,0,100,0,3\nx,0,100,0,3\n") ==
          "t.csv:2: unknown operation 'x': expected a, f or r");
    CHECK(error_of("a,0,100,0\n") == "t.csv:1: 4 of the 5 fields op,id,size,stream,us");
    CHECK(error_of("a,0,100,0,1,9\n") == "t.csv:1: more than the 5 fields op,id,size,stream,us");
    CHECK(error_of("a,0,ten,0,1\n") == "t.csv:1: size 'ten' is not a number");
    CHECK(error_of("a,0,-1,0,1\n") == "t.csv:1: size '-1' is not a number");
    CHECK(error_of("a,0,1x,0,1\n") == "t.csv:1: size '1x' is not a number");
    CHECK(error_of("a,,1,0,1\n") == "t.csv:1: id '' is not a number");
    CHECK(error_of("a,0,99999999999999999999,0,1\n") ==
          "t.csv:1: size '99999999999999999999' is too large");
    CHECK(error_of("a,0,99999999999999999,0,1\n") ==
          "t.csv:1: size '99999999999999999' is too large");
    CHECK(error_of("a,0,1,4294967296,1\n") == "t.csv:1: stream '4294967296' is too large");
    CHECK(error_of("a,0,0,0,1\n") == "t.csv:1: a block of 0 bytes");
    CHECK(error_of("# c\n\n" + std::string(600, 'a')) ==
          "t.csv:3: the line is longer than 512 characters; is this a trace?");
}

TEST_CASE("streams of events that cannot be are refused") {
    CHECK(error_of("a,0,1,0,1\na,0,1,0,1\n") ==
          "t.csv:2: block 0 is allocated again while it is alive");
    CHECK(error_of("f,5,1,0,1\n") == "t.csv:1: block 5 is freed but not alive");
    CHECK(error_of("a,0,1,0,1\nf,0,1,0,1\nf,0,1,0,1\n") ==
          "t.csv:3: block 0 is freed but not alive");
    CHECK(error_of("a,0,1,0,1\nf,0,2,0,1\n") == "t.csv:2: block 0 is freed with 2 bytes but has 1");
    CHECK(error_of("a,0,1,0,1\nr,0,1,0,1\nr,0,1,0,1\n") == "t.csv:3: block 0 is let go of twice");
    CHECK(error_of("") == "t.csv: no events; expected lines op,id,size,stream,us");
    CHECK(error_of("# only a comment\n") ==
          "t.csv: no events; expected lines op,id,size,stream,us");
}

TEST_CASE("damaged and missing files are refused") {
    temporary_folder folder;
    CHECK(bad_input_of([&] {
              (void)read_trace(folder.file("none"));
          }).find("cannot be opened: No such file") != std::string::npos);
    CHECK(bad_input_of([&] { (void)read_trace(folder.file(".")); }) != "");

    std::string text;
    for (int i = 0; i < 20000; ++i) {
        text += fmt::format("a,{},{},0,{}\n", i, i * 7919 % 100000 + 1, i);
    }
    write_gzip(folder.file("whole.gz"), text);
    const std::string packed = read_file(folder.file("whole.gz"));
    REQUIRE(read_trace(folder.file("whole.gz")).events.size() == 20000);
    for (const std::size_t kept :
         {packed.size() - 1, packed.size() - 8, packed.size() / 2, std::size_t{30}}) {
        CAPTURE(kept);
        write_file(folder.file("cut.gz"), packed.substr(0, kept));
        CHECK(bad_input_of([&] {
                  (void)read_trace(folder.file("cut.gz"));
              }).find("the gzip data is cut short") != std::string::npos);
    }
    std::string wrong_sum = packed;
    wrong_sum[packed.size() - 6] ^= 0x55;
    write_file(folder.file("sum.gz"), wrong_sum);
    CHECK(bad_input_of([&] {
              (void)read_trace(folder.file("sum.gz"));
          }).find("the gzip data is corrupt") != std::string::npos);
    std::string flipped = packed;
    for (std::size_t i = packed.size() / 2; i < packed.size() / 2 + 64; ++i) {
        flipped[i] ^= 0x2a;
    }
    write_file(folder.file("flip.gz"), flipped);
    CHECK(bad_input_of([&] { (void)read_trace(folder.file("flip.gz")); }) != "");
}
