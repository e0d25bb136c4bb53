// SPDX-License-Identifier: Apache-2.0
#include <xmm/core/lock.hpp>

#include <mutex>
#include <string>
#include <thread>
#include <type_traits>

#include <doctest/doctest.h>

#include "child.hpp"

using namespace xmm;

TEST_CASE("lock: with returns what the function returns and lets go") {
    ranked_mutex<lock_rank::page> lock;
    CHECK(with(lock, [] { return 7; }) == 7);
    int value = 1;
    with(lock, [&]() -> int& { return value; }) = 2;
    CHECK(value == 2);
    REQUIRE(lock.try_lock());
    bool got = true;
    std::thread{[&] { got = lock.try_lock(); }}.join();
    CHECK(!got);
    lock.unlock();
}

TEST_CASE("lock: it excludes") {
    ranked_mutex<lock_rank::leaf> lock;
    int count = 0;
    const auto work = [&] {
        for (int i = 0; i < 20000; ++i) {
            with(lock, [&] { ++count; });
        }
    };
    std::thread other{work};
    work();
    other.join();
    CHECK(count == 40000);
}

TEST_CASE("lock: ranks have names") {
    CHECK(std::string{name_of(lock_rank::extent_heap)} == "extent_heap");
    CHECK(std::string{name_of(lock_rank::gate)} == "gate");
    CHECK(std::string{name_of(lock_rank::page)} == "page");
    CHECK(std::string{name_of(lock_rank::frame_keepers)} == "frame_keepers");
    CHECK(std::string{name_of(lock_rank::ledger)} == "ledger");
    CHECK(std::string{name_of(lock_rank::leaf)} == "leaf");
}

#if XMM_CHECKS
TEST_CASE("lock: downwards and by address is allowed") {
    ranked_mutex<lock_rank::address_space> space;
    ranked_mutex<lock_rank::page> page[2];
    ranked_mutex<lock_rank::page_list> list;
    const auto how = test::in_child([&] {
        space.lock();
        page[0].lock();
        page[1].lock();
        list.lock();
        page[0].unlock();  // not in the reverse order
        list.unlock();
        list.lock();
    });
    CHECK(!how.is_crash());
}

TEST_CASE("lock: a wrong order aborts and names both ranks") {
    ranked_mutex<lock_rank::tree> tree;
    ranked_mutex<lock_rank::page> page[2];
    const auto upwards = test::in_child([&] {
        page[0].lock();
        tree.lock();
    });
    CHECK(upwards.signal == SIGABRT);
    CHECK(upwards.says("tree acquired while page is held"));
    const auto peers = test::in_child([&] {
        page[1].lock();
        page[0].lock();
    });
    CHECK(peers.signal == SIGABRT);
    CHECK(peers.says("page acquired while page is held"));
    const auto twice = test::in_child([&] {
        page[0].lock();
        page[0].lock();
    });
    CHECK(twice.signal == SIGABRT);
}

TEST_CASE("lock: a try goes against the order and still counts as held") {
    ranked_mutex<lock_rank::page> page;
    ranked_mutex<lock_rank::page_list> list;
    ranked_mutex<lock_rank::tree> tree;
    const auto allowed = test::in_child([&] {
        list.lock();
        if (!page.try_lock()) {
            ::_exit(1);
        }
        page.unlock();
        list.unlock();
        tree.lock();  // nothing is held any more
    });
    CHECK(!allowed.is_crash());
    const auto counted = test::in_child([&] {
        static_cast<void>(page.try_lock());
        tree.lock();
    });
    CHECK(counted.signal == SIGABRT);
}

TEST_CASE("lock: each thread has an order of its own") {
    ranked_mutex<lock_rank::page> page;
    ranked_mutex<lock_rank::tree> tree;
    std::lock_guard hold{page};
    std::thread{[&] { std::lock_guard other{tree}; }}.join();
    const bool is_free_again = tree.try_lock();
    CHECK(is_free_again);
    tree.unlock();
}

TEST_CASE("lock: guards of two check levels in one program do not meet") {
    // In a unit without checks an object has locks of this type; the units share its functions' names.
    using unchecked = ranked_mutex<lock_rank::page, 0>;
    using checked = ranked_mutex<lock_rank::page, 1>;
    static_assert(!std::is_same_v<unchecked, checked> && sizeof(unchecked) == sizeof(checked));
    const auto how = test::in_child([] {
        unchecked plain;
        checked page[2];
        std::lock_guard first{page[1]};
        std::lock_guard unseen{plain};
        std::lock_guard again{page[0]};
    });
    CHECK(how.signal == SIGABRT);
    const auto counted = test::in_child([] {
        unchecked plain;
        ranked_mutex<lock_rank::tree, 1> tree;
        std::lock_guard unseen{plain};
        std::lock_guard guard{tree};  // upwards, but only checked locks count
    });
    CHECK(!counted.is_crash());
}

TEST_CASE("lock: more locks than can be checked, and a stranger's unlock, abort") {
    const auto many = test::in_child([] {
        static ranked_mutex<lock_rank::page> page[65];
        for (auto& one : page) {
            one.lock();
        }
    });
    CHECK(many.signal == SIGABRT);
    CHECK(many.says("more locks than can be checked"));
    const auto stranger = test::in_child([] {
        ranked_mutex<lock_rank::page> page;
        std::thread{[&] { page.lock(); }}.join();
        page.unlock();
    });
    CHECK(stranger.signal == SIGABRT);
}
#endif
