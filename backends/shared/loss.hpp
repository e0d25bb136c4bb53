// SPDX-License-Identifier: Apache-2.0
// loss.hpp - whether a device is lost: once a call says that it is gone, it stays gone.
#pragma once

#include <atomic>

#include <xmm/core/status.hpp>

namespace xmm::shared {

class loss {
public:
    // relaxed: nothing but the fact itself is read.
    [[nodiscard]] bool is_lost() const noexcept { return is_lost_.load(std::memory_order_relaxed); }
    // Passes an outcome on, and remembers what it says of the device.
    status note(status outcome) noexcept {
        if (outcome.code == errc::device_lost) {
            is_lost_.store(true, std::memory_order_relaxed);
        }
        return outcome;
    }

private:
    std::atomic<bool> is_lost_{false};
};

}  // namespace xmm::shared
