// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/block_classes.hpp>

#include <doctest/doctest.h>

using xmm::block_classes;

TEST_CASE(
    "block_classes: every size gets the smallest class that holds it, at most a quarter too "
    "large") {
    for (std::size_t bytes = 1; bytes <= block_classes::largest_bytes; ++bytes) {
        const unsigned index = block_classes::index_of(bytes);
        REQUIRE(index < block_classes::count);
        REQUIRE(block_classes::bytes_of(index) >= bytes);
        if (index > 0) {
            REQUIRE(block_classes::bytes_of(index - 1) < bytes);
        }
        if (bytes > 1024) {
            REQUIRE(block_classes::bytes_of(index) * 4 <= bytes * 5);
        }
    }
    for (unsigned index = 0; index < block_classes::count; ++index) {
        CHECK(block_classes::bytes_of(index) % block_classes::unit == 0);
        CHECK(block_classes::index_of(block_classes::bytes_of(index)) == index);
    }
}
