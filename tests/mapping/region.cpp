// SPDX-License-Identifier: Apache-2.0
#include <xmm/mapping/region.hpp>

#include <doctest/doctest.h>

using namespace xmm;
using namespace xmm::literals;

TEST_CASE("region: granules, and a tail of its own") {
    region one;
    one.va = {1_GiB, 22_MiB};
    one.granule_bytes = 8_MiB;
    CHECK(one.granule_at(1_GiB) == va_range{1_GiB, 8_MiB});
    CHECK(one.granule_at(1_GiB + 8_MiB - 1) == va_range{1_GiB, 8_MiB});
    CHECK(one.granule_at(1_GiB + 8_MiB) == va_range{1_GiB + 8_MiB, 8_MiB});
    CHECK(one.granule_at(1_GiB + 16_MiB) == va_range{1_GiB + 16_MiB, 6_MiB});
    CHECK(one.granule_at(1_GiB + 22_MiB - 1) == va_range{1_GiB + 16_MiB, 6_MiB});
}
