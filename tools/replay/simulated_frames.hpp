// SPDX-License-Identifier: Apache-2.0
// simulated_frames.hpp - a frame_port without a device: addresses are reserved, calls are billed.
//
// Model    Address space is the process's own, without access: any touch is fatal. All of a port's
//          reservations lie in one stretch, upwards, so that two runs see the same order of addresses.
//          Time is the trace's. Work of a queue that is recorded now completes `lag_us` later, or when
//          set_completion says so; waiting moves no clock but is billed.
// Threads  One.
// Failure  As frame_port says. A call against its contract asserts.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include <xmm/core/config.hpp>
#include <xmm/resources/frame_port.hpp>

#include "driver_bill.hpp"

namespace xmm::trace_replay {

struct simulation_options {
    std::uint64_t device_bytes = 0;  // 0: never runs out
    std::uint64_t lag_us = 0;        // how long after its submission a queue's work completes
    bool can_alias = true;
};

class simulated_frames final : public frame_port {
public:
    simulated_frames(driver_bill& bill, simulation_options options)
        : bill_{bill}, options_{options} {}
    simulated_frames(const simulated_frames&) = delete;
    simulated_frames& operator=(const simulated_frames&) = delete;
    ~simulated_frames() {
        for (const va_range one : stretches_) {
            ::munmap(to_pointer(one.begin), one.bytes);
        }
    }

    void set_clock(std::uint64_t us) noexcept { now_ = us; }
    // What the queue's next ticket stands for.
    void set_completion(queue_id queue, std::uint64_t us) { completion_[queue.value] = us; }

    result<address> reserve(std::size_t bytes, std::size_t slot_bytes) noexcept override {
        for (int attempt = 0; attempt < 2; ++attempt) {
            const address begin = align_up(next_, slot_bytes);
            if (begin >= next_ && begin <= end_ && bytes <= end_ - begin) {
                next_ = begin + bytes;
                return begin;
            }
            if (!add_stretch(bytes + slot_bytes)) {
                break;
            }
        }
        return fail(errc::no_memory, "no address space for a simulated device");
    }
    // Addresses are not used again: a stale one is told apart from a new one.
    void release(va_range) noexcept override {}

    result<port_frame> create(std::size_t bytes) noexcept override {
        if (options_.device_bytes != 0 && bill_.reserved() + bytes > options_.device_bytes) {
            return fail(errc::no_memory, "the simulated device is full");
        }
        bill_.add_create(bytes, bill_.price(driver_call::create, bytes));
        auto* one = new simulated_frame{bytes};
        is_new_ = one;
        ++frames_;
        return port_frame{one};
    }
    void drop(port_frame one, std::size_t bytes) noexcept override {
        auto* frame = static_cast<simulated_frame*>(one.handle);
        XMM_ASSERT(frame->mappings == 0 && frame->bytes == bytes, "a frame is dropped in use");
        bill_.add_drop(bytes, bill_.price(driver_call::drop, bytes));
        is_new_ = is_new_ == frame ? nullptr : is_new_;
        --frames_;
        delete frame;
    }
    status map(address, port_frame one, std::size_t bytes) noexcept override {
        auto* frame = static_cast<simulated_frame*>(one.handle);
        XMM_ASSERT(frame->bytes == bytes, "a frame is mapped with another size");
        XMM_ASSERT(frame->mappings == 0 || options_.can_alias, "a frame is mapped twice");
        ++frame->mappings;
        const double us =
            bill_.price(driver_call::map, bytes) + bill_.price(driver_call::set_access, bytes);
        if (std::exchange(frame->was_mapped, true)) {
            bill_.add_move(us, 2);
            bill_.add_moved_frame();
        } else if (frame == is_new_) {
            bill_.add_to_create(us, 2);
        } else {
            bill_.add_move(us, 2);  // created ahead: which creation it was is not known any more
        }
        return {};
    }
    void unmap(address, port_frame one, std::size_t bytes) noexcept override {
        auto* frame = static_cast<simulated_frame*>(one.handle);
        XMM_ASSERT(frame->mappings > 0 && frame->bytes == bytes, "a slot is unmapped twice");
        --frame->mappings;
        bill_.add_move(bill_.price(driver_call::unmap, bytes));
    }

    result<ticket> record(queue_id queue) noexcept override {
        if (queue.value == 0) {
            return ticket{};
        }
        std::uint64_t done = now_ + options_.lag_us;
        if (const auto found = completion_.find(queue.value); found != completion_.end()) {
            done = found->second;
            completion_.erase(found);
        }
        return ticket{queue, done + 1};  // 0 is always reached
    }
    bool is_done(ticket point) noexcept override {
        return point.value == 0 || point.value - 1 <= now_;
    }
    status wait(ticket point) noexcept override {
        if (!is_done(point)) {
            bill_.add_wait(static_cast<double>(point.value - 1 - now_));
        }
        return {};
    }
    bool can_alias() const noexcept override { return options_.can_alias; }

    [[nodiscard]] std::uint64_t frames() const noexcept { return frames_; }

private:
    struct simulated_frame {
        std::size_t bytes;
        unsigned mappings = 0;
        bool was_mapped = false;
    };

    [[nodiscard]] bool add_stretch(std::size_t least) noexcept {
        constexpr std::size_t usual = std::size_t{8} << 40;
        for (std::size_t bytes = std::max(usual, align_up(least, largest_frame_bytes));;
             bytes /= 2) {
            void* got = ::mmap(nullptr, bytes + largest_frame_bytes, PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (got != MAP_FAILED) {
                stretches_.push_back({to_address(got), bytes + largest_frame_bytes});
                next_ = align_up(to_address(got), largest_frame_bytes);
                end_ = next_ + bytes;
                return true;
            }
            if (bytes / 2 < least) {
                return false;
            }
        }
    }

    driver_bill& bill_;
    simulation_options options_;
    std::vector<va_range> stretches_;
    address next_ = 0;
    address end_ = 0;
    std::uint64_t now_ = 0;
    std::unordered_map<std::uint32_t, std::uint64_t> completion_;
    simulated_frame* is_new_ = nullptr;
    std::uint64_t frames_ = 0;
};

}  // namespace xmm::trace_replay
