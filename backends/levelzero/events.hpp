// SPDX-License-Identifier: Apache-2.0
// events.hpp - the events of a driver, lent and given back.
//
// Model    An event is one point: signalled once, reset once nobody needs it as it is, lent again. Who has it counts:
//          the queue whose ticket it is, lists that wait for it, threads that look at it. One that was never signalled,
//          because its device was lost, is never lent again: it may be signalled later.
// Threads  Any. The lock, a leaf, guards the free ones and is never held across a call of the driver.
// Failure  no_memory, or what the driver says.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include <xmm/core/lock.hpp>

#include "driver.hpp"

namespace xmm::levelzero {

struct event {
    ze_event_handle_t handle = nullptr;
    std::atomic<unsigned> needs{0};
    std::atomic<bool> is_spoilt{false};
    event* next = nullptr;  // among the free ones, under the stock's lock
};

class event_stock {
public:
    event_stock(const driver& on, ze_context_handle_t context) noexcept
        : driver_{on}, context_{context} {}
    // Nobody needs one any more.
    ~event_stock() {
        while (chunks_ != nullptr) {
            chunk* gone = std::exchange(chunks_, chunks_->next);
            destroy(*gone);
            delete gone;
        }
    }
    event_stock(const event_stock&) = delete;
    event_stock& operator=(const event_stock&) = delete;

    // Not signalled, and needed once.
    [[nodiscard]] result<event*> take() noexcept {
        for (int tries = 0; tries < 2; ++tries) {
            event* one = with(lock_, [&] {
                event* first = free_;
                free_ = first == nullptr ? nullptr : first->next;
                return first;
            });
            if (one != nullptr) {
                one->needs.store(1, std::memory_order_relaxed);  // nobody else has it yet
                return one;
            }
            if (const status grown = grow(); !grown) {
                return grown;
            }
        }
        return fail(errc::no_memory, "others took all events");
    }
    // For who has it from somebody that needs it meanwhile.
    static void add_need(event& one) noexcept {
        one.needs.fetch_add(1, std::memory_order_relaxed);  // the count alone: see drop_need
    }
    // It is signalled, or spoilt.
    void drop_need(event& one) noexcept {
        // acq_rel: the last one resets it after all others are done with it.
        if (one.needs.fetch_sub(1, std::memory_order_acq_rel) != 1) {
            return;
        }
        if (one.is_spoilt.load(std::memory_order_relaxed) ||
            !driver_.call(&driver_api::event_host_reset, one.handle)) {
            return;  // it lies in its chunk until the end
        }
        with(lock_, [&] {
            one.next = free_;
            free_ = &one;
        });
    }
    static void spoil(event& one) noexcept {
        one.is_spoilt.store(true, std::memory_order_relaxed);  // published by the count
    }

private:
    struct chunk {
        static constexpr std::uint32_t count = 256;

        ze_event_pool_handle_t pool = nullptr;
        std::array<event, count> events;
        chunk* next = nullptr;
    };

    [[nodiscard]] status grow() noexcept {
        std::unique_ptr<chunk> made{new (std::nothrow) chunk};
        if (made == nullptr) {
            return fail(errc::no_memory, "the host has no memory for events");
        }
        ze_event_pool_desc_t about;
        about.count = chunk::count;
        // For all devices of the context.
        status outcome =
            driver_.call(&driver_api::event_pool_create, context_,
                         static_cast<const ze_event_pool_desc_t*>(&about), std::uint32_t{0},
                         static_cast<ze_device_handle_t*>(nullptr), &made->pool);
        if (!outcome) {
            return outcome;
        }
        for (std::uint32_t i = 0; i < chunk::count && outcome; ++i) {
            ze_event_desc_t one;
            one.index = i;
            outcome =
                driver_.call(&driver_api::event_create, made->pool,
                             static_cast<const ze_event_desc_t*>(&one), &made->events[i].handle);
        }
        if (!outcome) {
            destroy(*made);
            return outcome;
        }
        chunk* all = made.release();
        with(lock_, [&] {
            for (event& one : all->events) {
                one.next = free_;
                free_ = &one;
            }
            all->next = chunks_;
            chunks_ = all;
        });
        return {};
    }
    // A pool stays if one of its events does.
    void destroy(chunk& gone) noexcept {
        bool is_empty = true;
        for (event& one : gone.events) {
            is_empty = (one.handle == nullptr ||
                        driver_.call(&driver_api::event_destroy, one.handle).is_ok()) &&
                       is_empty;
        }
        if (is_empty) {
            (void)driver_.call(&driver_api::event_pool_destroy, gone.pool);
        }
    }

    const driver& driver_;
    const ze_context_handle_t context_;
    ranked_mutex<lock_rank::leaf> lock_;
    event* free_ = nullptr;  // under lock_, as is the next
    chunk* chunks_ = nullptr;
};

}  // namespace xmm::levelzero
