// SPDX-License-Identifier: Apache-2.0
// calls.hpp - host functions in queue order that may call the driver.
//
// Model    A function that the driver calls in a stream's order must not call the driver itself. So what it
//          calls is ours: it hands the function to a thread of the device's, and the stream waits there until
//          that is done. One thread a device, as the driver has one; it starts with the first call.
// Threads  Any. A mutex without a rank guards the chain of calls: no other lock of ours is taken under it.
// Failure  Where the driver drops the calls of a device that was lost, they are made all the same: their callers
//          may have to free something there.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include <xmm/core/lock.hpp>
#include <xmm/os/futex.hpp>
#include <xmm/os/signal_mask.hpp>

#include "driver.hpp"

namespace xmm::cuda {

class queue;

struct host_call {
    void (*fn)(void*) noexcept = nullptr;
    void* context = nullptr;
    queue* owner = nullptr;
    host_call* next = nullptr;  // among the queue's, under its lock, as are the next three
    host_call* previous = nullptr;
    bool is_claimed = false;             // by whoever has it made: the driver's turn, or the loss
    bool is_handed_over = false;         // by the loss, to the thread
    host_call* after = nullptr;          // in the thread's chain
    xmm::detail::futex_word is_over{0};  // set once, last of all
    // Who enqueues it, and who has it made; the records of a lost device stay with their queue.
    std::atomic<unsigned> keepers{2};

    static void let_go(host_call& one) noexcept {
        // acq_rel: the last one sees what the other did with the record.
        if (one.keepers.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            delete &one;
        }
    }
};

class call_thread {
public:
    call_thread() = default;
    ~call_thread() {
        if (worker_.joinable()) {
            with_lock([&] { is_closing_ = true; });
            bell_.notify_one();
            worker_.join();
        }
    }
    call_thread(const call_thread&) = delete;
    call_thread& operator=(const call_thread&) = delete;

    // Before the first call.
    [[nodiscard]] status start() noexcept {
        std::lock_guard hold{lock_};
        if (worker_.joinable()) {
            return {};
        }
        try {
            const xmm::detail::signals_blocked quiet;
            worker_ = std::thread{[this] { work(); }};
        } catch (const std::exception&) {
            return fail(errc::no_memory, "no thread for host calls", EAGAIN);
        }
        return {};
    }
    // Makes the call on the thread and returns when it is over.
    void make(host_call& one) noexcept {
        push(one);
        await(one);
    }
    static void await(host_call& one) noexcept {
        // acquire: pairs with the release in work; who sees it over sees what it did.
        while (one.is_over.load(std::memory_order_acquire) == 0) {
            xmm::detail::futex_wait(one.is_over, 0);
        }
    }
    void push(host_call& one) noexcept {
        with_lock([&] {
            one.after = nullptr;
            *(newest_ == nullptr ? &oldest_ : &newest_->after) = &one;
            newest_ = &one;
        });
        bell_.notify_one();
    }

private:
    template <class Fn>
    void with_lock(Fn&& fn) noexcept {
        std::lock_guard hold{lock_};
        fn();
    }
    void work() noexcept {
        ::pthread_setname_np(::pthread_self(), "xmm-cuda-calls");
        std::unique_lock hold{lock_};
        while (true) {
            bell_.wait(hold, [&] { return oldest_ != nullptr || is_closing_; });
            if (oldest_ == nullptr) {
                return;
            }
            host_call& one = *oldest_;
            oldest_ = one.after;
            newest_ = oldest_ == nullptr ? nullptr : newest_;
            hold.unlock();
            one.fn(one.context);
            // From the store on the record may be gone: the wake needs no more than its address.
            xmm::detail::futex_word& over = one.is_over;
            over.store(1, std::memory_order_release);
            xmm::detail::futex_wake_all(over);
            hold.lock();
        }
    }

    std::mutex lock_;  // see above
    std::condition_variable bell_;
    std::thread worker_;
    host_call* oldest_ = nullptr;  // under lock_, as are the next two
    host_call* newest_ = nullptr;
    bool is_closing_ = false;
};

}  // namespace xmm::cuda
