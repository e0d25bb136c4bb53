// SPDX-License-Identifier: Apache-2.0
// launcher.hpp - kernels of a soft device: a callable, run in queue order on the device's threads.
//
// Model    The callable is moved into the queue. On the device's threads a device_view goes through
//          the device's page table; everything else in the callable is ordinary host code.
// Threads  A stream is a value, used from any thread.
// Failure  A launch allocates: no_memory. A kernel whose access cannot be served ends there, and its
//          ticket answers device_lost. Any other exception out of a kernel ends the program.
#pragma once

#include <new>
#include <type_traits>
#include <utility>

#include <xmm/core/device_view.hpp>

#include "../shared/stream.hpp"

#include "soft.hpp"

namespace xmm::soft {

namespace launching {

template <class Body>
struct kernel_of final : kernel {
    Body body;

    explicit kernel_of(Body&& from) : body(std::move(from)) {
        run = [](kernel& self, device_port& through, std::size_t first,
                 std::size_t last) noexcept -> bool {
            // The variable behind port_scope is the one of this shared object, as the views' is.
            xmm::detail::port_scope current{through};
            try {
                invoke(static_cast<kernel_of&>(self).body, first, last);
            } catch (const xmm::detail::kernel_aborted&) {
                return false;
            }
            return true;
        };
        destroy = [](kernel& self) noexcept { delete static_cast<kernel_of*>(&self); };
    }
    static void invoke(Body& body, std::size_t first, std::size_t last) {
        if constexpr (std::is_invocable_v<Body&, std::size_t, std::size_t>) {
            body(first, last);
        } else {
            for (std::size_t i = first; i < last; ++i) {
                body(i);
            }
        }
    }
};

}  // namespace launching

// A queue and its driver. Both outlive it.
class stream : public shared::stream_of<driver> {
public:
    stream(driver& owner, queue_id queue) noexcept : stream_of{owner, queue} {}

    // Calls body(first, last) for stretches of [0, count), or body(index) for each index, on the
    // device's units at once. The body is shared by them.
    template <class Body>
    result<ticket> parallel_for(std::size_t count, Body body) const noexcept {
        static_assert(std::is_invocable_v<Body&, std::size_t, std::size_t> ||
                          std::is_invocable_v<Body&, std::size_t>,
                      "a kernel is called as body(first, last) or body(index)");
        // Several chunks a unit, since one of them may have to wait for a fault.
        const std::size_t chunks = std::size_t{8} * std::max(1u, driver_->units(queue_));
        return launch(count, std::max<std::size_t>(1, count / chunks), std::move(body));
    }

    // Calls fn() on one of the device's threads.
    template <class Fn>
    result<ticket> run(Fn fn) const noexcept {
        return launch(1, 1, [fn = std::move(fn)](std::size_t) mutable { fn(); });
    }

private:
    template <class Body>
    result<ticket> launch(std::size_t count, std::size_t chunk, Body body) const noexcept {
        auto* one = new (std::nothrow) launching::kernel_of<Body>(std::move(body));
        if (one == nullptr) {
            return fail(errc::no_memory, "no memory for a kernel");
        }
        one->count = count;
        one->chunk = chunk;
        auto point = driver_->launch(queue_, *one);
        if (!point) {
            one->destroy(*one);
        }
        return point;
    }
};

}  // namespace xmm::soft
