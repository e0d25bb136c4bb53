// SPDX-License-Identifier: Apache-2.0
// claims.hpp - ranges of addresses that were given out, and what was reserved for each: a driver takes that back whole.
//
// Threads  Any. One lock, rank backend_queue.
// Failure  add() needs the host's memory.
#pragma once

#include <map>
#include <mutex>
#include <new>

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
            all_.emplace(given.begin, claim{given, reserved});
            return {};
        } catch (const std::bad_alloc&) {
            return fail(errc::no_memory, "the host has no memory for a range's record");
        }
    }
    // What was reserved for it.
    [[nodiscard]] va_range remove(va_range given) noexcept {
        std::lock_guard hold{lock_};
        const auto found = all_.find(given.begin);
        if (found == all_.end() || !(found->second.given == given)) {
            XMM_ASSERT(false, "released a range that was never claimed");
            return {};
        }
        const va_range reserved = found->second.reserved;
        all_.erase(found);
        return reserved;
    }

private:
    struct claim {
        va_range given;
        va_range reserved;
    };

    ranked_mutex<lock_rank::backend_queue> lock_;
    std::map<address, claim> all_;  // by where they begin; under lock_
};

}  // namespace xmm::shared
