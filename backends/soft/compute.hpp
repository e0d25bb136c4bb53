// SPDX-License-Identifier: Apache-2.0
// compute.hpp - the compute threads of one device, and what a kernel is to them.
//
// Model    A kernel is a count of indices, handed out in chunks; the oldest kernel with chunks left goes
//          first, so kernels of several queues share the threads. They are not the threads that copy.
// Threads  `execute`: any, one kernel each, blocks until the kernel is over. The chunks run on the
//          device's threads, each with its own port.
// Failure  An aborted chunk aborts its kernel: the chunks left are skipped.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include <pthread.h>
#include <sys/prctl.h>

#include <xmm/os/signal_mask.hpp>

#include "device.hpp"

namespace xmm::soft {

// Sleeps shorter than the kernel's default slack of 50 us, as pacing needs.
inline void sleep_precisely() noexcept { ::prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0); }

struct kernel {
    // Runs indices [first, last) with the port as the current one; false if it was aborted.
    bool (*run)(kernel& self, device_port& through, std::size_t first, std::size_t last) = nullptr;
    void (*destroy)(kernel& self) noexcept = nullptr;
    std::size_t count = 1;
    std::size_t chunk = 1;
    std::size_t next = 0;  // the rest belongs to the pool's lock
    unsigned running = 0;
    bool is_aborted = false;
    kernel* after = nullptr;

    [[nodiscard]] bool has_chunks() const noexcept { return !is_aborted && next < count; }
    [[nodiscard]] bool is_over() const noexcept { return !has_chunks() && running == 0; }
};

class compute_pool {
public:
    explicit compute_pool(device& owner) noexcept : device_{owner} {}
    ~compute_pool() {
        {
            std::lock_guard hold{mutex_};
            is_closing_ = true;
        }
        work_.notify_all();
        for (std::thread& one : threads_) {
            one.join();
        }
    }
    compute_pool(const compute_pool&) = delete;
    compute_pool& operator=(const compute_pool&) = delete;

    // False if the kernel was aborted.
    [[nodiscard]] bool execute(kernel& one) noexcept {
        std::unique_lock hold{mutex_};
        if (threads_.empty() && !start()) {
            return false;
        }
        kernel** last = &oldest_;
        while (*last != nullptr) {
            last = &(*last)->after;
        }
        *last = &one;
        work_.notify_all();
        over_.wait(hold, [&] { return one.is_over(); });
        kernel** link = &oldest_;
        while (*link != &one) {
            link = &(*link)->after;
        }
        *link = one.after;
        return !one.is_aborted;
    }

private:
    [[nodiscard]] bool start() noexcept {
        try {
            const xmm::detail::signals_blocked quiet;
            for (const auto& one : device_.ports()) {
                threads_.emplace_back([this, &through = *one] { serve(through); });
            }
        } catch (const std::exception& problem) {
            std::fprintf(stderr, "xmm soft: device %d: no compute threads: %s\n",
                         device_.node().value, problem.what());
        }
        return !threads_.empty();
    }

    [[nodiscard]] kernel* find_work() const noexcept {
        kernel* one = oldest_;
        while (one != nullptr && !one->has_chunks()) {
            one = one->after;
        }
        return one;
    }

    void serve(port& through) {
        ::pthread_setname_np(::pthread_self(), "xmm-soft-unit");
        sleep_precisely();
        std::unique_lock hold{mutex_};
        while (true) {
            kernel* one = nullptr;
            work_.wait(hold, [&] { return (one = find_work()) != nullptr || is_closing_; });
            if (one == nullptr) {
                return;
            }
            const std::size_t first = one->next;
            one->next = first + std::min(one->chunk, one->count - first);
            const std::size_t last = one->next;
            ++one->running;
            hold.unlock();
            const bool done = !device_.is_lost() && one->run(*one, through, first, last);
            through.settle();
            hold.lock();
            --one->running;
            one->is_aborted = one->is_aborted || !done;
            if (one->is_over()) {
                over_.notify_all();
            }
        }
    }

    device& device_;
    // Not ranked: a condition variable needs the plain type; nothing is acquired under it.
    std::mutex mutex_;
    std::condition_variable work_;
    std::condition_variable over_;
    std::vector<std::thread> threads_;  // under mutex_, as is the rest
    kernel* oldest_ = nullptr;
    bool is_closing_ = false;
};

}  // namespace xmm::soft
