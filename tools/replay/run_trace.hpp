// SPDX-License-Identifier: Apache-2.0
// run_trace.hpp - one trace through one allocator: figures, and what was reserved over time.
//
// Threads  One for a run; runs are independent of each other.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "candidate.hpp"
#include "trace.hpp"

namespace xmm::trace_replay {

// The most within each of equal stretches of time.
class timeline {
public:
    static constexpr std::size_t columns = 800;

    explicit timeline(std::uint64_t duration_us)
        : duration_{std::max<std::uint64_t>(duration_us, 1)} {}

    void note(std::uint64_t us, std::uint64_t bytes) noexcept {
        const auto at = static_cast<std::size_t>(static_cast<double>(std::min(us, duration_)) /
                                                 static_cast<double>(duration_) * (columns - 1));
        while (last_ < at) {  // nothing happened between
            most_[last_ + 1] = current_;
            ++last_;
        }
        most_[at] = std::max(most_[at], bytes);
        current_ = bytes;
    }
    [[nodiscard]] const std::vector<std::uint64_t>& most() const noexcept { return most_; }

private:
    std::uint64_t duration_;
    std::vector<std::uint64_t> most_ = std::vector<std::uint64_t>(columns);
    std::uint64_t current_ = 0;
    std::size_t last_ = 0;
};

struct run_result {
    std::size_t source = 0;  // results of one trace have the same number
    std::string trace;
    std::string allocator;
    std::uint64_t events = 0;
    std::uint64_t streams = 0;
    std::uint64_t peak_live_bytes = 0;
    std::uint64_t peak_reserved_bytes = 0;
    std::uint64_t driver_calls = 0;
    std::uint64_t frames_moved = 0;
    double driver_us = 0;
    double move_us = 0;
    double wait_us = 0;
    double beyond_peak_us = 0;
    double first_creation_us = 0;
    double early_us = 0;  // the part of it that live bytes reached only later
    double ns_per_event = 0;
    std::uint64_t duration_us = 0;
    std::optional<std::uint64_t>
        out_of_memory_at;  // the event that got nothing; the run ended there
    timeline live{1};
    timeline reserved{1};

    [[nodiscard]] double ratio() const noexcept {
        return peak_live_bytes == 0 ? 0
                                    : static_cast<double>(peak_reserved_bytes) /
                                          static_cast<double>(peak_live_bytes);
    }
    // Of the trace's time, in percent.
    [[nodiscard]] double driver_share() const noexcept {
        return duration_us == 0 ? 0 : driver_us / static_cast<double>(duration_us) * 100;
    }
};

// When each block's free is complete: what the trace does not tell any more, at its last event.
[[nodiscard]] inline std::vector<std::uint64_t> completion_times(const trace& source) {
    const std::uint64_t end = source.events.empty() ? 0 : source.events.back().microseconds;
    std::vector<std::uint64_t> out(source.blocks, end);
    for (const trace_event& event : source.events) {
        if (event.op == trace_op::free_completed) {
            out[event.block] = event.microseconds;
        }
    }
    return out;
}

// `done` counts events, for a progress bar in another thread.
[[nodiscard]] inline run_result run_trace(const trace& source, const std::string& name,
                                          candidate& allocator, std::atomic<std::uint64_t>& done) {
    run_result out;
    out.trace = source.name;
    out.allocator = name;
    out.events = source.events.size();
    out.streams = source.streams.size();
    out.peak_live_bytes = source.peak_live_bytes;
    out.duration_us = source.duration_us();
    out.live = timeline{out.duration_us};
    out.reserved = timeline{out.duration_us};
    std::vector<std::uint64_t> completed;
    if (source.has_requests) {
        completed = completion_times(source);
    }
    const std::uint64_t begin = source.events.empty() ? 0 : source.events.front().microseconds;
    driver_bill& bill = allocator.bill();
    std::uint64_t live = 0;
    std::uint64_t at = 0;
    std::uint64_t told = 0;
    const auto start = std::chrono::steady_clock::now();
    for (const trace_event& event : source.events) {
        switch (event.op) {
            case trace_op::allocate:
                live += event.bytes;
                bill.set_live(live);
                if (!allocator.allocate(event)) {
                    out.out_of_memory_at = at;
                }
                break;
            case trace_op::free_requested:
                allocator.free_requested(event, completed[event.block]);
                break;
            case trace_op::free_completed:
                live -= event.bytes;
                allocator.free_completed(event);
                break;
        }
        if (out.out_of_memory_at) {
            break;
        }
        const std::uint64_t us = event.microseconds - begin;
        out.live.note(us, live);
        out.reserved.note(us, bill.reserved());
        if (++at - told >= 4096) {
            // relaxed: a number for the eye
            done.fetch_add(at - told, std::memory_order_relaxed);
            told = at;
        }
    }
    const auto ns =
        std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
    done.fetch_add(source.events.size() - told, std::memory_order_relaxed);
    out.ns_per_event = at == 0 ? 0 : ns / static_cast<double>(at);
    out.peak_reserved_bytes = bill.peak_reserved();
    out.driver_calls = bill.calls();
    out.frames_moved = bill.frames_moved();
    out.driver_us = bill.driver_us();
    out.move_us = bill.move_us();
    out.wait_us = bill.wait_us();
    out.beyond_peak_us = bill.beyond_peak_us();
    out.first_creation_us = bill.first_creation_us();
    out.early_us = bill.early_us();
    return out;
}

}  // namespace xmm::trace_replay
