// SPDX-License-Identifier: Apache-2.0
#include "../../tools/replay/read_snapshot.hpp"

#include <doctest/doctest.h>

#include "../../tools/replay/read_trace.hpp"
#include "support.hpp"

using namespace xmm::trace_replay;
using namespace xmm::trace_replay::testing;

namespace {

constexpr std::uint64_t base = 0x7f0000000000;

std::string snapshot_error_of(const std::string& bytes) {
    return bad_input_of([&] { (void)parse_trace("t", bytes); });
}

}  // namespace

TEST_CASE("every plain value of a pickle is read") {
    pickler out;
    out.list()
        .op('N')
        .op(0x88)
        .op(0x89)
        .op('K')
        .little(255, 1)
        .op('M')
        .little(65535, 2)
        .op('J')
        .little(0xffffffff, 4)
        .op(0x8a)
        .little(0, 1)
        .op(0x8a)
        .little(2, 1)
        .raw("\xff\xff")
        .op(0x8a)
        .little(9, 1)
        .little(0x8000000000000000u, 8)
        .little(0, 1)
        .op(0x8b)
        .little(8, 4)
        .little(base, 8)
        .op('G')
        .raw(std::string_view{"\x3f\xf8\0\0\0\0\0\0", 8})
        .op('X')
        .little(2, 4)
        .raw("ab")
        .op(0x8d)
        .little(3, 8)
        .raw("cde")
        .op('U')
        .little(1, 1)
        .raw("f")
        .op('C')
        .little(1, 1)
        .raw("g")
        .op('(')
        .op('K')
        .little(1, 1)
        .op('t')
        .op('N')
        .op('N')
        .op('N')
        .op(0x87)
        .op(')')
        .end_list();
    const std::string bytes = out.done();
    const pickle data = pickle::parse("t", bytes);
    const auto& items = data.items(data.root());
    REQUIRE(items.size() == 18);
    CHECK(items[0].what == pickle::kind::none);
    CHECK(items[1].bits == 1);
    CHECK(items[2].bits == 0);
    CHECK(pickle::integer(items[3]) == 255);
    CHECK(pickle::integer(items[4]) == 65535);
    CHECK(pickle::integer(items[5]) == -1);
    CHECK(pickle::integer(items[6]) == 0);
    CHECK(pickle::integer(items[7]) == -1);
    CHECK(items[8].what == pickle::kind::large_integer);
    CHECK(pickle::integer(items[9]) == base);
    CHECK(std::bit_cast<double>(items[10].bits) == 1.5);
    CHECK(data.text(items[11]) == "ab");
    CHECK(data.text(items[12]) == "cde");
    CHECK(data.text(items[13]) == "f");
    CHECK(items[14].what == pickle::kind::bytes);
    CHECK(data.items(items[15]).size() == 1);
    CHECK(data.items(items[16]).size() == 3);
    CHECK(data.items(items[17]).empty());
}

TEST_CASE("shared parts and later keys are as in Python") {
    // [x, x] with x remembered; {k: 1, k: 2}
    pickler out;
    out.list().list().op('N').end_list().op(0x94).op('h').little(0, 1);
    out.dictionary().text("k").number(1).text("k").number(2).end_dictionary().end_list();
    const std::string bytes = out.done();
    const pickle data = pickle::parse("t", bytes);
    const auto& items = data.items(data.root());
    REQUIRE(items.size() == 3);
    CHECK(items[0].bits == items[1].bits);
    CHECK(pickle::integer(*data.find(items[2], "k")) == 2);
    CHECK_FALSE(data.find(items[2], "other"));
    CHECK_FALSE(data.find(items[0], "k"));
}

TEST_CASE("a pickle that would run code, or is damaged, is refused with its offset") {
    const auto error = [](const pickler& one) { return snapshot_error_of(one.done()); };
    CHECK(error(pickler{}.raw("cos\nsystem\n")).starts_with("t: byte 2: opcode GLOBAL loads or"));
    CHECK(error(pickler{}.text("os").text("system").op(0x93)).find("STACK_GLOBAL") !=
          std::string::npos);
    for (const auto& [opcode, name] : {std::pair{int{'R'}, "REDUCE"},
                                       {int{'b'}, "BUILD"},
                                       {int{'i'}, "INST"},
                                       {int{'o'}, "OBJ"},
                                       {0x81, "NEWOBJ"},
                                       {0x92, "NEWOBJ_EX"},
                                       {0x82, "EXT"},
                                       {int{'P'}, "PERSID"},
                                       {int{'Q'}, "BINPERSID"},
                                       {0x97, "NEXT_BUFFER"},
                                       {0x98, "READONLY_BUFFER"}}) {
        CAPTURE(name);
        CHECK(error(pickler{}.op('N').op(opcode)).find(fmt::format("byte 3: opcode {} ", name)) !=
              std::string::npos);
    }
    CHECK(error(pickler{1}.op('N')) == "t: byte 0: protocol 1 is not one of 2 to 5");
    CHECK(error(pickler{6}.op('N')) == "t: byte 0: protocol 6 is not one of 2 to 5");
    CHECK(error(pickler{}) == "t: byte 2: a value is missing");
    CHECK(error(pickler{}.op('N').op('N')) == "t: byte 4: values are left over at the end");
    CHECK(error(pickler{}.op('e')) == "t: byte 2: a mark is missing");
    CHECK(error(pickler{}.op('N').op('(').op('e')) == "t: byte 4: an item for what is no list");
    CHECK(error(pickler{}.op('N').op('(').op('a')) == "t: byte 4: a value is missing");
    CHECK(error(pickler{}.op('}').op('(').op('N').op('u')) == "t: byte 5: a key without a value");
    CHECK(error(pickler{}.op(']').op('N').op('N').op('s')) ==
          "t: byte 5: a key for what is no dictionary");
    CHECK(error(pickler{}.op('h').little(3, 1)) == "t: byte 2: recalls what was never remembered");
    CHECK(error(pickler{}.op('X').little(0xffffffff, 4)) == "t: byte 2: the pickle is cut short");
    CHECK(error(pickler{}.op(0x8d).little(UINT64_MAX, 8)) == "t: byte 2: the pickle is cut short");
    CHECK(error(pickler{}.op(0x95).little(1000, 8)) == "t: byte 2: the pickle is cut short");
    CHECK(error(pickler{}.op(0x8b).little(0xfffffff0, 4)) ==
          "t: byte 2: an integer of negative length");
    CHECK(error(pickler{}.op('7')) == "t: byte 2: unknown opcode 0x37");
    CHECK(error(pickler{}.raw(std::string(2000, '('))) == "t: byte 1002: nested too deeply");
    const std::string whole = pickler{}.list().text("abc").number(base).end_list().done();
    for (std::size_t size = 1; size < whole.size(); ++size) {
        CAPTURE(size);
        CHECK_FALSE(snapshot_error_of(whole.substr(0, size)).empty());
    }
}

TEST_CASE("a list that holds itself is no trap") {
    // The root is a list that is its own item; then the same as device_traces.
    CHECK(snapshot_error_of(pickler{}.op(']').op(0x94).op('h').little(0, 1).op('a').done()) ==
          "t: no device_traces: not what torch.cuda.memory._snapshot() returns");
    CHECK(snapshot_error_of(pickler{}
                                .dictionary()
                                .text("device_traces")
                                .op(']')
                                .op(0x94)
                                .op('h')
                                .little(0, 1)
                                .op('a')
                                .end_dictionary()
                                .done()) == "t: device_traces[0][0]: an entry without an action");
}

TEST_CASE("lists that are named again and again come to no more than the file has bytes") {
    const auto with = [](int pairs, int devices) {
        pickler out;
        out.dictionary().text("device_traces").list();
        out.list().event("alloc", base, 8, 0, 0).op('q').little(1, 1);
        out.event("free_completed", base, 8, 0, 0).op('q').little(2, 1);
        for (int i = 1; i < pairs; ++i) {
            out.op('h').little(1, 1).op('h').little(2, 1);
        }
        out.end_list().op('q').little(3, 1);
        for (int i = 1; i < devices; ++i) {
            out.op('h').little(3, 1);
        }
        return out.end_list().end_dictionary().done();
    };
    CHECK(parse_trace("t", with(10000, 1)).front().events.size() == 20000);
    CHECK(parse_trace("t", with(10000, 2)).size() == 2);
    CHECK(snapshot_error_of(with(10000, 3)) ==
          "t: more entries, segments and blocks than the file has bytes: lists that are named "
          "again and again");
    CHECK(parse_trace("t", with(1, 128)).size() == 128);
    CHECK(snapshot_error_of(with(1, 129)) == "t: device_traces of 129 devices: more than 128");
}

TEST_CASE("a snapshot is read: earlier blocks, two devices, two steps of a free") {
    pickler out;
    out.dictionary().text("device_traces").list();
    out.list()
        .event("segment_alloc", base, 2 << 20, 0, 1000)
        .event("alloc", base, 1000, 0, 1000)
        .event("free_requested", base + 4096, 500, 3, 1002)  // was there before the history
        .event("free_completed", base + 4096, 500, 3, 1010)
        .event("free_requested", base, 1000, 0, 1011)
        .event("alloc", base + 8192, 7, 3, 1012)
        .event("free_completed", base, 1000, 0, 1020)
        .event("snapshot", 0, 0, 0, 1021)
        .end_list();
    out.list().end_list();
    out.list().event("alloc", base, 64, 0, 5).end_list();
    out.end_list().text("segments").list();
    out.dictionary()
        .text("device")
        .number(0)
        .text("address")
        .number(base)
        .text("stream")
        .number(9)
        .text("blocks")
        .list()
        .dictionary()
        .text("size")
        .number(8192)
        .text("state")
        .text("inactive")
        .end_dictionary()
        .dictionary()
        .text("size")
        .number(512)
        .text("requested_size")
        .number(7)
        .text("state")
        .text("active_allocated")
        .end_dictionary()
        .dictionary()
        .text("size")
        .number(1024)
        .text("requested_size")
        .number(900)
        .text("state")
        .text("active_allocated")
        .end_dictionary()
        .end_list()
        .end_dictionary()
        .end_list()
        .end_dictionary();
    const auto all = parse_trace("t", out.done());
    REQUIRE(all.size() == 2);
    const trace& one = all[0];
    CHECK(one.name == "t:device0");
    CHECK(all[1].name == "t:device2");
    CHECK(one.form == "snapshot");
    REQUIRE(one.events.size() == 8);
    CHECK(one.events[0].op == trace_op::allocate);  // 500 bytes, by its free
    CHECK(one.events[0].bytes == 500);
    CHECK(one.events[0].microseconds == 0);
    CHECK(one.events[1].bytes == 900);  // by the segment; the block of 7 bytes is in the history
    CHECK(one.streams == std::vector<std::uint64_t>{3, 9, 0});
    CHECK(one.events[3].op == trace_op::free_requested);
    CHECK(one.events[3].microseconds == 2);
    CHECK(one.duration_us() == 20);
    CHECK(one.peak_live_bytes == 500 + 900 + 1000);
}

TEST_CASE("a snapshot that contradicts itself is refused with the entry") {
    const auto with = [](const pickler& events) {
        std::string body = events.done();
        body = body.substr(2, body.size() - 3);
        return pickler{}
            .dictionary()
            .text("device_traces")
            .list()
            .list()
            .raw(body)
            .end_list()
            .end_list()
            .end_dictionary()
            .done();
    };
    CHECK(snapshot_error_of(
              with(pickler{}.event("alloc", base, 8, 0, 0).event("alloc", base, 8, 0, 0))) ==
          "t: device_traces[0][1]: block 0x7f0000000000: is allocated again while it is alive");
    CHECK(snapshot_error_of(with(pickler{}
                                     .event("alloc", base, 8, 0, 0)
                                     .event("free_completed", base, 8, 0, 0)
                                     .event("free_completed", base, 8, 0, 0))) ==
          "t: device_traces[0][2]: block 0x7f0000000000: is freed but not alive");
    CHECK(snapshot_error_of(
              with(pickler{}.dictionary().text("action").text("alloc").end_dictionary())) ==
          "t: device_traces[0][0]: alloc without an address");
    CHECK(snapshot_error_of(with(pickler{}.op('N'))) ==
          "t: device_traces[0][0]: an entry without an action");
    CHECK(snapshot_error_of(with(pickler{}.event("snapshot", 0, 0, 0, 0))) ==
          "t: no allocation in its device_traces; was the history recorded?");
}
