// SPDX-License-Identifier: Apache-2.0
// rmm_csv.hpp - a trace as RMM's logging adaptor writes it, for RMM's replay and those who read its logs.
//
// Model    One line for each request, each failed one, and each time that the program let go; the stream
//          and the pointer are hexadecimal as there ("0" and "(nil)" where there is none), the time is
//          local. What RMM has no word for is left out: frames, and when a queue was done with a block.
// Threads  One per stream of output.
// Failure  As the stream reports it.
#pragma once

#include <array>
#include <cstdio>
#include <ctime>
#include <ostream>

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

}  // namespace detail

inline void write_rmm_csv(std::ostream& out, const recorded_trace& trace) {
    out << "Thread,Time,Action,Pointer,Size,Stream\n";
    std::array<char, 96> rest;
    for (const trace_event& event : trace.events) {
        const char* action = event.action == trace_action::allocate         ? "allocate"
                             : event.action == trace_action::free_requested ? "free"
                             : event.action == trace_action::out_of_memory  ? "allocate failure"
                                                                            : nullptr;
        if (action == nullptr) {
            continue;
        }
        out << event.thread << ',';
        detail::write_time_of_day(out, trace.times.wall(event.ns));
        const bool has_pointer = event.action != trace_action::out_of_memory && event.at != 0;
        std::snprintf(rest.data(), rest.size(), has_pointer ? "0x%zx" : "(nil)", event.at);
        out << ',' << action << ',' << rest.data();
        std::snprintf(rest.data(), rest.size(), event.stream != 0 ? "0x%llx" : "0",
                      static_cast<unsigned long long>(event.stream));
        out << ',' << event.bytes << ',' << rest.data() << '\n';
    }
}

}  // namespace xmm
