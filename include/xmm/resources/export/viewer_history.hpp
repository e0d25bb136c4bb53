// SPDX-License-Identifier: Apache-2.0
// viewer_history.hpp - those events of a trace that a viewer can take back, starting from a snapshot.
//
// Model    PyTorch's memory viewer draws the past by undoing events one by one from the end. It stops
//          working when an event takes back memory or a block that is not there, which happens where
//          threads raced past the moment of the snapshot. Such events are left out.
// Threads  A value; one thread at a time.
// Failure  Throws std::bad_alloc.
#pragma once

#include <algorithm>
#include <iterator>
#include <map>
#include <ranges>
#include <vector>

#include <xmm/resources/heap_snapshot.hpp>

namespace xmm::detail {

class viewer_history {
public:
    explicit viewer_history(const heap_snapshot& end) {
        for (const snapshot_segment& one : end.segments) {
            mapped_[one.range.begin] = {one.range.end(), one.owner.stream};
            for (const snapshot_block& block : one.blocks) {
                if (block.state != block_state::inactive) {
                    blocks_[block.range.begin] = block.state == block_state::active_pending_free;
                }
            }
        }
    }

    // Of the snapshot's own trace, oldest first.
    [[nodiscard]] static std::vector<trace_event> of(const heap_snapshot& end) {
        viewer_history past{end};
        std::vector<trace_event> kept;
        for (const trace_event& event : end.trace.events | std::views::reverse) {
            if (past.undo(event)) {
                kept.push_back(event);
            }
        }
        std::ranges::reverse(kept);
        return kept;
    }

    // False, and nothing is changed, if that cannot be.
    bool undo(const trace_event& event) {
        switch (event.action) {
            case trace_action::allocate: blocks_.erase(event.at); return true;
            case trace_action::free_requested: return undo_request(event.at);
            case trace_action::free_completed:
                return has_memory(event.at) && blocks_.emplace(event.at, true).second;
            case trace_action::segment_map: return unmap({event.at, event.bytes});
            case trace_action::segment_unmap: return map({event.at, event.bytes}, event.stream);
            case trace_action::out_of_memory:
            case trace_action::snapshot: break;
        }
        return true;
    }

private:
    struct segment {
        address end = 0;
        std::uint64_t stream = 0;
    };
    using segments = std::map<address, segment>;

    // The last one that begins at the address or below it.
    [[nodiscard]] segments::iterator at_or_below(address at) {
        const auto above = mapped_.upper_bound(at);
        return above == mapped_.begin() ? mapped_.end() : std::prev(above);
    }
    [[nodiscard]] bool has_memory(address at) {
        const auto found = at_or_below(at);
        return found != mapped_.end() && at < found->second.end;
    }
    bool undo_request(address at) {
        const auto found = blocks_.find(at);
        const bool is_pending = found != blocks_.end() && found->second;
        if (is_pending) {
            found->second = false;
        }
        return is_pending;
    }
    bool unmap(va_range range) {
        const auto found = at_or_below(range.begin);
        const auto block = blocks_.lower_bound(range.begin);
        if (range.is_empty() || found == mapped_.end() || found->second.end < range.end() ||
            (block != blocks_.end() && block->first < range.end())) {
            return false;
        }
        const segment whole = found->second;
        if (whole.end > range.end()) {
            mapped_[range.end()] = whole;
        }
        if (found->first == range.begin) {
            mapped_.erase(found);
        } else {
            found->second.end = range.begin;
        }
        return true;
    }
    bool map(va_range range, std::uint64_t stream) {
        auto below = at_or_below(range.begin);
        const auto above = mapped_.lower_bound(range.begin);
        if (range.is_empty() || (below != mapped_.end() && below->second.end > range.begin) ||
            (above != mapped_.end() && above->first < range.end())) {
            return false;
        }
        const bool joins_below = below != mapped_.end() && below->second.end == range.begin &&
                                 below->second.stream == stream;
        if (!joins_below) {
            below = mapped_.emplace(range.begin, segment{range.begin, stream}).first;
        }
        below->second.end = range.end();
        if (above != mapped_.end() && above->first == range.end() &&
            above->second.stream == stream) {
            below->second.end = above->second.end;
            mapped_.erase(above);
        }
        return true;
    }

    segments mapped_;                 // apart, by where they begin
    std::map<address, bool> blocks_;  // by address: whether the program has let go of it
};

}  // namespace xmm::detail
