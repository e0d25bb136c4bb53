// SPDX-License-Identifier: Apache-2.0
// futex.hpp - sleep until a 32-bit word changes.
//
// Model    The word holds the state and is changed by its owner; a wait sleeps only while the word
//          still has the value that the caller saw. Wakes may be spurious: callers loop.
// Threads  Any. Private to the process. The order of memory is that of the caller's atomics.
// Failure  None: a wait that the kernel refuses returns at once, as a spurious wake does.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace xmm::detail {

using futex_word = std::atomic<std::uint32_t>;
static_assert(sizeof(futex_word) == sizeof(std::uint32_t) && futex_word::is_always_lock_free);

inline void futex_wait(futex_word& word, std::uint32_t expected) noexcept {
    ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

// What CLOCK_MONOTONIC shows.
[[nodiscard]] inline std::uint64_t monotonic_ns() noexcept {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(now.tv_nsec);
}

// As futex_wait, but no longer than until monotonic_ns() is `deadline_ns`.
inline void futex_wait_until(futex_word& word, std::uint32_t expected,
                             std::uint64_t deadline_ns) noexcept {
    timespec deadline{};
    deadline.tv_sec = static_cast<std::time_t>(deadline_ns / 1'000'000'000);
    deadline.tv_nsec = static_cast<long>(deadline_ns % 1'000'000'000);
    ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, expected, &deadline, nullptr,
              FUTEX_BITSET_MATCH_ANY);
}

inline void futex_wake(futex_word& word, int count) noexcept {
    ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}
inline void futex_wake_all(futex_word& word) noexcept { futex_wake(word, INT_MAX); }

}  // namespace xmm::detail
