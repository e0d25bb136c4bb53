// SPDX-License-Identifier: Apache-2.0
#include <xmm/mapping/frame_pool.hpp>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "paper_driver.hpp"

using namespace xmm;
using namespace xmm::literals;

namespace {

struct pool_rig {
    test::paper_driver driver;
    ledger book;
    frame_pool pool;

    explicit pool_rig(std::size_t capacity = 16_MiB, std::size_t kept = SIZE_MAX) {
        book.open(capacity);
        pool.open(backend_ref{driver}, node_id{7}, 3, false, book, kept);
    }
    frame_record* take(std::size_t bytes = 2_MiB) {
        auto taken = pool.take(bytes);
        REQUIRE(taken);
        return *taken;
    }
};

}  // namespace

TEST_CASE("frame_pool: a fresh frame is charged and described") {
    pool_rig r;
    frame_record* one = r.take(4_MiB);
    CHECK(one->backing.bytes == 4_MiB);
    CHECK(one->backing.node == node_id{7});
    CHECK(one->backing.zeroed);
    CHECK(one->slot == 3);
    CHECK(!one->is_host);
    CHECK(one->owner == nullptr);
    CHECK(r.book.used() == 4_MiB);
    CHECK(r.driver.frames.size() == 1);
    r.pool.give_back(*one);
    CHECK(r.book.used() == 4_MiB);  // kept, and so still held
    CHECK(r.pool.free_bytes() == 4_MiB);
}

TEST_CASE("frame_pool: the frame freed last comes back, no longer known to be zero") {
    pool_rig r;
    frame_record* one = r.take();
    frame_record* two = r.take();
    r.pool.give_back(*two);
    r.pool.give_back(*one);
    frame_record* again = r.take();
    CHECK(again == one);
    CHECK(!again->backing.zeroed);
    CHECK(r.driver.frame_calls == 2);
    CHECK(r.pool.free_bytes() == 2_MiB);
    r.pool.give_back(*again);
}

TEST_CASE("frame_pool: beyond the limit it fails and charges nothing") {
    pool_rig r{4_MiB};
    frame_record* one = r.take();
    frame_record* two = r.take();
    auto third = r.pool.take(2_MiB);
    CHECK(third.code() == errc::no_memory);
    CHECK(r.book.used() == 4_MiB);
    CHECK(r.driver.frame_calls == 2);  // the driver was not even asked
    r.pool.give_back(*one), r.pool.give_back(*two);
}

TEST_CASE("frame_pool: frames of other sizes are dropped for one that does not fit, oldest first") {
    pool_rig r{8_MiB};
    frame_record* small[4] = {r.take(), r.take(), r.take(), r.take()};
    const std::uint64_t oldest = small[2]->backing.handle;
    r.pool.give_back(*small[2]);
    r.pool.give_back(*small[0]);
    r.pool.give_back(*small[1]);
    frame_record* large = r.take(4_MiB);
    CHECK(r.book.used() == 8_MiB);
    CHECK(r.pool.free_bytes() == 0 + 2_MiB);
    REQUIRE(r.driver.dropped.size() == 2);
    CHECK(r.driver.dropped[0].handle == oldest);
    r.pool.give_back(*large), r.pool.give_back(*small[3]);
}

TEST_CASE("frame_pool: what exceeds the kept bytes is dropped at once") {
    pool_rig r{16_MiB, 3_MiB};
    frame_record* one = r.take();
    frame_record* two = r.take();
    r.pool.give_back(*one);
    CHECK(r.driver.dropped.empty());
    r.pool.give_back(*two);
    CHECK(r.driver.dropped.size() == 1);
    CHECK(r.book.used() == 2_MiB);
    CHECK(r.pool.free_bytes() == 2_MiB);
}

TEST_CASE("frame_pool: after the budget was lowered frames go instead of being kept") {
    pool_rig r;
    frame_record* one = r.take();
    frame_record* two = r.take();
    r.book.set_budget(2_MiB);
    r.pool.give_back(*one);
    CHECK(r.book.used() == 2_MiB);
    CHECK(r.driver.dropped.size() == 1);
    r.pool.give_back(*two);
    CHECK(r.pool.free_bytes() == 2_MiB);
    r.book.set_budget(0);
    r.pool.trim(0);
    CHECK(r.book.used() == 0);
    CHECK(r.driver.frames.empty());
}

TEST_CASE("frame_pool: all or nothing when the driver refuses") {
    pool_rig r;
    r.driver.frames_until_failure = 0;
    auto refused = r.pool.take(2_MiB);
    CHECK(refused.code() == errc::no_memory);
    CHECK(r.book.used() == 0);
    CHECK(r.pool.free_bytes() == 0);
    frame_record* one = r.take();  // and goes on after
    CHECK(r.book.used() == 2_MiB);
    r.pool.give_back(*one);
}

TEST_CASE("frame_pool: a driver that has less than the ledger believes gets frames back first") {
    pool_rig r;
    frame_record* small[2] = {r.take(), r.take()};
    r.pool.give_back(*small[0]), r.pool.give_back(*small[1]);
    r.driver.frames_until_failure = 0;
    r.driver.frame_failures = 2;
    frame_record* large = r.take(4_MiB);
    CHECK(r.driver.dropped.size() == 2);
    CHECK(r.book.used() == 4_MiB);
    CHECK(large->backing.bytes == 4_MiB);
    r.pool.give_back(*large);
    r.driver.frames_until_failure = 0;
    r.driver.frame_failures = 2;
    CHECK(r.pool.take(2_MiB).code() == errc::no_memory);
    CHECK(r.book.used() == 0);
    CHECK(r.driver.frames.empty());
}

TEST_CASE("frame_pool: the pools of a node keep together what one may keep") {
    test::paper_driver driver;
    ledger book;
    book.open(64_MiB);
    frame_pool pools[3];
    std::vector<frame_record*> taken;
    for (frame_pool& one : pools) {
        one.open(backend_ref{driver}, node_id{7}, 0, true, book, 8_MiB);
        for (int i = 0; i < 4; ++i) {
            taken.push_back(one.take(2_MiB).value());
        }
    }
    for (std::size_t i = 0; i < taken.size(); ++i) {
        pools[i / 4].give_back(*taken[i]);
    }
    CHECK(book.kept_bytes() == 8_MiB);
    CHECK(book.used() == 8_MiB);
    frame_record* one = pools[0].take(2_MiB).value();
    CHECK(book.kept_bytes() == 6_MiB);
    pools[0].give_back(*one);
    for (frame_pool& pool : pools) {
        pool.trim(0);
    }
    CHECK(book.kept_bytes() == 0);
    CHECK(book.used() == 0);
}

TEST_CASE("frame_pool: what idle pools keep costs a pool that works nothing") {
    test::paper_driver driver;
    ledger book;
    book.open(64_MiB);
    frame_pool idle, busy;
    idle.open(backend_ref{driver}, node_id{7}, 0, true, book, 16_MiB);
    busy.open(backend_ref{driver}, node_id{7}, 0, true, book, 4_MiB);
    std::vector<frame_record*> taken;
    for (int i = 0; i < 8; ++i) {
        taken.push_back(idle.take(2_MiB).value());
    }
    for (frame_record* one : taken) {
        idle.give_back(*one);
    }
    REQUIRE(idle.free_bytes() == 16_MiB);
    for (int round = 0; round < 10; ++round) {
        frame_record* one = busy.take(2_MiB).value();
        busy.give_back(*one);
    }
    CHECK(driver.frame_calls == 9);  // the busy one's is made once
    CHECK(driver.dropped.size() == 1);
    CHECK(busy.free_bytes() == 2_MiB);
    CHECK(idle.free_bytes() == 14_MiB);
    CHECK(book.most_kept_bytes() == 16_MiB);
    idle.open(backend_ref{driver}, node_id{7}, 0, true, book, 0);
    CHECK(book.most_kept_bytes() == 4_MiB);  // one that is gone allows nothing
    CHECK(book.kept_bytes() == 2_MiB);
}

TEST_CASE("frame_pool: a device that is lost meanwhile costs no more free frames") {
    pool_rig r;
    frame_record* small[3] = {r.take(), r.take(), r.take()};
    for (frame_record* one : small) {
        r.pool.give_back(*one);
    }
    r.driver.frames_until_failure = 0;
    r.driver.frame_failures = 2;
    r.driver.last_failure = errc::device_lost;
    CHECK(r.pool.take(4_MiB).code() == errc::device_lost);
    CHECK(r.driver.dropped.size() == 1);
    CHECK(r.book.used() == 4_MiB);
}

TEST_CASE("frame_pool: gives everything back when it goes") {
    test::paper_driver driver;
    ledger book;
    book.open(16_MiB);
    {
        frame_pool pool;
        pool.open(backend_ref{driver}, node_id{7}, 0, true, book, SIZE_MAX);
        auto one = pool.take(2_MiB);
        REQUIRE(one);
        CHECK((*one)->is_host);
        pool.give_back(**one);
    }
    CHECK(book.used() == 0);
    CHECK(driver.frames.empty());
}

TEST_CASE("frame_pool: what another pool keeps on the node goes before a request is refused") {
    pool_rig r{8_MiB};
    test::paper_driver driver;
    frame_pool idle;
    idle.open(backend_ref{driver}, node_id{7}, 0, false, r.book, SIZE_MAX);
    frame_record* kept[4] = {};
    for (frame_record*& one : kept) {
        auto taken = idle.take(2_MiB);
        REQUIRE(taken);
        one = *taken;
    }
    CHECK(r.pool.take(2_MiB).code() == errc::no_memory);  // they are in use
    for (frame_record* one : kept) {
        idle.give_back(*one);
    }
    CHECK(idle.free_bytes() == 8_MiB);
    frame_record* mine = r.take();
    CHECK(idle.free_bytes() == 6_MiB);  // no more than was needed
    CHECK(driver.dropped.size() == 1);
    CHECK(r.book.used() == 8_MiB);
    // The same where the driver has less than the ledger believes.
    r.book.set_capacity(64_MiB);
    r.driver.frames_until_failure = 0;
    frame_record* second = r.take();
    CHECK(idle.free_bytes() == 4_MiB);
    r.pool.give_back(*mine), r.pool.give_back(*second);
}

TEST_CASE("frame_pool: one that is opened anew or ends is asked no more") {
    pool_rig r{4_MiB};
    {
        test::paper_driver driver;
        frame_pool other;
        other.open(backend_ref{driver}, node_id{7}, 0, false, r.book, SIZE_MAX);
        other.open(backend_ref{driver}, node_id{7}, 1, false, r.book, SIZE_MAX);
        auto one = other.take(4_MiB);
        REQUIRE(one);
        CHECK((*one)->slot == 1);
        other.give_back(**one);
    }
    CHECK(r.book.used() == 0);
    frame_record* all = r.take(4_MiB);
    CHECK(r.pool.take(2_MiB).code() == errc::no_memory);
    r.pool.give_back(*all);
}

TEST_CASE("frame_pool: who measures knows of frames that are being made and dropped") {
    struct asking_driver : test::paper_driver {
        result<frame> frame_create(node_id node, std::size_t bytes) noexcept {
            CHECK(!book->changes_if_quiet());
            CHECK(book->used() == 2_MiB);
            return paper_driver::frame_create(node, bytes);
        }
        void frame_drop(frame f) noexcept {
            CHECK(!book->changes_if_quiet());
            CHECK(book->used() == 2_MiB);
            paper_driver::frame_drop(f);
        }
        ledger* book = nullptr;
    };
    asking_driver driver;
    ledger book;
    book.open(2_MiB);
    driver.book = &book;
    frame_pool pool;
    pool.open(backend_ref{driver}, node_id{7}, 0, false, book, SIZE_MAX);
    CHECK(book.changes_if_quiet() == 0u);
    auto one = pool.take(2_MiB);
    REQUIRE(one);
    CHECK(book.changes_if_quiet() == 1u);
    CHECK(!pool.take(2_MiB));
    CHECK(book.changes_if_quiet().has_value());
    pool.give_back(**one);
    const std::uint64_t before = book.changes_begun();
    pool.trim(0);
    CHECK(book.changes_if_quiet() == before + 1);
    CHECK(book.used() == 0);
}

TEST_CASE("frame_pool: pools that starve each other end while they do") {
    struct locked_driver : test::paper_driver {
        std::mutex order;
        result<frame> frame_create(node_id node, std::size_t bytes) noexcept {
            return with(order, [&] { return paper_driver::frame_create(node, bytes); });
        }
        void frame_drop(frame f) noexcept {
            with(order, [&] { paper_driver::frame_drop(f); });
        }
    };
    ledger book;
    book.open(4_MiB);
    std::atomic<int> taken_count{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&] {
            for (int round = 0; round < 300; ++round) {
                locked_driver driver;  // its frames are dropped by the other threads, too
                frame_pool pool;
                pool.open(backend_ref{driver}, node_id{7}, 0, false, book, SIZE_MAX);
                for (int i = 0; i < 3; ++i) {
                    if (auto one = pool.take(2_MiB)) {
                        ++taken_count;
                        pool.give_back(**one);
                    }
                }
            }
        });
    }
    for (std::thread& one : threads) {
        one.join();
    }
    CHECK(taken_count > 0);
    CHECK(book.used() == 0);
}
