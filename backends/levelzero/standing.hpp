// SPDX-License-Identifier: Apache-2.0
// standing.hpp - which frame stands where: its handle, where it is mapped now, and the copies that use it.
//
// Model    A window of addresses and a record for each of its pages. A frame of a device has one mapping at a time, so
//          its standing address is a name: it is mapped there, or where the program sees it, or nowhere until it is
//          needed. Whoever changes that has the frame to himself meanwhile (begin_move, end_move); whoever copies
//          notes the ticket of the copy first, and no move begins before that is reached.
// Threads  Any. One lock, leaf; neither the driver nor a queue is called with it held. Waiting is by looking again.
// Failure  take() says 0 where no run is long enough; begin_move() gives up with busy.
#pragma once

#include <array>
#include <cerrno>
#include <cstdint>
#include <mutex>

#include <sys/mman.h>
#include <unistd.h>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/os/futex.hpp>

#include "abi.hpp"

namespace xmm::levelzero {

// Whether a ticket is reached, or its work lost, after that time at the latest.
struct ticket_watch {
    static constexpr std::uint64_t forever = ~std::uint64_t{0};

    void* self = nullptr;
    bool (*await)(void* self, ticket point, std::uint64_t ns) noexcept = nullptr;

    [[nodiscard]] bool is_reached(ticket point, std::uint64_t ns) const noexcept {
        return point.value == 0 || await(self, point, ns);
    }
};

// Under the table's lock, but for who moves the frame: place is his then.
struct standing_frame {
    static constexpr unsigned most_uses = 8;

    ze_physical_mem_handle_t handle = nullptr;
    address place = 0;         // where it is mapped; 0: nowhere
    std::uint16_t pages = 0;   // on the first page: how long it is
    std::uint16_t before = 0;  // how many pages before this one belong to it
    bool is_moving = false;    // somebody has it to himself
    bool is_stuck = false;     // the driver did not unmap it: it stays as it is for good
    std::array<ticket, most_uses> uses{};  // copies that may be under way, one a queue
};

class standing {
public:
    standing() = default;
    ~standing() {
        if (frames_ != nullptr) {
            ::munmap(static_cast<void*>(frames_), page_count() * sizeof(standing_frame));
        }
    }
    standing(const standing&) = delete;
    standing& operator=(const standing&) = delete;

    // Before any other call, once. Whole pages.
    [[nodiscard]] status open(va_range window, ticket_watch watch) noexcept {
        void* at =
            ::mmap(nullptr, window.bytes / page_bytes * sizeof(standing_frame),
                   PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) {
            return fail(errc::no_memory, "no address space for the records of frames", errno);
        }
        frames_ = static_cast<standing_frame*>(at);  // zeroes are free pages
        window_ = window;
        watch_ = watch;
        return {};
    }
    [[nodiscard]] va_range window() const noexcept { return window_; }
    [[nodiscard]] bool contains(address at) const noexcept { return window_.contains(at); }

    // Room for a frame, next fit; 0 if no run is long enough. It is its taker's until set().
    [[nodiscard]] address take(std::size_t bytes) noexcept {
        const std::size_t pages = bytes / page_bytes;
        std::lock_guard hold{lock_};
        std::size_t first = find_run(cursor_, pages);
        first = first == page_count() ? find_run(0, pages) : first;
        if (first == page_count()) {
            return 0;
        }
        for (std::size_t i = 0; i < pages; ++i) {
            frames_[first + i] = {};
            frames_[first + i].before = static_cast<std::uint16_t>(i);
        }
        frames_[first].pages = static_cast<std::uint16_t>(pages);
        frames_[first].is_moving = true;
        cursor_ = first + pages;
        return window_.begin + first * page_bytes;
    }
    // Somebody has the frame to himself; the room is free from here on.
    void give(address begin) noexcept {
        std::lock_guard hold{lock_};
        standing_frame* first = &frames_[page_of(begin)];
        for (std::size_t i = 0, pages = first->pages; i < pages; ++i) {
            first[i] = {};
        }
    }
    // The frame that stands there or around there.
    [[nodiscard]] standing_frame& at(address inside) noexcept {
        standing_frame* page = &frames_[page_of(inside)];
        return *(page - page->before);
    }
    [[nodiscard]] address address_of(const standing_frame& one) const noexcept {
        return window_.begin + static_cast<std::size_t>(&one - frames_) * page_bytes;
    }

    // ---- who changes where it is mapped

    // From here on the frame is the caller's: no copy begins, none is under way. busy after that time.
    [[nodiscard]] status begin_move(standing_frame& one, std::uint64_t longest_ns) noexcept {
        if (!claim(one, longest_ns)) {
            return still_used();
        }
        for (ticket& use : one.uses) {
            if (!watch_.is_reached(use, longest_ns)) {
                end_move(one, one.place);
                return still_used();
            }
            use = {};
        }
        return {};
    }
    void end_move(standing_frame& one, address place) noexcept {
        std::lock_guard hold{lock_};
        one.place = place;
        one.is_moving = false;
    }

    // ---- who copies

    // Notes a copy that is about to be enqueued, and answers where the frame is mapped. A frame that is mapped
    // nowhere is mapped first: map(frame) -> status.
    template <class Map>
    [[nodiscard]] result<address> use(standing_frame& one, ticket by, Map&& map) noexcept {
        while (true) {
            ticket oldest;
            bool is_taken = false;
            const address place = with(lock_, [&]() -> address {
                XMM_ASSERT(one.pages != 0, "a copy names a frame that is gone");
                is_taken = one.is_moving;
                if (is_taken || one.place == 0) {
                    return 0;
                }
                oldest = note_locked(one, by);
                return oldest.value == 0 ? one.place : 0;
            });
            if (place != 0) {
                return place;
            }
            if (is_taken) {
                ::usleep(look_us);
            } else if (oldest.value != 0) {
                (void)watch_.is_reached(oldest, ticket_watch::forever);
                with(lock_, [&] { forget_locked(one, oldest); });
            } else if (claim(one, ticket_watch::forever)) {
                const status mapped = one.place != 0 ? status{} : map(one);
                end_move(one, mapped ? (one.place != 0 ? one.place : address_of(one)) : 0);
                if (!mapped) {
                    return mapped;
                }
            }
        }
    }

private:
    static constexpr unsigned look_us = 20;

    [[nodiscard]] static status still_used() noexcept {
        return fail(errc::busy, "a copy of the frame is under way");
    }
    [[nodiscard]] std::size_t page_count() const noexcept { return window_.bytes / page_bytes; }
    [[nodiscard]] std::size_t page_of(address at) const noexcept {
        XMM_ASSERT(window_.contains(at), "not an address of this node's frames");
        return (at - window_.begin) / page_bytes;
    }
    [[nodiscard]] std::size_t find_run(std::size_t from, std::size_t pages) const noexcept {
        for (std::size_t at = from, run = 0; at < page_count(); ++at) {
            if (frames_[at].pages != 0) {
                at += frames_[at].pages - 1u;
                run = 0;
            } else if (++run == pages) {
                return at + 1 - pages;
            }
        }
        return page_count();
    }
    [[nodiscard]] bool claim(standing_frame& one, std::uint64_t longest_ns) noexcept {
        const std::uint64_t begun = xmm::detail::monotonic_ns();
        while (true) {
            const bool is_mine = with(lock_, [&] {
                XMM_ASSERT(one.pages != 0, "a frame that is gone is moved");
                const bool is_free = !one.is_moving;
                one.is_moving = true;
                return is_free;
            });
            if (is_mine) {
                return true;
            }
            if (xmm::detail::monotonic_ns() - begun >= longest_ns) {
                return false;
            }
            ::usleep(look_us);
        }
    }
    // One use a queue: a later ticket of it stands for the earlier ones. Full: a use to wait for.
    [[nodiscard]] ticket note_locked(standing_frame& one, ticket by) noexcept {
        for (ticket& use : one.uses) {
            if (use.value == 0 || use.queue == by.queue) {
                use = by;
                return {};
            }
        }
        return one.uses[0];
    }
    void forget_locked(standing_frame& one, ticket which) noexcept {
        for (ticket& use : one.uses) {
            if (use.queue == which.queue && use.value == which.value) {
                use = {};
            }
        }
    }

    va_range window_;  // (C) once open, as are the next two
    standing_frame* frames_ = nullptr;
    ticket_watch watch_;
    ranked_mutex<lock_rank::leaf> lock_;
    std::size_t cursor_ = 0;  // under lock_
};

}  // namespace xmm::levelzero
