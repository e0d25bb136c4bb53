// SPDX-License-Identifier: Apache-2.0
// queue.hpp - an immediate command list with tickets for points in its work.
//
// Model    Each call appends its work and a barrier that signals an event; the ticket is the count of calls so far.
//          The list is one of the engine that only copies until the first kernel comes: from then on it is one of the
//          engine that computes, which begins when the other is done. A slot outlives its queues, and its count goes
//          on, so that asking for the ticket of a queue that is gone is harmless.
//          A host call is a ticket that a thread of ours waits for, and an event that the list waits for and the thread
//          signals.
// Threads  Any. order_ (rank backend_queue) is held while something is appended, since lists bear one thread at a
//          time, and so that tickets are in the list's order; ring_ (leaf) guards the events and is never held across
//          a call of the driver.
// Failure  What a failed call left in the list is awaited, and its ticket counts as reached. After the device is lost
//          all tickets are reached: those that were not before answer device_lost.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include <unistd.h>

#include <xmm/concepts/backend.hpp>
#include <xmm/core/lock.hpp>
#include <xmm/os/futex.hpp>

#include "../shared/call_thread.hpp"
#include "../shared/ticket_ring.hpp"

#include "device.hpp"
#include "events.hpp"

namespace xmm::levelzero {

class queue {
public:
    static constexpr std::uint64_t forever = ~std::uint64_t{0};

    queue() = default;
    queue(const queue&) = delete;
    queue& operator=(const queue&) = delete;

    [[nodiscard]] device& on() const noexcept { return *device_; }

    [[nodiscard]] status open(queue_id id, device& on, ze_context_handle_t context,
                              event_stock& events, std::uint32_t version,
                              queue_priority priority) noexcept {
        if (const status opened = ring_.open(events); !opened) {
            return opened;
        }
        id_ = id, device_ = &on, context_ = context, events_ = &events, priority_ = priority;
        can_synchronize_ = version >= version_with_list_synchronize &&
                           on.calls().has(&driver_api::command_list_host_synchronize);
        is_computing_ = !on.has_copy_engine();
        return on.note(make_list(on.copy_group(), list_));
    }
    // Returns when all work in it, and every host call, is over.
    void close() noexcept {
        (void)record();  // what was appended without a ticket
        (void)wait(ring_.last());
        caller_.stop();
        std::lock_guard order{order_};
        // After a loss commands may still name their events.
        const bool is_lost = device_->is_lost();
        for (ze_command_list_handle_t* one : {&list_, &old_list_}) {
            if (*one != nullptr) {
                (void)device_->calls().call(&driver_api::command_list_destroy,
                                            std::exchange(*one, nullptr));
            }
        }
        ring_.close(is_lost);
    }

    // append(list, ticket) -> status puts the work in the list. `needed` is an event that the list then waits for: it
    // is dropped once the ticket is reached; on failure it is the caller's.
    template <class Append>
    [[nodiscard]] result<ticket> submit(Append&& append, event* needed = nullptr) noexcept {
        std::lock_guard order{order_};
        return submit_locked(append, needed);
    }
    [[nodiscard]] result<ticket> record() noexcept {
        return submit([](ze_command_list_handle_t, ticket) { return status{}; });
    }
    // append(list) -> status, of kernels.
    template <class Append>
    [[nodiscard]] result<ticket> submit_kernels(Append&& append) noexcept {
        std::lock_guard order{order_};
        if (const status able = begin_computing_locked(); !able) {
            return able;
        }
        return submit_locked([&](ze_command_list_handle_t list, ticket) { return append(list); },
                             nullptr);
    }
    // A list for kernels, from here on the queue's. It bears one thread at a time.
    [[nodiscard]] result<ze_command_list_handle_t> computing_list() noexcept {
        std::lock_guard order{order_};
        const status able = begin_computing_locked();
        return able ? result<ze_command_list_handle_t>{list_}
                    : result<ze_command_list_handle_t>{able};
    }
    // Later work waits for a point of another queue.
    [[nodiscard]] status await_point(queue& other, std::uint64_t value) noexcept {
        if (&other == this || other.is_done(value)) {
            return {};
        }
        event* awaited = other.ring_.pin(value);
        if (awaited == nullptr) {
            return {};
        }
        auto point = submit(
            [&](ze_command_list_handle_t list, ticket) { return append_wait(list, *awaited); },
            awaited);
        if (!point) {
            events_->drop_need(*awaited);
        }
        return point.error();
    }
    // fn runs on a thread of ours when its turn comes, even if the device is lost meanwhile.
    [[nodiscard]] result<ticket> call(void (*fn)(void*) noexcept, void* context) noexcept {
        if (const status started = caller_.start("xmm-ze-calls"); !started) {
            return started;
        }
        std::unique_ptr<host_call> one{new (std::nothrow) host_call{*this, fn, context}};
        auto end =
            one != nullptr ? events_->take() : fail(errc::no_memory, "no memory for a host call");
        if (!end) {
            return end.error();
        }
        one->end = *end;
        std::unique_lock order{order_};
        auto turn =
            submit_locked([](ze_command_list_handle_t, ticket) { return status{}; }, nullptr);
        if (!turn) {
            events_->drop_need(**end);
            return turn.error();
        }
        one->turn = turn->value;
        event_stock::add_need(**end);  // the list's; the other is the thread's
        bool is_handed_over = false;
        auto point = submit_locked(
            [&](ze_command_list_handle_t list, ticket) {
                const status appended = append_wait(list, **end);
                is_handed_over = appended.is_ok();
                if (is_handed_over) {
                    caller_.push(*one.release());
                }
                return appended;
            },
            *end);
        if (point) {
            return point;
        }
        events_->drop_need(**end);
        if (!is_handed_over) {
            events_->drop_need(**end);
            return point.error();
        }
        // It is made: only the event behind it failed. A failure would say that it never is.
        order.unlock();
        caller_.await_idle();
        return ticket{id_, 0};
    }

    [[nodiscard]] bool is_submitted(std::uint64_t value) noexcept {
        return ring_.is_submitted(value);
    }
    [[nodiscard]] bool is_done(std::uint64_t value) noexcept {
        if (ring_.is_reached(value)) {
            return true;
        }
        event* one = ring_.pin(value);
        if (one == nullptr) {
            return ring_.is_reached(value);
        }
        return take_answer(value, *one,
                           device_->call(&driver_api::event_query_status, one->handle));
    }
    // busy: not reached in that time.
    [[nodiscard]] status wait(std::uint64_t value, std::uint64_t longest_ns = forever) noexcept {
        const std::uint64_t begun = xmm::detail::monotonic_ns();
        for (unsigned failures = 0; !is_done(value);) {
            event* one = ring_.pin(value);
            if (one == nullptr) {
                if (ring_.is_reached(value)) {
                    break;
                }
                return fail(errc::invalid_argument, "a ticket that was never given");
            }
            const std::uint64_t passed = xmm::detail::monotonic_ns() - begun;
            const std::uint64_t left = longest_ns > passed ? longest_ns - passed : 0;
            const status answer = device_->call(&driver_api::event_host_synchronize, one->handle,
                                                std::min(left, slice_ns));
            if (take_answer(value, *one, answer)) {
                break;
            }
            if (answer.code != errc::busy) {
                if (++failures == most_failures) {
                    return answer;
                }
                ::usleep(1000);
            } else if (!device_->is_gone() && passed >= longest_ns) {
                return answer;
            }
        }
        return ring_.outcome_of(value, "the work was lost with its Level Zero device");
    }

private:
    static constexpr std::uint64_t slice_ns = 100'000'000;  // then the driver is asked for a loss
    static constexpr unsigned most_failures = 100;

    struct host_call {
        queue& owner;
        void (*fn)(void*) noexcept;
        void* context;
        std::uint64_t turn = 0;  // the ticket before it
        event* end = nullptr;    // signalled by the thread
        host_call* after = nullptr;

        void make() noexcept { owner.make(*this); }
    };

    // ---- the list; order_ is held

    [[nodiscard]] status make_list(std::uint32_t group, ze_command_list_handle_t& made) noexcept {
        ze_command_queue_desc_t about;
        about.ordinal = group;
        about.priority =
            priority_ == queue_priority::background ? ZE_COMMAND_QUEUE_PRIORITY_PRIORITY_LOW
            : priority_ == queue_priority::urgent   ? ZE_COMMAND_QUEUE_PRIORITY_PRIORITY_HIGH
                                                    : ZE_COMMAND_QUEUE_PRIORITY_NORMAL;
        const auto create = [&] {
            return device_->calls().call(&driver_api::command_list_create_immediate, context_,
                                         device_->handle(), &about, &made);
        };
        status outcome = create();
        if ((outcome.code == errc::unsupported || outcome.code == errc::invalid_argument) &&
            about.priority != ZE_COMMAND_QUEUE_PRIORITY_NORMAL) {
            about.priority = ZE_COMMAND_QUEUE_PRIORITY_NORMAL;  // not every engine has others
            outcome = create();
        }
        return outcome;
    }
    [[nodiscard]] status append_barrier(ze_command_list_handle_t list, event& signals) noexcept {
        return device_->calls().call(&driver_api::command_list_append_barrier, list, signals.handle,
                                     0, nullptr);
    }
    [[nodiscard]] status append_wait(ze_command_list_handle_t list, event& awaited) noexcept {
        return device_->calls().call(&driver_api::command_list_append_wait_on_events, list, 1,
                                     &awaited.handle);
    }
    template <class Append>
    [[nodiscard]] result<ticket> submit_locked(Append&& append, event* needed) noexcept {
        if (device_->is_lost()) {
            return fail(errc::device_lost, "the Level Zero device is lost");
        }
        auto done = ring_.take([&](std::uint64_t value) { return is_done(value); });
        if (!done) {
            return done.error();
        }
        const ticket next{id_, ring_.last() + 1};
        status outcome = device_->note(append(list_, next));
        if (outcome) {
            outcome = device_->note(append_barrier(list_, **done));
        }
        if (!outcome) {
            drain_locked(**done);
            ring_.add(nullptr);
            return outcome;
        }
        ring_.add(*done, needed);
        return next;
    }
    // Behind a failure: what is in the list is over when it returns, if the driver lets us find out. The event goes.
    void drain_locked(event& spare) noexcept {
        bool is_over = device_->is_lost();
        bool is_appended = false;
        for (unsigned i = 0; i < most_failures && !is_over; ++i) {
            if (can_synchronize_) {
                is_over = device_->call(&driver_api::command_list_host_synchronize, list_, slice_ns)
                              .is_ok();
            } else {
                is_appended = is_appended || device_->note(append_barrier(list_, spare)).is_ok();
                is_over = is_appended &&
                          device_->call(&driver_api::event_host_synchronize, spare.handle, slice_ns)
                              .is_ok();
            }
            is_over = is_over || device_->is_gone();
        }
        if (is_appended && (!is_over || device_->is_lost())) {
            event_stock::spoil(spare);
        }
        events_->drop_need(spare);
    }
    [[nodiscard]] status begin_computing_locked() noexcept {
        if (is_computing_) {
            return {};
        }
        ze_command_list_handle_t made = nullptr;
        if (const status outcome = device_->note(make_list(device_->compute_group(), made));
            !outcome) {
            return outcome;
        }
        const std::uint64_t last = ring_.last();
        event* awaited = is_done(last) ? nullptr : ring_.pin(last);
        std::swap(list_, made);
        if (awaited != nullptr) {
            auto point = submit_locked(
                [&](ze_command_list_handle_t list, ticket) { return append_wait(list, *awaited); },
                awaited);
            if (!point) {
                events_->drop_need(*awaited);
                std::swap(list_, made);
                (void)device_->calls().call(&driver_api::command_list_destroy, made);
                return point.error();
            }
        }
        old_list_ = made;
        is_computing_ = true;
        return {};
    }

    // ---- events, by ticket

    // True if the ticket is reached. Ends the pin.
    [[nodiscard]] bool take_answer(std::uint64_t value, event& one, status answer) noexcept {
        const bool is_lost = device_->is_lost();
        if (answer) {
            ring_.finish(value);
        } else if (is_lost) {
            lose();
        }
        events_->drop_need(one);
        return answer || is_lost;
    }
    // All that is not known as reached is lost. Lists of other devices that wait for some of it go on.
    void lose() noexcept {
        ring_.spoil_pending([&](event& one) {
            (void)device_->calls().call(&driver_api::event_host_signal, one.handle);
        });
        with(ring_.lock, [&] { ring_.lose_locked(); });
    }

    // ---- host calls

    void make(host_call& one) noexcept {
        (void)wait(one.turn);
        one.fn(one.context);
        for (unsigned i = 0;
             i < most_failures &&
             !device_->calls().call(&driver_api::event_host_signal, one.end->handle);
             ++i) {
            ::usleep(1000);  // the list waits for it
        }
        events_->drop_need(*one.end);
        delete &one;
    }

    queue_id id_;  // (C) while open, as are the next five
    device* device_ = nullptr;
    ze_context_handle_t context_ = nullptr;
    event_stock* events_ = nullptr;
    queue_priority priority_ = queue_priority::normal;
    bool can_synchronize_ = false;

    ranked_mutex<lock_rank::backend_queue> order_;
    ze_command_list_handle_t list_ = nullptr;      // under order_, as are the next two
    ze_command_list_handle_t old_list_ = nullptr;  // of the engine that copies
    bool is_computing_ = false;

    shared::ticket_ring<event_stock, std::size_t{1} << 14> ring_;
    shared::call_thread<host_call> caller_;
};

}  // namespace xmm::levelzero
