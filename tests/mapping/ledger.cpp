// SPDX-License-Identifier: Apache-2.0
#include <xmm/mapping/ledger.hpp>

#include <thread>
#include <vector>

#include <doctest/doctest.h>

using namespace xmm;
using namespace xmm::literals;

TEST_CASE("ledger: reserves up to the limit and not a byte more") {
    ledger book;
    book.open(10_MiB);
    CHECK(book.limit() == 10_MiB);
    CHECK(book.try_reserve(6_MiB));
    CHECK(!book.try_reserve(4_MiB + 1));
    CHECK(book.used() == 6_MiB);
    CHECK(book.try_reserve(4_MiB));
    CHECK(!book.try_reserve(1));
    book.release(10_MiB);
    CHECK(book.used() == 0);
    CHECK(book.peak() == 10_MiB);
    CHECK(!book.try_reserve(SIZE_MAX));
    CHECK(book.used() == 0);
}

TEST_CASE("ledger: the budget lowers the limit and never raises it above the capacity") {
    ledger book;
    book.open(8_MiB);
    book.open(99_MiB);  // the first one counts
    CHECK(book.capacity() == 8_MiB);
    REQUIRE(book.try_reserve(6_MiB));
    book.set_budget(4_MiB);
    CHECK(book.limit() == 4_MiB);
    CHECK(!book.try_reserve(0_MiB + 1));
    book.release(4_MiB);
    CHECK(book.try_reserve(2_MiB));
    book.set_budget(SIZE_MAX);
    CHECK(book.limit() == 8_MiB);
}

TEST_CASE("ledger: a limit that changes while somebody reserves lets nobody through") {
    ledger book;
    book.open(8_MiB);
    REQUIRE(book.try_reserve(6_MiB));
    std::atomic<bool> is_over{false};
    std::thread other{[&] {
        while (!is_over.load(std::memory_order_relaxed)) {
            book.set_capacity(1_MiB);
            book.set_capacity(8_MiB);
        }
    }};
    int granted = 0;
    for (int i = 0; i < 3'000'000 && granted == 0; ++i) {
        granted += book.try_reserve(4_MiB) ? 1 : 0;  // fits under neither
    }
    is_over.store(true, std::memory_order_relaxed);
    other.join();
    CHECK(granted == 0);
    CHECK(book.used() == 6_MiB);
}

TEST_CASE("ledger: threads together never get more than the limit") {
    ledger book;
    book.open(1000);
    std::atomic<int> granted{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
            for (int j = 0; j < 1000; ++j) {
                granted.fetch_add(book.try_reserve(1) ? 1 : 0);
            }
        });
    }
    for (auto& one : threads) {
        one.join();
    }
    CHECK(granted == 1000);
    CHECK(book.used() == 1000);
}

TEST_CASE("ledger: one per node and process") {
    ledger* first = ledger_of(node_id{50000}, 5_MiB);
    REQUIRE(first != nullptr);
    CHECK(ledger_of(node_id{50000}, 7_MiB) == first);
    CHECK(first->capacity() == 5_MiB);
    CHECK(ledger_of(node_id{50001}, 7_MiB) != first);
    CHECK(ledger_of(no_node, 7_MiB) == nullptr);
    CHECK(ledger_of(any_host, 7_MiB) == nullptr);
    CHECK(ledger_of(node_id{INT32_MAX}, 7_MiB) == nullptr);
}

namespace {

// Frames of one byte each.
struct paper_keeper final : frame_keeper {
    explicit paper_keeper(ledger& on) : book{on} {}
    bool drop_oldest() noexcept override {
        if (frames == 0) {
            return false;
        }
        keep(-1);
        ++dropped;
        return true;
    }
    void keep(int more) {
        frames += more;
        book.count_kept(*this, more);
    }
    ledger& book;
    int frames = 0;
    int dropped = 0;
};

}  // namespace

TEST_CASE("ledger: what a keeper has when it leaves is not of the others' share") {
    ledger book;
    paper_keeper leaver{book};
    paper_keeper other{book};
    book.add_keeper(leaver, 400);
    book.add_keeper(other, 100);
    leaver.keep(390);
    other.keep(10);
    book.remove_keeper(leaver);
    CHECK(book.most_kept_bytes() == 100);
    CHECK(book.kept_bytes() == 10);
    other.keep(1);
    book.drop_excess();
    CHECK(other.dropped == 0);
    CHECK(other.frames == 11);
    other.keep(100);
    book.drop_excess();
    CHECK(other.dropped == 11);
    CHECK(book.kept_bytes() == 100);
    book.remove_keeper(other);
    CHECK(book.kept_bytes() == 0);
}

TEST_CASE("what the driver takes beside frames comes off the budget, not off what was measured") {
    ledger book;
    book.open(64_MiB);
    book.set_overhead(4_MiB);
    CHECK(book.limit() == 64_MiB);
    book.set_budget(16_MiB);
    CHECK(book.limit() == 12_MiB);
    book.set_budget(2_MiB);
    CHECK(book.limit() == 0);
    CHECK_FALSE(book.try_reserve(1));
    book.set_budget(16_MiB);
    book.set_capacity(8_MiB);
    CHECK(book.limit() == 8_MiB);
    book.set_budget(no_budget);
    CHECK(book.limit() == 8_MiB);
}
