// SPDX-License-Identifier: Apache-2.0
// calls.hpp - host functions in queue order that may call the driver.
//
// Model    A function that the driver calls in a stream's order must not call the driver itself. So what it
//          calls is ours: it hands the function to a thread of the device's, and the stream waits there until
//          that is done. One thread a device, as the driver has one; it starts with the first call.
// Threads  Any.
// Failure  Where the driver drops the calls of a device that was lost, they are made all the same: their callers
//          may have to free something there.
#pragma once

#include <atomic>

#include <xmm/os/futex.hpp>

#include "../shared/call_thread.hpp"

#include "driver.hpp"

namespace xmm::cuda {

class queue;

struct host_call {
    void (*fn)(void*) noexcept = nullptr;
    void* context = nullptr;
    queue* owner = nullptr;
    host_call* next = nullptr;  // among the queue's, under its lock, as are the next three
    host_call* previous = nullptr;
    bool is_claimed = false;             // by whoever has it made: the driver's turn, or the loss
    bool is_handed_over = false;         // by the loss, to the thread
    host_call* after = nullptr;          // in the thread's chain
    xmm::detail::futex_word is_over{0};  // set once, last of all
    // Who enqueues it, and who has it made; the records of a lost device stay with their queue.
    std::atomic<unsigned> keepers{2};

    void make() noexcept {
        fn(context);
        // From the store on the record may be gone: the wake needs no more than its address.
        xmm::detail::futex_word& over = is_over;
        over.store(1, std::memory_order_release);
        xmm::detail::futex_wake_all(over);
    }
    void await() noexcept {
        // acquire: pairs with the release in make; who sees it over sees what it did.
        while (is_over.load(std::memory_order_acquire) == 0) {
            xmm::detail::futex_wait(is_over, 0);
        }
    }
    static void let_go(host_call& one) noexcept {
        // acq_rel: the last one sees what the other did with the record.
        if (one.keepers.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            delete &one;
        }
    }
};

using call_thread = shared::call_thread<host_call>;

}  // namespace xmm::cuda
