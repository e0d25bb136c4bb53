// SPDX-License-Identifier: Apache-2.0
// launcher.hpp - a Level Zero queue as kernels are launched in it: its list, context and device.
//
// Model    A stream is a name for a queue of the backend. append() hands its immediate command list, on an engine that
//          computes, to a function that appends kernels; the list bears one thread at a time, and has it there.
//          native() is the same list for who sees to that himself. The handles are those of ze_api.h.
// Threads  A stream is a value, used from any thread.
// Failure  What is appended to native() is not seen by us until record() or the end of a launch.
#pragma once

#include <type_traits>
#include <utility>

#include "../shared/stream.hpp"

#include "vmm.hpp"

namespace xmm::levelzero {

// A queue and its backend. Both outlive it.
class stream : public shared::stream_of<vmm> {
public:
    stream(vmm& owner, queue_id queue) noexcept : stream_of{owner, queue} {}

    [[nodiscard]] ze_context_handle_t context() const noexcept { return driver_->context(); }
    // Null if the queue is gone.
    [[nodiscard]] ze_device_handle_t device() const noexcept {
        const auto* work = driver_->work_of(queue_);
        return work == nullptr ? nullptr : work->on().handle();
    }
    // Null if the queue is gone, or the driver gives no list for kernels.
    [[nodiscard]] ze_command_list_handle_t native() const noexcept {
        auto* work = driver_->work_of(queue_);
        auto list = work == nullptr ? result<ze_command_list_handle_t>{shared::no_queue()}
                                    : work->computing_list();
        return list ? *list : nullptr;
    }

    // fn(list) appends to it and answers with what the driver said. The ticket is reached when that is done.
    template <class Fn>
    result<ticket> append(Fn&& fn) const noexcept {
        auto* work = driver_->work_of(queue_);
        return work == nullptr ? result<ticket>{shared::no_queue()}
                               : work->submit_kernels([&](ze_command_list_handle_t list) {
                                     return status_of(static_cast<ze_result_t>(fn(list)));
                                 });
    }
};

}  // namespace xmm::levelzero
