// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/heap_snapshot.hpp>

#include <doctest/doctest.h>

using namespace xmm;

namespace {

constexpr segment_owner large{.stream = 5, .tag = 1};
constexpr segment_owner small{.stream = 5, .tag = 1, .is_small = true};

heap_snapshot with_segments(std::vector<snapshot_segment> segments) {
    heap_snapshot result;
    result.segments = std::move(segments);
    return result;
}

}  // namespace

TEST_CASE("frames side by side of one owner are one segment, and blocks and gaps fill it") {
    snapshot_builder builder;
    builder.add_frame({0x3000, 0x1000}, large);
    builder.add_frame({0x1000, 0x1000}, large);
    builder.add_frame({0x2000, 0x1000}, large);
    builder.add_frame({0x4000, 0x1000}, small);
    builder.add_frame({0x8000, 0x1000}, small);
    builder.add_block({0x1800, 0x1000}, 0xfff, block_state::active_allocated);
    builder.add_block({0x2800, 0x800}, 0x700, block_state::active_pending_free);
    builder.add_block({0x8000, 0x1000}, 0x1000, block_state::active_allocated);
    const heap_snapshot made = with_segments(builder.build());

    REQUIRE(made.segments.size() == 3);
    CHECK(made.is_valid());
    const snapshot_segment& first = made.segments[0];
    CHECK(first.range == va_range{0x1000, 0x3000});
    CHECK(first.owner == large);
    CHECK(first.blocks == std::vector<snapshot_block>{
                              {{0x1000, 0x800}, 0, block_state::inactive},
                              {{0x1800, 0x1000}, 0xfff, block_state::active_allocated},
                              {{0x2800, 0x800}, 0x700, block_state::active_pending_free},
                              {{0x3000, 0x1000}, 0, block_state::inactive},
                          });
    CHECK(first.allocated_bytes() == 0x1000);
    CHECK(first.active_bytes() == 0x1800);
    CHECK(first.requested_bytes() == 0xfff + 0x700);
    CHECK(made.segments[1].blocks.size() == 1);
    CHECK(made.segments[1].blocks[0].state == block_state::inactive);
    CHECK(made.segments[2].allocated_bytes() == 0x1000);
    CHECK(builder.build().empty());
}

TEST_CASE("what contradicts is left out") {
    snapshot_builder builder;
    builder.add_frame({0x1000, 0x2000}, large);
    builder.add_frame({0x2000, 0x1000}, large);                            // again
    builder.add_block({0x0000, 0x800}, 1, block_state::active_allocated);  // no frame
    builder.add_block({0x1000, 0x1000}, 2, block_state::active_allocated);
    builder.add_block({0x1000, 0x400}, 3, block_state::active_allocated);   // on another one
    builder.add_block({0x1800, 0x1000}, 4, block_state::active_allocated);  // the same
    builder.add_block({0x2800, 0x1000}, 5, block_state::active_allocated);  // half without a frame
    builder.add_block({0x9000, 0x1000}, 6, block_state::active_allocated);  // no frame
    const heap_snapshot made = with_segments(builder.build());
    REQUIRE(made.segments.size() == 1);
    CHECK(made.is_valid());
    REQUIRE(made.segments[0].blocks.size() == 2);
    CHECK(made.segments[0].blocks[0].range == va_range{0x1000, 0x1000});
    CHECK(made.segments[0].requested_bytes() == 3);  // what the one left out says
}

TEST_CASE("blocks that only the recorder knows come from its events") {
    recorded_trace trace;
    const auto add = [&](trace_action action, address at, std::size_t bytes) {
        trace.events.push_back({.at = at, .bytes = bytes, .action = action});
    };
    add(trace_action::free_completed, 0x4000, 64);  // from before
    add(trace_action::allocate, 0x4000, 64);
    add(trace_action::allocate, 0x4040, 32);
    add(trace_action::free_requested, 0x4040, 32);
    add(trace_action::allocate, 0x4080, 16);
    add(trace_action::free_requested, 0x4080, 16);
    add(trace_action::free_completed, 0x4080, 16);
    snapshot_builder builder;
    builder.add_frame({0x4000, 0x1000}, small);
    builder.add_blocks_of(trace);
    const heap_snapshot made = with_segments(builder.build());
    REQUIRE(made.segments.size() == 1);
    CHECK(made.segments[0].blocks == std::vector<snapshot_block>{
                                         {{0x4000, 64}, 64, block_state::active_allocated},
                                         {{0x4040, 32}, 32, block_state::active_pending_free},
                                         {{0x4060, 0x1000 - 0x60}, 0, block_state::inactive},
                                     });
}

TEST_CASE("an invalid snapshot is told apart") {
    snapshot_builder builder;
    builder.add_frame({0x1000, 0x1000}, large);
    heap_snapshot made = with_segments(builder.build());
    CHECK(made.is_valid());
    made.segments[0].blocks[0].range.bytes -= 1;
    CHECK(!made.is_valid());
    made.segments[0].blocks[0].range = {0x1001, 0xfff};
    CHECK(!made.is_valid());
    made.segments[0].blocks[0].range = {0x1000, 0x1000};
    made.segments.push_back(made.segments[0]);
    CHECK(!made.is_valid());
}
