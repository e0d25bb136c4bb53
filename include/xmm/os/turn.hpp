// SPDX-License-Identifier: Apache-2.0
// turn.hpp - a mutex that tells a thread whether it is the one that holds it.
//
// Model    The holder is known by the kernel's number of its thread, which is the same to every shared object of the
//          process; a thread_local of ours would be another one in each.
// Threads  Any.
#pragma once

#include <atomic>
#include <mutex>

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

namespace xmm::detail {

class turn {
public:
    void lock() noexcept {
        mutex_.lock();
        holder_.store(this_thread(), std::memory_order_relaxed);  // relaxed: see is_mine
    }
    void unlock() noexcept {
        holder_.store(0, std::memory_order_relaxed);  // relaxed: see is_mine
        mutex_.unlock();
    }
    [[nodiscard]] bool is_mine() const noexcept {
        // relaxed: what a thread compares with itself, it wrote itself.
        return holder_.load(std::memory_order_relaxed) == this_thread();
    }

private:
    static ::pid_t this_thread() noexcept { return static_cast<::pid_t>(::syscall(SYS_gettid)); }

    std::mutex mutex_;
    std::atomic<::pid_t> holder_{0};  // (A) 0: nobody
};

}  // namespace xmm::detail
