// SPDX-License-Identifier: Apache-2.0
// ticket_ring.hpp - the tickets of a queue, and what is kept for each until it is known as reached.
//
// Model    A ticket is the count of calls so far, which goes on over all queues of a slot. Up to `finished` they are
//          reached; up to `released` what was kept for them is handed back. From lost_from on their work was lost:
//          they are reached, too.
// Threads  Any. `lock`, a leaf, guards all but is_reached and outcome_of; it is never held across a call of the driver.
// Failure  open() needs addresses.
#pragma once

#include <atomic>
#include <cstdint>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>

#include "mapped_array.hpp"

namespace xmm::shared {

// At most Count tickets that are not released.
template <class Kept, std::size_t Count>
class ticket_ring {
public:
    ranked_mutex<lock_rank::leaf> lock;

    // For another queue; nobody has it yet.
    [[nodiscard]] status open() noexcept {
        lost_from_.store(never, std::memory_order_relaxed);
        return kept_.open(Count, "no address space for a queue");
    }

    // acquire: pairs with the release in finish; who sees the ticket reached sees the work.
    [[nodiscard]] bool is_reached(std::uint64_t value) const noexcept {
        return finished_.load(std::memory_order_acquire) >= value;
    }
    // Of one that is reached. relaxed: who sees it reached by the loss sees lost_from_, which was set before.
    [[nodiscard]] status outcome_of(std::uint64_t value, const char* why_lost) const noexcept {
        return is_lost(value) ? fail(errc::device_lost, why_lost) : status{};
    }
    [[nodiscard]] bool is_lost(std::uint64_t value) const noexcept {
        return value >= lost_from_.load(std::memory_order_relaxed);
    }
    [[nodiscard]] bool is_submitted(std::uint64_t value) noexcept { return value <= last(); }
    [[nodiscard]] std::uint64_t last() noexcept {
        return with(lock, [&] { return submitted_; });
    }

    // ---- with the lock held; finished_ is written under it, so it is read relaxed

    // Given, and not known as reached.
    [[nodiscard]] bool is_pending_locked(std::uint64_t value) const noexcept {
        return value > finished_locked() && value <= submitted_;
    }
    [[nodiscard]] std::uint64_t finished_locked() const noexcept {
        return finished_.load(std::memory_order_relaxed);
    }
    [[nodiscard]] bool is_full_locked() const noexcept { return submitted_ - released_ == Count; }
    // 0 if all is released.
    [[nodiscard]] std::uint64_t oldest_locked() const noexcept {
        return submitted_ > released_ ? released_ + 1 : 0;
    }
    [[nodiscard]] Kept& at_locked(std::uint64_t value) const noexcept {
        return kept_[value % Count];
    }
    std::uint64_t add_locked(const Kept& one) noexcept {
        kept_[++submitted_ % Count] = one;
        return submitted_;
    }
    // In a queue what came before is done as well.
    void finish_locked(std::uint64_t value) noexcept {
        if (value > finished_locked()) {
            finished_.store(value, std::memory_order_release);  // pairs with the acquire above
        }
    }
    void finish_all_locked() noexcept { finish_locked(submitted_); }
    // All that is not known as reached by now is lost; the driver will not tell any more.
    void lose_locked() noexcept {
        if (lost_from_.load(std::memory_order_relaxed) == never) {
            lost_from_.store(finished_locked() + 1, std::memory_order_relaxed);
        }
        finish_all_locked();
    }
    // What was kept for the next ticket that is reached: the caller's from here on. 0: there is none.
    [[nodiscard]] std::uint64_t release_locked(Kept& gone) noexcept {
        if (released_ == finished_locked()) {
            return 0;
        }
        Kept& one = kept_[++released_ % Count];
        gone = one;
        one = {};
        return released_;
    }

private:
    static constexpr std::uint64_t never = ~std::uint64_t{0};

    mapped_array<Kept> kept_;      // by ticket; under lock, as are the next two
    std::uint64_t submitted_ = 0;  // never reset
    std::uint64_t released_ = 0;
    std::atomic<std::uint64_t> finished_{0};
    std::atomic<std::uint64_t> lost_from_{never};
};

}  // namespace xmm::shared
