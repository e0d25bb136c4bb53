// SPDX-License-Identifier: Apache-2.0
// bus_retries.hpp - accesses that raised SIGBUS and were sent to try again.
//
// Model    One retry is enough where SIGBUS came from poison of ours: the sink has mapped something there. If the same
//          access of the same thread raises it again, and nothing was poisoned since, the cause is one that no mapping
//          cures: a file cut short under its mapping, memory that is broken. A ring of the latest retries.
// Threads  Any, lock-free, async-signal-safe.
// Failure  An access that was pushed out of the ring meanwhile is tried once more.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>

#include <sys/syscall.h>
#include <unistd.h>

#include <xmm/core/types.hpp>

namespace xmm::detail {

class bus_retries {
public:
    // An access of the calling thread, with the count of poisons so far, as one number: two of them are alike by a
    // chance of one in 2^64, and then an access is not tried again.
    [[nodiscard]] static std::uint64_t number_of(address at, std::uint32_t poisons) noexcept {
        const auto thread = static_cast<std::uint64_t>(::syscall(SYS_gettid));
        return at * 0x9e3779b97f4a7c15 + (thread << 32 | poisons) * 0xc2b2ae3d27d4eb4f;
    }

    [[nodiscard]] bool has(std::uint64_t number) const noexcept {
        // relaxed: what is looked for was noted by this thread.
        return std::any_of(std::begin(latest_), std::end(latest_), [&](const auto& one) {
            return one.load(std::memory_order_relaxed) == number;
        });
    }
    void note(std::uint64_t number) noexcept {
        // relaxed, both: any place will do, and nothing hangs on the number but itself.
        const unsigned at = next_.fetch_add(1, std::memory_order_relaxed) % capacity;
        latest_[at].store(number, std::memory_order_relaxed);
    }

private:
    static constexpr unsigned capacity = 64;

    std::atomic<std::uint64_t> latest_[capacity] = {};
    std::atomic<unsigned> next_{0};
};

}  // namespace xmm::detail
