// SPDX-License-Identifier: Apache-2.0
// driver_bill.hpp - what an allocator asked of the driver: calls, their time, and the memory it holds.
//
// Model    reserved: bytes created and not given back, cached ones too. What takes reserved to a new height is
//          first creation up to the most bytes that are ever live: no allocator gets around that. The part
//          above is waste, and so are making again what was given back, moving a frame (unmap, map
//          elsewhere) and waiting. Frames that were above the most live bytes when they were made, and below
//          it later, came early: they are no waste, and are told apart.
// Threads  One.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "prices.hpp"

namespace xmm::trace_replay {

class driver_bill {
public:
    explicit driver_bill(const prices& list) : prices_{&list} {}

    // The program's view, before the allocator is asked.
    void set_live(std::uint64_t bytes) noexcept { peak_live_ = std::max(peak_live_, bytes); }

    // A creation: where in the order of all, for what else its frame costs.
    using creation = std::size_t;

    // us: measured, or what the list says. Of any number of frames of one size, of which each costs the same.
    creation add_create(std::uint64_t bytes, double us, std::uint64_t calls = 1) {
        const std::uint64_t after = reserved_ + bytes;
        creations_.push_back(
            {std::min(std::max(reserved_, peak_reserved_), after), after, bytes, peak_live_, us});
        reserved_ = after;
        peak_reserved_ = std::max(peak_reserved_, reserved_);
        calls_ += calls;
        return creations_.size() - 1;
    }
    // More calls for its frame.
    void add_to_create(creation one, double us, std::uint64_t calls = 1) noexcept {
        creations_[one].us += us;
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
    // All creation, first and wasted.
    [[nodiscard]] double create_us() const noexcept {
        double us = 0;
        for (const made& one : creations_) {
            us += one.us;
        }
        return us;
    }
    [[nodiscard]] double first_creation_us() const noexcept {
        double us = 0;
        for (const made& one : creations_) {
            us += one.us * one.share_below(peak_live_);
        }
        return us;
    }
    [[nodiscard]] double beyond_peak_us() const noexcept {
        return std::max(0.0, create_us() - first_creation_us());
    }
    // The part of first creation that the most live bytes had not reached at the time.
    [[nodiscard]] double early_us() const noexcept {
        double us = 0;
        for (const made& one : creations_) {
            us += one.us * (one.share_below(peak_live_) - one.share_below(one.peak_live));
        }
        return us;
    }
    [[nodiscard]] double move_us() const noexcept { return move_us_; }
    [[nodiscard]] double wait_us() const noexcept { return wait_us_; }
    // What a program would not have paid to an allocator that wastes nothing.
    [[nodiscard]] double driver_us() const noexcept {
        return beyond_peak_us() + move_us_ + wait_us_;
    }

private:
    // [from, to) is new height; the rest of its bytes had been made before.
    struct made {
        std::uint64_t from, to, bytes, peak_live;
        double us;

        [[nodiscard]] double share_below(std::uint64_t height) const noexcept {
            const std::uint64_t end = std::min(to, height);
            return end > from ? static_cast<double>(end - from) / static_cast<double>(bytes) : 0;
        }
    };

    const prices* prices_;
    std::uint64_t peak_live_ = 0;
    std::uint64_t reserved_ = 0;
    std::uint64_t peak_reserved_ = 0;
    std::uint64_t calls_ = 0;
    std::uint64_t frames_moved_ = 0;
    std::vector<made> creations_;
    double move_us_ = 0;
    double wait_us_ = 0;
};

}  // namespace xmm::trace_replay
