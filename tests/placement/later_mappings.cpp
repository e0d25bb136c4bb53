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
    CHECK(m.take(pages(6, 1)) == pages(3, 4));
    CHECK(m.take(pages(3, 4)).is_empty());
    CHECK(m.take(everything) == pages(9, 1));
    CHECK(m.take(everything).is_empty());
}

TEST_CASE("later_mappings: refuses what finds no room, and has room again") {
    later_mappings m;
    std::size_t held = 0;
    while (m.add(pages(2 * held, 1))) {
        ++held;
        REQUIRE(held < 1000);
    }
    CHECK(held == 64);
    CHECK(m.add(pages(1, 1)));  // grows the first
    CHECK(m.take(pages(0, 1)) == pages(0, 2));
    CHECK(m.add(pages(2 * held, 1)));
    std::size_t found = 0;
    while (!m.take(everything).is_empty()) {
        ++found;
    }
    CHECK(found == held);
}
