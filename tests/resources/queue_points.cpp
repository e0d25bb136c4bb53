// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/queue_points.hpp>

#include <doctest/doctest.h>

#include "../support/fake_frames.hpp"

using namespace xmm;
using test::fake_frames;

namespace {

// A forked child learns nothing about its parent's work.
static_assert(is_over(errc::invalid_argument) && is_over(errc::device_lost));
static_assert(!is_over(errc::forked) && !is_over(errc::busy));

constexpr queue_id line{3};
constexpr va_range work{0, page_bytes};  // nothing is mapped: only that there is work counts

}  // namespace

TEST_CASE("queue_points: no queue is always done, and asks nobody") {
    fake_frames port;
    queue_points points;
    ticket until;
    CHECK(points.is_reached(port, queue_id{}, 9, 9, until));
    CHECK(port.calls().record == 0);
}

TEST_CASE(
    "queue_points: a release is done when the work before it is; one point covers all before it") {
    fake_frames port;
    queue_points points;
    ticket until;
    port.use(work, line);
    CHECK_FALSE(points.is_reached(port, line, 5, 8, until));
    CHECK(until.queue == line);
    CHECK(until.value == 1);
    CHECK_FALSE(points.is_reached(port, line, 8, 8, until));
    CHECK(port.calls().record == 1);
    port.finish(line);
    CHECK(points.is_reached(port, line, 8, 8, until));
    CHECK(points.is_reached(port, line, 5, 8, until));
    CHECK(port.calls().record == 1);
    // A later release needs a point of its own.
    port.use(work, line);
    CHECK_FALSE(points.is_reached(port, line, 9, 9, until));
    CHECK(until.value == 2);
    CHECK(points.is_reached(port, line, 8, 9, until));
}

TEST_CASE("queue_points: more releases than points: the last point stands for the later ones") {
    fake_frames port;
    queue_points points;
    ticket until;
    for (std::uint64_t stamp = 1; stamp <= 20; ++stamp) {
        port.use(work, line);
        CHECK_FALSE(points.is_reached(port, line, stamp, stamp, until));
        CHECK(until.value == stamp);
    }
    CHECK_FALSE(points.is_reached(port, line, 12, 20, until));
    CHECK(until.value == 20);
    CHECK_FALSE(points.is_reached(port, line, 3, 20, until));
    CHECK(until.value == 3);
    port.finish(line);
    CHECK(points.is_reached(port, line, 20, 20, until));
}

TEST_CASE("queue_points: a port that cannot tell is not done, and there is nothing to wait for") {
    fake_frames port;
    queue_points points;
    ticket until{line, 4};
    port.fail_with_chance(0, 0, 0, 1000);
    CHECK_FALSE(points.is_reached(port, line, 1, 1, until));
    CHECK(until.value == 0);
    points.set_reached(1);
    CHECK(points.is_reached(port, line, 1, 1, until));
    CHECK_FALSE(points.is_reached(port, line, 2, 2, until));
}
