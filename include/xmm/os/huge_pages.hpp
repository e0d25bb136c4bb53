// SPDX-License-Identifier: Apache-2.0
// huge_pages.hpp - memory of a file in memory, there at once and in huge pages where the kernel has some.
//
// Model    The kernel collapses OS pages into a huge one on request (MADV_COLLAPSE, Linux 6.1: whatever its setting for
//          shared memory says), if something is there already: so the first OS page of each page comes first, then the
//          huge page, then what is left. That takes a third of the time that OS pages take.
// Threads  Any. Nothing here allocates; errno is left as it was.
// Failure  fill_huge says what kept the memory away; some of it may be there. Without huge pages it is OS pages.
#pragma once

#include <atomic>
#include <cerrno>

#include <sys/mman.h>

#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/os/host_memory.hpp>

namespace xmm::detail {

// Of a mapping of a memory file for writing, whole pages of page_bytes. Contents stay, and pages that have some are
// left as they are. Answers when all of it is there; unsupported before Linux 5.14. No huge pages are asked for if
// `is_refused`, which is set where the kernel had none.
inline status fill_huge(va_range range, bool& is_refused) noexcept {
    constexpr int collapse = 25;  // MADV_COLLAPSE, which older C libraries do not name
    const errno_keeper keep;
    const auto is_empty = [](address page) {
        unsigned char is_there = 1;
        return ::mincore(to_pointer(page), os_page_bytes(), &is_there) == 0 && (is_there & 1) == 0;
    };
    for (address at = range.begin; at < range.end() && !is_refused; at += page_bytes) {
        // A run of empty ones by one call: each makes all CPUs hand in what they hold back.
        const address first = at;
        for (; at < range.end() && is_empty(at); at += page_bytes) {
            // Of nothing the kernel makes nothing.
            if (const status begun = populate({at, os_page_bytes()}, access::read_write); !begun) {
                return begun;
            }
        }
        is_refused = at != first && ::madvise(to_pointer(first), at - first, collapse) != 0;
    }
    return populate(range, access::read_write);
}

// Best effort, as populate is. Where memory is scattered the kernel looks long for a huge page in vain: after a refusal
// so many calls go without.
inline void populate_huge(va_range range) noexcept {
    constexpr unsigned calls_after_refusal = 64;
    // relaxed: a guess, and each shared object's own.
    static constinit std::atomic<unsigned> calls_to_skip{0};
    const unsigned skipped = calls_to_skip.load(std::memory_order_relaxed);
    if (skipped != 0) {
        calls_to_skip.store(skipped - 1, std::memory_order_relaxed);
        static_cast<void>(populate(range, access::read_write));
        return;
    }
    bool is_refused = false;
    static_cast<void>(fill_huge(range, is_refused));
    if (is_refused) {
        calls_to_skip.store(calls_after_refusal, std::memory_order_relaxed);
    }
}

}  // namespace xmm::detail
