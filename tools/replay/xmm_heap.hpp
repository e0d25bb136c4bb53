// SPDX-License-Identifier: Apache-2.0
// xmm_heap.hpp - xmm's malloc under replay, with jemalloc for small blocks and without.
//
// Model    The malloc that programs get, over simulated frames: a queue for each stream of the trace. A block that
//          another stream still uses after the program let go of it is given back when that use is complete.
//          In a build without jemalloc the extent heap serves small blocks as well.
// Threads  One.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <xmm/resources/xpu_malloc.hpp>

#include "candidate.hpp"
#include "simulated_frames.hpp"

namespace xmm::trace_replay {

class xmm_heap final : public candidate {
public:
    xmm_heap(const prices& list, const simulation_options& simulation, bool has_small_blocks)
        : candidate{list},
          port_{bill_, simulation},
          heap_{port_, node_id{0}, {.uses_jemalloc = has_small_blocks}} {}

    [[nodiscard]] static bool has_jemalloc() noexcept {
        const jemalloc_functions* functions = jemalloc_table::find();
        return functions != nullptr && functions->check().is_ok();
    }

    [[nodiscard]] bool allocate(const trace_event& event) override {
        port_.set_clock(event.microseconds);
        // Queue 0 names none.
        result<void*> got = heap_.allocate({.bytes = event.bytes, .queue = {event.stream + 1}});
        if (!got) {
            return false;
        }
        if (event.block >= blocks_.size()) {
            blocks_.resize(std::max<std::size_t>(event.block + 1, blocks_.size() * 2));
        }
        blocks_[event.block] = *got;
        return true;
    }
    void free_completed(const trace_event& event) override {
        port_.set_clock(event.microseconds);
        [[maybe_unused]] const status freed =
            heap_.deallocate(std::exchange(blocks_[event.block], nullptr));
        XMM_ASSERT(freed, "the heap does not know its block");
    }

private:
    simulated_frames port_;
    xpu_malloc heap_;
    std::vector<void*> blocks_;  // by the trace's number
};

}  // namespace xmm::trace_replay
