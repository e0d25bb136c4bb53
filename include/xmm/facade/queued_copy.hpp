// SPDX-License-Identifier: Apache-2.0
// queued_copy.hpp - a gmemcpy that waits for its turn in a queue, and runs as a host call there.
//
// Failure  Counted in the state: the queue goes on.
#pragma once

#include <memory>

#include <xmm/facade/space_state.hpp>

namespace xmm::detail {

// A copy that waits for its turn in a queue.
struct queued_copy {
    space_state& state;
    address to;
    address from;
    std::size_t bytes;

    static void run(void* self) noexcept {
        std::unique_ptr<queued_copy> one{static_cast<queued_copy*>(self)};
        // Checked once more: plain memory may have gone since.
        status outcome;
        for (const va_range side : {va_range{one->to, one->bytes}, {one->from, one->bytes}}) {
            outcome = outcome ? one->state.check_side(side) : outcome;
            outcome = outcome ? one->state.check_queued_side(side) : outcome;
        }
        if (!outcome || !one->state.engine.copies.copy(one->to, one->from, one->bytes)) {
            // relaxed: a counter.
            one->state.copy_failures.fetch_add(1, std::memory_order_relaxed);
        }
    }
};

}  // namespace xmm::detail
