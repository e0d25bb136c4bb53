// SPDX-License-Identifier: Apache-2.0
// watched_new.hpp - operator new as tests need it: without memory on request, and counted by the locks that are held.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <xmm/core/lock.hpp>

namespace xmm::test {

// Of the calling thread.
struct new_watch {
    std::size_t left = SIZE_MAX;  // that many requests succeed, then none
    // How often memory was asked for, or given back, while the thread held a lock of that rank; of checked locks only.
    std::array<std::size_t, static_cast<std::size_t>(lock_rank::leaf) + 1> under{};

    [[nodiscard]] std::size_t count_under(lock_rank rank) const noexcept {
        return under[static_cast<std::size_t>(rank)];
    }
};

inline thread_local constinit new_watch watched_new;

}  // namespace xmm::test
