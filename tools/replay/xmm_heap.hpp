// SPDX-License-Identifier: Apache-2.0
// xmm_heap.hpp - xmm's extent heaps under replay, without jemalloc.
//
// Model    A heap for each stream of the trace, all on the frames of one device. A block that another stream
//          still uses after the program let go of it is deallocated when that use is complete, as the
//          front above the heaps does it.
// Threads  One.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <xmm/resources/device_frames.hpp>
#include <xmm/resources/extent_heap.hpp>

#include "candidate.hpp"
#include "simulated_frames.hpp"

namespace xmm::trace_replay {

class xmm_heap final : public candidate {
public:
    xmm_heap(const prices& list, const simulation_options& simulation)
        : candidate{list}, port_{bill_, simulation}, frames_{port_} {}

    [[nodiscard]] bool allocate(const trace_event& event) override {
        port_.set_clock(event.microseconds);
        result<void*> got = heap_of(event.stream).allocate(event.bytes);
        if (!got) {
            return false;
        }
        if (event.block >= blocks_.size()) {
            blocks_.resize(std::max<std::size_t>(event.block + 1, blocks_.size() * 2));
        }
        blocks_[event.block] = {*got, event.stream};
        return true;
    }
    void free_completed(const trace_event& event) override {
        port_.set_clock(event.microseconds);
        const block one = std::exchange(blocks_[event.block], {});
        heap_of(one.stream).deallocate(one.pointer);
    }

private:
    struct block {
        void* pointer = nullptr;
        std::uint32_t stream = 0;  // that it was allocated on: the one of its free may be another
    };

    [[nodiscard]] extent_heap& heap_of(std::uint32_t stream) {
        if (stream >= heaps_.size()) {
            heaps_.resize(stream + 1);
        }
        if (!heaps_[stream]) {
            // Queue 0 names none.
            heaps_[stream] = std::make_unique<extent_heap>(frames_, queue_id{stream + 1});
        }
        return *heaps_[stream];
    }

    simulated_frames port_;
    device_frames frames_;
    std::vector<std::unique_ptr<extent_heap>> heaps_;  // by stream
    std::vector<block> blocks_;                        // by the trace's number
};

}  // namespace xmm::trace_replay
