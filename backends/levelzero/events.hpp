// SPDX-License-Identifier: Apache-2.0
// events.hpp - how events are made here: in pools, for all devices of a context.
#pragma once

#include <cstdint>

#include "../shared/event_stock.hpp"

#include "driver.hpp"

namespace xmm::levelzero {

struct event_source {
    using handle = ze_event_handle_t;
    using batch = ze_event_pool_handle_t;
    static constexpr std::uint32_t batch_count = 256;

    const driver* on;
    ze_context_handle_t context;

    [[nodiscard]] status begin(batch& pool) const noexcept {
        ze_event_pool_desc_t about;
        about.count = batch_count;
        return on->call(&driver_api::event_pool_create, context, &about, 0, nullptr, &pool);
    }
    [[nodiscard]] status make(batch& pool, std::uint32_t index, handle& made) const noexcept {
        ze_event_desc_t one;
        one.index = index;
        return on->call(&driver_api::event_create, pool, &one, &made);
    }
    [[nodiscard]] bool reset(handle one) const noexcept {
        return on->call(&driver_api::event_host_reset, one).is_ok();
    }
    [[nodiscard]] bool destroy(handle one) const noexcept {
        return on->call(&driver_api::event_destroy, one).is_ok();
    }
    void end(batch& pool) const noexcept { (void)on->call(&driver_api::event_pool_destroy, pool); }
};

using event_stock = shared::event_stock<event_source>;
using event = event_stock::event;

}  // namespace xmm::levelzero
