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

    result<copy_side> checked(address at) noexcept {
        const status able = state.check_queued_side({at, bytes});
        return able ? state.check_side({at, bytes}) : result<copy_side>{able};
    }
    static void run(void* self) noexcept {
        std::unique_ptr<queued_copy> one{static_cast<queued_copy*>(self)};
        // Checked once more: plain memory may have gone since.
        const result<copy_side> to = one->checked(one->to);
        const result<copy_side> from = one->checked(one->from);
        if (!to || !from || !one->state.engine.copies.copy(*to, *from, one->bytes)) {
            // relaxed: a counter.
            one->state.copy_failures.fetch_add(1, std::memory_order_relaxed);
        }
    }
};

}  // namespace xmm::detail
