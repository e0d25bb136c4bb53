// SPDX-License-Identifier: Apache-2.0
#include <xmm/placement/steered.hpp>

#include <doctest/doctest.h>

using namespace xmm;
using namespace xmm::literals;

namespace {

constexpr address base = 1_GiB;
constexpr va_range everything{0, SIZE_MAX};
va_range pages(std::size_t first, std::size_t count) {
    return {base + first * page_bytes, count * page_bytes};
}

}  // namespace

TEST_CASE("later_mappings: neighbours become one stretch, in either order") {
    later_mappings m;
    CHECK(m.take(everything).is_empty());
    REQUIRE(m.add(pages(4, 1)));
    REQUIRE(m.add(pages(5, 2)));
    REQUIRE(m.add(pages(3, 1)));
    REQUIRE(m.add(pages(9, 1)));
    CHECK(m.take(pages(7, 2)).is_empty());
    CHECK(m.take(pages(3, 4)) == pages(3, 4));
    CHECK(m.take(pages(3, 4)).is_empty());
    CHECK(m.take(everything) == pages(9, 1));
    CHECK(m.take(everything).is_empty());
}

TEST_CASE("later_mappings: what is asked for is cut out, by whole pages, and the rest stays") {
    later_mappings m;
    REQUIRE(m.add(pages(10, 10)));
    CHECK(m.take({base + 12 * page_bytes + 5, 3}) == pages(12, 1));
    CHECK(m.take({base + 13 * page_bytes - 1, 2}) == pages(13, 1));
    CHECK(m.take(pages(12, 2)).is_empty());
    CHECK(m.take(pages(0, 11)) == pages(10, 1));
    CHECK(m.take(everything, 3 * page_bytes) == pages(11, 1));
    CHECK(m.take(everything, 4 * page_bytes) == pages(14, 4));
    CHECK(m.take(pages(19, 5)) == pages(19, 1));
    CHECK(m.take(everything) == pages(18, 1));
    CHECK(m.take(everything).is_empty());
}

TEST_CASE("later_mappings: refuses what finds no room, and has room again") {
    later_mappings m;
    std::size_t held = 0;
    while (m.add(pages(4 * held, 3))) {
        ++held;
        REQUIRE(held < 1000);
    }
    CHECK(held == 64);
    CHECK(m.add(pages(3, 1)));  // grows the first
    CHECK(m.take(pages(3, 1)) == pages(3, 1));
    // What would be left on both sides finds no room: all of it is taken.
    CHECK(m.take(pages(1, 1)) == pages(0, 3));
    CHECK(m.add(pages(4 * held, 3)));
    CHECK(m.take(pages(4, 1)) == pages(4, 1));
    std::size_t found = 0;
    while (!m.take(everything).is_empty()) {
        ++found;
    }
    CHECK(found == held);
}
