// SPDX-License-Identifier: Apache-2.0
// allocators.hpp - the allocators that can be replayed, by name.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "candidate.hpp"
#include "simulated_frames.hpp"
#include "torch_models.hpp"
#include "xmm_heap.hpp"

namespace xmm::trace_replay {

struct candidate_options {
    const prices* list = nullptr;
    simulation_options simulation;
};

namespace detail {

template <class Model>
[[nodiscard]] std::unique_ptr<candidate> make_model(const candidate_options& with) {
    return std::make_unique<Model>(*with.list, with.simulation.device_bytes);
}

struct named_allocator {
    const char* name;
    std::unique_ptr<candidate> (*make)(const candidate_options& with);
};
template <bool HasSmallBlocks>
[[nodiscard]] std::unique_ptr<candidate> make_heap(const candidate_options& with) {
    return std::make_unique<xmm_heap>(*with.list, with.simulation, HasSmallBlocks);
}
inline constexpr std::array allocators = {
    named_allocator{"xmm", make_heap<true>},
    named_allocator{"xmm-nojemalloc", make_heap<false>},
    named_allocator{"native-model", make_model<native_model>},
    named_allocator{"expandable-model", make_model<expandable_model>},
};

}  // namespace detail

[[nodiscard]] inline std::vector<std::string> allocator_names() {
    std::vector<std::string> out;
    for (const auto& one : detail::allocators) {
        out.emplace_back(one.name);
    }
    return out;
}

// Null if there is none of this name.
[[nodiscard]] inline std::unique_ptr<candidate> make_candidate(std::string_view name,
                                                               const candidate_options& with) {
    for (const auto& one : detail::allocators) {
        if (name == one.name) {
            return one.make(with);
        }
    }
    return nullptr;
}

}  // namespace xmm::trace_replay
