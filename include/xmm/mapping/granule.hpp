// SPDX-License-Identifier: Apache-2.0
// granule.hpp - the record of one granule: the pages that share lock, residency and frames.
//
// Model    The logical map points every 2 MiB page of a granule to the same record, since a driver maps
//          whole frames only: what can move alone has a record of its own. Two kinds of short
//          ownership protect its data: `transit` (one mover; the contents are on their way) and
//          `holds` (any number; the frames must stay where they are until dropped).
// Threads  Any. The page lock is never held across a transfer: a mover sets transit, drops the lock,
//          copies, takes the lock again and flips.
// Failure  None; whoever must wait uses await_rest and await_no_holds without the lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include <xmm/core/lock.hpp>
#include <xmm/core/types.hpp>
#include <xmm/mapping/frame_record.hpp>
#include <xmm/mapping/residency.hpp>
#include <xmm/os/futex.hpp>

namespace xmm {

struct region;

// Nodes attached to one space; a slot is a node's index there. All host nodes share one accessor: the CPU.
inline constexpr unsigned max_slots = 16;
inline constexpr std::uint8_t no_slot = 0xff;
inline constexpr unsigned cpu_accessor = 0;  // slot 0 is always a host

enum class transit : std::uint32_t {
    rest = 0,
    moving = 1,
    awaited = 2,  // moving, and somebody sleeps until it rests
};

struct granule {
    // (P) this lock  (A) atomic  (L) list lock of the frame's node, see frame_record
    ranked_mutex<lock_rank::page> lock;
    va_range va;                                        // (P)  empty while released
    region* owner = nullptr;                            // (P)
    std::atomic<residency> state{residency::released};  // (A)  written under P
    std::uint8_t home = no_slot;                        // (P)  slot that has the data, if resident
    std::array<frame_record*, max_slots> frames{};      // (P)  home's and the clean copies'
    std::array<access, max_slots> mapped{};             // (P)  what each accessor may do now
    std::uint32_t pins = 0;                      // (P)  users' pins: never moved while above 0
    bool is_fixed = false;                       // (P)  lives on its node for good
    bool is_arena = false;                       // (P)  an allocator gives and takes its frame
    std::uint8_t preferred = no_slot;            // (P)  hint
    bool is_read_mostly = false;                 // (P)  hint
    bool is_optional = false;                    // (P)  the mover may be told to give up
    bool was_touched = false;                    // (P)  ... because somebody wrote meanwhile
    std::atomic<bool> is_urgent{false};          // (A)  somebody waits for the move to end
    std::atomic<std::uint32_t> moving{0};        // (A)  a transit: begun, ended under P
    std::atomic<std::uint32_t> holds{0};         // (A)  raised under P, dropped without
    std::atomic<std::uint32_t> hold_waiters{0};  // (A)  who waits for the holds to be dropped
    std::atomic<std::uint32_t> uses{0};          // (A)  launches that name it; raised under P
    std::atomic<std::uint32_t> firm_uses{0};     // (A)  those on devices that take no faults

    [[nodiscard]] bool is_moving() const noexcept {
        // relaxed: only a caller with the page lock may rely on it, and the lock orders it.
        return moving.load(std::memory_order_relaxed) != 0;
    }
    [[nodiscard]] bool is_held() const noexcept {
        // acquire: pairs with the release in drop_hold; the holder's accesses are over.
        return holds.load(std::memory_order_acquire) != 0;
    }
    [[nodiscard]] bool is_used() const noexcept {
        // acquire: pairs with the release in the launch's retirement.
        return uses.load(std::memory_order_acquire) != 0;
    }
    // Used by work that could not ask for a lost mapping again.
    [[nodiscard]] bool is_firmly_used() const noexcept {
        // acquire: as is_used.
        return firm_uses.load(std::memory_order_acquire) != 0;
    }
    [[nodiscard]] residency current() const noexcept {
        // relaxed: a hint without the lock, exact with it.
        return state.load(std::memory_order_relaxed);
    }
    // Whether the address stands for memory: a region's does, but an arena's only while it has a frame.
    [[nodiscard]] bool is_memory_locked(address at) const noexcept {
        return va.contains(at) && current() != residency::released &&
               !(is_arena && current() == residency::untouched);
    }
    [[nodiscard]] frame_record* home_frame() const noexcept {
        return home == no_slot ? nullptr : frames[home];
    }

    // With the lock held.
    void step_locked(residency_step step, residency to) noexcept {
        XMM_ASSERT(is_legal(current(), step, to), "illegal residency step");
        state.store(to,
                    std::memory_order_relaxed);  // relaxed: readers without the lock take a hint
    }
    void begin_transit_locked(bool may_give_up) noexcept {
        XMM_ASSERT(!is_moving(), "two movers of one granule");
        is_optional = may_give_up;
        was_touched = false;
        is_urgent.store(false, std::memory_order_relaxed);  // relaxed: the mover is this thread
        moving.store(1, std::memory_order_relaxed);         // relaxed: guarded by the lock
    }
    void end_transit_locked() noexcept {
        // release: pairs with the acquire in await_rest.
        if (moving.exchange(0, std::memory_order_release) ==
            static_cast<std::uint32_t>(transit::awaited)) {
            detail::futex_wake(moving, INT32_MAX);
        }
    }
    void add_hold_locked() noexcept {
        holds.fetch_add(1, std::memory_order_relaxed);  // relaxed: ordered by the lock
    }

    // Without the lock: all that it writes to `moving` is that somebody sleeps.
    void await_rest() noexcept {
        is_urgent.store(true, std::memory_order_relaxed);  // relaxed: a hint to the mover
        // acquire, all three: pairs with the release in end_transit_locked.
        std::uint32_t seen = moving.load(std::memory_order_acquire);
        while (seen != 0) {
            if (seen == static_cast<std::uint32_t>(transit::awaited) ||
                moving.compare_exchange_weak(seen, static_cast<std::uint32_t>(transit::awaited),
                                             std::memory_order_acquire)) {
                detail::futex_wait(moving, static_cast<std::uint32_t>(transit::awaited));
                seen = moving.load(std::memory_order_acquire);
            }
        }
    }
    void drop_hold() noexcept {
        // release: pairs with the acquire in is_held.
        if (holds.fetch_sub(1, std::memory_order_release) == 1) {
            detail::futex_wake(holds, INT32_MAX);
        }
    }
    void await_no_holds() noexcept {
        for (;;) {
            // acquire: pairs with the release in drop_hold.
            const std::uint32_t seen = holds.load(std::memory_order_acquire);
            if (seen == 0) {
                return;
            }
            detail::futex_wait(holds, seen);
        }
    }
    // Whether a short hold should wait its turn: else copies that overlap keep others away for ever.
    [[nodiscard]] bool has_hold_waiters() const noexcept {
        return hold_waiters.load(std::memory_order_relaxed) != 0;  // relaxed: a courtesy
    }

    // The invariants of a record, with its lock held.
    [[nodiscard]] bool is_valid_locked() const noexcept {
        unsigned frame_count = 0;
        for (unsigned slot = 0; slot < max_slots; ++slot) {
            if (frames[slot] != nullptr) {
                ++frame_count;
                if (frames[slot]->owner != this || frames[slot]->backing.bytes != va.bytes) {
                    return false;
                }
            }
        }
        switch (current()) {
            case residency::released: return frame_count == 0 && home == no_slot && !has_mapping();
            // What an arena's granule lent is mapped there still.
            case residency::untouched:
                return frame_count == 0 && home == no_slot && (is_arena || !has_mapping());
            case residency::on_host:
                return frame_count == 1 && home_frame() != nullptr && home_frame()->is_host;
            case residency::on_device:
                return frame_count == 1 && home_frame() != nullptr && !home_frame()->is_host &&
                       mapped[cpu_accessor] == access::none;
            case residency::duplicated:
                return frame_count >= 2 && home_frame() != nullptr && !has_writer();
        }
        return false;
    }
    // At the full level: where somebody has changed the record and is about to leave it to others.
    void check_locked() const noexcept {
        if constexpr (checks_full) {
            XMM_ASSERT(is_valid_locked(), "a page's record was left inconsistent");
        }
    }
    [[nodiscard]] bool has_mapping() const noexcept {
        for (access one : mapped) {
            if (one != access::none) {
                return true;
            }
        }
        return false;
    }
    [[nodiscard]] bool has_writer() const noexcept {
        for (access one : mapped) {
            if (has_write(one)) {
                return true;
            }
        }
        return false;
    }
};

// Waits for a page's holds to be dropped, and keeps short holds of others back until it goes: else copies
// that overlap in time would take the page again before the waiter has looked.
class hold_waiter {
public:
    hold_waiter() = default;
    hold_waiter(const hold_waiter&) = delete;
    hold_waiter& operator=(const hold_waiter&) = delete;
    ~hold_waiter() {
        if (page_ != nullptr) {
            page_->hold_waiters.fetch_sub(1, std::memory_order_relaxed);  // relaxed: as in await
        }
    }
    void await(granule& page) noexcept {
        if (page_ == nullptr) {
            page_ = &page;
            page.hold_waiters.fetch_add(
                1, std::memory_order_relaxed);  // relaxed: a hint to who would hold
        }
        page.await_no_holds();
    }

private:
    granule* page_ = nullptr;
};

}  // namespace xmm
