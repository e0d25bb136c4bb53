// SPDX-License-Identifier: Apache-2.0
// fake_slots.hpp - stands in for a device's frames: address space that traps on any access, and books of which
// slots are in use. Fails on request, and whatever was asked for wrongly is counted.
#pragma once

#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include <sys/mman.h>

struct fake_slots {
    struct slot_span {
        xmm::va_range whole;
        void* mapped = nullptr;
        std::size_t mapped_bytes = 0;
        std::vector<unsigned> users;

        [[nodiscard]] xmm::va_range range() const noexcept { return whole; }
    };
    static constexpr std::size_t slot_bytes = xmm::page_bytes;

    std::size_t most_slots = SIZE_MAX;          // in use at a time; beyond it there is no memory
    std::size_t fail_acquire_after = SIZE_MAX;  // that many succeed, then none
    bool fail_reserve = false;

    ~fake_slots() {
        for (auto& one : spans) {
            ::munmap(one->mapped, one->mapped_bytes);
        }
    }

    xmm::result<slot_span*> reserve(std::size_t bytes, std::size_t size_of_slot,
                                    xmm::queue_id) noexcept {
        const std::lock_guard guard{lock};
        if (size_of_slot != slot_bytes || bytes % slot_bytes != 0) {
            ++mistakes;
        }
        if (fail_reserve) {
            return xmm::fail(xmm::errc::no_memory, "told to fail");
        }
        auto made = std::make_unique<slot_span>();
        made->mapped_bytes = bytes + slot_bytes;
        made->mapped = ::mmap(nullptr, made->mapped_bytes, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made->mapped == MAP_FAILED) {
            return xmm::fail(xmm::errc::no_memory, "no addresses");
        }
        made->whole = {xmm::align_up(xmm::to_address(made->mapped), slot_bytes), bytes};
        made->users.resize(bytes / slot_bytes);
        spans.push_back(std::move(made));
        reserved += bytes;
        return spans.back().get();
    }
    void release(slot_span* span) noexcept {
        const std::lock_guard guard{lock};
        for (auto at = spans.begin(); at != spans.end(); ++at) {
            if (at->get() == span) {
                for (const unsigned count : span->users) {
                    mistakes += count != 0 ? 1 : 0;
                }
                reserved -= span->whole.bytes;
                ::munmap(span->mapped, span->mapped_bytes);
                spans.erase(at);
                return;
            }
        }
        ++mistakes;
    }

    xmm::status acquire(slot_span& span, xmm::va_range range) noexcept {
        const std::lock_guard guard{lock};
        if (!is_sane(span, range)) {
            ++mistakes;
        }
        std::size_t fresh = 0;
        for_slots(span, range, [&](unsigned& users) { fresh += users == 0 ? 1 : 0; });
        if (fail_acquire_after == 0 || used + fresh > most_slots) {
            ++refused;
            return xmm::fail(xmm::errc::no_memory, "no frame");
        }
        fail_acquire_after -= fail_acquire_after != SIZE_MAX ? 1 : 0;
        for_slots(span, range, [&](unsigned& users) { ++users; });
        used += fresh;
        peak = used > peak ? used : peak;
        ++acquired;
        return {};
    }
    void release(slot_span& span, xmm::va_range range) noexcept {
        const std::lock_guard guard{lock};
        if (!is_sane(span, range)) {
            ++mistakes;
        }
        for_slots(span, range, [&](unsigned& users) {
            if (users == 0) {
                ++mistakes;
                return;
            }
            used -= --users == 0 ? 1 : 0;
        });
        ++released;
    }

    // Whether the slots of a block have frames.
    bool has_frames(xmm::address at, std::size_t bytes) noexcept {
        const std::lock_guard guard{lock};
        for (auto& one : spans) {
            if (one->whole.contains(xmm::va_range{at, bytes})) {
                bool all = true;
                for_slots(*one, {at, bytes},
                          [&](const unsigned& users) { all = all && users != 0; });
                return all;
            }
        }
        return false;
    }

    static bool is_sane(const slot_span& span, xmm::va_range range) noexcept {
        return !range.is_empty() && span.whole.contains(range);
    }
    template <class Fn>
    static void for_slots(slot_span& span, xmm::va_range range, Fn&& fn) {
        const std::size_t last = (range.end() - 1 - span.whole.begin) / slot_bytes;
        for (std::size_t i = (range.begin - span.whole.begin) / slot_bytes; i <= last; ++i) {
            fn(span.users[i]);
        }
    }

    std::mutex lock;
    std::vector<std::unique_ptr<slot_span>> spans;
    std::size_t used = 0;  // slots with a user
    std::size_t peak = 0;
    std::size_t reserved = 0;  // bytes of address space
    std::size_t acquired = 0;  // calls
    std::size_t released = 0;
    std::size_t refused = 0;
    std::size_t mistakes = 0;
};
