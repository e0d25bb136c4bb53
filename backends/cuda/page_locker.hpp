// SPDX-License-Identifier: Apache-2.0
// page_locker.hpp - memory of our own, page-locked for all devices at once.
//
// Model    A registration belongs to the process and holds for every device, at the memory's own address; any
//          device's context can make or end it. So the first device that is not lost is asked.
// Threads  Any. unlock() waits for the work that the devices have at the time: not with a lock held that such work
//          needs, a host function's touch of a page included.
// Failure  The driver's refusal, nothing done. device_lost: every device is.
#pragma once

#include <memory>
#include <vector>

#include "device.hpp"

namespace xmm::cuda {

class page_locker {
public:
    // The devices may come later, and stay.
    page_locker(const driver& on, const std::vector<std::unique_ptr<device>>& devices) noexcept
        : driver_{on}, devices_{devices} {}
    page_locker(const page_locker&) = delete;
    page_locker& operator=(const page_locker&) = delete;

    // The CPU may read and write there at this moment; what it may later is no matter.
    [[nodiscard]] status lock(va_range range) const noexcept {
        return on_some_device([&] {
            return driver_.call(&driver_api::mem_host_register, to_pointer(range.begin),
                                range.bytes, host_register_portable | host_register_device_map);
        });
    }
    // A range that was locked, as a whole.
    [[nodiscard]] status unlock(va_range range) const noexcept {
        return on_some_device([&] {
            return driver_.call(&driver_api::mem_host_unregister, to_pointer(range.begin));
        });
    }

private:
    template <class Call>
    [[nodiscard]] status on_some_device(Call&& call) const noexcept {
        for (const auto& one : devices_) {
            if (one->is_lost()) {
                continue;
            }
            const context_scope here{driver_, one->context()};
            const status outcome = one->note(call());
            if (outcome.code != errc::device_lost) {
                return outcome;
            }
        }
        return fail(errc::device_lost, "every CUDA device is lost");
    }

    const driver& driver_;
    const std::vector<std::unique_ptr<device>>& devices_;
};

}  // namespace xmm::cuda
