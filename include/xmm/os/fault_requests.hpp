// SPDX-License-Identifier: Apache-2.0
// fault_requests.hpp - the way from a thread that faulted to a service thread and back.
//
// Model    A fixed board of slots, each handed on by its state: idle -> claimed and filled -> posted ->
//          running -> answered -> idle. An event of userfaultfd has nobody who waits for the answer: its
//          service thread gives the slot back itself.
// Threads  Any, lock-free, async-signal-safe. Waiting is by futex.
// Failure  None: who finds the board full waits for a slot.
#pragma once

#include <atomic>
#include <cstdint>

#include <xmm/core/types.hpp>
#include <xmm/os/fault_sinks.hpp>
#include <xmm/os/futex.hpp>

namespace xmm::detail {

// (A) atomic  (R) of whoever claimed it until posted, of its service thread until answered, then again
// of the first
struct fault_request {
    std::atomic<std::uint32_t> state{0};  // (A)
    address at = 0;                       // (R)
    access wanted = access::none;         // (R)
    bool is_event = false;                // (R) from userfaultfd
    sink_table::slot* owner = nullptr;    // (R) held
    cpu_fault_outcome outcome{};          // (R)
    const char* why = "";                 // (R)
};

class request_board {
public:
    static constexpr unsigned capacity = 128;

    [[nodiscard]] fault_request& claim() noexcept {
        for (;;) {
            // Read before looking, so that no slot that comes back meanwhile is slept over.
            // acquire: pairs with the release in give_back; who sees the count sees the slot.
            const std::uint32_t returns = returns_.load(std::memory_order_acquire);
            if (fault_request* one = take(idle, claimed, 0); one != nullptr) {
                return *one;
            }
            futex_wait(returns_, returns);
        }
    }
    void post(fault_request& filled) noexcept {
        // release: pairs with the acquire in take.
        filled.state.store(posted, std::memory_order_release);
        // release: pairs with the acquire in next; who sees the new count sees the post.
        posts_.fetch_add(1, std::memory_order_release);
        futex_wake(posts_, 1);
    }
    // The next request, in turn, so that those that come again and again keep nobody waiting; waits for it.
    [[nodiscard]] fault_request& next() noexcept {
        for (;;) {
            // acquire: pairs with the release in post; read before looking, as in claim.
            const std::uint32_t posts = posts_.load(std::memory_order_acquire);
            // relaxed: any start will do.
            const unsigned first = next_.load(std::memory_order_relaxed);
            if (fault_request* one = take(posted, running, first); one != nullptr) {
                // relaxed: as above.
                next_.store(static_cast<unsigned>(one - slots_) + 1, std::memory_order_relaxed);
                return *one;
            }
            futex_wait(posts_, posts);
        }
    }
    static void answer(fault_request& served) noexcept {
        // release: pairs with the acquire in wait_for_answer.
        served.state.store(answered, std::memory_order_release);
        futex_wake(served.state, 1);
    }
    static void wait_for_answer(fault_request& mine) noexcept {
        // acquire: pairs with the release in answer.
        for (std::uint32_t seen = 0;
             (seen = mine.state.load(std::memory_order_acquire)) != answered;) {
            futex_wait(mine.state, seen);
        }
    }
    void give_back(fault_request& done) noexcept {
        // release: pairs with the acquire in take.
        done.state.store(idle, std::memory_order_release);
        // release: pairs with the acquire in claim.
        returns_.fetch_add(1, std::memory_order_release);
        futex_wake(returns_, 1);
    }

private:
    enum state : std::uint32_t { idle, claimed, posted, running, answered };

    [[nodiscard]] fault_request* take(state from, state to, unsigned first) noexcept {
        for (unsigned i = 0; i < capacity; ++i) {
            fault_request& one = slots_[(first + i) % capacity];
            std::uint32_t expected = from;
            // relaxed: spares the exchange where it would fail, and that is where it pairs with post or give_back.
            if (one.state.load(std::memory_order_relaxed) == expected &&
                one.state.compare_exchange_strong(expected, to, std::memory_order_acquire)) {
                return &one;
            }
        }
        return nullptr;
    }

    fault_request slots_[capacity];
    std::atomic<std::uint32_t> posts_{0};    // counts posts; service threads sleep on it
    std::atomic<unsigned> next_{0};          // where the look for a request begins
    std::atomic<std::uint32_t> returns_{0};  // counts slots given back; who found none sleeps on it
};

}  // namespace xmm::detail
