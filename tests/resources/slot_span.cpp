// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/slot_span.hpp>

#include <doctest/doctest.h>

#include <xmm/resources/device_frames.hpp>

#include "../support/fake_frames.hpp"

using namespace xmm;
using namespace xmm::literals;

TEST_CASE("slot_span: slots by address, and which of them have a frame") {
    test::fake_frames port;
    device_frames frames{port};
    constexpr std::size_t slot = 8_MiB;
    slot_span* span = frames.reserve(200 * slot, slot, queue_id{}).value();
    const address begin = span->range().begin;
    CHECK(span->slot_bytes() == slot);
    CHECK(span->slot_count() == 200);
    CHECK(span->slot_of(begin + 3 * slot - 1) == 2);
    CHECK(span->slot_begin(3) == begin + 3 * slot);
    // Runs that cross the words of the map: 60 to 139, but for 100.
    const va_range low{span->slot_begin(60), 40 * slot};
    const va_range high{span->slot_begin(101), 39 * slot};
    REQUIRE(frames.acquire(*span, low));
    REQUIRE(frames.acquire(*span, high));
    CHECK_FALSE(span->has_frame(59));
    CHECK(span->has_frame(60));
    CHECK_FALSE(span->has_frame(100));
    CHECK(span->has_frame(139));
    CHECK(span->missing(span->range()) == 200 - 79);
    CHECK(span->missing({begin + 60 * slot - 1, 2}) == 1);
    CHECK(span->missing({begin + 60 * slot, slot}) == 0);
    CHECK(span->missing({begin + 99 * slot, 3 * slot}) == 1);
    CHECK(span->missing({begin, 64 * slot}) == 60);
    CHECK(span->next(0, 200, true) == 60);
    CHECK(span->next(60, 200, false) == 100);
    CHECK(span->next(100, 200, true) == 101);
    CHECK(span->next(101, 200, false) == 140);
    CHECK(span->next(140, 200, true) == 200);
    CHECK(span->next(0, 50, true) == 50);
    CHECK(span->next(101, 120, false) == 120);
    CHECK(span->remembering(span->range()) == 0);
    frames.release(*span, low);
    frames.release(*span, high);
    frames.release(span);
}

TEST_CASE(
    "slot_span: what was acquired at once may be released in parts, and the other way round") {
    test::fake_frames port;
    device_frames frames{port};
    constexpr std::size_t slot = 2_MiB;
    slot_span* span = frames.reserve(256 * slot, slot, queue_id{}).value();
    const auto part = [&](std::size_t first, std::size_t count) {
        return va_range{span->slot_begin(first), count * slot};
    };
    REQUIRE(frames.acquire(*span, part(0, 200)));
    frames.release(*span, part(1, 1));
    frames.release(*span, part(0, 1));
    CHECK(frames.idle_bytes() == 2 * slot);
    frames.release(*span, part(2, 150));
    CHECK(frames.idle_bytes() == 152 * slot);
    frames.release(*span, part(152, 48));
    CHECK(frames.idle_bytes() == 200 * slot);
    for (std::size_t first : {60, 61, 62}) {
        REQUIRE(frames.acquire(*span, part(first, 1)));
    }
    CHECK(frames.idle_bytes() == 197 * slot);
    frames.release(*span, part(60, 3));
    CHECK(frames.idle_bytes() == 200 * slot);
    CHECK(frames.is_valid());
    frames.release(span);
}

TEST_CASE("slot_span: a slot of a large block knows when it was used last") {
    test::fake_frames port;
    device_frames frames{port};
    constexpr std::size_t slot = 2_MiB;
    slot_span* span = frames.reserve(256 * slot, slot, queue_id{}).value();
    const auto part = [&](std::size_t first, std::size_t count) {
        return va_range{span->slot_begin(first), count * slot};
    };
    REQUIRE(frames.acquire(*span, part(0, 192)));
    frames.release(*span, part(0, 192));
    // Used again: a whole word of the map, and one slot of another.
    REQUIRE(frames.acquire(*span, part(64, 64)));
    frames.release(*span, part(64, 64));
    REQUIRE(frames.acquire(*span, part(5, 1)));
    frames.release(*span, part(5, 1));
    CHECK(frames.trim(66 * slot) == 126 * slot);
    CHECK(port.is_backed(part(64, 64)));
    CHECK(port.is_backed(part(5, 1)));
    CHECK_FALSE(port.is_backed(part(4, 1)));
    CHECK(frames.trim(1 * slot) == 65 * slot);
    CHECK(port.is_backed(part(5, 1)));
    frames.release(span);
}
