// SPDX-License-Identifier: Apache-2.0
// driver.hpp - the software driver's devices, contexts and the door through which each call comes in.
//
// Model    One driver per process, never destroyed, since streams' threads outlive main. Each exported function
//          opens with enter(): counted, delayed, failed on request, and refused as a real driver refuses.
// Threads  Any. Locks, outermost first: work_lock (streams, events, captures; streams.hpp), one stream's own,
//          memory_lock (memory.hpp), a lane. No call of the program's code under any of them.
#pragma once

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "backends/cuda/abi.hpp"

#define SOFT_CUDA_EXPORT extern "C" __attribute__((visibility("default")))

namespace soft_cuda {

using namespace xmm::cuda;  // the driver's names are what is defined here

inline constexpr std::size_t page_bytes = std::size_t{2} << 20;
inline constexpr int most_devices = 32;

// Codes that only this side of the interface needs.
inline constexpr auto error_peer_enabled = static_cast<CUresult>(704);
inline constexpr auto error_peer_not_enabled = static_cast<CUresult>(705);

[[nodiscard]] inline std::uint64_t now_ns() noexcept {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
}

// One direction of a device's link. Time on it is virtual, so that who wakes late catches up.
class lane {
public:
    // Returns when `bytes` have passed. 0 bytes per second: at once.
    void pass(std::size_t bytes, std::uint64_t bytes_per_second);

private:
    std::mutex mutex_;
    std::uint64_t free_at_ = 0;
};

// A device's primary context, the only one that it has. Its handle is its address.
struct context {
    int device = 0;
    unsigned refs = 0;  // (work_lock)
    std::atomic<bool> is_live{false};
    std::atomic<unsigned> lost{0};        // the code that ended it; 0 while it is well
    std::atomic<std::uint32_t> peers{0};  // a bit per device whose plain memory its kernels may use

    [[nodiscard]] CUresult state() const noexcept {
        return static_cast<CUresult>(lost.load(std::memory_order_acquire));
    }
    void lose(CUresult code) noexcept {
        unsigned well = 0;
        lost.compare_exchange_strong(well, code, std::memory_order_acq_rel);
    }
};

struct device {
    int ordinal = 0;
    std::size_t bytes = 0;
    context primary;
    std::atomic<std::size_t> held{0};     // by this process: frames, allocations
    std::atomic<std::size_t> managed{0};  // pages of managed memory that are here
    std::atomic<std::size_t> taken{0};    // by another process
    std::atomic<std::uint64_t> bytes_per_second{0};
    std::array<lane, 2> lanes;  // to the device, to the host
    std::mutex attributes_lock;
    std::map<unsigned, int> attributes;

    [[nodiscard]] int attribute(unsigned which);
    [[nodiscard]] std::size_t free_bytes() const noexcept;
    // Counts `amount` more as used in `where`, one of the three above; false where it is not free.
    [[nodiscard]] bool try_charge(std::atomic<std::size_t>& where, std::size_t amount) noexcept;

private:
    std::mutex charge_lock_;
};

struct counters {
    std::atomic<std::uint64_t> to_device{0}, to_host{0}, between{0}, faults{0}, evictions{0},
        remote{0}, prefetched{0}, duplicated{0}, discarded{0}, refused{0}, invalidated{0},
        frames{0};
};

struct driver {
    std::atomic<bool> is_initialised{false};
    std::atomic<bool> is_forked{false};
    int version = 13000;
    std::vector<std::unique_ptr<device>> devices;
    bool poisons = false;  // fresh memory is filled with a pattern
    counters counted;

    [[nodiscard]] bool has_device(int ordinal) const noexcept {
        return ordinal >= 0 && static_cast<std::size_t>(ordinal) < devices.size();
    }
    [[nodiscard]] static bool has_host(int numa_node) noexcept;
    [[nodiscard]] device& of(const context& which) noexcept {
        return *devices[static_cast<std::size_t>(which.device)];
    }
};

// Reads the environment at the first call.
[[nodiscard]] driver& the_driver();

class stream;

// What the calling thread has: its stack of contexts, whether it runs a host function of a stream.
struct thread_state {
    std::vector<context*> contexts;
    std::map<const context*, std::weak_ptr<stream>> own_streams;  // CU_STREAM_PER_THREAD
    bool is_in_host_function = false;
    CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

    [[nodiscard]] context* current() const noexcept {
        return contexts.empty() ? nullptr : contexts.back();
    }
};
[[nodiscard]] thread_state& this_thread() noexcept;

[[nodiscard]] constexpr bool ends_a_context(unsigned code) noexcept {
    return code == 214 || code == 220 || code == 226 || code == 700 || code == 702 || code == 710 ||
           (code >= 714 && code <= 721);
}

// What a program may call, or a name for work as it is executed: counted, delayed and failed by that name.
class entry_point {
public:
    explicit entry_point(const char* name) noexcept;
    entry_point(const entry_point&) = delete;

    // nullptr: no such name. A suffix _v2 is not minded.
    [[nodiscard]] static entry_point* find(std::string_view name) noexcept;
    static void reset_all() noexcept;

    // Counts, waits as asked, and says what this call shall answer; CUDA_SUCCESS: go on.
    [[nodiscard]] CUresult call() noexcept;

    void fail(unsigned skip, unsigned times, CUresult code) noexcept;
    void delay(unsigned microseconds) noexcept {
        delay_us_.store(microseconds,
                        std::memory_order_relaxed);  // the next call sees it, or the one after
    }
    [[nodiscard]] std::uint64_t calls() const noexcept {
        return calls_.load(std::memory_order_relaxed);  // a figure, nothing hangs on it
    }

private:
    const char* name_;
    entry_point* next_;
    std::atomic<std::uint64_t> calls_{0};
    std::atomic<unsigned> delay_us_{0};
    std::atomic<bool> is_armed_{false};
    std::mutex mutex_;
    unsigned skip_ = 0, times_ = 0;
    CUresult code_ = CUDA_SUCCESS;
};

// What a call asks of its surroundings.
enum needs : unsigned {
    nothing = 0,           // not even cuInit
    init = 1,              // cuInit; a lost context that is current makes it fail
    a_context = 2 | init,  // and a current context
    lost_too = 4,          // goes on in a lost context
    no_capture = 8,        // may be unsafe while some stream captures
    in_host_functions = 16,
};

// Refuses with 900 and ends the captures that this call endangers. In capture.cpp.
[[nodiscard]] CUresult check_captures();
extern std::atomic<int> captures_under_way;

[[nodiscard]] CUresult admit(entry_point& point, unsigned what) noexcept;

template <class Body>
CUresult enter(entry_point& point, unsigned what, Body&& body) noexcept {
    if (const CUresult refused = admit(point, what); refused != CUDA_SUCCESS) {
        return refused;
    }
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    } catch (const std::system_error&) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
}

// Does the function have the signature that the backend calls it with? Each file ends with that question.
template <auto Member, class Function>
constexpr bool is_as_declared(Function*) noexcept {
    using declared = std::remove_cvref_t<decltype(std::declval<driver_api>().*Member)>;
    return std::is_same_v<typename declared::signature, Function>;
}

[[nodiscard]] inline std::size_t os_page_bytes() noexcept {
    static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    return bytes;
}

}  // namespace soft_cuda
