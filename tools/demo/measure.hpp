// SPDX-License-Identifier: Apache-2.0
// measure.hpp - what a run cost: the space's statistics before and after it.
#pragma once

#include <chrono>

#include <xmm/xmm.hpp>

#include "heat_map.hpp"
#include "report.hpp"

namespace xmm::demo {

class run_clock {
public:
    explicit run_clock(space& memory) : memory_{memory}, before_{memory.statistics()} {}

    // Seconds and counters since construction.
    void fill(run_report& out, node_id device) const;

private:
    space& memory_;
    space_statistics before_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

inline void count_places(const heat_map& map, run_report& out) {
    for (const page_place place : map.samples.back().pages) {
        out.pages_on_device += place == page_place::device || place == page_place::both ? 1 : 0;
        out.pages_on_host += place == page_place::host || place == page_place::both ? 1 : 0;
    }
}

}  // namespace xmm::demo
