// SPDX-License-Identifier: Apache-2.0
// driver.hpp - the software driver's devices, memory and the door through which each call comes in.
//
// Model    One driver a loaded library, made at the first call from the environment, never destroyed: its queues'
//          threads outlive main. A device's memory is a sparse memory file with a window of the driver's own; copies
//          and kernels go through the window, never through the program's address.
// Threads  Any. Locks, outermost first: work_lock (events, lists, queues), memory_lock (the tables), the door's.
//          No call of the program's code under any of them.
#pragma once

#include <level_zero/ze_api.h>
#include <level_zero/ze_ddi.h>
#include <level_zero/zes_api.h>
#include <level_zero/zes_ddi.h>
#include <level_zero/zet_ddi.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "soft_ze.hpp"

namespace soft_ze {

inline constexpr std::size_t small_page = std::size_t{64} << 10;
inline constexpr std::size_t large_page = std::size_t{2} << 20;

[[nodiscard]] constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
    return (value + unit - 1) / unit * unit;
}

// A sparse memory file with a window, handed out in pieces of whole small pages.
class store {
public:
    explicit store(std::size_t bytes);
    store(const store&) = delete;
    store& operator=(const store&) = delete;

    // npos: no run is long enough.
    static constexpr std::size_t npos = ~std::size_t{0};
    [[nodiscard]] std::size_t take(std::size_t bytes);
    void give(std::size_t offset, std::size_t bytes);
    [[nodiscard]] char* at(std::size_t offset) const { return window_ + offset; }
    [[nodiscard]] int file() const { return file_; }

private:
    int file_ = -1;
    char* window_ = nullptr;
    std::map<std::size_t, std::size_t> free_;  // by offset
};

struct device {
    unsigned number = 0;
    std::size_t total = 0;
    std::size_t used = 0;  // (memory_lock)
    std::atomic<bool> is_lost{false};
    std::unique_ptr<store> memory;
    device* root = nullptr;  // of a tile
    std::vector<std::unique_ptr<device>> tiles;
};

enum class kind : std::uint8_t { device, host, shared, mapping };

struct physical {
    device* on = nullptr;  // null: the host's
    std::size_t offset = 0;
    std::size_t bytes = 0;
    unsigned mapped = 0;
    [[nodiscard]] store& in() const;
};

// An allocation, or one mapping of physical memory. Under memory_lock.
struct block {
    kind what = kind::device;
    char* base = nullptr;
    std::size_t bytes = 0;
    device* on = nullptr;
    int file = -1;           // the file that is mapped, for handles to other processes
    std::size_t offset = 0;  // in the file
    char* alias = nullptr;   // the driver's own way to it
    bool is_imported = false;
    std::uint64_t number = 0;
    physical* from = nullptr;  // of a mapping
    ze_memory_access_attribute_t access = ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE;
    bool is_on_device = false;  // shared: the host may not touch it now
};

struct stretch {
    char* at = nullptr;
    std::size_t bytes = 0;
    friend bool operator==(const stretch&, const stretch&) = default;
};

struct settings {
    std::vector<std::size_t> bytes;  // of each device
    std::size_t most_allocation = std::size_t{4} << 30;
    unsigned tiles = 0;
    unsigned minor = 13;  // the version of the interface is 1.minor
    bool has_virtual_memory = true;
    bool has_peers = true;
    bool has_copy_engine = true;
    bool may_overcommit = false;
    bool is_host_visible = false;
    bool does_poison = false;
    bool does_reorder = false;
    bool leaves_holes = false;  // unmapping host memory leaves addresses free, as munmap does
    bool has_huge_pages = false;
};

struct state {
    state();

    settings set;
    std::vector<std::unique_ptr<device>> devices;
    store host;
    std::mutex memory_lock;
    std::map<std::uintptr_t, block> blocks;              // under memory_lock, as is what follows
    std::map<std::uintptr_t, std::size_t> reservations;  // bytes, by start
    std::uint64_t next_number = 1;

    std::mutex work_lock;
    std::condition_variable work_bell;
    std::atomic<unsigned> delay_us{0};
    std::atomic<std::size_t> alive{0};
    std::atomic<std::uint64_t> misuses{0};
};
[[nodiscard]] state& all();

// Counts the call, and fails it on request.
[[nodiscard]] ze_result_t pass_door(const char* name) noexcept;
void add_name(const char* name) noexcept;
void misuse(const char* what) noexcept;
// An object behind a handle: counted, and known here even if the program has lost it.
void keep(void* handle);
void let_go(void* handle) noexcept;

// ---- memory.cpp

[[nodiscard]] std::size_t page_for(std::size_t bytes);
[[nodiscard]] block* find_block(const void* at);  // memory_lock
// What the device sees in a row at that address, at most `bytes`; null: a miss. Shared memory moves to the device.
[[nodiscard]] stretch resolve(const void* at, std::size_t bytes, bool does_write);
template <class T>
[[nodiscard]] const T* in_chain(const void* next, ze_structure_type_t type) {
    for (; next != nullptr; next = static_cast<const ze_base_desc_t*>(next)->pNext) {
        if (static_cast<const ze_base_desc_t*>(next)->stype == type) {
            return static_cast<const T*>(next);
        }
    }
    return nullptr;
}

// ---- handles

template <class Handle>
[[nodiscard]] Handle handle_of(void* object) {
    return reinterpret_cast<Handle>(object);
}
[[nodiscard]] inline device* of(ze_device_handle_t handle) {
    return reinterpret_cast<device*>(handle);
}

// ---- entry points: each passes the door under its name

template <std::size_t N>
struct entry_name {
    char text[N];
    constexpr entry_name(const char (&from)[N]) { std::copy_n(from, N, text); }
};
template <entry_name Name, auto Function>
struct entry;
template <entry_name Name, class... Args, ze_result_t (*Function)(Args...)>
struct entry<Name, Function> {
    static inline const bool is_known = (add_name(Name.text), true);
    static ze_result_t ZE_APICALL call(Args... args) noexcept {
        (void)is_known;
        if (const ze_result_t refused = pass_door(Name.text); refused != ZE_RESULT_SUCCESS) {
            return refused;
        }
        try {
            return Function(args...);
        } catch (const std::bad_alloc&) {
            return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
        }
    }
};

// Each fills the tables of its entry points.
void fill(ze_global_dditable_t&);
void fill(ze_driver_dditable_t&);
void fill(ze_device_dditable_t&);
void fill(ze_context_dditable_t&);
void fill(ze_virtual_mem_dditable_t&);
void fill(ze_physical_mem_dditable_t&);
void fill(ze_mem_dditable_t&);
void fill(ze_command_list_dditable_t&);
void fill(ze_command_queue_dditable_t&);
void fill(ze_fence_dditable_t&);
void fill(ze_event_pool_dditable_t&);
void fill(ze_event_dditable_t&);
void fill(ze_module_dditable_t&);
void fill(ze_kernel_dditable_t&);
void fill(zes_device_dditable_t&);
void fill(zes_memory_dditable_t&);

}  // namespace soft_ze
