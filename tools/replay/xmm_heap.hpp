// SPDX-License-Identifier: Apache-2.0
// xmm_heap.hpp - xmm's heaps under replay, with jemalloc for small blocks and without.
//
// Model    A heap for each stream of the trace, and an arena if asked for, all on the frames of one device. A
//          block that another stream still uses after the program let go of it is deallocated when that
//          use is complete, as the front above the heaps does it. In a build without jemalloc the heaps
//          serve small blocks as well.
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
#include <xmm/resources/jemalloc_table.hpp>
#include <xmm/resources/small_blocks.hpp>

#include "../demo/bad_input.hpp"
#include "../demo/format.hpp"
#include "candidate.hpp"
#include "simulated_frames.hpp"

namespace xmm::trace_replay {

class xmm_heap final : public candidate {
public:
    xmm_heap(const prices& list, const simulation_options& simulation, bool has_small_blocks)
        : candidate{list},
          port_{bill_, simulation},
          frames_{port_},
          has_small_blocks_{has_small_blocks && has_jemalloc()} {}

    [[nodiscard]] static bool has_jemalloc() noexcept {
        const jemalloc_functions* functions = jemalloc_table::find();
        return functions != nullptr && functions->check().is_ok();
    }

    [[nodiscard]] bool allocate(const trace_event& event) override {
        port_.set_clock(event.microseconds);
        stream_heap& from = heap_of(event.stream);
        const bool is_small = has_small_blocks_ && event.bytes <= small_blocks::largest_bytes;
        result<void*> got = is_small ? from.small->allocate(event.bytes, extent_unit_bytes)
                                     : from.large->allocate(event.bytes);
        if (!got) {
            return false;
        }
        if (event.block >= blocks_.size()) {
            blocks_.resize(std::max<std::size_t>(event.block + 1, blocks_.size() * 2));
        }
        blocks_[event.block] = {*got, event.stream, is_small};
        return true;
    }
    void free_completed(const trace_event& event) override {
        port_.set_clock(event.microseconds);
        const block one = std::exchange(blocks_[event.block], {});
        stream_heap& to = heap_of(one.stream);
        if (one.is_small) {
            to.small->deallocate(one.pointer);
        } else {
            to.large->deallocate(one.pointer);
        }
    }

private:
    struct block {
        void* pointer = nullptr;
        std::uint32_t stream = 0;  // that it was allocated on: the one of its free may be another
        bool is_small = false;
    };
    struct stream_heap {
        std::unique_ptr<extent_heap> large;
        std::unique_ptr<small_blocks> small;
    };

    [[nodiscard]] stream_heap& heap_of(std::uint32_t stream) {
        if (stream >= heaps_.size()) {
            heaps_.resize(stream + 1);
        }
        stream_heap& one = heaps_[stream];
        if (!one.large) {
            const queue_id queue{stream + 1};  // 0 names none
            one.large = std::make_unique<extent_heap>(frames_, queue);
            if (has_small_blocks_) {
                result<std::unique_ptr<small_blocks>> made = small_blocks::make(frames_, queue);
                if (!made) {
                    throw demo::demo_failure(fmt::format("small blocks: {}", made.error().why));
                }
                one.small = std::move(*made);
            }
        }
        return one;
    }

    simulated_frames port_;
    device_frames frames_;
    bool has_small_blocks_;
    std::vector<stream_heap> heaps_;  // by stream
    std::vector<block> blocks_;       // by the trace's number
};

}  // namespace xmm::trace_replay
