// SPDX-License-Identifier: Apache-2.0
// queue_slots.hpp - the queues of a driver, by id.
//
// Model    256 slots. An id is the driver's number (12 bits), the slot's generation (12) and the slot (8), so that the
//          id of a queue that is gone names no other for long. A slot outlives its queues: a ticket of one that is gone
//          can be asked for.
// Threads  Any. The lock, rank backend_queue, guards which slots are taken. A queue ends while nobody submits to it.
// Failure  take() passes on what the opener says; no_memory where all slots are taken.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bitset>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>

#include <xmm/core/config.hpp>
#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/os/registry.hpp>

namespace xmm::shared {

[[nodiscard]] inline status no_queue() noexcept {
    return fail(errc::invalid_argument, "no such queue");
}
[[nodiscard]] inline status foreign_ticket() noexcept {
    return fail(errc::invalid_argument, "a ticket of another driver");
}

// Numbers that tell the queues of a process's drivers apart.
class queue_salts {
public:
    static constexpr const char* registry_key = "queue_salts/1";
    static constexpr std::uint32_t end = 4096;

    // One that no living driver has, of those the one given back longest ago: its tickets may still be about. 0: none.
    [[nodiscard]] std::uint32_t take() noexcept {
        std::lock_guard guard{lock_};
        for (std::uint32_t tries = 1; tries < end; ++tries) {
            last_ = last_ % (end - 1) + 1;
            if (!taken_[last_]) {
                taken_[last_] = true;
                return last_;
            }
        }
        return 0;
    }
    void give_back(std::uint32_t one) noexcept {
        std::lock_guard guard{lock_};
        taken_[one] = false;
    }

private:
    ranked_mutex<lock_rank::leaf> lock_;
    std::bitset<end> taken_;  // guarded by lock_, as is the next
    std::uint32_t last_ = 0;
};

// Queue has close(), which returns when its work is over.
template <class Queue>
class queue_slots {
public:
    // salt: 0 for one that no other driver has, else one that the caller keeps apart, below queue_salts::end. Throws
    // std::bad_alloc, also where 4095 drivers live.
    explicit queue_slots(std::uint32_t salt)
        : slots_{std::make_unique<std::array<slot, count>>()},
          // A child of fork takes none: the lock may have been another thread's at the fork.
          is_taken_{salt == 0 && !registry::is_forked_child()},
          salt_{is_taken_ ? registry::object<queue_salts>().take() : std::max(salt, 1u)} {
        XMM_ASSERT(salt_ < queue_salts::end, "a salt has 12 bits");
        if (salt_ == 0) {
            throw std::bad_alloc{};
        }
    }
    ~queue_slots() {
        if (is_taken_ && !registry::is_forked_child()) {
            registry::object<queue_salts>().give_back(salt_);
        }
    }
    queue_slots(const queue_slots&) = delete;
    queue_slots& operator=(const queue_slots&) = delete;

    // open(Queue&, queue_id) -> status.
    template <class Open>
    [[nodiscard]] result<queue_id> take(Open&& open) noexcept {
        std::lock_guard hold{lock_};
        for (std::uint32_t i = 0; i < count; ++i) {
            slot& one = (*slots_)[i];
            if (one.is_taken) {
                continue;
            }
            one.generation = one.generation % 0xfff + 1;
            const queue_id id{salt_ << 20 | one.generation << 8 | i};
            if (const status opened = open(one.work, id); !opened) {
                return opened;
            }
            one.is_taken = true;
            // release: pairs with the acquire in find; the queue is open before it is found.
            one.id.store(id.value, std::memory_order_release);
            return id;
        }
        return fail(errc::no_memory, "256 queues are in use");
    }
    // Lets the submitted work finish. Not from a host call of that queue.
    void end(queue_id id) noexcept {
        slot& one = slot_of(id);
        // relaxed, both: who destroys a queue knows of it by other ways, and the lock hands the slot on to the next.
        XMM_ASSERT(one.id.load(std::memory_order_relaxed) == id.value,
                   "destroyed a queue that is gone");
        one.id.store(0, std::memory_order_relaxed);
        with(one.ending, [&] { one.work.close(); });
        with(lock_, [&] { one.is_taken = false; });
    }
    // For the driver's destructor: nobody else calls any more, but visitors may.
    void end_all() noexcept {
        for (slot& one : *slots_) {
            if (one.is_taken) {
                std::lock_guard hold{one.ending};
                one.id.store(0, std::memory_order_relaxed);
                one.work.close();
                one.is_taken = false;
            }
        }
    }
    // visit(Queue&) for each that is open; it does not end meanwhile.
    template <class Visit>
    void for_each(Visit&& visit) noexcept {
        for (slot& one : *slots_) {
            std::lock_guard hold{one.ending};
            if (one.id.load(std::memory_order_acquire) != 0) {
                visit(one.work);
            }
        }
    }

    [[nodiscard]] bool is_mine(queue_id id) const noexcept { return id.value >> 20 == salt_; }
    // The queue of that slot, be it that one or a later one.
    [[nodiscard]] Queue& of(queue_id id) const noexcept { return slot_of(id).work; }
    // Null if it is gone, or another driver's.
    [[nodiscard]] Queue* find(queue_id id) const noexcept {
        if (id.value == 0 || !is_mine(id)) {
            return nullptr;
        }
        slot& one = slot_of(id);
        return one.id.load(std::memory_order_acquire) == id.value ? &one.work : nullptr;
    }
    // Tickets of queues that are gone, and of other drivers, are reached.
    [[nodiscard]] bool is_done(ticket point) const noexcept {
        return point.value == 0 || !is_mine(point.queue) || of(point.queue).is_done(point.value);
    }
    // Whether a queue can be made to wait for it.
    [[nodiscard]] status check(ticket point) const noexcept {
        if (point.value == 0) {
            return {};
        }
        if (!is_mine(point.queue)) {
            return foreign_ticket();
        }
        return of(point.queue).is_submitted(point.value)
                   ? status{}
                   : fail(errc::invalid_argument, "a ticket that was never given");
    }

private:
    static constexpr std::uint32_t count = 256;

    struct slot {
        std::atomic<std::uint32_t> id{0};  // 0: no queue
        bool is_taken = false;             // under lock_, as is the next
        std::uint32_t generation = 0;
        Queue work;
        // Held by who ends the queue, and by visitors. No rank: before all.
        std::mutex ending;
    };

    [[nodiscard]] slot& slot_of(queue_id id) const noexcept {
        XMM_ASSERT(is_mine(id), "a queue of another driver");
        return (*slots_)[id.value & 0xff];
    }

    ranked_mutex<lock_rank::backend_queue> lock_;
    std::unique_ptr<std::array<slot, count>> slots_;
    const bool is_taken_;  // the salt is of the process's
    const std::uint32_t salt_;
};

}  // namespace xmm::shared
