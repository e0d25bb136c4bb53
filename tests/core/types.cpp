// SPDX-License-Identifier: Apache-2.0
#include <xmm/core/types.hpp>

#include <doctest/doctest.h>

using namespace xmm;
using namespace xmm::literals;

TEST_CASE("types: literals and alignment") {
    static_assert(page_bytes == 2_MiB && 1_GiB == 1024_MiB && 1_MiB == 1024_KiB);
    static_assert(align_down(2_MiB + 1, page_bytes) == 2_MiB);
    static_assert(align_up(2_MiB + 1, page_bytes) == 4_MiB);
    static_assert(align_up(4_MiB, page_bytes) == 4_MiB);
    int here = 0;
    CHECK(to_pointer(to_address(&here)) == &here);
}

TEST_CASE("types: a range contains its begin and not its end") {
    constexpr va_range range{0x1000, 0x100};
    static_assert(range.contains(0x1000) && range.contains(0x10ff));
    static_assert(!range.contains(0x1100) && !range.contains(0xfff));
    static_assert(range.contains(va_range{0x1000, 0x100}) &&
                  !range.contains(va_range{0x1000, 0x101}));
    static_assert(!range.contains(va_range{0xfff, 2}));
    static_assert(!va_range{0x1000, 0}.contains(0x1000));
    static_assert(va_range{}.is_empty() && !range.is_empty());
}

TEST_CASE("types: ranges that only touch do not overlap") {
    constexpr va_range low{0, 10}, high{10, 10}, across{9, 2};
    static_assert(!low.overlaps(high) && !high.overlaps(low));
    static_assert(low.overlaps(across) && across.overlaps(high));
    static_assert(intersect(low, across) == va_range{9, 1});
    static_assert(intersect(low, high).is_empty());
    static_assert(intersect(high, across) == va_range{10, 1});
}

TEST_CASE("types: access bits") {
    static_assert((access::read | access::write) == access::read_write);
    static_assert((access::read_write & access::write) == access::write);
    static_assert(covers(access::read_write, access::read) && covers(access::read, access::none));
    static_assert(!covers(access::read, access::write) && !covers(access::none, access::read));
    static_assert(has_write(access::write) && has_write(access::read_write) &&
                  !has_write(access::read));
}

TEST_CASE("types: no frame, no node") {
    static_assert(!frame{} && frame{.handle = 1});
    static_assert(node_id{} == no_node && any_host != no_node && node_id{0} < node_id{1});
    static_assert(queue_id{}.value == 0 && ticket{}.value == 0);
}
