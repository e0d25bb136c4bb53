// SPDX-License-Identifier: Apache-2.0
// page_locker.hpp - memory of our own, page-locked for all devices at once.
//
// Model    A registration belongs to the process and holds for every device, at the memory's own address; any
//          device's context can make or end it. So the first device that is not lost is asked. To end one, the
//          driver waits for all work of the devices; and that work may wait for a lock that the caller holds, as a
//          host function that touches a page does. So a thread of ours ends them, one after the other, and who
//          asked waits only a little. While the driver waits it lets nobody else in, on any thread: so our own queues'
//          work is awaited first, by its tickets.
// Threads  Any. One lock guards errands and slots; errands run without it.
// Failure  The driver's refusal, nothing done. busy: not over yet, ask again. device_lost: every device is.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <xmm/core/lock.hpp>
#include <xmm/os/futex.hpp>
#include <xmm/os/signal_mask.hpp>

#include "device.hpp"

namespace xmm::cuda {

class page_locker {
public:
    // Something for the thread; it stays its owner's, who drains before it goes.
    struct errand {
        void (*run)(void*) noexcept = nullptr;
        void* context = nullptr;
        errand* after = nullptr;  // in the thread's chain, under the lock, as is the next
        bool is_waiting = false;
    };

    // Returns when the work that is in our queues now is done.
    struct quiescence {
        void (*await)(void*) noexcept = nullptr;
        void* self = nullptr;
    };

    // The devices may come later, and stay.
    page_locker(const driver& on, const std::vector<std::unique_ptr<device>>& devices,
                quiescence work) noexcept
        : driver_{on}, devices_{devices}, work_{work} {
        for (slot& one : slots_) {
            one.job.run = [](void* self) noexcept { static_cast<slot*>(self)->run(); };
            one.job.context = &one;
            one.owner = this;
        }
    }
    ~page_locker() {
        if (worker_.joinable()) {
            with(lock_, [&] { is_closing_ = true; });
            bell_.notify_one();
            worker_.join();
        }
    }
    page_locker(const page_locker&) = delete;
    page_locker& operator=(const page_locker&) = delete;

    // Before anything is unlocked.
    [[nodiscard]] status start() noexcept {
        try {
            const xmm::detail::signals_blocked quiet;
            worker_ = std::thread{[this] { work(); }};
        } catch (const std::exception&) {
            return fail(errc::no_memory, "no thread that ends page locks", EAGAIN);
        }
        return {};
    }

    // The CPU may read and write there at this moment; what it may later is no matter.
    [[nodiscard]] status lock(va_range range) noexcept {
        return on_some_device([&] {
            return driver_.call(&driver_api::mem_host_register, to_pointer(range.begin),
                                range.bytes, host_register_portable | host_register_device_map);
        });
    }
    // A range that was locked, as a whole; at once, however long it takes.
    [[nodiscard]] status unlock_now(va_range range) noexcept {
        return on_some_device([&] {
            return driver_.call(&driver_api::mem_host_unregister, to_pointer(range.begin));
        });
    }
    // The same on the thread.
    [[nodiscard]] status unlock_after_work(va_range range) noexcept {
        work_.await(work_.self);
        return unlock_now(range);
    }
    // The same, begun by the first call, if it comes to that; who gets busy asks again.
    [[nodiscard]] status unlock(va_range range) noexcept {
        const std::uint64_t deadline = xmm::detail::monotonic_ns() + patience_ns;
        slot* mine = find_slot(range);
        if (mine == nullptr) {
            return fail(errc::busy, "many frames are about to leave CUDA devices");
        }
        while (true) {
            const std::uint32_t seen = finished_.load(std::memory_order_acquire);
            status outcome;
            const bool is_over = with(lock_, [&] {
                const bool is = mine->state == slot::over;
                outcome = mine->outcome;
                mine->state = is ? slot::free : mine->state;
                return is;
            });
            if (is_over) {
                return outcome;
            }
            if (xmm::detail::monotonic_ns() >= deadline) {
                return fail(errc::busy,
                            "a CUDA device has work to finish before a frame leaves it");
            }
            xmm::detail::futex_wait_until(finished_, seen, deadline);
        }
    }

    // Runs after what was pushed before it. One that waits already is not pushed again.
    void push(errand& one) noexcept {
        with(lock_, [&] { push_locked(one); });
        bell_.notify_one();
    }
    // Returns when nothing waits or runs.
    void drain() noexcept {
        while (true) {
            const std::uint32_t seen = finished_.load(std::memory_order_acquire);
            if (with(lock_, [&] { return oldest_ == nullptr && !is_running_; })) {
                return;
            }
            xmm::detail::futex_wait(finished_, seen);
        }
    }

private:
    // Longer than it takes when the devices are idle: 0.6 ms for 32 MiB.
    static constexpr std::uint64_t patience_ns = 5'000'000;

    struct slot {
        errand job;
        page_locker* owner = nullptr;
        va_range range;  // under the lock, as are the next two
        status outcome;
        enum : std::uint8_t { free, under_way, over } state = free;

        void run() noexcept {
            const va_range what = with(owner->lock_, [&] { return range; });
            const status done = owner->unlock_after_work(what);
            with(owner->lock_, [&] {
                outcome = done;
                state = over;
            });
        }
    };

    // That range's, else a free one, whose errand begins; null: there is none.
    [[nodiscard]] slot* find_slot(va_range range) noexcept {
        bool is_new = false;
        slot* const found = with(lock_, [&]() -> slot* {
            slot* unused = nullptr;
            for (slot& one : slots_) {
                if (one.state != slot::free && one.range == range) {
                    return &one;
                }
                unused = one.state == slot::free ? &one : unused;
            }
            if (unused != nullptr) {
                unused->range = range;
                unused->state = slot::under_way;
                push_locked(unused->job);
                is_new = true;
            }
            return unused;
        });
        if (is_new) {
            bell_.notify_one();
        }
        return found;
    }
    void push_locked(errand& one) noexcept {
        if (one.is_waiting) {
            return;
        }
        one.is_waiting = true;
        one.after = nullptr;
        *(newest_ == nullptr ? &oldest_ : &newest_->after) = &one;
        newest_ = &one;
    }
    void work() noexcept {
        ::pthread_setname_np(::pthread_self(), "xmm-cuda-locks");
        std::unique_lock hold{lock_};
        while (true) {
            bell_.wait(hold, [&] { return oldest_ != nullptr || is_closing_; });
            if (oldest_ == nullptr) {
                return;
            }
            errand& one = *oldest_;
            oldest_ = one.after;
            newest_ = oldest_ == nullptr ? nullptr : newest_;
            one.is_waiting = false;
            is_running_ = true;
            hold.unlock();
            one.run(one.context);
            hold.lock();
            is_running_ = false;
            // release: pairs with the acquires of who waits; the lock says the rest.
            finished_.fetch_add(1, std::memory_order_release);
            xmm::detail::futex_wake_all(finished_);
        }
    }

    template <class Call>
    [[nodiscard]] status on_some_device(Call&& call) noexcept {
        for (const auto& one : devices_) {
            if (one->is_lost()) {
                continue;
            }
            const context_scope here{driver_, one->context()};
            const status outcome = one->note(call());
            if (outcome.code != errc::device_lost) {
                return outcome;
            }
        }
        return fail(errc::device_lost, "every CUDA device is lost");
    }

    const driver& driver_;
    const std::vector<std::unique_ptr<device>>& devices_;
    const quiescence work_;
    std::mutex lock_;  // no rank: what waits on it takes no other lock of ours under it
    std::condition_variable bell_;
    std::thread worker_;
    errand* oldest_ = nullptr;  // under lock_, as are the next three
    errand* newest_ = nullptr;
    bool is_running_ = false;
    bool is_closing_ = false;
    xmm::detail::futex_word finished_{0};  // errands so far
    std::array<slot, 64> slots_;
};

}  // namespace xmm::cuda
