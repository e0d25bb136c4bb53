// SPDX-License-Identifier: Apache-2.0
// faults.hpp - where a device's faults go: the sinks of the spaces that use the driver.
//
// Model    A fixed number of places. A call counts itself in before it looks whether the place is
//          open, and removal closes the place before it waits for the count: so after `remove` no
//          call is inside and none will come.
// Threads  Any; sinks are called on the threads of kernels. `remove` waits for calls in progress, so it
//          must not be called from inside that sink.
// Failure  `add` fails when all places are taken.
#pragma once

#include <array>
#include <atomic>

#include <xmm/concepts/backend.hpp>
#include <xmm/core/lock.hpp>
#include <xmm/os/futex.hpp>

namespace xmm::soft {

class fault_sinks {
public:
    [[nodiscard]] status add(device_fault_sink sink) noexcept {
        std::lock_guard hold{lock_};
        for (place& one : places_) {
            if (!one.is_open.load(std::memory_order_relaxed)) {  // only changed under lock_
                one.sink = sink;
                one.is_open.store(true, std::memory_order_seq_cst);
                return {};
            }
        }
        return fail(errc::no_memory, "too many fault sinks on one driver");
    }

    void remove(void* context) noexcept {
        std::lock_guard hold{lock_};
        for (place& one : places_) {
            if (one.is_open.load(std::memory_order_relaxed) && one.sink.context == context) {
                // seq_cst, with the accesses in `call`: either the call sees it closed or we see its count.
                one.is_open.store(false, std::memory_order_seq_cst);
                for (std::uint32_t inside;
                     (inside = one.inside.load(std::memory_order_seq_cst)) != 0;) {
                    detail::futex_wait(one.inside, inside);
                }
            }
        }
    }

    // Asks one sink after the other until one knows the address.
    [[nodiscard]] fault_outcome call(node_id accessor, address at, access wanted) noexcept {
        for (place& one : places_) {
            fault_outcome outcome = fault_outcome::not_mapped;
            one.inside.fetch_add(1, std::memory_order_seq_cst);
            if (one.is_open.load(std::memory_order_seq_cst)) {
                outcome = one.sink.handle(one.sink.context, accessor, at, wanted);
            }
            if (one.inside.fetch_sub(1, std::memory_order_seq_cst) == 1 &&
                !one.is_open.load(std::memory_order_seq_cst)) {
                detail::futex_wake_all(one.inside);
            }
            if (outcome != fault_outcome::not_mapped) {
                return outcome;
            }
        }
        return fault_outcome::not_mapped;
    }

private:
    struct place {
        detail::futex_word inside{0};
        std::atomic<bool> is_open{false};
        device_fault_sink sink;  // written only while closed and empty
    };

    ranked_mutex<lock_rank::backend_queue> lock_;
    std::array<place, 32> places_;
};

}  // namespace xmm::soft
