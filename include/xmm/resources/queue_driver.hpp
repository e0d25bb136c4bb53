// SPDX-License-Identifier: Apache-2.0
// queue_driver.hpp - whose queue it is that a user names.
//
// Threads  Any.
#pragma once

#include <xmm/concepts/backend_table.hpp>
#include <xmm/mapping/address_space.hpp>

namespace xmm::detail {

// The driver of the space that has the queue: all its devices have one, unless more were attached. The first one where
// none has it. Any answer but invalid_argument, a lost device's too, comes from the driver that made it.
[[nodiscard]] inline backend_ref driver_of(address_space& core, queue_id queue,
                                           backend_ref first) noexcept {
    for (unsigned slot = 0; slot < core.node_count(); ++slot) {
        const backend_ref one = core.at_slot(slot).driver;
        if (!(one == first) && one.record(queue).code() != errc::invalid_argument) {
            return one;
        }
    }
    return first;
}

}  // namespace xmm::detail
