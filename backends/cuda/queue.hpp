// SPDX-License-Identifier: Apache-2.0
// queue.hpp - a stream, ours or a user's, with tickets for points in its work.
//
// Model    Each call enqueues its work and an event behind it; the ticket is the count of calls so far. Events
//          are used again once their ticket is known to be reached and nobody looks at them. A slot outlives its
//          queues, and its count goes on, so that asking for the ticket of a queue that is gone is harmless.
// Threads  Any. order_ (rank backend_queue) is held while something is enqueued, so that tickets are in the
//          stream's order; ring_ (rank leaf) guards the events and is never held across a call of the driver.
// Failure  A stream that is being captured answers busy, and its capture goes on. After the device is lost all
//          tickets are reached: those that were not before answer device_lost.
#pragma once

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

#include <xmm/concepts/backend.hpp>
#include <xmm/core/lock.hpp>

#include "../shared/ticket_ring.hpp"

#include "calls.hpp"
#include "device.hpp"
#include "events.hpp"

namespace xmm::cuda {

class queue {
public:
    queue() = default;
    queue(const queue&) = delete;
    queue& operator=(const queue&) = delete;
    ~queue() {
        while (orphans_ != nullptr) {
            delete std::exchange(orphans_, orphans_->next);
        }
    }

    [[nodiscard]] device& on() const noexcept { return *device_; }
    [[nodiscard]] CUstream stream() const noexcept { return stream_; }
    [[nodiscard]] bool is_adopted() const noexcept { return !is_own_; }

    [[nodiscard]] status open(queue_id id, device& on, call_thread& calls, event_stock& events,
                              queue_priority priority) noexcept {
        const context_scope here{on.calls(), on.context()};
        CUstream made = nullptr;
        // Non-blocking: it neither waits for the legacy stream nor breaks a capture through it.
        const status outcome = on.note(on.calls().call(
            &driver_api::stream_create_with_priority, &made,
            static_cast<unsigned>(CU_STREAM_NON_BLOCKING), on.stream_priority(priority)));
        is_background_ = priority == queue_priority::background;
        return outcome ? open_on(id, on, calls, events, made, true) : outcome;
    }
    [[nodiscard]] status adopt(queue_id id, device& on, call_thread& calls, event_stock& events,
                               CUstream users) noexcept {
        is_background_ = false;
        return open_on(id, on, calls, events, users, false);
    }
    // Returns when the work that has tickets, and every host call, is over.
    void close() noexcept {
        const driver& calls = device_->calls();
        const context_scope here{calls, device_->context()};
        if (is_own_) {
            (void)device_->note(calls.call(&driver_api::stream_synchronize, stream_));
        }
        (void)wait(ring_.last());
        if (device_->is_lost()) {
            lose();
        }
        await_calls();
        std::lock_guard order{order_};
        ring_.close(false);
        if (is_own_) {
            (void)calls.call(&driver_api::stream_destroy, stream_);
        }
        stream_ = nullptr;
    }

    // enqueue(CUstream) -> status puts the work in the stream. What a failure leaves there is awaited.
    template <class Enqueue>
    [[nodiscard]] result<ticket> submit(Enqueue&& enqueue) noexcept {
        const driver& calls = device_->calls();
        const context_scope here{calls, device_->context()};
        std::lock_guard order{order_};
        if (const status able = check_stream(); !able) {
            return able;
        }
        auto done = ring_.take([&](std::uint64_t value) { return is_done(value); });
        if (!done) {
            return done.error();
        }
        status outcome = device_->note(enqueue(stream_));
        if (outcome) {
            outcome =
                device_->note(calls.call(&driver_api::event_record, (*done)->handle, stream_));
        }
        if (!outcome) {
            if (outcome.code != errc::busy) {  // a capture that began meanwhile has nothing of ours
                (void)device_->note(calls.call(&driver_api::stream_synchronize, stream_));
            }
            events_->drop_need(**done);
            return outcome;
        }
        return ticket{id_, ring_.add(*done)};
    }
    [[nodiscard]] result<ticket> record() noexcept {
        return submit([](CUstream) { return status{}; });
    }
    // Later work in the stream waits for a point of another queue.
    [[nodiscard]] status await_point(queue& other, std::uint64_t value) noexcept {
        const pin point{other, value};
        if (point.held == nullptr || &other == this) {
            return {};
        }
        const driver& calls = device_->calls();
        const context_scope here{calls, device_->context()};
        std::lock_guard order{order_};
        const status able = check_stream();
        return able ? device_->note(calls.call(&driver_api::stream_wait_event, stream_,
                                               point.held->handle, 0u))
                    : able;
    }
    [[nodiscard]] result<ticket> call(void (*fn)(void*) noexcept, void* context) noexcept {
        if (const status started = calls_->start("xmm-cuda-calls"); !started) {
            return started;
        }
        auto* one = new (std::nothrow) host_call;
        if (one == nullptr) {
            return fail(errc::no_memory, "no memory for a host call");
        }
        one->fn = fn, one->context = context, one->owner = this;
        with(ring_.lock, [&] { link_locked(*one); });
        bool is_enqueued = false;  // then it is made
        auto point = submit([&](CUstream stream) {
            const status enqueued = device_->calls().call(&driver_api::launch_host_func, stream,
                                                          &queue::on_turn, static_cast<void*>(one));
            is_enqueued = enqueued.is_ok();
            return enqueued;
        });
        if (point) {
            host_call::let_go(*one);
            return point;
        }
        if (!is_enqueued && with(ring_.lock, [&] { return claim_locked(*one); })) {
            delete one;
            return point.error();
        }
        // It is made, by the driver or by the loss: only the event behind it failed. A failure would say that it
        // never is, so its end is awaited here, and the ticket is one that is reached.
        if (device_->is_lost()) {
            lose();
        }
        one->await();
        host_call::let_go(*one);
        return ticket{id_, 0};
    }

    [[nodiscard]] bool is_submitted(std::uint64_t value) noexcept {
        return ring_.is_submitted(value);
    }
    [[nodiscard]] bool is_done(std::uint64_t value) noexcept {
        if (ring_.is_reached(value)) {
            return true;
        }
        const context_scope here{device_->calls(), device_->context()};
        return is_done_in_context(value);
    }
    // By looking, then by looking between naps: an event that can be slept on (BLOCKING_SYNC) is reached 33 us later.
    [[nodiscard]] status wait(std::uint64_t value) noexcept {
        if (!is_done(value) && !is_submitted(value)) {
            return fail(errc::invalid_argument, "a ticket that was never given");
        }
        if (!look_for_a_while(value)) {
            const context_scope here{device_->calls(), device_->context()};
            // As long as a part of the time waited so far, so that what takes longer is looked at less often.
            const auto began = std::chrono::steady_clock::now();
            while (!is_done_in_context(value)) {
                const auto waited = std::chrono::duration_cast<std::chrono::microseconds>(
                    std::chrono::steady_clock::now() - began);
                std::this_thread::sleep_for(std::clamp(waited / 64, shortest_nap, longest_nap));
            }
        }
        return ring_.outcome_of(value, "the work was lost with its CUDA device");
    }

private:
    static constexpr std::chrono::microseconds longest_look{50'000};
    static constexpr std::chrono::microseconds longest_look_in_background{20};
    static constexpr std::chrono::microseconds shortest_nap{10};
    static constexpr std::chrono::microseconds longest_nap{160};

    // Keeps an event as it is while it is looked at; none if the ticket is reached or was never given.
    struct pin {
        event* const held;

        pin(queue& owner, std::uint64_t value) noexcept : held{owner.ring_.pin(value)} {}
        ~pin() {
            if (held != nullptr) {
                event_stock::drop_need(*held);
            }
        }
        pin(const pin&) = delete;
        pin& operator=(const pin&) = delete;
    };

    // Whether the ticket was reached in that time.
    [[nodiscard]] bool look_for_a_while(std::uint64_t value) noexcept {
        if (is_done(value)) {
            return true;
        }
        const context_scope here{device_->calls(), device_->context()};
        const auto until = std::chrono::steady_clock::now() +
                           (is_background_ ? longest_look_in_background : longest_look);
        while (std::chrono::steady_clock::now() < until) {
            if (is_done_in_context(value)) {
                return true;
            }
        }
        return false;
    }

    [[nodiscard]] status open_on(queue_id id, device& on, call_thread& calls, event_stock& events,
                                 CUstream stream, bool is_own) noexcept {
        if (const status opened = ring_.open(events); !opened) {
            if (is_own) {
                (void)on.calls().call(&driver_api::stream_destroy, stream);
            }
            return opened;
        }
        id_ = id, device_ = &on, calls_ = &calls, events_ = &events, stream_ = stream,
        is_own_ = is_own;
        return {};
    }

    // With order_ held. A user may capture a stream of ours, too.
    [[nodiscard]] status check_stream() noexcept {
        if (device_->is_lost()) {
            return fail(errc::device_lost, "the CUDA device is lost");
        }
        auto capture = CU_STREAM_CAPTURE_STATUS_NONE;
        const status asked = device_->note(
            device_->calls().call(&driver_api::stream_is_capturing, stream_, &capture));
        return asked && capture != CU_STREAM_CAPTURE_STATUS_NONE
                   ? status_of(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
                   : asked;
    }

    [[nodiscard]] bool is_done_in_context(std::uint64_t value) noexcept {
        if (device_->is_lost()) {
            lose();
            return true;
        }
        const pin point{*this, value};
        if (point.held == nullptr) {
            return ring_.is_reached(value);
        }
        return take_answer(value, device_->note(device_->calls().call(&driver_api::event_query,
                                                                      point.held->handle)));
    }

    // True if the ticket is reached.
    [[nodiscard]] bool take_answer(std::uint64_t value, status answer) noexcept {
        if (answer.code == errc::busy) {
            return false;
        }
        if (!answer) {
            // Whatever it is, this device's events tell no more.
            (void)device_->note({errc::device_lost, answer.driver_code, answer.why});
            lose();
            return true;
        }
        ring_.finish(value);
        return true;
    }

    // ---- loss, host calls

    // All that is not known as reached by now is lost; the driver will not tell any more.
    void lose() noexcept {
        host_call* left = nullptr;
        with(ring_.lock, [&] {
            ring_.lose_locked();
            left = waiting_;
            while (waiting_ != nullptr) {
                host_call& one = *waiting_;
                (void)claim_locked(one);
                one.next = orphans_;
                orphans_ = &one;
            }
        });
        // Oldest last in the chain of orphans: made in the order of the queue.
        if (left != nullptr) {
            make_orphans();
        }
    }
    void make_orphans() noexcept {
        host_call* first = nullptr;
        with(ring_.lock, [&] {
            for (host_call* one = orphans_; one != nullptr; one = one->next) {
                if (!std::exchange(one->is_handed_over, true)) {
                    one->after = first;
                    first = one;
                }
            }
        });
        while (first != nullptr) {
            host_call& one = *first;
            first = one.after;
            calls_->push(one);
        }
    }
    void await_calls() noexcept {
        host_call* one = with(ring_.lock, [&] { return orphans_; });
        for (std::uint32_t running;
             (running = calls_running_.load(std::memory_order_acquire)) != 0;) {
            xmm::detail::futex_wait(calls_running_, running);
        }
        for (; one != nullptr; one = one->next) {
            one->await();
        }
    }
    void link_locked(host_call& one) noexcept {
        one.previous = newest_waiting_;
        *(newest_waiting_ == nullptr ? &waiting_ : &newest_waiting_->next) = &one;
        newest_waiting_ = &one;
    }
    // False if another has it made.
    [[nodiscard]] bool claim_locked(host_call& one) noexcept {
        if (one.is_claimed) {
            return false;
        }
        one.is_claimed = true;
        *(one.previous == nullptr ? &waiting_ : &one.previous->next) = one.next;
        *(one.next == nullptr ? &newest_waiting_ : &one.next->previous) = one.previous;
        one.next = one.previous = nullptr;
        return true;
    }
    // The driver calls it, in the stream's order. Records that the loss has claimed are the queue's.
    static void on_turn(void* self) {
        auto* one = static_cast<host_call*>(self);
        queue& owner = *one->owner;
        const bool is_mine = with(owner.ring_.lock, [&] {
            const bool is_claimed = owner.claim_locked(*one);
            // relaxed: close() looks under the lock first, and from then on it only falls.
            owner.calls_running_.fetch_add(is_claimed ? 1 : 0, std::memory_order_relaxed);
            return is_claimed;
        });
        if (is_mine) {
            owner.calls_->push(*one);
            one->await();
            host_call::let_go(*one);
            xmm::detail::futex_word& running = owner.calls_running_;
            running.fetch_sub(1, std::memory_order_release);  // pairs with the acquire in close
            xmm::detail::futex_wake_all(running);
        }
    }

    queue_id id_;  // (C) while open, as are the next six
    device* device_ = nullptr;
    call_thread* calls_ = nullptr;
    event_stock* events_ = nullptr;
    CUstream stream_ = nullptr;
    bool is_own_ = true;
    bool is_background_ = false;

    ranked_mutex<lock_rank::backend_queue> order_;
    // Its lock guards the calls, too.
    shared::ticket_ring<event_stock, std::size_t{1} << 16> ring_;
    host_call* waiting_ = nullptr;  // calls that the driver has yet to make, oldest first
    host_call* newest_waiting_ = nullptr;
    xmm::detail::futex_word calls_running_{0};
    host_call* orphans_ = nullptr;  // calls of a lost device; kept, since the driver may name them
};

}  // namespace xmm::cuda
