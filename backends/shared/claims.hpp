// SPDX-License-Identifier: Apache-2.0
// claims.hpp - ranges of addresses that were given out, and what was reserved for each: a driver takes that back whole.
//
// Threads  Any. One lock, rank backend_queue.
// Failure  add() needs the host's memory.
#pragma once

#include <mutex>
#include <new>
#include <vector>

#include <xmm/core/config.hpp>
#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>

namespace xmm::shared {

class claims {
public:
    [[nodiscard]] status add(va_range given, va_range reserved) noexcept {
        std::lock_guard hold{lock_};
        try {
            all_.push_back({given, reserved});
            return {};
        } catch (const std::bad_alloc&) {
            return fail(errc::no_memory, "the host has no memory for a range's record");
        }
    }
    // What was reserved for it.
    [[nodiscard]] va_range remove(va_range given) noexcept {
        std::lock_guard hold{lock_};
        for (claim& one : all_) {
            if (one.given == given) {
                const va_range reserved = one.reserved;
                one = all_.back();
                all_.pop_back();
                return reserved;
            }
        }
        XMM_ASSERT(false, "released a range that was never claimed");
        return {};
    }

private:
    struct claim {
        va_range given;
        va_range reserved;
    };

    ranked_mutex<lock_rank::backend_queue> lock_;
    std::vector<claim> all_;  // under lock_
};

}  // namespace xmm::shared
