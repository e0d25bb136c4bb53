// SPDX-License-Identifier: Apache-2.0
// heap_snapshot.hpp - a device's heap at one moment: where frames are mapped and what lies in them.
//
// Model    A segment is a stretch of addresses with frames, of one queue and tag, as long as it goes; its
//          blocks cover it without gap or overlap. A builder takes both in any order: frames one by one,
//          blocks, and the events of a recorder for blocks that the heap cannot list.
// Threads  One. The heap fills the builder under its own locks.
// Failure  Throws std::bad_alloc. What contradicts is left out: a block without frames, or on another one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <xmm/core/types.hpp>
#include <xmm/resources/trace_recorder.hpp>

namespace xmm {

enum class block_state : std::uint8_t { active_allocated, active_pending_free, inactive };

[[nodiscard]] constexpr const char* name_of(block_state state) noexcept {
    constexpr const char* names[] = {"active_allocated", "active_pending_free", "inactive"};
    return names[static_cast<unsigned>(state)];
}

struct snapshot_block {
    va_range range;
    std::size_t requested = 0;
    block_state state = block_state::inactive;

    friend bool operator==(const snapshot_block&, const snapshot_block&) = default;
};

// Whose addresses these are.
struct segment_owner {
    std::uint64_t stream = 0;  // the native stream's address or number; 0: the default one
    std::uint16_t tag = 0;
    bool is_small = false;  // serves small blocks

    friend bool operator==(const segment_owner&, const segment_owner&) = default;
};

struct snapshot_segment {
    va_range range;
    segment_owner owner;
    std::vector<snapshot_block> blocks;  // by address

    // Bytes of blocks in the program's hands; with those that a queue may still use; asked for of these.
    [[nodiscard]] std::size_t allocated_bytes() const noexcept {
        return sum([](const snapshot_block& block) {
            return block.state == block_state::active_allocated ? block.range.bytes : 0;
        });
    }
    [[nodiscard]] std::size_t active_bytes() const noexcept {
        return sum([](const snapshot_block& block) {
            return block.state != block_state::inactive ? block.range.bytes : 0;
        });
    }
    [[nodiscard]] std::size_t requested_bytes() const noexcept {
        return sum([](const snapshot_block& block) {
            return block.state != block_state::inactive ? block.requested : 0;
        });
    }

private:
    template <class Bytes>
    [[nodiscard]] std::size_t sum(Bytes&& bytes) const noexcept {
        std::size_t total = 0;
        for (const snapshot_block& block : blocks) {
            total += bytes(block);
        }
        return total;
    }
};

struct heap_snapshot {
    node_id node = no_node;
    std::vector<snapshot_segment> segments;  // by address
    recorded_trace trace;                    // empty if nothing was recorded
    std::vector<std::string> tags;           // names, by number

    [[nodiscard]] bool is_valid() const noexcept {
        address free_from = 0;
        for (const snapshot_segment& segment : segments) {
            address next = segment.range.begin;
            if (segment.range.is_empty() || next < free_from) {
                return false;
            }
            for (const snapshot_block& block : segment.blocks) {
                if (block.range.begin != next || block.range.is_empty()) {
                    return false;
                }
                next = block.range.end();
            }
            if (next != segment.range.end()) {
                return false;
            }
            free_from = next;
        }
        return true;
    }
};

class snapshot_builder {
public:
    void add_frame(va_range range, segment_owner owner) { frames_.push_back({range, owner, {}}); }
    void add_block(va_range range, std::size_t requested, block_state state) {
        blocks_.push_back({range, requested, state});
    }
    // The blocks that were recorded as allocated and are not free yet, as large as asked for. For a heap that
    // cannot list its small ones; those from before the recording stay unseen.
    void add_blocks_of(const recorded_trace& trace) {
        std::unordered_map<address, snapshot_block> alive;
        for (const trace_event& event : trace.events) {
            if (event.action == trace_action::allocate) {
                alive[event.at] = {
                    {event.at, event.bytes}, event.bytes, block_state::active_allocated};
            } else if (event.action == trace_action::free_completed) {
                alive.erase(event.at);
            } else if (event.action == trace_action::free_requested) {
                if (const auto found = alive.find(event.at); found != alive.end()) {
                    found->second.state = block_state::active_pending_free;
                }
            }
        }
        for (const auto& [at, block] : alive) {
            blocks_.push_back(block);
        }
    }

    // The segments, and the builder is empty. Of two blocks that overlap the lower one stays; at one
    // address the one that was added first, with what the other one says was asked for.
    [[nodiscard]] std::vector<snapshot_segment> build() {
        std::vector<snapshot_segment> segments = merged_frames();
        std::ranges::stable_sort(blocks_, {}, begin_of_block);
        auto block = blocks_.cbegin();
        for (snapshot_segment& segment : segments) {
            address next = segment.range.begin;
            for (; block != blocks_.cend() && block->range.begin < segment.range.end(); ++block) {
                const bool has_place =
                    block->range.begin >= next && segment.range.contains(block->range);
                if (has_place && !block->range.is_empty()) {
                    fill(segment, next, block->range.begin);
                    segment.blocks.push_back(*block);
                    next = block->range.end();
                } else if (!segment.blocks.empty()) {
                    add_to(segment.blocks.back(), *block);
                }
            }
            fill(segment, next, segment.range.end());
        }
        blocks_.clear();
        return segments;
    }

private:
    static constexpr auto begin_of_block = [](const snapshot_block& one) {
        return one.range.begin;
    };
    static constexpr auto begin_of_segment = [](const snapshot_segment& one) {
        return one.range.begin;
    };

    [[nodiscard]] std::vector<snapshot_segment> merged_frames() {
        std::vector<snapshot_segment> frames = std::exchange(frames_, {});
        std::ranges::sort(frames, {}, begin_of_segment);
        std::vector<snapshot_segment> merged;
        for (snapshot_segment& frame : frames) {
            const bool is_apart = merged.empty() || merged.back().range.end() <= frame.range.begin;
            if (!is_apart || frame.range.is_empty()) {
                continue;
            }
            if (!merged.empty() && merged.back().range.end() == frame.range.begin &&
                merged.back().owner == frame.owner) {
                merged.back().range.bytes += frame.range.bytes;
            } else {
                merged.push_back(std::move(frame));
            }
        }
        return merged;
    }
    static void add_to(snapshot_block& one, const snapshot_block& same) noexcept {
        if (one.range.begin == same.range.begin && one.state != block_state::inactive &&
            same.requested <= one.range.bytes) {
            one.requested = same.requested;
        }
    }
    static void fill(snapshot_segment& segment, address begin, address end) {
        if (begin < end) {
            segment.blocks.push_back({{begin, end - begin}, 0, block_state::inactive});
        }
    }

    std::vector<snapshot_segment> frames_;
    std::vector<snapshot_block> blocks_;
};

}  // namespace xmm
