// SPDX-License-Identifier: Apache-2.0
// memory.hpp - physical memory, addresses, and what each device may reach at them.
//
// Model    A frame is memory with a window of the library's own, through which everything the "device" does
//          goes; what lies at the program's address is there for the CPU alone. One table says which frame is
//          mapped where and who may use it there: copies and kernels ask it as they would an MMU.
// Threads  Any. memory_lock guards the table; a frame that was found stays alive while somebody holds it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "driver.hpp"

namespace soft_cuda {

struct frame {
    device* of = nullptr;  // nullptr: host memory
    int host_node = 0;
    std::size_t bytes = 0;
    std::byte* window = nullptr;
    int fd = -1;              // what the window shows, where others may map it too
    bool owns_window = true;  // false: the program's own memory
    bool is_charged = false;  // counted in of->held
    CUmemAllocationProp made_as{};

    frame() = default;
    frame(const frame&) = delete;
    ~frame();
};

// Memory of a device (charged; nullptr: none left) or of the host, behind a file descriptor. Throws bad_alloc.
[[nodiscard]] std::shared_ptr<frame> make_frame(device* of, int host_node, std::size_t bytes);
// What an exported descriptor stands for, in a process that did not make it.
[[nodiscard]] std::shared_ptr<frame> frame_behind(int fd);

// Charges `amount` to a device; managed memory makes room where it has to. Takes memory_lock.
[[nodiscard]] bool charge_with_eviction(device& of, std::size_t amount);

// Managed memory: where each 2 MiB of an allocation are.
struct managed_page {
    static constexpr int nowhere = -2, on_host = -1;
    int home = nowhere;
    std::uint32_t copies = 0;       // devices that hold a duplicate
    std::uint32_t accessed_by = 0;  // devices told to keep a mapping
    bool cpu_accesses = false;
    bool is_read_mostly = false;
    bool is_discarded = false;
    CUmemLocation preferred{CU_MEM_LOCATION_TYPE_INVALID, 0};
    CUmemLocation last_prefetch{CU_MEM_LOCATION_TYPE_INVALID, 0};
    std::uint64_t stamp = 0;  // the larger, the later used
};

enum class kind { mapped_handle, plain, stream_ordered, managed, page_locked, registered, ipc };

struct mapping {
    CUdeviceptr at = 0;
    std::size_t bytes = 0;
    soft_cuda::kind kind{};
    std::shared_ptr<frame> what;
    std::uint64_t id = 0;                     // no two mappings ever have the same
    CUmemGenericAllocationHandle handle = 0;  // mapped_handle
    std::vector<unsigned char> access;        // mapped_handle: by device, CUmemAccess_flags
    unsigned char cpu_access = 0;
    context* owner = nullptr;
    unsigned flags = 0;
    bool is_freed = false;  // stream_ordered: cuMemFreeAsync was called
    std::vector<managed_page> pages;

    [[nodiscard]] CUdeviceptr end() const noexcept { return at + bytes; }
};

// A stretch of memory as one device sees it.
struct sight {
    enum class answer { memory, unknown, fault };
    answer found = answer::unknown;
    std::shared_ptr<frame> hold;
    std::byte* window = nullptr;
    std::size_t bytes = 0;   // from there on
    std::size_t before = 0;  // and so many before it
    int place = -1;          // the device it lies on, -1 the host
    std::uint64_t mapping = 0;
};
enum class access_by { copy, kernel };

struct handle_record {
    std::shared_ptr<frame> what;
    unsigned refs = 1;
};

struct memory_table {
    std::map<CUdeviceptr, std::size_t> reservations;
    std::map<CUdeviceptr, mapping> mappings;
    std::map<CUmemGenericAllocationHandle, handle_record> handles;
    CUmemGenericAllocationHandle next_handle = 0x1000;
    std::uint64_t next_mapping = 1;
    std::uint64_t clock = 1;

    // The mapping over `at`, the reservation over it; end() for none.
    std::map<CUdeviceptr, mapping>::iterator over(CUdeviceptr at);
    std::map<CUdeviceptr, std::size_t>::iterator reserved_over(CUdeviceptr at);
    [[nodiscard]] bool is_free(CUdeviceptr at, std::size_t bytes);
    mapping& add(CUdeviceptr at, std::size_t bytes, soft_cuda::kind kind,
                 std::shared_ptr<frame> what);
};

extern std::mutex memory_lock;
[[nodiscard]] memory_table& table();  // (memory_lock)

// Changes whenever something is unmapped, freed or loses an access: what was seen before may be no more.
extern std::atomic<std::uint64_t> memory_epoch;
inline void bump_epoch() noexcept {
    // release: pairs with the acquire in the accessor.
    memory_epoch.fetch_add(1, std::memory_order_acq_rel);
}

// What `by` on that device sees at `at`. Managed memory moves as a kernel's access moves it. Takes memory_lock.
[[nodiscard]] sight look(int device, CUdeviceptr at, std::size_t bytes, bool write, access_by by);
// Is `at` the driver's: mapped, reserved, allocated, registered? Takes memory_lock.
[[nodiscard]] bool is_known(CUdeviceptr at);

// Address space that nobody can touch. `hint` where it is free, else elsewhere; nullptr: none left.
[[nodiscard]] std::byte* reserve_address(std::size_t bytes, std::size_t alignment,
                                         std::uintptr_t hint);
void close_address(CUdeviceptr at, std::size_t bytes);    // nobody can touch it, but it stays ours
void release_address(CUdeviceptr at, std::size_t bytes);  // anybody's again

[[nodiscard]] constexpr std::size_t round_up(std::size_t value, std::size_t step) noexcept {
    return (value + step - 1) / step * step;
}

// managed.cpp, all under memory_lock.
[[nodiscard]] std::size_t page_size_of(const mapping& in, std::size_t page) noexcept;
[[nodiscard]] int managed_touch(mapping& in, std::size_t page, int device, bool write);
void managed_drop(mapping& in);  // gives back what its pages hold on devices
[[nodiscard]] bool evict_managed(device& of, std::size_t amount);

// What a context's end takes with it: plain and stream-ordered memory, managed and page-locked memory.
void free_memory_of(context& owner);

}  // namespace soft_cuda
