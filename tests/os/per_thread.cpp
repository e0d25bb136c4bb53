// SPDX-License-Identifier: Apache-2.0
#include <xmm/os/per_thread.hpp>

#include <atomic>
#include <cstddef>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/sanitizer.hpp"
#include "child.hpp"

using namespace xmm;

namespace {

struct owner {
    std::atomic<int> left{0};
    std::atomic<std::uintptr_t> last{0};
    thread_items items{[](void* self, void* item) noexcept {
                           auto& me = *static_cast<owner*>(self);
                           me.last = reinterpret_cast<std::uintptr_t>(item);
                           ++me.left;
                       },
                       this};
};
void* item(std::uintptr_t value) { return reinterpret_cast<void*>(value); }

}  // namespace

TEST_CASE("per_thread: each thread finds its own item, and it is handed back at the thread's end") {
    owner one;
    CHECK(one.items.find() == nullptr);
    REQUIRE(one.items.set(item(1)));
    CHECK(one.items.find() == item(1));
    std::thread([&] {
        CHECK(one.items.find() == nullptr);
        CHECK(one.items.set(item(2)));
        CHECK(one.items.set(item(3)));
        CHECK(one.items.find() == item(3));
    }).join();
    CHECK(one.left == 1);
    CHECK(one.last == 3);
    CHECK(one.items.find() == item(1));
}

TEST_CASE("per_thread: an owner that is gone gets nothing back, and the next finds nothing of it") {
    auto first = std::make_unique<owner>();
    std::atomic<int> step{0};
    std::thread other([&] {
        CHECK(first->items.set(item(1)));
        step = 1;
        while (step != 2) {
            std::this_thread::yield();
        }
    });
    while (step != 1) {
        std::this_thread::yield();
    }
    first.reset();
    owner second;
    CHECK(second.items.find() == nullptr);
    step = 2;
    other.join();
    CHECK(second.left == 0);
}

TEST_CASE("per_thread: any number of owners come and go") {
    std::thread([] {
        for (int round = 0; round < 20; ++round) {
            std::vector<std::unique_ptr<owner>> all;
            for (std::uintptr_t i = 1; i <= 200; ++i) {
                all.push_back(std::make_unique<owner>());
                CHECK(all.back()->items.set(item(i)));
            }
            for (std::uintptr_t i = 1; i <= 200; ++i) {
                CHECK(all[i - 1]->items.find() == item(i));
            }
        }
    }).join();
}

TEST_CASE("per_thread: what is gone leaves its place to the next") {
    // Only one owner at a time: the thread's table needs no more room than at first.
    const auto mapped_bytes = [] {
        std::ifstream in{"/proc/self/statm"};
        std::size_t pages = 0;
        in >> pages;
        return pages * 4096;
    };
    std::thread([&] {
        for (int i = 0; i < 1000; ++i) {
            owner one;
            REQUIRE(one.items.set(item(1)));
        }
        const std::size_t before = mapped_bytes();
        for (int i = 0; i < 200'000; ++i) {
            owner one;
            REQUIRE(one.items.set(item(1)));
            REQUIRE(one.items.find() == item(1));
        }
        CHECK(mapped_bytes() < before + (std::size_t{2} << 20));  // it was 16 bytes an owner
    }).join();
}

TEST_CASE("per_thread: threads end while owners are made and destroyed") {
    owner lasting;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < 100; ++i) {
                owner passing;
                CHECK(passing.items.set(item(7)));
                std::thread([&] {
                    CHECK(lasting.items.set(item(8)));
                    CHECK(passing.items.set(item(9)));
                }).join();
                CHECK(passing.left == 1);
                CHECK(passing.items.find() == item(7));
            }
        });
    }
    for (std::thread& one : threads) {
        one.join();
    }
    CHECK(lasting.left == 400);
}

TEST_CASE("per_thread: in a child of fork no thread's end is told") {
    if (xmm::test::has_sanitizer) {
        MESSAGE("skipped: a sanitizer takes the end of a child's only thread for its own");
        return;
    }
    // What the leaver says in the child is seen in memory that both have.
    auto* told = static_cast<std::atomic<int>*>(
        ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    REQUIRE(told != MAP_FAILED);
    thread_items items{[](void* self, void*) noexcept { ++*static_cast<std::atomic<int>*>(self); },
                       told};
    struct arguments {
        thread_items* items;
        pid_t child;
    } given{&items, -1};
    pthread_t forking{};
    REQUIRE(::pthread_create(
                &forking, nullptr,
                [](void* data) -> void* {
                    auto& mine = *static_cast<arguments*>(data);
                    static_cast<void>(mine.items->set(item(1)));
                    mine.child = ::fork();
                    if (mine.child == 0) {
                        ::alarm(20);
                        ::pthread_exit(nullptr);  // the child's last thread
                    }
                    return nullptr;
                },
                &given) == 0);
    REQUIRE(::pthread_join(forking, nullptr) == 0);
    REQUIRE(given.child > 0);
    int how = 0;
    CHECK(::waitpid(given.child, &how, 0) == given.child);
    CHECK(how == 0);
    CHECK(*told == 1);  // the parent's thread
    ::munmap(told, 4096);
}

namespace {

const xmm_test::child_case without_keys{
    "per_thread without keys", [] {
        pthread_key_t taken{};
        while (::pthread_key_create(&taken, nullptr) == 0) {
        }
        owner one;
        return !one.items.set(item(1)) && one.items.find() == nullptr ? 0 : 1;
    }};

}  // namespace

TEST_CASE("per_thread: without a pthread key threads go without items") {
    CHECK(xmm_test::run_child("per_thread without keys").exit_code == 0);
}
