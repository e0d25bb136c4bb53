// SPDX-License-Identifier: Apache-2.0
#include <xmm/mapping/radix_tree.hpp>

#include <atomic>
#include <memory>
#include <thread>

#include <doctest/doctest.h>

using namespace xmm;
using namespace xmm::literals;

namespace {

using tree = radix_tree<int>;

}  // namespace

TEST_CASE("radix_tree: finds each byte of a range, nothing beside it") {
    auto t = std::make_unique<tree>();
    int record = 0;
    const va_range range{64_GiB, 6_MiB};
    REQUIRE(t->insert(range, record));
    CHECK(t->find(range.begin) == &record);
    CHECK(t->find(range.begin + 2_MiB + 12345) == &record);
    CHECK(t->find(range.end() - 1) == &record);
    CHECK(t->find(range.end()) == nullptr);
    CHECK(t->find(range.begin - 1) == nullptr);
    CHECK(t->find(0) == nullptr);
    t->erase(range);
    CHECK(t->find(range.begin) == nullptr);
    CHECK(t->find(range.end() - 1) == nullptr);
}

TEST_CASE("radix_tree: a range across two leaves, partly erased") {
    auto t = std::make_unique<tree>();
    int record = 0, other = 0;
    const va_range range{16_GiB - 4_MiB, 8_MiB};
    REQUIRE(t->insert(range, record));
    for (std::size_t at = 0; at < range.bytes; at += 1_MiB) {
        CHECK(t->find(range.begin + at) == &record);
    }
    t->erase({16_GiB, 2_MiB});
    CHECK(t->find(16_GiB) == nullptr);
    CHECK(t->find(16_GiB - 1) == &record);
    CHECK(t->find(16_GiB + 2_MiB) == &record);
    REQUIRE(t->insert({16_GiB, 2_MiB}, other));
    CHECK(t->find(16_GiB) == &other);
    t->erase({512_GiB, 2_MiB});  // was never there
}

TEST_CASE("radix_tree: its ends") {
    static_assert(tree::covers({(address{1} << 48) - 2_MiB, 2_MiB}));
    static_assert(!tree::covers({(address{1} << 48) - 2_MiB, 4_MiB}));
    static_assert(!tree::covers({~address{0} - 2_MiB + 1, 4_MiB}));  // wraps around
    auto t = std::make_unique<tree>();
    int record = 0;
    REQUIRE(t->insert({(address{1} << 48) - 2_MiB, 2_MiB}, record));
    CHECK(t->find((address{1} << 48) - 1) == &record);
    CHECK(t->find(address{1} << 48) == nullptr);
    CHECK(t->find(~address{0}) == nullptr);
}

TEST_CASE("radix_tree: readers without a lock see a complete record or none") {
    auto t = std::make_unique<radix_tree<std::pair<long, long>>>();
    std::pair<long, long> records[64];
    std::atomic<bool> is_over{false};
    std::atomic<long> wrong{0}, seen{0};
    std::thread reader{[&] {
        while (!is_over.load()) {
            for (address page = 0; page < 64; ++page) {
                if (auto* one = t->find(1_GiB + page * 16_GiB)) {
                    wrong += one->first != static_cast<long>(page) + 1 || one->second != -one->first
                                 ? 1
                                 : 0;
                    seen += 1;
                }
            }
        }
    }};
    for (address page = 0; page < 64; ++page) {
        records[page] = {static_cast<long>(page) + 1, -static_cast<long>(page) - 1};
        CHECK(t->insert({1_GiB + page * 16_GiB, 2_MiB}, records[page]));  // each makes a leaf
    }
    while (seen.load() < 64) {
        std::this_thread::yield();
    }
    is_over = true;
    reader.join();
    CHECK(wrong == 0);
}
