// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/block_marks.hpp>

#include <vector>

#include <doctest/doctest.h>

using namespace xmm;

namespace {

constexpr va_range range{0x7000'0000'0000, page_bytes};

}  // namespace

TEST_CASE("block_marks: a block is taken once, and only where it begins") {
    block_marks marks;
    REQUIRE(marks.open(range));
    const address at = range.begin + 4096;
    const unsigned four = block_classes::index_of(1024);
    CHECK(marks.take(at) == -1);
    marks.enter(at, four);
    CHECK(marks.take(at) == -1);  // not given yet
    marks.give(at, four);
    CHECK(marks.take(at + 1) == -1);
    CHECK(marks.take(at + 256) == -1);
    CHECK(marks.take(at) == static_cast<int>(four));
    CHECK(marks.take(at) == -1);
    marks.give(at, four);
    marks.clear(at);
    CHECK(marks.take(at) == -1);
}

TEST_CASE("block_marks: a pointer anywhere in a block finds it, and nothing beside it") {
    block_marks marks;
    REQUIRE(marks.open(range));
    const unsigned largest = block_classes::count - 1;
    marks.give(range.begin, 0);
    marks.give(range.begin + 512, block_classes::index_of(768));
    marks.enter(range.begin + 1280, 0);  // free
    const address last = range.end() - block_classes::largest_bytes;
    marks.give(last, largest);
    CHECK(marks.find(range.begin - 1).is_empty());
    CHECK(marks.find(range.end()).is_empty());
    CHECK(marks.find(range.begin - (std::size_t{1} << 40)).is_empty());
    CHECK(marks.find(range.begin) == va_range{range.begin, 256});
    CHECK(marks.find(range.begin + 255) == va_range{range.begin, 256});
    CHECK(marks.find(range.begin + 256).is_empty());
    CHECK(marks.find(range.begin + 512) == va_range{range.begin + 512, 768});
    CHECK(marks.find(range.begin + 1279) == va_range{range.begin + 512, 768});
    CHECK(marks.find(range.begin + 1280).is_empty());
    CHECK(marks.find(last - 1).is_empty());
    CHECK(marks.find(range.end() - 1) == va_range{last, block_classes::largest_bytes});
    std::vector<va_range> all;
    marks.for_each(range, [&](va_range one) { all.push_back(one); });
    CHECK(all == std::vector<va_range>{{range.begin, 256},
                                       {range.begin + 512, 768},
                                       {last, block_classes::largest_bytes}});
}

TEST_CASE("block_marks: the next block from an address on") {
    block_marks marks;
    REQUIRE(marks.open(range));
    CHECK(marks.find_next(0).is_empty());
    const address last = range.end() - 256;
    marks.give(range.begin, 0);
    marks.enter(range.begin + 256, 0);  // free
    marks.give(range.begin + 512, block_classes::index_of(768));
    marks.give(last, 0);
    CHECK(marks.find_next(0) == va_range{range.begin, 256});
    CHECK(marks.find_next(range.begin) == va_range{range.begin, 256});
    CHECK(marks.find_next(range.begin + 1) == va_range{range.begin + 512, 768});
    CHECK(marks.find_next(range.begin + 512) == va_range{range.begin + 512, 768});
    CHECK(marks.find_next(range.begin + 513) == va_range{last, 256});
    CHECK(marks.find_next(last) == va_range{last, 256});
    CHECK(marks.find_next(last + 1).is_empty());
    CHECK(marks.find_next(range.end()).is_empty());
}
