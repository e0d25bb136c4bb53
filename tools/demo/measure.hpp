// SPDX-License-Identifier: Apache-2.0
// measure.hpp - what a run cost: time, and the counters of the space and of the device's link.
#pragma once

#include <chrono>
#include <cstdint>

#include <xmm/xmm.hpp>

#include "heat_map.hpp"
#include "report.hpp"

namespace xmm::demo {

// What passed the link of the queue's device so far, both ways.
[[nodiscard]] inline std::uint64_t link_bytes(queue& line) noexcept {
    void* native = line.native(soft::driver::native_kind);
    if (native == nullptr) {
        return 0;
    }
    const auto passed = static_cast<soft::driver*>(native)->statistics(line.node());
    return passed.link_in_bytes + passed.link_out_bytes;
}

// Runs from its construction on. The queue is one of the device that is watched.
class run_clock {
public:
    run_clock(space& memory, queue& line)
        : memory_{memory},
          line_{line},
          before_{memory.statistics()},
          link_before_{link_bytes(line)} {}

    // Seconds and counters since construction.
    void fill(run_report& out) const {
        const auto now = std::chrono::steady_clock::now();
        out.seconds = std::chrono::duration<double>(now - begin_).count();
        const space_statistics after = memory_.statistics();
        for (unsigned i = 0; i < after.count; ++i) {
            const node_counters &first = before_.nodes[i].counters, &last = after.nodes[i].counters;
            if (after.nodes[i].usage.node == line_.node()) {
                out.bytes_to_device = last.bytes_in - first.bytes_in;
                out.bytes_to_host = last.bytes_out - first.bytes_out;
                out.device_faults = last.faults - first.faults;
                out.coalesced = last.faults_coalesced - first.faults_coalesced;
                out.reclaimed_bytes = last.reclaimed_bytes - first.reclaimed_bytes;
            } else {
                out.cpu_faults += last.faults - first.faults;
            }
        }
        // What passed the link and was no move: kernels that reached host memory where it is.
        const std::uint64_t passed = link_bytes(line_) - link_before_;
        const std::uint64_t moved = out.bytes_to_device + out.bytes_to_host;
        out.mapped_bytes = passed > moved ? passed - moved : 0;
    }

private:
    space& memory_;
    queue& line_;
    space_statistics before_;
    std::uint64_t link_before_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// The places at the end of a run.
inline void count_places(const heat_map& map, run_report& out) {
    for (const page_place place : map.samples.back().pages) {
        const bool is_both = place == page_place::both;
        out.pages_on_device += place == page_place::device || is_both ? 1 : 0;
        out.pages_on_host += place == page_place::host || is_both ? 1 : 0;
    }
}

}  // namespace xmm::demo
