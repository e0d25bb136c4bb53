// SPDX-License-Identifier: Apache-2.0
// driver_bill.hpp - what an allocator asked of the driver: calls, their time, and the memory it holds.
//
// Model    reserved: bytes created and not given back, cached ones too. A frame that is created counts as
//          first creation as far as all frames stay within the most live bytes so far, and as waste for
//          the part beyond. Moving a frame (unmap, map elsewhere) and waiting are waste too.
// Threads  One.
#pragma once

#include <algorithm>
#include <cstdint>

#include "prices.hpp"

namespace xmm::trace_replay {

class driver_bill {
public:
    explicit driver_bill(const prices& list) : prices_{&list} {}

    // The program's view, before the allocator is asked.
    void set_live(std::uint64_t bytes) noexcept { peak_live_ = std::max(peak_live_, bytes); }

    // us: measured, or what the list says.
    void add_create(std::uint64_t bytes, double us, std::uint64_t calls = 1) noexcept {
        const std::uint64_t after = reserved_ + bytes;
        const std::uint64_t beyond = std::min(bytes, after - std::min(after, peak_live_));
        const double part = static_cast<double>(beyond) / static_cast<double>(bytes);
        first_us_ += us * (1 - part);
        beyond_us_ += us * part;
        is_beyond_ = part;
        reserved_ = after;
        peak_reserved_ = std::max(peak_reserved_, reserved_);
        calls_ += calls;
    }
    // More calls for the frame that was created last.
    void add_to_create(double us, std::uint64_t calls = 1) noexcept {
        first_us_ += us * (1 - is_beyond_);
        beyond_us_ += us * is_beyond_;
        calls_ += calls;
    }
    void add_drop(std::uint64_t bytes, double us, std::uint64_t calls = 1) noexcept {
        reserved_ -= bytes;
        move_us_ += us;
        calls_ += calls;
    }
    void add_move(double us, std::uint64_t calls = 1) noexcept {
        move_us_ += us;
        calls_ += calls;
    }
    void add_moved_frame() noexcept { ++frames_moved_; }
    void add_wait(double us) noexcept { wait_us_ += us; }

    [[nodiscard]] double price(driver_call call, std::uint64_t bytes) const {
        return prices_->of(call, bytes);
    }

    [[nodiscard]] std::uint64_t reserved() const noexcept { return reserved_; }
    [[nodiscard]] std::uint64_t peak_reserved() const noexcept { return peak_reserved_; }
    [[nodiscard]] std::uint64_t calls() const noexcept { return calls_; }
    [[nodiscard]] std::uint64_t frames_moved() const noexcept { return frames_moved_; }
    [[nodiscard]] double first_creation_us() const noexcept { return first_us_; }
    [[nodiscard]] double beyond_peak_us() const noexcept { return beyond_us_; }
    [[nodiscard]] double move_us() const noexcept { return move_us_; }
    [[nodiscard]] double wait_us() const noexcept { return wait_us_; }
    // What a program would not have paid to an allocator that wastes nothing.
    [[nodiscard]] double driver_us() const noexcept { return beyond_us_ + move_us_ + wait_us_; }

private:
    const prices* prices_;
    std::uint64_t peak_live_ = 0;
    std::uint64_t reserved_ = 0;
    std::uint64_t peak_reserved_ = 0;
    std::uint64_t calls_ = 0;
    std::uint64_t frames_moved_ = 0;
    double first_us_ = 0;
    double beyond_us_ = 0;
    double move_us_ = 0;
    double wait_us_ = 0;
    double is_beyond_ = 0;
};

}  // namespace xmm::trace_replay
