// SPDX-License-Identifier: Apache-2.0
// event_stock.hpp - the events of a driver, lent and given back.
//
// Model    An event is one point: signalled once, made ready again once nobody needs it as it is, lent again. Who has
//          it counts: the queue whose ticket it is, work that waits for it, threads that look at it. One that may be
//          signalled late, because its device was lost, is spoilt: it is never lent again.
// Threads  Any. The lock, a leaf, guards the free ones and is never held across a call of the driver.
// Failure  no_memory, or what the driver says.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <new>
#include <utility>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>

namespace xmm::shared {

// How a driver makes events, batch_count at once: begin(batch&) -> status, then make(batch&, index, handle&) -> status
// for each; reset(handle) -> bool before it is lent again; destroy(handle) -> bool, and end(batch&) if all were.
template <class Source>
class event_stock {
public:
    struct event {
        typename Source::handle handle{};
        std::atomic<unsigned> needs{0};
        std::atomic<bool> is_spoilt{false};
        event_stock* of = nullptr;  // constant
        event* next = nullptr;      // among the free ones, under the stock's lock
    };

    explicit event_stock(Source from) noexcept : from_{from} {}
    // Nobody needs one any more.
    ~event_stock() {
        while (chunks_ != nullptr) {
            const std::unique_ptr<chunk> gone{chunks_};
            chunks_ = gone->next;
            destroy(*gone);
        }
    }
    event_stock(const event_stock&) = delete;
    event_stock& operator=(const event_stock&) = delete;

    // Not signalled, and needed once.
    [[nodiscard]] result<event*> take() noexcept {
        event* one = with(lock_, [&] {
            event* first = free_.load(std::memory_order_relaxed);
            free_.store(first == nullptr ? nullptr : first->next, std::memory_order_relaxed);
            return first;
        });
        if (one == nullptr) {
            const result<event*> made = grow();
            if (!made) {
                return made.error();
            }
            one = *made;
        }
        one->needs.store(1, std::memory_order_relaxed);  // nobody else has it yet
        return one;
    }
    // relaxed: a hint, by the time it is read.
    [[nodiscard]] bool has_free() const noexcept {
        return free_.load(std::memory_order_relaxed) != nullptr;
    }
    // For who has it from somebody that needs it meanwhile.
    static void add_need(event& one) noexcept {
        one.needs.fetch_add(1, std::memory_order_relaxed);  // the count alone: see drop_need
    }
    // It is signalled, or spoilt, or was never given to the driver.
    static void drop_need(event& one) noexcept {
        event_stock& home = *one.of;
        // acq_rel: the last one resets it after all others are done with it.
        if (one.needs.fetch_sub(1, std::memory_order_acq_rel) != 1 ||
            one.is_spoilt.load(std::memory_order_relaxed) || !home.from_.reset(one.handle)) {
            return;  // what is not lent again lies in its chunk until the end
        }
        with(home.lock_, [&] { home.add_locked(one); });
    }
    static void spoil(event& one) noexcept {
        one.is_spoilt.store(true, std::memory_order_relaxed);  // published by the count
    }

private:
    struct chunk {
        typename Source::batch about{};
        std::array<event, Source::batch_count> events;
        chunk* next = nullptr;
    };

    // Answers the first of the new ones; the others are free.
    [[nodiscard]] result<event*> grow() noexcept {
        std::unique_ptr<chunk> made{new (std::nothrow) chunk};
        if (made == nullptr) {
            return fail(errc::no_memory, "the host has no memory for events");
        }
        status outcome = from_.begin(made->about);
        if (!outcome) {
            return outcome;
        }
        for (unsigned i = 0; i < Source::batch_count && outcome; ++i) {
            outcome = from_.make(made->about, i, made->events[i].handle);
        }
        if (!outcome) {
            destroy(*made);
            return outcome;
        }
        chunk* all = made.release();
        with(lock_, [&] {
            for (event& one : all->events) {
                one.of = this;
                if (&one != &all->events[0]) {
                    add_locked(one);
                }
            }
            all->next = chunks_;
            chunks_ = all;
        });
        return &all->events[0];
    }
    // relaxed: under the lock, but for the hint.
    void add_locked(event& one) noexcept {
        one.next = free_.load(std::memory_order_relaxed);
        free_.store(&one, std::memory_order_relaxed);
    }
    // A batch stays if one of its events does.
    void destroy(chunk& gone) noexcept {
        bool is_empty = true;
        for (event& one : gone.events) {
            const typename Source::handle none{};
            is_empty = (one.handle == none || from_.destroy(one.handle)) && is_empty;
        }
        if (is_empty) {
            from_.end(gone.about);
        }
    }

    Source from_;
    ranked_mutex<lock_rank::leaf> lock_;
    std::atomic<event*> free_{nullptr};  // written under lock_
    chunk* chunks_ = nullptr;            // under lock_
};

}  // namespace xmm::shared
