// SPDX-License-Identifier: Apache-2.0
// malloc_part.hpp - the allocations of the demo's trace, at their real size, through four allocators.
//
// Model    xmm's malloc and faithful models of PyTorch's two allocators over simulated frames: no memory is
//          touched, driver calls cost what they do on a real card.
#pragma once

#include <atomic>
#include <cstdio>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "../replay/allocators.hpp"
#include "../replay/prices.hpp"
#include "../replay/read_trace.hpp"
#include "../replay/report.hpp"
#include "../replay/run_trace.hpp"

namespace xmm::demo {

[[nodiscard]] inline std::vector<trace_replay::run_result> replay_allocators(
    const std::string& path) {
    namespace replay = trace_replay;
    const replay::prices list = replay::prices::idle();
    std::vector<replay::run_result> results;
    for (const replay::trace& source : replay::read_traces(path)) {
        for (const std::string& name : replay::allocator_names()) {
            if (name == "xmm" && !replay::xmm_heap::has_jemalloc()) {
                continue;  // the same as without it
            }
            replay::candidate_options with;
            with.list = &list;
            const auto one = replay::make_candidate(name, with);
            std::atomic<std::uint64_t> done{0};
            results.push_back(replay::run_trace(source, name, *one, done));
        }
    }
    return results;
}

}  // namespace xmm::demo
