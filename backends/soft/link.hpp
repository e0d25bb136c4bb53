// SPDX-License-Identifier: Apache-2.0
// link.hpp - the wire between a host and a device: two lanes with a settable speed.
//
// Model    A lane carries one slice at a time. Time on it is virtual: a slice starts where the slice
//          before ended or when it was asked for, whichever is later, so a thread that woke late catches
//          up, and a lane that was idle starts when the next transfer came.
//          The more urgent priority goes first between two slices, and keeps the lane for its whole transfer;
//          within one, first come first served. Who needs two lanes takes both in one step, and is in both
//          lines from the same moment on: one held by a thread that waits for the other would keep away the
//          more urgent one that this other waits for.
// Threads  Any. enter waits on a condition variable; under the lock of a lane nothing is acquired but the lock
//          of the other lane that is entered with it, by std::lock.
// Failure  None.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <ctime>
#include <mutex>

#include <xmm/concepts/backend.hpp>
#include <xmm/os/futex.hpp>

namespace xmm::soft {

[[nodiscard]] inline std::uint64_t now_ns() noexcept { return xmm::detail::monotonic_ns(); }

inline void sleep_until(std::uint64_t deadline_ns) noexcept {
    timespec deadline{};
    deadline.tv_sec = static_cast<std::time_t>(deadline_ns / 1'000'000'000u);
    deadline.tv_nsec = static_cast<long>(deadline_ns % 1'000'000'000u);
    while (now_ns() < deadline_ns) {
        ::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, nullptr);
    }
}

class lane {
public:
    // A gap up to this long before a transfer was asked for is taken for a late wake-up of who asks.
    static constexpr std::uint64_t slack_ns = 2'000'000;
    // What was asked for and waits is late by the machine's fault: so much may be caught up.
    static constexpr std::uint64_t most_late_ns = 20'000'000;

    explicit lane(std::uint64_t bytes_per_second) noexcept : bytes_per_second_{bytes_per_second} {}

    [[nodiscard]] bool is_paced() const noexcept { return bytes_per_second_ != 0; }

    // About half a millisecond of the wire, so that an urgent transfer waits no longer.
    [[nodiscard]] std::size_t slice_bytes() const noexcept {
        constexpr std::size_t most = std::size_t{256} << 10;
        return is_paced() ? std::clamp<std::size_t>(bytes_per_second_ / 2000, 4096, most) : most;
    }

    // Takes the lane for one slice; returns when it will have passed the wire. `asked_at`: since when
    // nothing but the lane has kept it waiting.
    [[nodiscard]] std::uint64_t enter(queue_priority priority, std::size_t bytes,
                                      std::uint64_t asked_at) noexcept {
        const auto mine = static_cast<std::size_t>(priority);
        std::unique_lock hold{mutex_};
        const std::uint64_t number = arrived_[mine]++;
        turn_.wait(hold, [&] { return is_turn_locked(mine, number); });
        return book_locked(mine, bytes, asked_at);
    }
    // The same for a slice that crosses two lanes at once.
    [[nodiscard]] static std::uint64_t enter(lane& one, lane& other, queue_priority priority,
                                             std::size_t bytes, std::uint64_t asked_at) noexcept {
        const auto mine = static_cast<std::size_t>(priority);
        std::unique_lock hold{one.mutex_, std::defer_lock};
        std::unique_lock hold_other{other.mutex_, std::defer_lock};
        std::lock(hold, hold_other);
        const std::uint64_t number = one.arrived_[mine]++;
        const std::uint64_t number_other = other.arrived_[mine]++;
        while (true) {
            // The lock of the lane that is not free stays held from the look to the sleep: no wake is missed.
            if (!one.is_turn_locked(mine, number)) {
                hold_other.unlock();
                one.turn_.wait(hold, [&] { return one.is_turn_locked(mine, number); });
                hold.unlock();
            } else if (!other.is_turn_locked(mine, number_other)) {
                hold.unlock();
                other.turn_.wait(hold_other,
                                 [&] { return other.is_turn_locked(mine, number_other); });
                hold_other.unlock();
            } else {
                break;
            }
            std::lock(hold, hold_other);
        }
        return std::max(one.book_locked(mine, bytes, asked_at),
                        other.book_locked(mine, bytes, asked_at));
    }
    void leave() noexcept {
        {
            std::lock_guard hold{mutex_};
            is_busy_ = false;
        }
        turn_.notify_all();
    }

    // A transfer as a whole: between its slices nothing less urgent gets in.
    class passage {
    public:
        passage(lane* one, queue_priority priority) noexcept
            : lane_{one}, mine_{static_cast<std::size_t>(priority)} {
            change(1);
        }
        ~passage() {
            if (lane_ != nullptr) {
                change(-1);
                lane_->turn_.notify_all();
            }
        }
        passage(const passage&) = delete;
        passage& operator=(const passage&) = delete;

    private:
        void change(int by) noexcept {
            if (lane_ != nullptr) {
                std::lock_guard hold{lane_->mutex_};
                lane_->under_way_[mine_] += by;
            }
        }
        lane* const lane_;  // null: none is needed
        const std::size_t mine_;
    };

    // The slice has passed: kernels that reached over the link without a copy.
    void charge(queue_priority priority, std::size_t bytes) noexcept {
        count(bytes);
        const passage whole{is_paced() ? this : nullptr, priority};
        for (std::uint64_t asked_at = now_ns(); is_paced() && bytes > 0;) {
            const std::size_t some = std::min(bytes, slice_bytes());
            asked_at = enter(priority, some, asked_at);
            sleep_until(asked_at);
            leave();
            bytes -= some;
        }
    }

    // relaxed: a statistic.
    void count(std::size_t bytes) noexcept { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
    [[nodiscard]] std::uint64_t bytes() const noexcept {
        return bytes_.load(std::memory_order_relaxed);
    }

private:
    [[nodiscard]] bool is_turn_locked(std::size_t mine, std::uint64_t number) const noexcept {
        return !is_busy_ && served_[mine] == number && !is_outranked(mine);
    }
    [[nodiscard]] std::uint64_t book_locked(std::size_t mine, std::size_t bytes,
                                            std::uint64_t asked_at) noexcept {
        ++served_[mine];
        is_busy_ = true;
        const std::uint64_t came_at = asked_at > free_at_ + slack_ns ? asked_at : free_at_;
        const std::uint64_t start = std::max(came_at, now_ns() - most_late_ns);
        free_at_ = start + bytes * 1'000'000'000u / bytes_per_second_;
        return free_at_;
    }
    [[nodiscard]] bool is_outranked(std::size_t mine) const noexcept {
        for (std::size_t other = mine + 1; other < arrived_.size(); ++other) {
            if (under_way_[other] != 0 || arrived_[other] != served_[other]) {
                return true;
            }
        }
        return false;
    }

    const std::uint64_t bytes_per_second_;  // 0 is unlimited
    std::mutex mutex_;                      // not ranked: a condition variable needs the plain type
    std::condition_variable turn_;
    bool is_busy_ = false;                    // under mutex_, as are the next four
    std::uint64_t free_at_ = 0;               // when the last slice booked has passed
    std::array<std::uint64_t, 3> arrived_{};  // by priority, as the next two
    std::array<int, 3> under_way_{};
    std::array<std::uint64_t, 3> served_{};
    std::atomic<std::uint64_t> bytes_{0};
};

}  // namespace xmm::soft
