// SPDX-License-Identifier: Apache-2.0
// Addresses: windows of them, records by page, claims, and what lies in a row.
#include "../../backends/shared/address_window.hpp"
#include "../../backends/shared/claims.hpp"
#include "../../backends/shared/mapped_array.hpp"
#include "../../backends/shared/page_records.hpp"
#include "../../backends/shared/runs.hpp"

#include <vector>

#include <doctest/doctest.h>

using namespace xmm;

namespace {

constexpr address base = address{1} << 40;

va_range pages(std::size_t first, std::size_t count) {
    return {base + first * page_bytes, count * page_bytes};
}

struct record {
    int what = 0;
    std::uint16_t pages = 0;
    std::uint16_t before = 0;

    bool is_empty() const noexcept { return what == 0; }
};

}  // namespace

TEST_CASE("a window gives runs, next fit, and no address twice") {
    shared::address_window window;
    REQUIRE(window.assign(pages(0, 100)));
    const address first = window.take(60 * page_bytes);
    CHECK(first == base);
    CHECK(window.take(41 * page_bytes) == 0);
    const address second = window.take(40 * page_bytes);
    CHECK(second == base + 60 * page_bytes);
    CHECK(window.take(page_bytes) == 0);
    window.give(first, 60 * page_bytes);
    std::vector<va_range> used;
    window.for_each_run([&](va_range one) { used.push_back(one); });
    CHECK(used == std::vector<va_range>{pages(60, 40)});
    CHECK(window.take(60 * page_bytes) == base);
}

TEST_CASE("addresses for a node's frames: four times its memory, or as much as there is") {
    std::vector<std::size_t> asked;
    const auto none_above = [&](std::size_t most) {
        return [&asked, most](std::size_t bytes) {
            asked.push_back(bytes);
            return bytes <= most ? status{} : fail(errc::no_memory, "no addresses");
        };
    };
    constexpr std::size_t memory = std::size_t{8} << 30;
    CHECK(shared::reserve_window(memory, page_bytes, none_above(4 * memory)));
    CHECK(asked == std::vector<std::size_t>{4 * memory});
    asked.clear();
    CHECK(shared::reserve_window(memory, page_bytes, none_above(memory)));
    CHECK(asked == std::vector<std::size_t>{4 * memory, 2 * memory, memory});
    asked.clear();
    CHECK_FALSE(shared::reserve_window(memory, page_bytes, none_above(0)));
    CHECK(asked.back() == memory / 2);
    // What cannot be had at all is not asked for again.
    asked.clear();
    const auto refuse = [&](std::size_t bytes) {
        asked.push_back(bytes);
        return fail(errc::unsupported, "none");
    };
    CHECK(shared::reserve_window(memory, page_bytes, refuse).code == errc::unsupported);
    CHECK(asked.size() == 1);
}

TEST_CASE("records by page: a mapping is on each of its pages, and the first speaks for all") {
    shared::page_records<record> table;
    CHECK(table.find(base) == nullptr);
    // Across two tables.
    const std::size_t border = (std::size_t{1} << 14) - base / page_bytes % (1u << 14);
    const va_range near = pages(border - 4, 8);
    REQUIRE(table.reserve(near));
    CHECK_FALSE(table.reserve({~address{0} - page_bytes + 1 - 4 * page_bytes, 2 * page_bytes}));
    CHECK_FALSE(table.has_any(near));
    table.set(pages(border - 2, 3), {7});
    table.set(pages(border + 2, 1), {8});
    CHECK(table.has_any(near));
    CHECK(table.find(pages(border, 1).begin)->before == 2);
    CHECK(table.find(pages(border - 2, 1).begin)->pages == 3);
    std::vector<va_range> seen;
    CHECK(table.for_each(near, [&](record&, va_range whole) {
        seen.push_back(whole);
        return status{};
    }));
    CHECK(seen == std::vector<va_range>{pages(border - 2, 3), pages(border + 2, 1)});
    seen.clear();
    CHECK(table
              .for_each(near,
                        [&](record& one, va_range whole) {
                            seen.push_back(whole);
                            return one.what == 7 ? fail(errc::busy, "not now") : status{};
                        })
              .code == errc::busy);
    CHECK(seen.size() == 1);
    table.set(pages(border - 2, 3), {});
    CHECK(table.find(pages(border, 1).begin)->is_empty());
    CHECK(table.find(pages(border, 1).begin)->before == 0);
}

TEST_CASE("claims give back what was reserved for them") {
    shared::claims all;
    REQUIRE(all.add(pages(1, 2), pages(0, 4)));
    REQUIRE(all.add(pages(10, 1), pages(10, 1)));
    CHECK(all.remove(pages(1, 2)) == pages(0, 4));
    CHECK(all.remove(pages(10, 1)) == pages(10, 1));
}

TEST_CASE("what lies in a row is one call, up to a seam or a failure") {
    const std::vector<va_range> ranges{{100, 10}, {110, 5}, {115, 0}, {200, 1}, {201, 1}};
    std::vector<va_range> calls;
    const auto note = [&](va_range one) {
        calls.push_back(one);
        return status{};
    };
    CHECK(shared::for_each_run(ranges, shared::no_seams, note));
    CHECK(calls == std::vector<va_range>{{100, 15}, {200, 2}});
    calls.clear();
    CHECK(shared::for_each_run(
        ranges, [](address at) { return at == 201; }, note));
    CHECK(calls == std::vector<va_range>{{100, 15}, {200, 1}, {201, 1}});

    // In a row on both sides.
    const std::vector<piece> pieces{{{0, 8}, {100, 8}}, {{8, 8}, {108, 8}}, {{16, 8}, {200, 8}}};
    std::size_t count = 0;
    CHECK(shared::for_each_copy(pieces, shared::no_seams, [&](const piece& one) {
        CHECK(one.to.bytes == (count == 0 ? 16 : 8));
        ++count;
        return status{};
    }));
    CHECK(count == 2);
    count = 0;
    CHECK(shared::for_each_copy(pieces, shared::no_seams, [&](const piece&) {
              ++count;
              return fail(errc::no_memory, "full");
          }).code == errc::no_memory);
    CHECK(count == 1);
}

TEST_CASE("a mapped array is zeroes, and opens once") {
    shared::mapped_array<std::uint64_t> all;
    REQUIRE(all.open(1000, "no room"));
    CHECK(all[999] == 0);
    all[3] = 5;
    CHECK(all.open(10, "no room"));
    CHECK(all[3] == 5);
    CHECK(all.size() == 1000);
    shared::mapped_array<std::uint64_t> too_large;
    CHECK(too_large.open(std::size_t{1} << 58, "no room").code == errc::no_memory);
}
