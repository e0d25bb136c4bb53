// SPDX-License-Identifier: Apache-2.0
// frames.hpp - the physical memory of one node: handles of the driver, each with a standing address.
//
// Model    A node has a window of device addresses, several times its size. A frame is one handle, mapped
//          there for every device that can reach it for as long as it lives, and for no CPU: the driver's
//          copies need none. What is created in a row lies in a row.
// Threads  Any. One lock guards the bitmap of the window: rank backend_queue; the driver is called
//          without it.
// Failure  create() is all or nothing. open() says why no frame can ever be made here.
#pragma once

#include <algorithm>
#include <bit>
#include <new>
#include <span>
#include <vector>

#include <xmm/core/lock.hpp>
#include <xmm/core/types.hpp>

#include "device.hpp"

namespace xmm::cuda {

// Runs of pages in one reservation of the driver's; next fit.
class address_window {
public:
    explicit address_window(const driver& on) noexcept : driver_{on} {}
    ~address_window() {
        if (!range_.is_empty()) {
            (void)driver_.call(&driver_api::mem_address_free, CUdeviceptr{range_.begin},
                               range_.bytes);
        }
    }
    address_window(const address_window&) = delete;
    address_window& operator=(const address_window&) = delete;

    // Takes less, down to an eighth, where the driver has less. Throws std::bad_alloc.
    [[nodiscard]] status open(std::size_t bytes) {
        status outcome;
        for (const std::size_t least = bytes / 8; bytes >= least && bytes >= page_bytes;
             bytes = align_down(bytes / 2, page_bytes)) {
            CUdeviceptr at = 0;
            outcome = driver_.call(&driver_api::mem_address_reserve, &at, bytes, page_bytes,
                                   CUdeviceptr{0}, 0ull);
            if (outcome) {
                range_ = {address{at}, bytes};
                used_.assign((bytes / page_bytes + 63) / 64, 0);
                return {};
            }
        }
        return fail(errc::no_memory, "the CUDA driver has no addresses for frames",
                    outcome.driver_code);
    }
    [[nodiscard]] va_range range() const noexcept { return range_; }

    // 0 if no run of that many bytes is free.
    [[nodiscard]] address take(std::size_t bytes) noexcept {
        const std::size_t pages = bytes / page_bytes;
        std::lock_guard hold{lock_};
        std::size_t first = find_run(cursor_, page_count(), pages);
        if (first == page_count()) {
            first = find_run(0, page_count(), pages);
        }
        if (first == page_count()) {
            return 0;
        }
        mark(first, pages);
        cursor_ = first + pages;
        return range_.begin + first * page_bytes;
    }
    void give(address at, std::size_t bytes) noexcept {
        std::lock_guard hold{lock_};
        XMM_ASSERT(is_used((at - range_.begin) / page_bytes), "a frame was dropped twice");
        mark((at - range_.begin) / page_bytes, bytes / page_bytes);
    }
    // visit(va_range) for each stretch that is in use.
    template <class Visit>
    void for_each_run(Visit&& visit) noexcept {
        std::lock_guard hold{lock_};
        for (std::size_t page = 0; page < page_count();) {
            std::size_t end = page;
            while (end < page_count() && is_used(end)) {
                ++end;
            }
            if (end != page) {
                visit(va_range{range_.begin + page * page_bytes, (end - page) * page_bytes});
            }
            page = end + 1;
        }
    }

private:
    [[nodiscard]] std::size_t page_count() const noexcept { return range_.bytes / page_bytes; }
    [[nodiscard]] bool is_used(std::size_t page) const noexcept {
        return (used_[page / 64] >> (page % 64) & 1) != 0;
    }
    void mark(std::size_t first, std::size_t pages) noexcept {
        for (std::size_t page = first; page < first + pages; ++page) {
            used_[page / 64] ^= std::uint64_t{1} << (page % 64);
        }
    }
    [[nodiscard]] std::size_t find_run(std::size_t from, std::size_t to,
                                       std::size_t pages) const noexcept {
        for (std::size_t at = from, run = 0; at < to; ++at) {
            if (at % 64 == 0 && used_[at / 64] == ~std::uint64_t{0}) {
                run = 0;
                at += 63;
                continue;
            }
            run = is_used(at) ? 0 : run + 1;
            if (run == pages) {
                return at + 1 - pages;
            }
        }
        return page_count();
    }

    const driver& driver_;
    va_range range_;  // (C) once open
    ranked_mutex<lock_rank::backend_queue> lock_;
    std::vector<std::uint64_t> used_;  // under lock_, as is the next
    std::size_t cursor_ = 0;
};

struct memory_options {
    node_id node = no_node;
    CUmemLocation where{};
    std::size_t bytes = 0;
    std::span<const CUmemLocation> reached_by;  // the devices that map each frame
    bool may_export = false;                    // as file descriptors
    bool may_rdma = false;                      // by network cards
};

class node_memory {
public:
    node_memory(const driver& on, const memory_options& options)
        : driver_{on},
          node_{options.node},
          bytes_{options.bytes},
          reached_by_(options.reached_by.begin(), options.reached_by.end()),
          window_{on} {
        about_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        about_.location = options.where;
        about_.requestedHandleTypes =
            options.may_export ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
        about_.allocFlags.gpuDirectRDMACapable = options.may_rdma ? 1 : 0;
        state_ = open();
    }
    node_memory(const node_memory&) = delete;
    node_memory& operator=(const node_memory&) = delete;

    [[nodiscard]] node_id node() const noexcept { return node_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] status state() const noexcept { return state_; }
    [[nodiscard]] std::size_t smallest_frame_bytes() const noexcept { return granularity_; }
    [[nodiscard]] bool is_exportable() const noexcept {
        return about_.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;
    }
    [[nodiscard]] bool is_rdma_capable() const noexcept {
        return about_.allocFlags.gpuDirectRDMACapable != 0;
    }

    [[nodiscard]] result<frame> create(std::size_t bytes) noexcept {
        if (!state_) {
            return state_;
        }
        if (bytes % granularity_ != 0) {
            return fail(errc::unsupported, "this device's frames are larger than a page");
        }
        const address standing = window_.take(bytes);
        if (standing == 0) {
            return fail(errc::no_memory, "no addresses are left for another frame of this node");
        }
        CUmemGenericAllocationHandle handle = 0;
        if (const status made =
                driver_.call(&driver_api::mem_create, &handle, bytes, &about_, 0ull);
            !made) {
            window_.give(standing, bytes);
            return made;
        }
        if (const status stood = stand(standing, bytes, handle); !stood) {
            (void)driver_.call(&driver_api::mem_release, handle);
            window_.give(standing, bytes);
            return stood;
        }
        return frame{handle, standing, bytes, node_, false};
    }
    // What the driver refuses to take back after the loss of a device stays as it is, addresses included.
    void drop(const frame& f) noexcept {
        XMM_ASSERT(window_.range().contains(f.standing), "dropped a frame of another node");
        if (driver_.call(&driver_api::mem_unmap, CUdeviceptr{f.standing}, f.bytes)) {
            window_.give(f.standing, f.bytes);
        }
        (void)driver_.call(&driver_api::mem_release, CUmemGenericAllocationHandle{f.handle});
    }

    // Lets the CPU reach the standing addresses, of frames to come as well: once no device is left to copy.
    void open_to_cpu() noexcept {
        is_open_to_cpu_.store(true, std::memory_order_seq_cst);  // before the walk: see stand()
        window_.for_each_run([&](va_range run) { grant_cpu(run); });
    }

private:
    [[nodiscard]] status open() {
        granularity_ = page_bytes;
        std::size_t said = 0;
        if (const status asked = driver_.call(&driver_api::mem_get_allocation_granularity, &said,
                                              &about_, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
            asked) {
            granularity_ = std::max(page_bytes, std::bit_ceil(said));
        }
        // Addresses cost nothing, and with four times as many a run is always found.
        const std::size_t wanted = align_up(4 * bytes_, granularity_);
        if (const status opened = window_.open(std::max(wanted, 2 * largest_frame_bytes));
            !opened) {
            return opened;
        }
        return probe();
    }
    // Abilities that are advertised may be refused all the same: by a sandbox, or in a container.
    [[nodiscard]] status probe() noexcept {
        while (true) {
            CUmemGenericAllocationHandle handle = 0;
            const status made =
                driver_.call(&driver_api::mem_create, &handle, granularity_, &about_, 0ull);
            if (made || made.code == errc::no_memory) {
                if (made) {
                    (void)driver_.call(&driver_api::mem_release, handle);
                }
                return {};
            }
            if (is_rdma_capable()) {
                about_.allocFlags.gpuDirectRDMACapable = 0;
            } else if (is_exportable()) {
                about_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
            } else {
                return made;
            }
        }
    }
    [[nodiscard]] status stand(address at, std::size_t bytes,
                               CUmemGenericAllocationHandle handle) noexcept {
        const CUdeviceptr standing{at};
        status outcome =
            driver_.call(&driver_api::mem_map, standing, bytes, std::size_t{0}, handle, 0ull);
        if (!outcome) {
            return outcome;
        }
        std::array<CUmemAccessDesc, device::max_devices> all;
        const std::size_t count = std::min(all.size(), reached_by_.size());
        for (std::size_t i = 0; i < count; ++i) {
            all[i] = {reached_by_[i], CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        }
        outcome = driver_.call(&driver_api::mem_set_access, standing, bytes,
                               static_cast<const CUmemAccessDesc*>(all.data()), count);
        if (!outcome) {
            (void)driver_.call(&driver_api::mem_unmap, standing, bytes);
            return outcome;
        }
        // seq_cst on both sides: either the walk sees this frame's pages, or we see that it began.
        if (is_open_to_cpu_.load(std::memory_order_seq_cst)) {
            grant_cpu({at, bytes});
        }
        return {};
    }
    void grant_cpu(va_range range) const noexcept {
        const CUmemAccessDesc cpu{{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        (void)driver_.call(&driver_api::mem_set_access, CUdeviceptr{range.begin}, range.bytes, &cpu,
                           std::size_t{1});
    }

    const driver& driver_;
    const node_id node_;
    const std::size_t bytes_;
    const std::vector<CUmemLocation> reached_by_;
    CUmemAllocationProp about_{};  // (C) once open, as are the next two
    std::size_t granularity_ = page_bytes;
    status state_;
    address_window window_;
    std::atomic<bool> is_open_to_cpu_{false};
};

}  // namespace xmm::cuda
