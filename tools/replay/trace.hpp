// SPDX-License-Identifier: Apache-2.0
// trace.hpp - the allocations of a program, whatever file they came from.
//
// Model    Events in order. A trace that was built is consistent: no block is allocated twice, none is freed
//          that is not alive, time does not run backwards. A block is live until its free is complete.
// Failure  trace_builder answers with a reason, its reader adds file and place.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../demo/bad_input.hpp"
#include "../demo/format.hpp"

namespace xmm::trace_replay {

using demo::bad_input;

enum class trace_op : std::uint8_t {
    allocate,
    free_requested,  // the program let go; another stream may still use the block
    free_completed,  // it may be reused
};

struct trace_event {
    trace_op op = trace_op::allocate;
    std::uint32_t stream = 0;  // counts the streams of the trace from 0
    std::uint32_t block = 0;   // counts allocations from 0: an id that comes back is a new block
    std::uint64_t bytes = 0;
    std::uint64_t microseconds = 0;
};

struct trace {
    std::string name;
    std::string form;  // "csv", "rmm" or "snapshot"
    std::vector<trace_event> events;
    std::vector<std::uint64_t> streams;  // what the file calls them
    std::uint32_t blocks = 0;
    std::uint64_t peak_live_bytes = 0;
    bool has_requests = false;  // some frees are in two steps

    [[nodiscard]] std::uint64_t duration_us() const noexcept {
        return events.empty() ? 0 : events.back().microseconds - events.front().microseconds;
    }
};

// Divides the sizes of all blocks, up to what kernels expect blocks to be aligned to.
inline void scale_trace(trace& one, double divisor) {
    constexpr std::uint64_t alignment = 256;
    if (divisor == 1) {
        return;
    }
    std::uint64_t live = 0;
    one.peak_live_bytes = 0;
    for (trace_event& event : one.events) {
        const auto less = static_cast<std::uint64_t>(static_cast<double>(event.bytes) / divisor);
        event.bytes = std::max((less + alignment - 1) / alignment * alignment, alignment);
        if (event.op == trace_op::allocate) {
            live += event.bytes;
            one.peak_live_bytes = std::max(one.peak_live_bytes, live);
        } else if (event.op == trace_op::free_completed) {
            live -= event.bytes;
        }
    }
}

inline constexpr std::uint64_t largest_block_bytes = std::uint64_t{1} << 46;

// Adds events by the file's own ids. What is refused leaves the builder as it was.
class trace_builder {
public:
    using outcome = std::optional<std::string>;  // why not

    [[nodiscard]] outcome allocate(std::uint64_t id, std::uint64_t bytes, std::uint64_t stream,
                                   std::uint64_t us) {
        if (bytes == 0) {
            return "a block of 0 bytes";
        }
        if (bytes > largest_block_bytes) {
            return fmt::format("a block of {} bytes is too large", bytes);
        }
        if (out_.blocks == UINT32_MAX || live_ > UINT64_MAX / 2) {
            return "too many blocks";
        }
        const auto [at, is_new] = alive_.try_emplace(id, alive_block{out_.blocks, bytes, false});
        if (!is_new) {
            return "is allocated again while it is alive";
        }
        live_ += bytes;
        out_.peak_live_bytes = std::max(out_.peak_live_bytes, live_);
        push(trace_op::allocate, out_.blocks++, bytes, stream, us);
        return {};
    }
    // Without a size where the file does not say it.
    [[nodiscard]] outcome request_free(std::uint64_t id, std::optional<std::uint64_t> bytes,
                                       std::uint64_t stream, std::uint64_t us) {
        const auto found = alive_.find(id);
        if (auto why = check(found, bytes)) {
            return why;
        }
        if (std::exchange(found->second.is_requested, true)) {
            return "is let go of twice";
        }
        out_.has_requests = true;
        push(trace_op::free_requested, found->second.block, found->second.bytes, stream, us);
        return {};
    }
    [[nodiscard]] outcome complete_free(std::uint64_t id, std::optional<std::uint64_t> bytes,
                                        std::uint64_t stream, std::uint64_t us) {
        const auto found = alive_.find(id);
        if (auto why = check(found, bytes)) {
            return why;
        }
        live_ -= found->second.bytes;
        push(trace_op::free_completed, found->second.block, found->second.bytes, stream, us);
        alive_.erase(found);
        return {};
    }

    [[nodiscard]] bool is_alive(std::uint64_t id) const { return alive_.contains(id); }
    [[nodiscard]] bool is_empty() const noexcept { return out_.blocks == 0; }
    [[nodiscard]] trace finish(std::string name, std::string form) && {
        out_.name = std::move(name);
        out_.form = std::move(form);
        return std::move(out_);
    }

private:
    struct alive_block {
        std::uint32_t block;
        std::uint64_t bytes;
        bool is_requested;
    };
    using alive_map = std::unordered_map<std::uint64_t, alive_block>;

    [[nodiscard]] outcome check(alive_map::const_iterator found,
                                std::optional<std::uint64_t> bytes) const {
        if (found == alive_.end()) {
            return "is freed but not alive";
        }
        if (bytes && *bytes != found->second.bytes) {
            return fmt::format("is freed with {} bytes but has {}", *bytes, found->second.bytes);
        }
        return {};
    }
    // Threads that write one file may pass each other between clock and line: time stands still then.
    void push(trace_op op, std::uint32_t block, std::uint64_t bytes, std::uint64_t stream,
              std::uint64_t us) {
        const auto [at, is_new] =
            streams_.try_emplace(stream, static_cast<std::uint32_t>(out_.streams.size()));
        if (is_new) {
            out_.streams.push_back(stream);
        }
        now_ = std::max(now_, us);
        out_.events.push_back({op, at->second, block, bytes, now_});
    }

    alive_map alive_;
    std::unordered_map<std::uint64_t, std::uint32_t> streams_;
    trace out_;
    std::uint64_t live_ = 0;
    std::uint64_t now_ = 0;
};

}  // namespace xmm::trace_replay
