// SPDX-License-Identifier: Apache-2.0
// handles.hpp - what calls on a space leave in the caller's hands: work under way, pages held for the host.
//
// Threads  One thread a handle; completion may be shared.
#pragma once

#include <memory>
#include <utility>

#include <xmm/facade/space_state.hpp>

namespace xmm {

// Work of xmm's own that goes on after a call returned.
class completion {
public:
    completion() = default;
    explicit completion(std::shared_ptr<prefetch_job> job) noexcept : job_{std::move(job)} {}
    [[nodiscard]] bool is_done() const noexcept { return job_ == nullptr || job_->is_done(); }
    void wait() const noexcept {
        if (job_ != nullptr) {
            job_->wait();
        }
    }

private:
    std::shared_ptr<prefetch_job> job_;
};

// While it lives, the range is resident on the host and stays there: for system calls and other code
// that no fault can help. Devices that touch it meanwhile map it over the link, or wait where they cannot. Calls that
// would take the range away wait until it is gone, for ever if its own thread makes them: unmap, and make_resident and
// pin elsewhere.
class host_access {
public:
    host_access(host_access&& other) noexcept
        : state_{std::exchange(other.state_, nullptr)}, range_{other.range_} {}
    host_access(const host_access&) = delete;
    host_access& operator=(const host_access&) = delete;
    host_access& operator=(host_access&&) = delete;
    ~host_access() {
        if (state_ != nullptr) {
            state_->engine.hints.release_hold(range_);
        }
    }

private:
    friend class space;
    host_access(space_state& state, va_range range) noexcept : state_{&state}, range_{range} {}
    space_state* state_;
    va_range range_;
};

}  // namespace xmm
