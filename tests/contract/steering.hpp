// SPDX-License-Identifier: Apache-2.0
// steering.hpp - what a backend that steers a driver must do beside the part of the contract that all share.
//
// Model    As backend.hpp, with the same fixtures.
#pragma once

#include "backend.hpp"

namespace xmm::contract {

template <class F>
void check_place() {
    bench<F> t;
    const va_range range = t.reserve(4 * page_bytes);
    auto* words = static_cast<std::uint64_t*>(to_pointer(range.begin));
    constexpr std::size_t page_words = page_bytes / sizeof(std::uint64_t);
    const auto page = [&](std::size_t i) {
        return va_range{range.begin + i * page_bytes, page_bytes};
    };
    const auto where = [&](va_range one) {
        node_id there = no_node;
        CHECK(t.b.residency({&one, 1}, {&there, 1}));
        return there;
    };
    // The CPU reaches it from the beginning, and fresh memory is zero.
    CHECK(words[0] == 0);
    for (std::size_t i = 0; i < 4; ++i) {
        words[i * page_words] = i + 1;
    }
    CHECK(where(range) == no_node);
    t.finish(t.b.place(t.queue, {&range, 1}, t.device));
    CHECK(where(range) == t.device);
    CHECK(words[3 * page_words] == 4);  // a coherent driver serves the CPU all the same
    words[3 * page_words + 1] = 5;
    // Some of it back; in pieces, of which two lie in a row.
    const va_range parts[] = {page(0), page(1), page(3)};
    t.finish(t.b.place(t.queue, parts, t.host));
    CHECK(where(page(0)) == t.host);
    CHECK(where(page(2)) == t.device);
    CHECK(where(range) == no_node);  // in several places
    t.finish(t.b.place(t.queue, {&range, 1}, any_host));
    CHECK(where(range) == t.host);
    CHECK(words[3 * page_words + 1] == 5);
    if constexpr (runs_kernels<F>) {
        t.finish(t.b.place(t.queue, {&range, 1}, t.device));
        CHECK(t.fixture.device_load(range.begin + page_bytes) == 2);
        CHECK(t.fixture.device_store(range.begin + page_bytes, 7));
        CHECK(words[page_words] == 7);
        CHECK(t.fixture.device_load(range.begin + 3 * page_bytes + 8) == 5);
        t.finish(t.b.place(t.queue, {&range, 1}, t.host));
        CHECK(t.fixture.device_load(range.begin + page_bytes) == 7);  // wherever it is
    }
    CHECK(t.b.place(t.queue, {&range, 1}, no_node).code() == errc::unknown_node);
    CHECK(t.b.place({}, {&range, 1}, t.device).code() == errc::invalid_argument);
    t.b.va_release(range);
}

// memcpy and zero take the addresses themselves: there are no others.
template <class F>
void check_bytes() {
    bench<F> t;
    const va_range range = t.reserve(2 * page_bytes);
    const va_range first{range.begin, page_bytes};
    const va_range second{range.begin + page_bytes, page_bytes};
    t.finish(t.b.place(t.queue, {&first, 1}, t.device));
    t.write(first.begin, 3, page_bytes);
    const piece across{second, first};
    t.finish(t.b.memcpy(t.queue, {&across, 1}));
    CHECK(t.holds(second.begin, 3, page_bytes));
    const va_range stripe{range.begin + page_bytes - 4096, 8192};
    t.finish(t.b.zero(t.queue, {&stripe, 1}));
    CHECK(t.holds(stripe.begin, 0, stripe.bytes));
    CHECK(t.holds(range.begin, 3, page_bytes - 4096));
    CHECK(static_cast<std::uint64_t*>(to_pointer(stripe.begin))[-1] == 3);
    t.b.va_release(range);
}

template <class F>
void check_advice() {
    bench<F> t;
    const va_range range = t.reserve(2 * page_bytes);
    auto* words = static_cast<std::uint64_t*>(to_pointer(range.begin));
    words[0] = 9;
    for (const driver_advice what :
         {driver_advice::preferred, driver_advice::mapped_in_place, driver_advice::read_mostly,
          driver_advice::unset_read_mostly, driver_advice::unset_preferred}) {
        CHECK(t.b.advise({&range, 1}, what, t.host));
        CHECK(words[0] == 9);
        if constexpr (runs_kernels<F>) {
            CHECK(t.fixture.device_load(range.begin) == 9);
        }
    }
    CHECK(t.b.advise({&range, 1}, driver_advice::preferred, t.device));
    CHECK(t.b.advise({&range, 1}, driver_advice::preferred, no_node).code == errc::unknown_node);
    t.b.va_release(range);
}

template <class F>
void check_discard() {
    bench<F> t;
    const va_range range = t.reserve(2 * page_bytes);
    const va_range second{range.begin + page_bytes, page_bytes};
    auto* words = static_cast<std::uint64_t*>(to_pointer(range.begin));
    words[0] = 9;
    words[page_bytes / 8] = 10;
    auto point = t.b.discard(t.queue, {&second, 1});
    if (!point) {
        CHECK(point.code() == errc::unsupported);
    } else {
        REQUIRE(t.b.wait(*point));
    }
    CHECK(words[0] == 9);  // what was not named stays
    t.finish(t.b.place(t.queue, {&second, 1}, t.device));
    words[page_bytes / 8] = 11;  // and what was can be used again
    CHECK(words[page_bytes / 8] == 11);
    t.b.va_release(range);
}

template <class F>
void check_steering() {
    if (!F::is_available()) {
        MESSAGE("skipped: no such device here");
        return;
    }
    SUBCASE("place, residency") { check_place<F>(); }
    SUBCASE("memcpy, zero") { check_bytes<F>(); }
    SUBCASE("advise") { check_advice<F>(); }
    SUBCASE("discard") { check_discard<F>(); }
}

}  // namespace xmm::contract
