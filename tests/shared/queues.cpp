// SPDX-License-Identifier: Apache-2.0
// Queues: their slots, the tickets and events of one, and the thread that makes host calls.
#include "../../backends/shared/call_thread.hpp"
#include "../../backends/shared/event_stock.hpp"
#include "../../backends/shared/queue_slots.hpp"
#include "../../backends/shared/ticket_ring.hpp"

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

using namespace xmm;

namespace {

struct fake_queue {
    queue_id id;
    int closed = 0;

    void close() noexcept { ++closed; }
    bool is_done(std::uint64_t value) const noexcept { return value <= 1; }
    bool is_submitted(std::uint64_t value) const noexcept { return value <= 2; }
};

// Counts what is made, and fails on request.
struct fake_events {
    struct counts {
        int batches = 0;
        int alive = 0;
        int resets = 0;
        bool is_failing = false;
    };
    using handle = int;
    using batch = int;
    static constexpr unsigned batch_count = 4;

    counts* of;

    status begin(batch& made) const noexcept {
        made = ++of->batches;
        return {};
    }
    status make(batch& in, unsigned index, handle& made) const noexcept {
        if (of->is_failing && index == 2) {
            return fail(errc::no_memory, "no event");
        }
        made = in * 100 + static_cast<int>(index);
        ++of->alive;
        return {};
    }
    bool reset(handle) const noexcept { return ++of->resets != 0; }
    bool destroy(handle) const noexcept { return of->alive-- != 0; }
    void end(batch&) const noexcept { --of->batches; }
};
// One at a time, as CUDA's are made.
struct one_each {
    using handle = int;
    struct batch {};
    static constexpr unsigned batch_count = 1;
    status begin(batch&) const noexcept { return {}; }
    status make(batch&, unsigned, handle& made) const noexcept {
        made = 1;
        return {};
    }
    bool reset(handle) const noexcept { return true; }
    bool destroy(handle) const noexcept { return true; }
    void end(batch&) const noexcept {}
};
using stock = shared::event_stock<fake_events>;
constexpr std::size_t ring_count = 8;
using ring = shared::ticket_ring<stock, ring_count>;

}  // namespace

TEST_CASE("slots: 256 queues, and the id of one that is gone names no other") {
    shared::queue_slots<fake_queue> slots{5};
    const auto open = [](fake_queue& one, queue_id id) {
        one.id = id;
        return status{};
    };
    std::set<std::uint32_t> ids;
    queue_id last;
    for (int i = 0; i < 256; ++i) {
        last = slots.take(open).value();
        ids.insert(last.value);
    }
    CHECK(ids.size() == 256);
    CHECK(slots.take(open).code() == errc::no_memory);
    CHECK(slots.find(last)->id == last);
    slots.end(last);
    CHECK(slots.find(last) == nullptr);
    CHECK(slots.of(last).closed == 1);
    const queue_id again = slots.take(open).value();
    CHECK(again != last);
    CHECK(slots.find(last) == nullptr);
    CHECK_FALSE(slots.is_mine({last.value + (1u << 20)}));
    CHECK(slots.find({last.value + (1u << 20)}) == nullptr);

    // Tickets of queues that are gone can be asked for.
    CHECK(slots.is_done({last, 1}));
    CHECK_FALSE(slots.is_done({again, 3}));
    CHECK(slots.is_done({{last.value + (1u << 20)}, 3}));
    CHECK(slots.check({again, 2}));
    CHECK(slots.check({again, 3}).code == errc::invalid_argument);
    CHECK(slots.check({{last.value + (1u << 20)}, 1}).code == errc::invalid_argument);
    CHECK(slots.check({}));

    // What does not open takes no slot.
    slots.end(again);
    CHECK(slots.take([](fake_queue&, queue_id) { return fail(errc::busy, "no"); }).code() ==
          errc::busy);
    CHECK(slots.take(open));
    int seen = 0;
    slots.for_each([&](fake_queue&) { ++seen; });
    CHECK(seen == 256);
    slots.end_all();
    seen = 0;
    slots.for_each([&](fake_queue&) { ++seen; });
    CHECK(seen == 0);
}

TEST_CASE("salts: no two drivers that live have one, however many there were") {
    shared::queue_slots<fake_queue> first{0};
    const auto open = [](fake_queue& one, queue_id id) {
        one.id = id;
        return status{};
    };
    const queue_id mine = first.take(open).value();
    for (unsigned i = 0; i < 2 * shared::queue_salts::end; ++i) {
        shared::queue_slots<fake_queue> other{0};
        REQUIRE_FALSE(other.is_mine(mine));
    }
    CHECK(first.is_mine(mine));

    shared::queue_salts salts;
    std::set<std::uint32_t> taken;
    for (unsigned i = 1; i < shared::queue_salts::end; ++i) {
        taken.insert(salts.take());
    }
    CHECK(taken.size() == shared::queue_salts::end - 1);
    CHECK(taken.count(0) == 0);
    CHECK(salts.take() == 0);
    salts.give_back(77);
    CHECK(salts.take() == 77);
}

TEST_CASE("events: who makes one gets one, whatever others take meanwhile") {
    using small_stock = shared::event_stock<one_each>;
    small_stock events{one_each{}};
    std::atomic<int> refused{0};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&] {
            std::vector<small_stock::event*> held;
            for (int i = 0; i < 20'000; ++i) {
                if (auto got = events.take()) {
                    held.push_back(*got);
                } else {
                    ++refused;
                }
                // Few free ones at any time.
                if (i % 8 == 7) {
                    small_stock::drop_need(*held.back());
                    held.pop_back();
                }
            }
            for (small_stock::event* one : held) {
                small_stock::drop_need(*one);
            }
        });
    }
    for (std::thread& one : threads) {
        one.join();
    }
    CHECK(refused == 0);
}

TEST_CASE("events come in batches, are lent again when nobody needs them, and all go") {
    fake_events::counts count;
    {
        stock all{{&count}};
        CHECK_FALSE(all.has_free());
        stock::event* one = all.take().value();
        CHECK(count.alive == 4);
        CHECK(all.has_free());
        stock::add_need(*one);
        all.drop_need(*one);
        CHECK(count.resets == 0);
        all.drop_need(*one);
        CHECK(count.resets == 1);
        CHECK(all.take().value() == one);
        // A spoilt one is never lent again.
        stock::spoil(*one);
        all.drop_need(*one);
        CHECK(count.resets == 1);
        for (int i = 0; i < 3; ++i) {
            CHECK(all.take().value() != one);
        }
        count.is_failing = true;
        CHECK(all.take().code() == errc::no_memory);
        CHECK(count.alive == 4);
        CHECK(count.batches == 1);
    }
    CHECK(count.alive == 0);
    CHECK(count.batches == 0);
}

TEST_CASE("a ring: tickets in order, events back when they are reached, full when none is") {
    fake_events::counts count;
    stock all{{&count}};
    ring tickets;
    REQUIRE(tickets.open(all));
    const auto none = [](std::uint64_t) { return false; };
    const auto add = [&] { return tickets.add(tickets.take(none).value()); };
    for (std::uint64_t i = 1; i <= ring_count; ++i) {
        CHECK(add() == i);
    }
    CHECK(tickets.take(none).code() == errc::no_memory);
    CHECK(tickets.is_submitted(8));
    CHECK_FALSE(tickets.is_submitted(9));
    CHECK_FALSE(tickets.is_reached(1));
    CHECK(tickets.pin(9) == nullptr);
    stock::event* second = tickets.pin(2);
    REQUIRE(second != nullptr);

    // Asked for the oldest, which is reached: all up to there come back, but for what is looked at.
    std::uint64_t asked = 0;
    auto next = tickets.take([&](std::uint64_t value) {
        asked = value;
        tickets.finish(3);
        return true;
    });
    CHECK(asked == 1);
    REQUIRE(next);
    CHECK(*next != second);
    CHECK(count.resets == 2);
    CHECK(tickets.is_reached(3));
    CHECK_FALSE(tickets.is_reached(4));
    CHECK(tickets.pin(3) == nullptr);
    CHECK(tickets.add(*next) == 9);
    all.drop_need(*second);
    CHECK(count.resets == 3);
    CHECK(tickets.outcome_of(3, "lost"));
    tickets.close(false);
    CHECK(tickets.is_reached(9));
    CHECK(count.resets == 9);
}

TEST_CASE("a ring: a call that failed and was awaited is reached with those before it") {
    fake_events::counts count;
    stock all{{&count}};
    ring tickets;
    REQUIRE(tickets.open(all));
    CHECK(tickets.add(nullptr) == 1);
    CHECK(tickets.is_reached(1));
    tickets.add(all.take().value());
    CHECK(tickets.add(nullptr) == 3);
    CHECK_FALSE(tickets.is_reached(3));
    stock::event* before = tickets.pin(3);  // that of the second
    REQUIRE(before != nullptr);
    tickets.finish(2);
    all.drop_need(*before);
    CHECK(tickets.pin(3) == nullptr);
    CHECK(tickets.is_reached(3));
    tickets.close(false);
}

TEST_CASE("a ring: what is lost is reached, says so, and its events are not lent again") {
    fake_events::counts count;
    stock all{{&count}};
    ring tickets;
    REQUIRE(tickets.open(all));
    stock::event* needed = all.take().value();
    tickets.add(all.take().value());
    tickets.add(all.take().value(), needed);
    tickets.finish(1);
    std::vector<int> signalled;
    tickets.spoil_pending([&](stock::event& one) { signalled.push_back(one.handle); });
    CHECK(signalled.size() == 1);
    with(tickets.lock, [&] { tickets.lose_locked(); });
    CHECK(tickets.is_reached(2));
    CHECK(tickets.outcome_of(1, "lost"));
    CHECK(tickets.outcome_of(2, "lost").code == errc::device_lost);
    tickets.close(true);
    CHECK(count.resets == 0);
    // The slot's next queue counts on, and starts anew.
    REQUIRE(tickets.open(all));
    const std::uint64_t next = tickets.add(all.take().value());
    CHECK(next == 3);
    tickets.finish(next);
    CHECK(tickets.outcome_of(next, "lost"));
    tickets.close(false);
}

TEST_CASE("calls are made one after the other, and the thread can be started again") {
    struct call {
        std::vector<int>* made = nullptr;
        int number = 0;
        call* after = nullptr;

        void make() noexcept { made->push_back(number); }
    };
    std::vector<int> made;
    std::vector<call> calls(100);
    shared::call_thread<call> worker;
    for (int round = 0; round < 2; ++round) {
        REQUIRE(worker.start("xmm-test-calls"));
        REQUIRE(worker.start("xmm-test-calls"));
        made.clear();
        for (int i = 0; i < 100; ++i) {
            calls[static_cast<std::size_t>(i)] = {&made, i, nullptr};
            worker.push(calls[static_cast<std::size_t>(i)]);
        }
        if (round == 0) {
            worker.await_idle();
            CHECK(made.size() == 100);
        }
        worker.stop();
        REQUIRE(made.size() == 100);
        for (int i = 0; i < 100; ++i) {
            CHECK(made[static_cast<std::size_t>(i)] == i);
        }
    }
}
