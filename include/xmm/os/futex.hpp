// SPDX-License-Identifier: Apache-2.0
// futex.hpp - wait until a word changes, without libstdc++'s per-object waiter pool.
//
// Model    The kernel keys waiters by the word's address, so all shared objects of a process meet there.
// Threads  Any; async-signal-safe. Private to the process.
// Failure  May return early for any reason: callers look at the word again. errno may change.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace xmm::detail {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
              std::atomic<std::uint32_t>::is_always_lock_free);

inline constexpr int wake_everyone = INT_MAX;

// Sleeps while word == expected.
inline void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected) noexcept {
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr,
              nullptr, 0);
}

inline void futex_wake(std::atomic<std::uint32_t>& word, int count) noexcept {
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE_PRIVATE, count, nullptr,
              nullptr, 0);
}

}  // namespace xmm::detail
