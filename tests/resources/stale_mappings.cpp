// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/stale_mappings.hpp>

#include <doctest/doctest.h>

#include <xmm/resources/device_frames.hpp>

#include "../support/fake_frames.hpp"

using namespace xmm;
using namespace xmm::literals;

// Seen through device_frames, which alone may make them.
TEST_CASE("stale_mappings: what is left behind is counted, comes back, and ends with its span") {
    test::fake_frames port{1_GiB, true};
    device_frames frames{port, {.slack = 0}};
    constexpr std::size_t slot = 2_MiB;
    slot_span* span = frames.reserve(16 * slot, slot, queue_id{1}).value();
    const auto part = [&](std::size_t first, std::size_t count) {
        return va_range{span->slot_begin(first), count * slot};
    };
    REQUIRE(frames.acquire(*span, part(0, 4)));
    frames.add_live(4 * slot);
    frames.add_live(-4 * std::ptrdiff_t{slot});
    frames.release(*span, part(0, 4));
    REQUIRE(frames.acquire(*span, part(8, 4)));
    CHECK(span->remembering(span->range()) == 4);
    CHECK(port.mapping_count() == 8);
    CHECK(port.frame_count() == 4);
    frames.release(*span, part(8, 4));
    const auto before = port.calls();
    REQUIRE(frames.acquire(*span, part(1, 2)));
    CHECK(port.calls().map == before.map);
    CHECK(port.calls().unmap == before.unmap);
    CHECK(span->remembering(part(0, 4)) == 2);
    CHECK(span->remembering(part(8, 4)) == 2);
    frames.release(*span, part(1, 2));
    CHECK(frames.is_valid());
    frames.release(span);
    CHECK(port.mapping_count() == 0);
    CHECK(port.faults() == "");
}

TEST_CASE("stale_mappings: entries are found by slot and by frame") {
    stale_mappings none;
    CHECK_FALSE(none.has_room());
    stale_mappings::room made;
    CHECK_FALSE(none.try_fit(made, 1));
    REQUIRE(made.try_make(1));
    CHECK_FALSE(none.try_fit(made, 2));
    REQUIRE(none.try_fit(made, 1));
    CHECK(none.has_room());
    CHECK(none.count() == 0);
    test::fake_frames port;
    device_frames frames{port};
    slot_span* span = frames.reserve(4_MiB, 2_MiB, queue_id{}).value();
    ticket until;
    CHECK(none.find(*span, 0) == nullptr);
    CHECK(none.end_at(port, *span, 0, until));
    CHECK(none.end_of(port, port_frame{}, until));
    const port_frame frame = port.create(2_MiB).value();
    none.push({span, 1, frame, 0});
    CHECK_FALSE(none.has_room());
    REQUIRE(made.try_make(stale_mappings::most * 2));  // more than there ever is room for
    REQUIRE(none.try_fit(made, stale_mappings::most * 2));
    REQUIRE(none.find(*span, 1) != nullptr);
    none.push({span, 0, frame, 0});
    CHECK(none.count() == 2);
    CHECK(span->remembering(span->range()) == 2);
    CHECK(none.find(*span, 0)->frame.handle == frame.handle);
    none.take_back();
    CHECK(none.find(*span, 0) == nullptr);
    none.turn(*none.find(*span, 1), {span, 0, frame, 0});
    CHECK(none.find(*span, 1) == nullptr);
    CHECK(none.find(*span, 0) != nullptr);
    none.take_back();
    CHECK(span->remembering(span->range()) == 0);
    port.drop(frame, 2_MiB);
    frames.release(span);
}
