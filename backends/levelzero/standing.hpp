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

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>

#include <unistd.h>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/os/futex.hpp>

#include "../shared/address_window.hpp"
#include "../shared/mapped_array.hpp"

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
    standing(const standing&) = delete;
    standing& operator=(const standing&) = delete;

    // Before any other call, once. Whole pages.
    [[nodiscard]] status open(va_range window, ticket_watch watch) noexcept {
        if (const status opened = frames_.open(window.bytes / page_bytes,
                                               "no address space for the records of frames");
            !opened) {
            return opened;
        }
        watch_ = watch;
        return window_.assign(window);
    }
    [[nodiscard]] va_range window() const noexcept { return window_.range(); }
    [[nodiscard]] bool contains(address at) const noexcept { return window().contains(at); }

    // Room for a frame, next fit; 0 if no run is long enough. It is its taker's until set().
    [[nodiscard]] address take(std::size_t bytes) noexcept {
        const address begin = window_.take(bytes);
        if (begin == 0) {
            return 0;
        }
        const std::size_t pages = bytes / page_bytes;
        const std::size_t first = page_of(begin);
        std::lock_guard hold{lock_};
        for (std::size_t i = 0; i < pages; ++i) {
            frames_[first + i] = {};
            frames_[first + i].before = static_cast<std::uint16_t>(i);
        }
        frames_[first].pages = static_cast<std::uint16_t>(pages);
        frames_[first].is_moving = true;
        return begin;
    }
    // Somebody has the frame to himself; the room is free from here on.
    void give(address begin) noexcept {
        std::size_t pages = 0;
        with(lock_, [&] {
            standing_frame* first = &frames_[page_of(begin)];
            pages = first->pages;
            std::fill_n(first, pages, standing_frame{});
        });
        window_.give(begin, pages * page_bytes);
    }
    // The frame that stands there or around there.
    [[nodiscard]] standing_frame& at(address inside) noexcept {
        standing_frame* page = &frames_[page_of(inside)];
        return *(page - page->before);
    }
    [[nodiscard]] address address_of(const standing_frame& one) const noexcept {
        return window().begin + static_cast<std::size_t>(&one - frames_.data()) * page_bytes;
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
    [[nodiscard]] std::size_t page_of(address at) const noexcept {
        XMM_ASSERT(contains(at), "not an address of this node's frames");
        return (at - window().begin) / page_bytes;
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

    shared::address_window window_;
    shared::mapped_array<standing_frame>
        frames_;  // (C) once open, as is the next; zeroes are free pages
    ticket_watch watch_;
    ranked_mutex<lock_rank::leaf> lock_;
};

}  // namespace xmm::levelzero
