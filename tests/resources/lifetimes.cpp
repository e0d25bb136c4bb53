// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/lifetimes.hpp>

#include <cstddef>

#include <doctest/doctest.h>

using namespace xmm;

TEST_CASE("lifetimes: a block of a known context is expected to live as the last one did") {
    lifetimes known;
    const auto round = [&](bool expected) {
        // The same size twice; only what came before tells the long-lived one from the short-lived.
        known.note_end(known.note(100));
        const auto kept = known.note(7'000);
        const auto first = known.note(200);
        CHECK(known.is_short(first, 4) == expected);
        known.note_end(first);
        for (std::size_t i = 0; i < 8; ++i) {
            known.note_end(known.note(300));
        }
        const auto second = known.note(200);
        CHECK_FALSE(known.is_short(second, 4));
        for (std::size_t i = 0; i < 8; ++i) {
            known.note_end(known.note(400));
        }
        known.note_end(second);
        known.note_end(kept);
    };
    round(false);
    round(false);  // the sizes before the first round were others
    round(true);
    round(true);
}

TEST_CASE("lifetimes: of the allocations that it lived through, its own counts") {
    lifetimes known;
    for (int round = 0; round < 3; ++round) {  // until the sizes before are the same as well
        for (std::size_t i = 0; i < 8; ++i) {
            known.note_end(known.note(300));
        }
        const auto kept = known.note(9'000);
        for (std::size_t i = 0; i < 4; ++i) {
            known.note_end(known.note(500));
        }
        known.note_end(kept);
    }
    for (std::size_t i = 0; i < 8; ++i) {
        known.note_end(known.note(300));
    }
    const auto kept = known.note(9'000);
    CHECK(known.is_short(kept, 6));
    CHECK_FALSE(known.is_short(kept, 5));
    CHECK_FALSE(known.is_short(kept, 0));
}
