// SPDX-License-Identifier: Apache-2.0
#include "../../backends/soft/page_table.hpp"

#include "rig.hpp"

using namespace xmm;
using namespace xmm::test;
using soft::page_entry;

TEST_CASE("an entry keeps standing address, node and access apart") {
    const page_entry entry{0x7fff'ffe0'0000, 254, access::write};
    CHECK(entry);
    CHECK(entry.standing() == 0x7fff'ffe0'0000);
    CHECK(entry.node_index() == 254);
    CHECK(entry.who() == access::write);
    CHECK_FALSE(page_entry{});
}

TEST_CASE("pages are found where they were set, up to the last address") {
    soft::page_table table;
    const address last = (address{1} << soft::address_bits) - page_bytes;
    for (address at : {address{0}, address{1_GiB - page_bytes}, address{1_GiB}, last}) {
        CHECK_FALSE(table.find(at));
        CHECK_FALSE(table.exchange(at, {}));  // an empty entry needs no room
        REQUIRE(table.reserve({at, page_bytes}));
        const page_entry entry{at + page_bytes, 3, access::read};
        CHECK_FALSE(table.exchange(at, entry));
        CHECK(table.find(at) == entry);
        CHECK(table.find(at + page_bytes - 1) == entry);
        CHECK(table.exchange(at, {}) == entry);
        CHECK_FALSE(table.find(at));
    }
}

TEST_CASE("a range over several tables is reserved whole") {
    soft::page_table table;
    const va_range range{3_GiB - page_bytes, 2_GiB + 2 * page_bytes};
    REQUIRE(table.reserve(range));
    CHECK_FALSE(table.has_any(range));
    table.exchange(range.end() - page_bytes, page_entry{page_bytes, 0, access::read});
    CHECK(table.has_any(range));
    CHECK_FALSE(table.has_any({range.begin, range.bytes - page_bytes}));
    CHECK_FALSE(table.has_any({100_GiB, 1_GiB}));
}

TEST_CASE("the reserve ends with a refusal, and what was there stays") {
    soft::page_table table;
    REQUIRE(table.reserve({0, page_bytes}));
    const page_entry entry{page_bytes, 0, access::read};
    table.exchange(0, entry);
    CHECK_FALSE(table.reserve({1_GiB, 20000_GiB}));
    CHECK(table.find(0) == entry);
}

TEST_CASE("threads grow the tree at once") {
    soft::page_table table;
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (unsigned name = 0; name < 4; ++name) {
        threads.emplace_back([&, name] {
            for (address at = name * page_bytes; at < 64_GiB; at += 512_MiB) {
                const page_entry entry{at + page_bytes, name, access::read};
                if (!table.reserve({at, page_bytes}) || table.exchange(at, entry) ||
                    table.find(at) != entry) {
                    ++wrong;
                }
            }
        });
    }
    for (std::thread& one : threads) {
        one.join();
    }
    CHECK(wrong == 0);
    for (unsigned name = 0; name < 4; ++name) {
        CHECK(table.find(63_GiB + name * page_bytes).node_index() == name);
    }
}
