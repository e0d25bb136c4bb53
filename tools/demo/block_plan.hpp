// SPDX-License-Identifier: Apache-2.0
// block_plan.hpp - a trace scaled to this machine, every block with its place.
//
// Model    Blocks are placed by best fit in one stretch of offsets that grows at its end, before
//          anything runs: the plan is a list of steps, and the region is mapped exactly as long as
//          needed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "trace.hpp"

namespace xmm::demo {

// Offsets handed out by best fit; lowest offset among equals. Neighbouring free stretches merge.
class best_fit {
public:
    std::size_t allocate(std::size_t bytes) {
        const auto fit = by_bytes_.lower_bound({bytes, 0});
        if (fit == by_bytes_.end()) {
            return grow(bytes);
        }
        const auto [free_bytes, offset] = *fit;
        drop(offset, free_bytes);
        if (free_bytes > bytes) {
            add(offset + bytes, free_bytes - bytes);
        }
        return offset;
    }

    // A stretch that allocate() gave out, with the same bytes.
    void deallocate(std::size_t offset, std::size_t bytes) {
        auto after = by_offset_.lower_bound(offset);
        if (after != by_offset_.end() && offset + bytes == after->first) {
            bytes += after->second;
            drop(after->first, after->second);
        }
        auto before = by_offset_.lower_bound(offset);
        if (before != by_offset_.begin()) {
            --before;
            if (before->first + before->second == offset) {
                offset = before->first;
                bytes += before->second;
                drop(before->first, before->second);
            }
        }
        add(offset, bytes);
    }

    // The end of the highest block that ever was.
    [[nodiscard]] std::size_t extent() const noexcept { return end_; }

private:
    // Takes a free stretch at the end along, so that growth wastes nothing.
    std::size_t grow(std::size_t bytes) {
        std::size_t offset = end_;
        if (!by_offset_.empty()) {
            const auto [last, last_bytes] = *by_offset_.rbegin();
            if (last + last_bytes == end_) {
                offset = last;
                drop(last, last_bytes);
            }
        }
        end_ = offset + bytes;
        return offset;
    }
    void add(std::size_t offset, std::size_t bytes) {
        by_offset_.emplace(offset, bytes);
        by_bytes_.emplace(bytes, offset);
    }
    void drop(std::size_t offset, std::size_t bytes) {
        by_bytes_.erase({bytes, offset});
        by_offset_.erase(offset);
    }

    std::map<std::size_t, std::size_t> by_offset_;
    std::set<std::pair<std::size_t, std::size_t>> by_bytes_;
    std::size_t end_ = 0;
};

struct plan_step {
    bool is_allocation = true;
    std::uint32_t block = 0;
    std::size_t offset = 0;
    std::size_t bytes = 0;
};

struct block_plan {
    std::vector<plan_step> steps;      // ends with the frees of what the trace left alive
    double scale = 1;                  // scaled bytes per traced byte
    std::size_t trace_peak_bytes = 0;  // of the events that are planned
    std::size_t peak_bytes = 0;        // scaled, rounding included
    std::size_t extent_bytes = 0;      // the stretch that holds all of it
    std::size_t written_bytes = 0;     // all blocks together
    std::uint32_t blocks = 0;
};

inline constexpr std::size_t block_alignment = 256;

[[nodiscard]] inline std::size_t scale_block(std::uint64_t bytes, double scale) noexcept {
    const auto scaled = static_cast<std::size_t>(static_cast<double>(bytes) * scale);
    return std::max((scaled + block_alignment - 1) / block_alignment * block_alignment,
                    block_alignment);
}

// The first `most_events` events of the trace, so that their peak comes to about target_bytes.
inline block_plan plan_blocks(const trace& source, std::size_t target_bytes,
                              std::size_t most_events = SIZE_MAX) {
    const std::size_t count = std::min(source.events.size(), most_events);
    block_plan out;
    std::size_t live = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const trace_event& event = source.events[i];
        if (event.op == trace_op::allocate) {
            live += event.bytes;
            out.trace_peak_bytes = std::max(out.trace_peak_bytes, live);
        } else if (event.op == trace_op::free_done) {
            live -= event.bytes;
        }
    }
    out.scale =
        std::min(1.0, static_cast<double>(target_bytes) /
                          static_cast<double>(std::max<std::size_t>(out.trace_peak_bytes, 1)));
    best_fit heap;
    std::map<std::uint32_t, plan_step> alive;
    live = 0;
    const auto release = [&](plan_step step) {
        heap.deallocate(step.offset, step.bytes);
        live -= step.bytes;
        step.is_allocation = false;
        out.steps.push_back(step);
    };
    for (std::size_t i = 0; i < count; ++i) {
        const trace_event& event = source.events[i];
        if (event.op == trace_op::allocate) {
            plan_step step{true, event.block, 0, scale_block(event.bytes, out.scale)};
            step.offset = heap.allocate(step.bytes);
            live += step.bytes;
            out.peak_bytes = std::max(out.peak_bytes, live);
            out.written_bytes += step.bytes;
            ++out.blocks;
            alive.emplace(step.block, step);
            out.steps.push_back(step);
        } else if (event.op == trace_op::free_done) {
            const auto found = alive.find(event.block);
            release(found->second);
            alive.erase(found);
        }
    }
    for (const auto& [block, step] : alive) {
        release(step);
    }
    out.extent_bytes = heap.extent();
    return out;
}

// Which pages live blocks touch, so that pages with dead data only can be told apart.
class page_use {
public:
    struct page_run {
        std::size_t first = 0;
        std::size_t count = 0;
    };

    page_use(std::size_t extent_bytes, std::size_t page_bytes)
        : page_bytes_{page_bytes}, live_blocks_((extent_bytes + page_bytes - 1) / page_bytes) {}

    void allocate(const plan_step& step) {
        for (std::size_t page = first_of(step); page <= last_of(step); ++page) {
            ++live_blocks_[page];
        }
    }
    void deallocate(const plan_step& step) {
        for (std::size_t page = first_of(step); page <= last_of(step); ++page) {
            if (--live_blocks_[page] == 0) {
                died_.push_back(page);
            }
        }
    }
    // The pages that lost their last block since the last call and have no new one, ascending.
    [[nodiscard]] std::vector<page_run> take_dead() {
        std::sort(died_.begin(), died_.end());
        died_.erase(std::unique(died_.begin(), died_.end()), died_.end());
        std::vector<page_run> out;
        for (const std::size_t page : died_) {
            if (live_blocks_[page] != 0) {
                continue;
            }
            if (!out.empty() && out.back().first + out.back().count == page) {
                ++out.back().count;
            } else {
                out.push_back({page, 1});
            }
        }
        died_.clear();
        return out;
    }

private:
    [[nodiscard]] std::size_t first_of(const plan_step& step) const noexcept {
        return step.offset / page_bytes_;
    }
    [[nodiscard]] std::size_t last_of(const plan_step& step) const noexcept {
        return (step.offset + step.bytes - 1) / page_bytes_;
    }

    std::size_t page_bytes_;
    std::vector<std::uint32_t> live_blocks_;  // by page
    std::vector<std::size_t> died_;
};

// What a block holds: word i of block b. Cheap, and different at every place and for every block.
struct block_pattern {
    std::uint64_t start = 0;
    static constexpr std::uint64_t step = 0x9e3779b97f4a7c15u;

    explicit constexpr block_pattern(std::uint32_t block) noexcept
        : start{(std::uint64_t{block} + 1) * 0xd1342543de82ef95u} {}
    [[nodiscard]] constexpr std::uint64_t operator()(std::size_t index) const noexcept {
        return start + index * step;
    }
    // The sum of the first `count` words, modulo 2^64, without looking at memory.
    [[nodiscard]] constexpr std::uint64_t sum(std::size_t count) const noexcept {
        const std::uint64_t pairs =
            count % 2 == 0 ? (count / 2) * (count - 1) : count * ((count - 1) / 2);
        return count == 0 ? 0 : start * count + pairs * step;
    }
};

}  // namespace xmm::demo
