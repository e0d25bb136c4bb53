// SPDX-License-Identifier: Apache-2.0
// handles.hpp - what calls on a space leave in the caller's hands: work under way, pages held for the host.
//
// Threads  One thread a handle; completion may be shared.
// Failure  In a forked child, where neither the workers nor the locks are to be had, a completion counts as done and
//          the end of an access does nothing.
#pragma once

#include <memory>
#include <utility>

#include <xmm/facade/space_state.hpp>
#include <xmm/os/registry.hpp>

namespace xmm {

// Work of xmm's own that goes on after a call returned.
class completion {
public:
    completion() = default;
    explicit completion(std::shared_ptr<prefetch_job> job) noexcept : job_{std::move(job)} {}
    [[nodiscard]] bool is_done() const noexcept { return !is_open() || job_->is_done(); }
    void wait() const noexcept {
        if (is_open()) {
            job_->wait();
        }
    }

private:
    [[nodiscard]] bool is_open() const noexcept {
        return job_ != nullptr && !registry::is_forked_child();
    }
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
        if (state_ != nullptr && !registry::is_forked_child()) {
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
