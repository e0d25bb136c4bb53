// SPDX-License-Identifier: Apache-2.0
// rig.hpp - a CUDA backend with a queue, shorthands for its operators, and what the CPU may touch, tried.
#pragma once

#include "../../backends/cuda/launcher.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <csetjmp>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../support/cuda_device.hpp"

namespace xmm::test {

inline bool is_skipped() {
    const status state = cuda_state();
    if (!state) {
        MESSAGE("skipped, no CUDA: ", std::string{state.why}, " (", state.driver_code, ")");
    }
    return !state;
}

// Whether the CPU may do that there; tried.
// The jump belongs to the thread, the handler to all of them: one test at a time.
inline thread_local sigjmp_buf on_miss;
inline bool can_touch(address at, bool does_write) {
    struct sigaction catching {};
    struct sigaction before {};
    catching.sa_handler = [](int) { siglongjmp(on_miss, 1); };
    catching.sa_flags = SA_NODEFER;
    ::sigaction(SIGSEGV, &catching, &before);
    volatile bool worked = false;  // written between the jumps
    if (sigsetjmp(on_miss, 1) == 0) {
        auto* word = static_cast<volatile std::uint64_t*>(to_pointer(at));
        const std::uint64_t value = *word;
        if (does_write) {
            *word = value;
        }
        worked = true;
    }
    ::sigaction(SIGSEGV, &before, nullptr);
    return worked;
}
inline bool can_read(address at) { return can_touch(at, false); }
inline bool can_write(address at) { return can_touch(at, true); }

// One host node, 0, and devices from 1 on.
struct cuda_rig {
    std::unique_ptr<cuda::vmm> opened;
    cuda::vmm& b;
    node_id device{1};
    node_id host{0};
    queue_id queue;
    cuda_word_mover mover;
    std::uint64_t* word;
    soft_cuda_controls soft = find_soft_cuda();

    // Host frames are the driver's handles on request, else memory of our own where that works.
    explicit cuda_rig(std::size_t devices = 1, bool has_host_handles = false)
        : opened{std::move(open_cuda(devices, has_host_handles ? 2 : 1, has_host_handles).value())},
          b{*opened},
          queue{*b.queue_create(device, queue_priority::normal)},
          word{cuda_word_mover::make_word(*b.device_of(queue))} {}
    ~cuda_rig() {
        cuda_word_mover::drop_word(*b.device_of(queue), word);
        b.queue_destroy(queue);
    }

    va_range reserve(std::size_t pages) {
        return b.va_examine({0, pages * page_bytes}, page_bytes).value();
    }
    frame create(node_id node, std::size_t pages = 1) {
        return b.frame_create(node, pages * page_bytes).value();
    }
    status enter(node_id who, va_range va, frame f, access how) {
        const run one{va, f, how};
        return b.pmap_enter(who, {&one, 1}).outcome;
    }
    // Where a host frame may be leaving the place still: on a busy machine that takes a while.
    status enter_soon(node_id who, va_range va, frame f, access how) {
        status outcome;
        for (int i = 0; i < 1000; ++i) {
            outcome = enter(who, va, f, how);
            if (outcome.code != errc::busy) {
                break;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds{1});
        }
        return outcome;
    }
    status clear(node_id who, va_range va) { return b.pmap_clear(who, {&va, 1}).outcome; }
    std::uint64_t load(address at) { return load(at, queue); }
    std::uint64_t load(address at, queue_id line) {
        const cuda::stream on{b, line};
        CHECK(mover.move(on, to_address(word), at));
        CHECK(on.synchronize());
        return *word;
    }
    status store(address at, std::uint64_t value) {
        *word = value;
        const cuda::stream line{b, queue};
        const status moved = mover.move(line, at, to_address(word));
        return moved ? line.synchronize() : moved;
    }
    void fill(address to, std::uint64_t value, std::size_t bytes) {
        const std::vector<std::uint64_t> plain(bytes / sizeof value, value);
        const piece one{{to, bytes}, {to_address(plain.data()), bytes}};
        CHECK(b.wait(b.memcpy(queue, {&one, 1}).value()));
    }
};

inline va_range page_of(va_range range, std::size_t i) {
    return {range.begin + i * page_bytes, page_bytes};
}

}  // namespace xmm::test
