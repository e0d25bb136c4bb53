// SPDX-License-Identifier: Apache-2.0
// heap_figures.hpp - a reading of a heap's counters, under the names that PyTorch gives them.
//
// Model    Values, copied freely. What PyTorch counts and a heap of ours does not have is there as it is in
//          PyTorch when it is not used; what only we have has a name that begins with "xmm.".
// See      heap_statistics.hpp counts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ostream>
#include <utility>

namespace xmm {

// Who serves the block: PyTorch's small and large pool, cut at our threshold.
enum class heap_pool : std::uint8_t { small, large };
inline constexpr std::size_t heap_pools = 2;

enum class heap_metric : std::uint8_t {
    allocation,       // blocks in the program's hands
    allocated_bytes,  // their size as served
    active,           // the same and those given back that a queue may still use
    active_bytes,
    requested_bytes,  // what was asked for, of active blocks
    // Frames that the heap has; all count as large where blocks of both kinds share them. What it gave up is the
    // node's: in a space, free frames that pages and heaps take from (node_usage::free_frames) until trim() gives
    // them to the device.
    segment,
    reserved_bytes,        // their size
    inactive_split,        // not counted: 0
    inactive_split_bytes,  // free bytes of frames that blocks keep in place; its peak is of all reads
};
inline constexpr std::size_t heap_metrics = 9;

enum class heap_count : std::uint8_t {
    alloc_retries,     // requests that were tried again after caches were flushed
    ooms,              // requests that failed in the end
    sync_all_streams,  // waits for all queues of the device
    device_alloc,      // frames made, or taken from the node's free ones, and mappings
    device_free,       // mappings ended, and frames given up
    frames_moved,      // frames that changed their address
    queue_waits,       // waits for one queue before a frame could move
    driver_us,         // time in the driver, waits included
};
inline constexpr std::size_t heap_counts = 8;

[[nodiscard]] constexpr const char* name_of(heap_metric metric) noexcept {
    constexpr const char* names[] = {"allocation",     "allocated_bytes", "active",
                                     "active_bytes",   "requested_bytes", "segment",
                                     "reserved_bytes", "inactive_split",  "inactive_split_bytes"};
    return names[static_cast<unsigned>(metric)];
}
// Those that PyTorch does not know begin with "xmm.".
[[nodiscard]] constexpr const char* name_of(heap_count count) noexcept {
    constexpr const char* names[] = {"num_alloc_retries", "num_ooms",        "num_sync_all_streams",
                                     "num_device_alloc",  "num_device_free", "xmm.frames_moved",
                                     "xmm.queue_waits",   "xmm.driver_us"};
    return names[static_cast<unsigned>(count)];
}

struct heap_counter {
    std::int64_t current = 0;
    std::int64_t peak = 0;
    std::int64_t allocated = 0;  // all that was ever added
    std::int64_t freed = 0;      // and taken off

    friend bool operator==(const heap_counter&, const heap_counter&) = default;
};

// A reading: plain values.
struct heap_figures {
    // By metric; then all, small, large.
    std::array<std::array<heap_counter, 1 + heap_pools>, heap_metrics> counters{};
    std::array<std::int64_t, heap_counts> counts{};

    [[nodiscard]] const heap_counter& of(heap_metric metric) const noexcept {
        return counters[static_cast<unsigned>(metric)][0];
    }
    [[nodiscard]] const heap_counter& of(heap_metric metric, heap_pool pool) const noexcept {
        return counters[static_cast<unsigned>(metric)][1 + static_cast<unsigned>(pool)];
    }
    [[nodiscard]] std::int64_t of(heap_count count) const noexcept {
        return counts[static_cast<unsigned>(count)];
    }

    // fn(name, value) for every name that torch.cuda.memory_stats() has, and ours. What has no meaning
    // here is there with the value that it has in PyTorch when it is not used.
    template <class Fn>
    void for_each(Fn&& fn) const {
        constexpr const char* pools[] = {"all", "small_pool", "large_pool"};
        std::array<char, 64> name;
        const auto say = [&](const char* metric, const char* dot, const char* pool,
                             const heap_counter& counter) {
            const std::pair<const char*, std::int64_t> fields[] = {{"current", counter.current},
                                                                   {"peak", counter.peak},
                                                                   {"allocated", counter.allocated},
                                                                   {"freed", counter.freed}};
            for (const auto& [field, value] : fields) {
                std::snprintf(name.data(), name.size(), "%s%s%s.%s", metric, dot, pool, field);
                fn(static_cast<const char*>(name.data()), value);
            }
        };
        for (std::size_t metric = 0; metric < heap_metrics; ++metric) {
            for (std::size_t pool = 0; pool <= heap_pools; ++pool) {
                say(name_of(static_cast<heap_metric>(metric)), ".", pools[pool],
                    counters[metric][pool]);
            }
        }
        say("oversize_allocations", "", "", {});
        say("oversize_segments", "", "", {});
        fn("max_split_size", std::int64_t{-1});
        fn("num_oom_rejections", std::int64_t{0});
        for (std::size_t count = 0; count < heap_counts; ++count) {
            fn(name_of(static_cast<heap_count>(count)), counts[count]);
        }
    }
};

// A name and a value each line.
inline std::ostream& operator<<(std::ostream& out, const heap_figures& figures) {
    figures.for_each(
        [&](const char* name, std::int64_t value) { out << name << ' ' << value << '\n'; });
    return out;
}

}  // namespace xmm
