// SPDX-License-Identifier: Apache-2.0
// launcher.hpp - a CUDA queue as kernels are launched in it: the native stream, and its device.
//
// Model    A stream is a name for a queue of the backend. It converts to the driver's CUstream, which is the
//          runtime's cudaStream_t, so kernel<<<grid, block, 0, stream>>> takes it as it is. While
//          make_current()'s result lives, its device is the calling thread's, which the runtime needs; the
//          function of a launch runs with that already.
// Threads  A stream is a value, used from any thread.
// Failure  What is enqueued here is not seen by us until record() or the end of a launch.
#pragma once

#include "../shared/stream.hpp"

#include "vmm.hpp"

namespace xmm::cuda {

// A queue and its backend. Both outlive it.
class stream : public shared::stream_of<vmm> {
public:
    stream(vmm& owner, queue_id queue) noexcept
        : stream_of{owner, queue}, native_{owner.stream_of(queue)} {}

    // Null if the queue is gone.
    [[nodiscard]] CUstream native() const noexcept { return native_; }
    operator CUstream() const noexcept { return native_; }
    // What cudaSetDevice takes; less than 0 if the queue is gone.
    [[nodiscard]] int ordinal() const noexcept {
        const device* on = driver_->device_of(queue_);
        return on == nullptr ? -1 : on->ordinal();
    }
    [[nodiscard]] current_context make_current() const noexcept {
        const device* on = driver_->device_of(queue_);
        return current_context{driver::instance(), on == nullptr ? nullptr : on->context()};
    }

private:
    CUstream native_;
};

}  // namespace xmm::cuda
