// SPDX-License-Identifier: Apache-2.0
// address_window.hpp - which pages of a range of addresses are in use.
//
// Model    Runs of pages out of one range, next fit. Whose addresses they are, and how they were come by, is its
//          owner's business.
// Threads  Any. One lock guards the bitmap: rank backend_queue; nothing is called with it held but a visitor.
// Failure  assign() needs the host's memory; take() says 0 where no run is long enough.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>

namespace xmm::shared {

// Addresses for a node's frames: they cost nothing, and with four times as many as memory a run is always found. Where
// fewer can be had, down to an eighth of that. reserve(bytes) -> status.
template <class Reserve>
[[nodiscard]] status reserve_window(std::size_t memory, std::size_t granularity,
                                    Reserve&& reserve) {
    std::size_t bytes =
        std::max(align_up(4 * memory, granularity), 2 * std::size_t{largest_frame_bytes});
    status outcome;
    for (const std::size_t least = bytes / 8; bytes >= std::max(least, granularity); bytes /= 2) {
        outcome = reserve(align_down(bytes, granularity));
        if (outcome || outcome.code == errc::unsupported) {
            break;
        }
    }
    return outcome;
}

class address_window {
public:
    address_window() = default;
    address_window(const address_window&) = delete;
    address_window& operator=(const address_window&) = delete;

    // Before any other call, once. Whole pages.
    [[nodiscard]] status assign(va_range range) noexcept {
        try {
            used_.assign((range.bytes / page_bytes + 63) / 64, 0);
        } catch (const std::bad_alloc&) {
            return fail(errc::no_memory, "the host has no memory for a window's record");
        }
        range_ = range;
        return {};
    }
    [[nodiscard]] va_range range() const noexcept { return range_; }

    // 0 if no run of that many bytes is free.
    [[nodiscard]] address take(std::size_t bytes) noexcept {
        const std::size_t pages = bytes / page_bytes;
        std::lock_guard hold{lock_};
        std::size_t first = find_run(cursor_, page_count(), pages);
        if (first == page_count()) {
            first = find_run(0, page_count(), pages);
        }
        if (first == page_count()) {
            return 0;
        }
        mark(first, pages);
        cursor_ = first + pages;
        return range_.begin + first * page_bytes;
    }
    void give(address at, std::size_t bytes) noexcept {
        std::lock_guard hold{lock_};
        XMM_ASSERT(is_used((at - range_.begin) / page_bytes), "a frame was dropped twice");
        mark((at - range_.begin) / page_bytes, bytes / page_bytes);
    }
    // visit(va_range) for each stretch that is in use.
    template <class Visit>
    void for_each_run(Visit&& visit) noexcept {
        std::lock_guard hold{lock_};
        for (std::size_t page = 0; page < page_count();) {
            std::size_t end = page;
            while (end < page_count() && is_used(end)) {
                ++end;
            }
            if (end != page) {
                visit(va_range{range_.begin + page * page_bytes, (end - page) * page_bytes});
            }
            page = end + 1;
        }
    }

private:
    [[nodiscard]] std::size_t page_count() const noexcept { return range_.bytes / page_bytes; }
    [[nodiscard]] bool is_used(std::size_t page) const noexcept {
        return (used_[page / 64] >> (page % 64) & 1) != 0;
    }
    void mark(std::size_t first, std::size_t pages) noexcept {
        for (std::size_t page = first; page < first + pages; ++page) {
            used_[page / 64] ^= std::uint64_t{1} << (page % 64);
        }
    }
    [[nodiscard]] std::size_t find_run(std::size_t from, std::size_t to,
                                       std::size_t pages) const noexcept {
        for (std::size_t at = from, run = 0; at < to; ++at) {
            if (at % 64 == 0 && used_[at / 64] == ~std::uint64_t{0}) {
                run = 0;
                at += 63;
                continue;
            }
            run = is_used(at) ? 0 : run + 1;
            if (run == pages) {
                return at + 1 - pages;
            }
        }
        return page_count();
    }

    va_range range_;  // (C) once assigned
    ranked_mutex<lock_rank::backend_queue> lock_;
    std::vector<std::uint64_t> used_;  // under lock_, as is the next
    std::size_t cursor_ = 0;
};

}  // namespace xmm::shared
