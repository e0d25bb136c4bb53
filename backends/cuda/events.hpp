// SPDX-License-Identifier: Apache-2.0
// events.hpp - how events are made here: one at a time, in the context of their device. They need no reset.
#pragma once

#include "../shared/event_stock.hpp"

#include "device.hpp"

namespace xmm::cuda {

struct event_source {
    using handle = CUevent;
    struct batch {};
    static constexpr unsigned batch_count = 1;

    device* on;

    [[nodiscard]] status begin(batch&) const noexcept { return {}; }
    [[nodiscard]] status make(batch&, unsigned, handle& made) const noexcept {
        const context_scope here{on->calls(), on->context()};
        return on->note(on->calls().call(&driver_api::event_create, &made,
                                         static_cast<unsigned>(CU_EVENT_DISABLE_TIMING)));
    }
    [[nodiscard]] bool reset(handle) const noexcept { return true; }
    [[nodiscard]] bool destroy(handle one) const noexcept {
        const context_scope here{on->calls(), on->context()};
        return on->calls().call(&driver_api::event_destroy, one).is_ok();
    }
    void end(batch&) const noexcept {}
};

using event_stock = shared::event_stock<event_source>;
using event = event_stock::event;

}  // namespace xmm::cuda
