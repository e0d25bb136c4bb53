// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/block_magazine.hpp>

#include <vector>

#include <doctest/doctest.h>

using namespace xmm;

namespace {

void* block(std::uintptr_t number) { return reinterpret_cast<void*>(number); }

}  // namespace

TEST_CASE("block_magazine: last in, first out, up to its bound, each class for itself") {
    block_magazine one;
    for (unsigned c = 0; c < block_classes::count; ++c) {
        CAPTURE(c);
        CHECK(one.pop(c) == nullptr);
        const unsigned capacity = block_magazine::capacity_of(c);
        CHECK(capacity >= 2);
        for (unsigned i = 1; i <= capacity; ++i) {
            CHECK(one.push(c, block(1000 * c + i)));
        }
        CHECK(!one.push(c, block(7)));
    }
    for (unsigned c = 0; c < block_classes::count; ++c) {
        for (unsigned i = block_magazine::capacity_of(c); i > 0; --i) {
            REQUIRE(one.pop(c) == block(1000 * c + i));
        }
        CHECK(one.pop(c) == nullptr);
    }
    CHECK(one.is_empty());
}

TEST_CASE("block_magazine: the older half goes first, and all go in the end") {
    block_magazine one;
    for (std::uintptr_t i = 1; i <= 5; ++i) {
        CHECK(one.push(3, block(i)));
    }
    std::vector<void*> gone;
    one.drop_half(3, [&](unsigned c, void* b) {
        CHECK(c == 3);
        gone.push_back(b);
    });
    CHECK(gone == std::vector<void*>{block(1), block(2), block(3)});
    CHECK(one.pop(3) == block(5));
    CHECK(one.push(0, block(9)));
    CHECK(!one.is_empty());
    gone.clear();
    one.drop_all([&](unsigned, void* b) { gone.push_back(b); });
    CHECK(gone == std::vector<void*>{block(9), block(4)});
    CHECK(one.is_empty());
    one.drop_half(3, [](unsigned, void*) { FAIL("nothing is left"); });
}
