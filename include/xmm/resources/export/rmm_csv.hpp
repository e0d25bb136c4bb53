// SPDX-License-Identifier: Apache-2.0
// rmm_csv.hpp - a trace as RMM's logging adaptor writes it, for RMM's replay and those who read its logs.
//
// Model    One line for each request, each failed one, and each time that the program let go; the stream
//          and the pointer are hexadecimal as there ("0" and "(nil)" where there is none), the time is
//          local. What RMM has no word for is left out: frames, and when a queue was done with a block. A block
//          that was there before the recording is allocated at its beginning, if it is freed in the trace or a
//          snapshot shows it; who replays a log knows no other blocks. A free has the size of its allocation.
// Threads  One per stream of output.
// Failure  As the stream reports it; std::bad_alloc.
#pragma once

#include <array>
#include <cstdio>
#include <ctime>
#include <ostream>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include <xmm/resources/heap_snapshot.hpp>
#include <xmm/resources/trace_recorder.hpp>

namespace xmm {
namespace detail {

// HH:MM:SS and six digits, local time.
inline void write_time_of_day(std::ostream& out, std::int64_t wall_ns) {
    const std::time_t seconds = wall_ns / 1'000'000'000;
    std::tm local{};
    ::localtime_r(&seconds, &local);
    std::array<char, 40> text;
    std::snprintf(text.data(), text.size(), "%02d:%02d:%02d.%06d", local.tm_hour, local.tm_min,
                  local.tm_sec, static_cast<int>(wall_ns % 1'000'000'000 / 1000));
    out << text.data();
}

class rmm_writer {
public:
    rmm_writer(std::ostream& out, const recorded_trace& trace) : out_{out}, trace_{trace} {
        out_ << "Thread,Time,Action,Pointer,Size,Stream\n";
    }
    void allocate(const trace_event& event) {
        alive_[event.at] = event.bytes;
        line("allocate", event, event.bytes);
    }
    void free(const trace_event& event) {
        const auto found = alive_.find(event.at);
        line("free", event, found != alive_.end() ? found->second : event.bytes);
        if (found != alive_.end()) {
            alive_.erase(found);
        }
    }
    void failure(trace_event event) {
        event.at = 0;
        line("allocate failure", event, event.bytes);
    }

private:
    void line(const char* action, const trace_event& event, std::size_t bytes) {
        out_ << event.thread << ',';
        write_time_of_day(out_, trace_.times.wall(event.ns));
        std::array<char, 40> text;
        std::snprintf(text.data(), text.size(), event.at != 0 ? "0x%zx" : "(nil)", event.at);
        out_ << ',' << action << ',' << text.data();
        std::snprintf(text.data(), text.size(), event.stream != 0 ? "0x%llx" : "0",
                      static_cast<unsigned long long>(event.stream));
        out_ << ',' << bytes << ',' << text.data() << '\n';
    }

    std::ostream& out_;
    const recorded_trace& trace_;
    std::unordered_map<address, std::size_t> alive_;  // and their sizes
};

}  // namespace detail

inline void write_rmm_csv(std::ostream& out, const recorded_trace& trace,
                          std::span<const snapshot_segment> segments = {}) {
    detail::rmm_writer writer{out, trace};
    const std::uint64_t begin_ns = trace.events.empty() ? 0 : trace.events.front().ns;
    std::unordered_set<address> known;  // blocks whose first event has been seen
    for (trace_event event : trace.events) {
        const bool is_free = event.action == trace_action::free_requested;
        if (event.action == trace_action::free_completed) {
            known.insert(event.at);  // let go of before
        } else if ((is_free || event.action == trace_action::allocate) &&
                   known.insert(event.at).second && is_free) {
            event.ns = begin_ns;
            writer.allocate(event);
        }
    }
    for (const snapshot_segment& segment : segments) {
        for (const snapshot_block& block : segment.blocks) {
            if (block.state == block_state::active_allocated &&
                known.insert(block.range.begin).second) {
                trace_event event{};
                event.ns = begin_ns;
                event.at = block.range.begin;
                event.bytes = block.requested;
                event.stream = segment.owner.stream;
                writer.allocate(event);
            }
        }
    }
    for (const trace_event& event : trace.events) {
        switch (event.action) {
            case trace_action::allocate: writer.allocate(event); break;
            case trace_action::free_requested: writer.free(event); break;
            case trace_action::out_of_memory: writer.failure(event); break;
            default: break;
        }
    }
}

}  // namespace xmm
