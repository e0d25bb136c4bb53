// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/work_in_hand.hpp>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include <doctest/doctest.h>

using namespace xmm;

TEST_CASE("work_in_hand: who waits waits for what was begun before, and for no more") {
    work_in_hand all;
    CHECK(!all.await());
    std::optional<work_in_hand::piece> first{all};
    std::atomic<bool> has_come{false};
    std::atomic<bool> is_over{false};
    std::thread waiter{[&] {
        has_come = true;
        CHECK(all.await());
        is_over = true;
    }};
    while (!has_come) {
        std::this_thread::yield();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    CHECK(!is_over);
    std::optional<work_in_hand::piece> later{all};
    first.reset();
    for (int ms = 0; ms < 5000 && !is_over; ++ms) {
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    CHECK(is_over);  // though the later one goes on
    later.reset();
    waiter.join();
}
