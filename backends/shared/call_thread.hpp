// SPDX-License-Identifier: Apache-2.0
// call_thread.hpp - a thread that makes calls, one after the other.
//
// Model    A chain of calls, and the thread, which starts with the first. It takes no signals.
// Threads  Any. A mutex without a rank guards the chain: no other lock of ours is taken under it.
// Failure  start() says no_memory.
#pragma once

#include <cerrno>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include <pthread.h>

#include <xmm/core/status.hpp>
#include <xmm/os/signal_mask.hpp>

namespace xmm::shared {

// Call has `Call* after`, the thread's, and make() noexcept, after which it may be gone.
template <class Call>
class call_thread {
public:
    call_thread() = default;
    ~call_thread() { stop(); }
    call_thread(const call_thread&) = delete;
    call_thread& operator=(const call_thread&) = delete;

    // Before the first call; harmless again.
    [[nodiscard]] status start(const char* name) noexcept {
        std::lock_guard hold{lock_};
        if (worker_.joinable()) {
            return {};
        }
        try {
            const xmm::detail::signals_blocked quiet;
            worker_ = std::thread{[this, name] { work(name); }};
        } catch (const std::exception&) {
            return fail(errc::no_memory, "no thread for host calls", EAGAIN);
        }
        return {};
    }
    // Returns when all calls are made; it may be started again. Nobody else calls meanwhile.
    void stop() noexcept {
        if (worker_.joinable()) {
            set_closing(true);
            worker_.join();
            set_closing(false);
        }
    }
    void push(Call& one) noexcept {
        {
            std::lock_guard hold{lock_};
            one.after = nullptr;
            *(newest_ == nullptr ? &oldest_ : &newest_->after) = &one;
            newest_ = &one;
        }
        bell_.notify_all();
    }
    // Returns when no call is left.
    void await_idle() noexcept {
        std::unique_lock hold{lock_};
        bell_.wait(hold, [&] { return oldest_ == nullptr && !is_making_; });
    }

private:
    void set_closing(bool is) noexcept {
        {
            std::lock_guard hold{lock_};
            is_closing_ = is;
        }
        bell_.notify_all();
    }
    void work(const char* name) noexcept {
        ::pthread_setname_np(::pthread_self(), name);
        std::unique_lock hold{lock_};
        while (true) {
            bell_.wait(hold, [&] { return oldest_ != nullptr || is_closing_; });
            if (oldest_ == nullptr) {
                return;
            }
            Call& one = *oldest_;
            oldest_ = one.after;
            newest_ = oldest_ == nullptr ? nullptr : newest_;
            is_making_ = true;
            hold.unlock();
            one.make();
            hold.lock();
            is_making_ = false;
            if (oldest_ == nullptr) {
                bell_.notify_all();
            }
        }
    }

    std::mutex lock_;  // see above
    std::condition_variable bell_;
    std::thread worker_;
    Call* oldest_ = nullptr;  // under lock_, as are the next three
    Call* newest_ = nullptr;
    bool is_making_ = false;
    bool is_closing_ = false;
};

}  // namespace xmm::shared
