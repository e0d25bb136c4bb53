// SPDX-License-Identifier: Apache-2.0
// target.hpp - what each fuzz target does with its bytes: a reader either refuses them or builds a trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "../../tools/replay/trace.hpp"

// What holds for every trace, whoever wrote the file.
inline void check_trace(const xmm::trace_replay::trace& one) {
    using xmm::trace_replay::trace_op;
    std::vector<std::uint64_t> alive(one.blocks);
    std::uint64_t live = 0, peak = 0, last = 0;
    for (const auto& event : one.events) {
        const bool is_right =
            event.block < one.blocks && event.stream < one.streams.size() && event.bytes > 0 &&
            event.microseconds >= last &&
            alive[event.block] == (event.op == trace_op::allocate ? 0 : event.bytes);
        if (!is_right) {
            std::abort();
        }
        last = event.microseconds;
        if (event.op == trace_op::allocate) {
            alive[event.block] = event.bytes;
            live += event.bytes;
        } else if (event.op == trace_op::free_completed) {
            alive[event.block] = 0;
            live -= event.bytes;
        }
        peak = live > peak ? live : peak;
    }
    if (peak != one.peak_live_bytes || one.blocks == 0) {
        std::abort();
    }
}

template <class Read>
int fuzz_reader(const std::uint8_t* data, std::size_t bytes, Read&& read) {
    try {
        read(std::string_view{reinterpret_cast<const char*>(data), bytes});
    } catch (const xmm::trace_replay::bad_input& refused) {
        if (std::string_view{refused.what()}.find('\0') != std::string_view::npos) {
            std::abort();
        }
    }
    return 0;
}
