// SPDX-License-Identifier: Apache-2.0
// replay_csv.hpp - a trace as xmm-replay reads it: op,id,size,stream,us.
//
// Model    a: a block was allocated, f: it may be reused, r: the program let go of it and f comes later.
//          Blocks are numbered in the order of their allocation, streams in that of their first use (the
//          default one is 0). A block that was there before the recording is allocated at its beginning,
//          if it is freed in the trace or a snapshot shows it: peaks are then those that really were.
// Threads  One per stream of output.
// Failure  As the stream reports it; std::bad_alloc.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include <xmm/resources/heap_snapshot.hpp>

namespace xmm {
namespace detail {

class replay_writer {
public:
    explicit replay_writer(std::ostream& out) : out_{out} {
        out_ << "# a = allocated, r = free requested, f = free completed; sizes are those "
                "requested\n"
                "op,id,size,stream,us\n";
        (void)number_of_stream(0);
    }
    void allocate(address at, std::size_t bytes, std::uint64_t stream, std::uint64_t us) {
        const block fresh{next_id_++, bytes, number_of_stream(stream)};
        alive_[at] = fresh;
        line('a', fresh, us);
    }
    // With the size and stream of its allocation. A block that was never allocated here has no line.
    void free(char op, address at, std::uint64_t us) {
        const auto found = alive_.find(at);
        if (found != alive_.end()) {
            line(op, found->second, us);
            if (op == 'f') {
                alive_.erase(found);
            }
        }
    }

private:
    struct block {
        std::uint64_t id;
        std::size_t bytes;
        std::size_t stream;
    };

    [[nodiscard]] std::size_t number_of_stream(std::uint64_t stream) {
        return streams_.emplace(stream, streams_.size()).first->second;
    }
    void line(char op, const block& one, std::uint64_t us) {
        out_ << op << ',' << one.id << ',' << one.bytes << ',' << one.stream << ',' << us << '\n';
    }

    std::ostream& out_;
    std::uint64_t next_id_ = 0;
    std::unordered_map<address, block> alive_;
    std::unordered_map<std::uint64_t, std::size_t> streams_;  // their numbers
};

}  // namespace detail

inline void write_replay_csv(std::ostream& out, const recorded_trace& trace,
                             std::span<const snapshot_segment> segments = {}) {
    detail::replay_writer writer{out};
    std::unordered_set<address> known;  // blocks whose first event has been seen
    for (const trace_event& event : trace.events) {
        const bool is_free = event.action == trace_action::free_requested ||
                             event.action == trace_action::free_completed;
        if ((is_free || event.action == trace_action::allocate) && known.insert(event.at).second &&
            is_free) {
            writer.allocate(event.at, event.bytes, event.stream, 0);
        }
    }
    for (const snapshot_segment& segment : segments) {
        for (const snapshot_block& block : segment.blocks) {
            if (block.state != block_state::inactive && known.insert(block.range.begin).second) {
                writer.allocate(block.range.begin, block.requested, segment.owner.stream, 0);
                if (block.state == block_state::active_pending_free) {
                    writer.free('r', block.range.begin, 0);
                }
            }
        }
    }
    std::optional<std::uint64_t> first_ns;
    for (std::size_t i = 0; i < trace.events.size(); ++i) {
        const trace_event& event = trace.events[i];
        const std::uint64_t us = (event.ns - first_ns.value_or(event.ns)) / 1000;
        const bool is_completed_next = i + 1 < trace.events.size() &&
                                       trace.events[i + 1].at == event.at &&
                                       trace.events[i + 1].action == trace_action::free_completed;
        if (event.action == trace_action::allocate) {
            writer.allocate(event.at, event.bytes, event.stream, us);
        } else if (event.action == trace_action::free_completed) {
            writer.free('f', event.at, us);
        } else if (event.action == trace_action::free_requested) {
            if (!is_completed_next) {
                writer.free('r', event.at, us);
            }
        } else {
            continue;  // time begins with the first event that is written
        }
        first_ns = first_ns.value_or(event.ns);
    }
}

}  // namespace xmm
