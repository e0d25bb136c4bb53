// SPDX-License-Identifier: Apache-2.0
// simulated_frames.hpp - a frame_port that keeps the bill, without a device or in front of a backend.
//
// Model    Address space is the process's own, without access: any touch is fatal. All of a port's
//          reservations lie in one stretch, upwards, so that two runs see the same order of addresses.
//          In front of a backend its frames are created and mapped for real, and timed if asked to.
//          Time is the trace's. Work of a queue that is recorded now completes `lag_us` later, or when
//          set_completion says so for that queue; waiting moves no clock but is billed.
// Threads  One.
// Failure  As frame_port says. A call against its contract asserts.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include <xmm/concepts/backend_table.hpp>
#include <xmm/core/config.hpp>
#include <xmm/resources/frame_port.hpp>

#include "driver_bill.hpp"

namespace xmm::trace_replay {

struct simulation_options {
    std::uint64_t device_bytes = 0;  // 0: never runs out
    std::uint64_t lag_us = 0;        // how long after its submission a queue's work completes
    bool can_alias = true;
    backend_ref backing = {};  // null: no memory at all
    node_id node = no_node;
    bool is_timed = false;  // the backing's calls cost what they take, not what the list says
    // Of the driver's calls, how many the backing needs to make a frame and to drop one.
    unsigned calls_to_create = 1;
    unsigned calls_to_drop = 1;
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
    // When the work that is submitted to the queue from now on completes.
    void set_completion(queue_id queue, std::uint64_t us) {
        completion_[queue.value] = std::min(us, UINT64_MAX - 1);
    }

    result<address> reserve(std::size_t bytes, std::size_t slot_bytes) noexcept override {
        if (options_.backing) {
            auto range = options_.backing.va_examine({0, bytes}, slot_bytes);
            return range ? result<address>{range->begin} : result<address>{range.error()};
        }
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
    // Simulated addresses are not used again: a stale one is told apart from a new one.
    void release(va_range reservation) noexcept override {
        if (options_.backing) {
            options_.backing.va_release(reservation);
        }
    }

    result<port_frame> create(std::size_t bytes) noexcept override {
        if (options_.device_bytes != 0 && bill_.reserved() + bytes > options_.device_bytes) {
            return fail(errc::no_memory, "the simulated device is full");
        }
        std::unique_ptr<simulated_frame> own{new (std::nothrow) simulated_frame{}};
        if (own == nullptr) {
            return no_record();
        }
        own->bytes = bytes;
        status made;
        const double us = cost({driver_call::create}, bytes, [&] {
            auto got = options_.backing.frame_create(options_.node, bytes);
            made = got ? status{} : got.error();
            own->real = got ? *got : frame{};
        });
        if (!made) {
            return made;
        }
        try {
            own->made = bill_.add_create(bytes, us, options_.calls_to_create);
        } catch (const std::bad_alloc&) {
            if (options_.backing) {
                options_.backing.frame_drop(own->real);
            }
            return no_record();
        }
        return port_frame{own.release()};
    }
    void drop(port_frame one, std::size_t bytes) noexcept override {
        auto* own = static_cast<simulated_frame*>(one.handle);
        XMM_ASSERT(own->mappings == 0 && own->bytes == bytes, "a frame is dropped in use");
        bill_.add_drop(
            bytes,
            cost({driver_call::drop}, bytes, [&] { options_.backing.frame_drop(own->real); }),
            options_.calls_to_drop);
        delete own;
    }
    status map(address slot, port_frame one, std::size_t bytes) noexcept override {
        auto* own = static_cast<simulated_frame*>(one.handle);
        XMM_ASSERT(own->bytes == bytes, "a frame is mapped with another size");
        XMM_ASSERT(own->mappings == 0 || options_.can_alias, "a frame is mapped twice");
        status outcome;
        const double us = cost({driver_call::map, driver_call::set_access}, bytes, [&] {
            const run entry{{slot, bytes}, own->real, access::read_write};
            outcome = options_.backing.pmap_enter(options_.node, {&entry, 1}).outcome;
        });
        if (!outcome) {
            return outcome;
        }
        ++own->mappings;
        if (std::exchange(own->was_mapped, true)) {
            bill_.add_move(us, 2);
            bill_.add_moved_frame();
        } else {
            bill_.add_to_create(own->made, us, 2);
        }
        return {};
    }
    void unmap(address slot, port_frame one, std::size_t bytes) noexcept override {
        auto* own = static_cast<simulated_frame*>(one.handle);
        XMM_ASSERT(own->mappings > 0 && own->bytes == bytes, "a slot is unmapped twice");
        --own->mappings;
        bill_.add_move(cost({driver_call::unmap}, bytes, [&] {
            const va_range where{slot, bytes};
            (void)options_.backing.pmap_clear(options_.node, {&where, 1});
        }));
    }

    result<ticket> record(queue_id queue) noexcept override {
        if (queue.value == 0) {
            return ticket{};
        }
        std::uint64_t done = now_ + options_.lag_us;
        if (const auto found = completion_.find(queue.value); found != completion_.end()) {
            done = found->second;
        }
        return ticket{queue, done + 1};  // 0 is always reached
    }
    bool is_done(ticket point) noexcept override {
        if (point.value == 0 || point.value - 1 <= now_) {
            return true;
        }
        const auto waited = waited_.find(point.queue.value);
        return waited != waited_.end() && point.value - 1 <= waited->second;
    }
    status wait(ticket point) noexcept override {
        if (!is_done(point)) {
            bill_.add_wait(static_cast<double>(point.value - 1 - now_));
            std::uint64_t& until = waited_[point.queue.value];
            until = std::max(until, point.value - 1);
        }
        return {};
    }
    bool can_alias() const noexcept override { return options_.can_alias; }

private:
    // Does it where there is a backing; what it took, or what the calls cost by the list.
    template <class Fn>
    [[nodiscard]] double cost(std::initializer_list<driver_call> calls, std::size_t bytes,
                              Fn&& fn) {
        if (options_.backing) {
            const auto begin = std::chrono::steady_clock::now();
            fn();
            if (options_.is_timed) {
                return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() -
                                                                 begin)
                    .count();
            }
        }
        double us = 0;
        for (const driver_call one : calls) {
            us += bill_.price(one, bytes);
        }
        return us;
    }

    static status no_record() noexcept {
        return fail(errc::no_memory, "the host has no memory for the bill");
    }

    struct simulated_frame {
        std::size_t bytes = 0;
        frame real;
        driver_bill::creation made{};
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
    std::unordered_map<std::uint32_t, std::uint64_t>
        waited_;  // what a queue is known to have reached
};

}  // namespace xmm::trace_replay
