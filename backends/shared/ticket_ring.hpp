// SPDX-License-Identifier: Apache-2.0
// ticket_ring.hpp - the tickets of a queue, and the events of those that are not known as reached.
//
// Model    A ticket is the count of calls so far, which goes on over all queues of a slot. Up to `finished` they are
//          reached; up to `released` their events are given back. From lost_from on their work was lost: they are
//          reached, too.
// Threads  Any. `lock`, a leaf, guards all but what is atomic; it is never held across a call of the driver.
// Failure  open() needs addresses; take() says when too much work waits.
// See      event_stock.hpp.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>

#include "mapped_array.hpp"

namespace xmm::shared {

// At most Count tickets that are not released.
template <class Stock, std::size_t Count>
class ticket_ring {
public:
    using event = typename Stock::event;

    ranked_mutex<lock_rank::leaf> lock;

    // For another queue; nobody has it yet.
    [[nodiscard]] status open(Stock& stock) noexcept {
        stock_ = &stock;
        lost_from_.store(never, std::memory_order_relaxed);
        return kept_.open(Count, "no address space for a queue");
    }
    // Its work is over. Spoilt: commands may name the events still.
    void close(bool is_spoilt) noexcept {
        with(lock, [&] { finish_locked(submitted_); });
        release(is_spoilt);
    }

    // acquire: pairs with the release in finish_locked; who sees the ticket reached sees the work.
    [[nodiscard]] bool is_reached(std::uint64_t value) const noexcept {
        return finished_.load(std::memory_order_acquire) >= value;
    }
    // Of one that is reached. relaxed: who sees it reached by the loss sees lost_from_, which was set before.
    [[nodiscard]] status outcome_of(std::uint64_t value, const char* why_lost) const noexcept {
        return is_lost(value) ? fail(errc::device_lost, why_lost) : status{};
    }
    [[nodiscard]] bool is_submitted(std::uint64_t value) noexcept { return value <= last(); }
    [[nodiscard]] std::uint64_t last() noexcept {
        return with(lock, [&] { return submitted_; });
    }

    // An event for the next ticket. is_done(value) -> bool asks the driver, so that events come back even if nobody
    // else asks.
    template <class IsDone>
    [[nodiscard]] result<event*> take(IsDone&& is_done) noexcept {
        const bool was_full = with(lock, [&] { return is_full_locked(); });
        if (was_full || !stock_->has_free()) {
            (void)is_done(with(lock, [&] { return submitted_ > released_ ? released_ + 1 : 0; }));
        }
        release(false);
        if (was_full && with(lock, [&] { return is_full_locked(); })) {
            return fail(errc::no_memory, "too much work waits in one queue");
        }
        return stock_->take();
    }
    // `done` signals the ticket; null: it failed and was awaited. `needed` is what it waits for, or null.
    std::uint64_t add(event* done, event* needed = nullptr) noexcept {
        std::lock_guard hold{lock};
        kept_[++submitted_ % Count] = {done, needed};
        if (done == nullptr && finished_locked() + 1 == submitted_) {
            finish_locked(submitted_);
        }
        return submitted_;
    }
    // In a queue what came before is done as well.
    void finish(std::uint64_t value) noexcept {
        with(lock, [&] { finish_locked(value); });
    }
    // What signals the ticket, or the next one that has an event, needed once more; null if it is reached or was
    // never given.
    [[nodiscard]] event* pin(std::uint64_t value) noexcept {
        std::lock_guard hold{lock};
        if (value > submitted_) {
            return nullptr;
        }
        for (std::uint64_t i = value; i > finished_locked(); --i) {
            if (event* one = kept_[i % Count].done; one != nullptr) {
                Stock::add_need(*one);
                return one;
            }
        }
        finish_locked(value);  // nothing but calls that failed, each awaited
        return nullptr;
    }
    // visit(event) for each that no ticket known as reached has, spoilt from here on.
    template <class Visit>
    void spoil_pending(Visit&& visit) noexcept {
        const std::uint64_t end = last();
        for (std::uint64_t i = with(lock, [&] { return finished_locked(); }) + 1; i <= end; ++i) {
            event* one = with(lock, [&]() -> event* {
                event* pending = i > finished_locked() ? kept_[i % Count].done : nullptr;
                if (pending != nullptr) {
                    Stock::add_need(*pending);
                    Stock::spoil(*pending);
                }
                return pending;
            });
            if (one != nullptr) {
                visit(*one);
                stock_->drop_need(*one);
            }
        }
    }
    // With the lock held. All that is not known as reached by now is lost; the driver will not tell any more.
    void lose_locked() noexcept {
        if (lost_from_.load(std::memory_order_relaxed) == never) {
            lost_from_.store(finished_locked() + 1, std::memory_order_relaxed);
        }
        finish_locked(submitted_);
    }

private:
    static constexpr std::uint64_t never = ~std::uint64_t{0};

    struct kept {
        event* done;
        event* needed;
    };

    // relaxed: written with the lock held only.
    [[nodiscard]] std::uint64_t finished_locked() const noexcept {
        return finished_.load(std::memory_order_relaxed);
    }
    void finish_locked(std::uint64_t value) noexcept {
        if (value > finished_locked()) {
            finished_.store(value, std::memory_order_release);  // pairs with the acquire above
        }
    }
    [[nodiscard]] bool is_full_locked() const noexcept { return submitted_ - released_ == Count; }
    [[nodiscard]] bool is_lost(std::uint64_t value) const noexcept {
        return value >= lost_from_.load(std::memory_order_relaxed);
    }
    // Gives back the events of tickets that are reached.
    void release(bool is_spoilt) noexcept {
        while (true) {
            kept gone{};
            std::uint64_t value = 0;
            with(lock, [&] {
                if (released_ != finished_locked()) {
                    value = ++released_;
                    gone = kept_[value % Count];
                    kept_[value % Count] = {};
                }
            });
            if (value == 0) {
                return;
            }
            const std::array<event*, 2> both{gone.done, gone.needed};
            for (event* one : both) {
                if (one != nullptr) {
                    if (is_spoilt || is_lost(value)) {
                        Stock::spoil(*one);
                    }
                    stock_->drop_need(*one);
                }
            }
        }
    }

    Stock* stock_ = nullptr;       // (C) while open
    mapped_array<kept> kept_;      // by ticket; under lock, as are the next two
    std::uint64_t submitted_ = 0;  // never reset
    std::uint64_t released_ = 0;
    std::atomic<std::uint64_t> finished_{0};
    std::atomic<std::uint64_t> lost_from_{never};
};

}  // namespace xmm::shared
