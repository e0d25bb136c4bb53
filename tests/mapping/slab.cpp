// SPDX-License-Identifier: Apache-2.0
#include <xmm/mapping/slab.hpp>

#include <cstdint>
#include <set>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

using namespace xmm;

namespace {

struct counted {
    counted() { ++made; }
    ~counted() { ++destroyed; }
    int value = 1;
    char bulk[1000] = {};
    static inline int made = 0;
    static inline int destroyed = 0;
};
struct alignas(64) aligned {
    char text[3];
};

}  // namespace

TEST_CASE("slab: a record given back is the next one made, and stays a record") {
    slab<counted> records;
    counted* one = records.make();
    counted* two = records.make();
    REQUIRE(one != nullptr);
    CHECK(one != two);
    CHECK(records.live() == 2);
    one->value = 42;
    records.give_back(one);
    CHECK(records.live() == 1);
    CHECK(one->value == 42);  // a stale pointer reads a record
    CHECK(records.make() == one);
    CHECK(one->value == 42);  // the caller resets it
    CHECK(records.live() == 2);
}

TEST_CASE("slab: many records are distinct, constructed once each, and destroyed with the slab") {
    counted::made = counted::destroyed = 0;
    {
        slab<counted> records;
        std::set<counted*> all;
        for (int i = 0; i < 1000; ++i) {  // several chunks
            all.insert(records.make());
        }
        CHECK(all.size() == 1000);
        CHECK(all.count(nullptr) == 0);
        for (counted* one : all) {
            records.give_back(one);
        }
        for (int i = 0; i < 1000; ++i) {
            CHECK(all.count(records.make()) == 1);
        }
        CHECK(counted::made == 1000);
    }
    CHECK(counted::destroyed == 1000);
}

TEST_CASE("slab: alignment") {
    slab<aligned> records;
    for (int i = 0; i < 10; ++i) {
        CHECK(reinterpret_cast<std::uintptr_t>(records.make()) % 64 == 0);
    }
}

TEST_CASE("slab: threads never get the same record") {
    slab<int> records;
    const auto work = [&] {
        std::vector<int*> mine;
        for (int i = 0; i < 3000; ++i) {
            int* one = records.make();
            *one = 7;
            mine.push_back(one);
            if (i % 3 == 0) {
                *mine.back() = 8;
                records.give_back(mine.back());
                mine.pop_back();
            }
        }
        return mine;
    };
    std::vector<int*> theirs;
    std::thread other{[&] { theirs = work(); }};
    std::vector<int*> all = work();
    other.join();
    all.insert(all.end(), theirs.begin(), theirs.end());
    CHECK(std::set<int*>(all.begin(), all.end()).size() == all.size());
    CHECK(records.live() == all.size());
}
