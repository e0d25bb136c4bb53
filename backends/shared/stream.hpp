// SPDX-License-Identifier: Apache-2.0
// stream.hpp - a name for a queue of a driver, as kernels are launched in it; each backend adds how.
//
// Threads  A stream is a value, used from any thread.
#pragma once

#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>

namespace xmm::shared {

// A queue and its driver. Both outlive it.
template <class Driver>
class stream_of {
public:
    using driver_type = Driver;

    stream_of(Driver& owner, queue_id queue) noexcept : driver_{&owner}, queue_{queue} {}

    [[nodiscard]] queue_id queue() const noexcept { return queue_; }
    [[nodiscard]] Driver& owner() const noexcept { return *driver_; }

    // A point behind all that was enqueued so far.
    result<ticket> record() const noexcept { return driver_->record(queue_); }
    // Waits for all that was enqueued so far.
    status synchronize() const noexcept {
        auto point = record();
        return point ? driver_->wait(*point) : point.error();
    }

protected:
    Driver* driver_;
    queue_id queue_;
};

}  // namespace xmm::shared
