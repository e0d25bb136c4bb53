// SPDX-License-Identifier: Apache-2.0
// host_stream.hpp - a Level Zero queue that runs loops on the software driver, as soft::stream runs them on its
// devices: xmm::launch<test::host_stream>(...).
//
// Model    A loop is one kernel, in the software driver's module format; what it does through a device_view goes
//          through the driver's own translation. It and its kernel are freed by a host call behind it.
// Failure  A miss loses the device, and the loop ends there.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include <xmm/core/device_view.hpp>

#include "host_kernel.hpp"

namespace xmm::test {

namespace looping {

// What a kernel on the software driver reaches.
class call_port final : public device_port {
public:
    explicit call_port(soft_ze::kernel_call& call) noexcept : call_{call} {}
    bool acquire(std::span<device_pin> pins) noexcept override {
        for (device_pin& pin : pins) {
            pin.data = static_cast<std::byte*>(
                call_.reach(call_, pin.at, pin.bytes, has_write(pin.wanted)));
            if (pin.data == nullptr) {
                return false;
            }
        }
        return true;
    }
    void release(std::span<const device_pin>) noexcept override {}

private:
    soft_ze::kernel_call& call_;
};

template <class Body>
struct loop {
    host_kernel kernel;
    Body body;
    std::size_t count;

    static void run(soft_ze::kernel_call& call) {
        loop& me = *call.argument<loop*>(0);
        call_port port{call};
        const xmm::detail::port_scope current{port};
        try {
            me.body(std::size_t{0}, me.count);
        } catch (const xmm::detail::kernel_aborted&) {
        }
    }
};

}  // namespace looping

class host_stream : public shared::stream_of<levelzero::vmm> {
public:
    using stream_of::stream_of;

    // Calls body(first, last) for stretches of [0, count).
    template <class Body>
    result<ticket> parallel_for(std::size_t count, Body body) const {
        using job = looping::loop<Body>;
        std::unique_ptr<job> one{new job{host_kernel{&job::run}, std::move(body), count}};
        if (const status launched =
                one->kernel.launch(levelzero::stream{owner(), queue()}, 1, one.get());
            !launched) {
            return launched;
        }
        auto freed = owner().call(
            queue(), [](void* gone) noexcept { delete static_cast<job*>(gone); }, one.get());
        if (freed) {
            (void)one.release();
        } else {
            (void)synchronize();
        }
        return freed;
    }
};

}  // namespace xmm::test
