// SPDX-License-Identifier: Apache-2.0
// statistics.hpp - what a space shows of itself: usage and counters of its nodes, its granules at a glance.
//
// Model    Plain values; each was exact when it was read, all together were not.
#pragma once

#include <array>
#include <string>

#include <xmm/mapping/granule.hpp>
#include <xmm/mapping/node.hpp>

namespace xmm {

// What one node of a space holds now. Bytes.
struct node_usage {
    node_id node = no_node;
    std::size_t limit = 0;        // what xmm may hold there: the lesser of budget and capacity
    std::size_t budget = 0;       // no_budget: none was set
    std::size_t used = 0;         // frames of all spaces of this process, free ones included
    std::size_t free_frames = 0;  // this space's, kept for the next request
    std::size_t peak = 0;         // highest `used` so far
};

struct node_statistics {
    node_usage usage;
    node_counters counters;
};

struct space_statistics {
    std::array<node_statistics, max_slots> nodes{};
    unsigned count = 0;

    [[nodiscard]] const node_statistics* begin() const noexcept { return nodes.data(); }
    [[nodiscard]] const node_statistics* end() const noexcept { return nodes.data() + count; }
};

// One granule at a glance.
struct granule_view {
    va_range va;
    residency state = residency::untouched;
    node_id home = no_node;  // where the data is; no_node: nowhere yet
    unsigned copies = 0;     // frames with the data, the home's included
    bool is_pinned = false;
    bool is_used = false;  // named by launches that are not known to be finished
    bool is_moving = false;
    std::array<char, 32> region{};  // its region's name, NUL-terminated
};

}  // namespace xmm
