// SPDX-License-Identifier: Apache-2.0
// frames.hpp - the physical memory of one node: handles of the driver, each with a standing address.
//
// Model    A node has a window of device addresses, several times its size. A frame is one handle, mapped
//          there for every device that can reach it for as long as it lives, and for no CPU: the driver's
//          copies need none. What is created in a row lies in a row. A host's frames are memory of our own
//          instead, where that works: then all is handed on.
// Threads  Any. The window's own lock; the driver is called without it.
// Failure  create() is all or nothing. state() says why no frame can ever be made here.
// See      host_frames.hpp: memory of our own.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <xmm/core/types.hpp>

#include "../shared/address_window.hpp"

#include "device.hpp"
#include "host_frames.hpp"

namespace xmm::cuda {

// A reservation of the driver's, and which of its pages are in use.
class reserved_window : public shared::address_window {
public:
    explicit reserved_window(const driver& on) noexcept : driver_{on} {}
    ~reserved_window() {
        if (!range().is_empty()) {
            (void)driver_.call(&driver_api::mem_address_free, CUdeviceptr{range().begin},
                               range().bytes);
        }
    }
    reserved_window(const reserved_window&) = delete;
    reserved_window& operator=(const reserved_window&) = delete;

    [[nodiscard]] status open(std::size_t memory, std::size_t granularity) noexcept {
        const status outcome =
            shared::reserve_window(memory, granularity, [&](std::size_t bytes) -> status {
                CUdeviceptr at = 0;
                const status reserved = driver_.call(&driver_api::mem_address_reserve, &at, bytes,
                                                     page_bytes, CUdeviceptr{0}, 0ull);
                const status assigned = reserved ? assign({address{at}, bytes}) : reserved;
                if (reserved && !assigned) {
                    (void)driver_.call(&driver_api::mem_address_free, at, bytes);
                }
                return assigned;
            });
        return outcome ? outcome
                       : fail(errc::no_memory, "the CUDA driver has no addresses for frames",
                              outcome.driver_code);
    }

private:
    const driver& driver_;
};

struct memory_options {
    node_id node = no_node;
    CUmemLocation where{};
    std::size_t bytes = 0;
    std::span<const CUmemLocation> reached_by;  // the devices that map each frame
    bool may_export = false;                    // as file descriptors
    bool may_rdma = false;                      // by network cards
    bool may_fabric = false;                    // to other machines of one NVLink fabric
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
            (options.may_export ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                : CU_MEM_HANDLE_TYPE_NONE) |
            (options.may_fabric ? CU_MEM_HANDLE_TYPE_FABRIC : CU_MEM_HANDLE_TYPE_NONE);
        about_.allocFlags.gpuDirectRDMACapable = options.may_rdma ? 1 : 0;
        state_ = open();
    }
    // A host whose frames those are; they are open.
    node_memory(const driver& on, const memory_options& options, std::unique_ptr<host_frames> ours)
        : driver_{on},
          node_{options.node},
          bytes_{options.bytes},
          ours_{std::move(ours)},
          window_{on} {}
    node_memory(const node_memory&) = delete;
    node_memory& operator=(const node_memory&) = delete;

    [[nodiscard]] node_id node() const noexcept { return node_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] status state() const noexcept { return state_; }
    [[nodiscard]] std::size_t smallest_frame_bytes() const noexcept { return granularity_; }
    [[nodiscard]] bool has_handle_type(CUmemAllocationHandleType one) const noexcept {
        return (about_.requestedHandleTypes & one) != 0;
    }
    [[nodiscard]] bool is_exportable() const noexcept {
        return has_handle_type(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    }
    [[nodiscard]] bool is_on_fabric() const noexcept {
        return has_handle_type(CU_MEM_HANDLE_TYPE_FABRIC);
    }
    [[nodiscard]] bool is_rdma_capable() const noexcept {
        return about_.allocFlags.gpuDirectRDMACapable != 0;
    }
    // Null where frames are the driver's handles.
    [[nodiscard]] const host_frames* ours() const noexcept { return ours_.get(); }

    [[nodiscard]] result<frame> create(std::size_t bytes) noexcept {
        if (!state_) {
            return state_;
        }
        if (ours_ != nullptr) {
            return ours_->create(bytes);
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
        if (ours_ != nullptr) {
            ours_->drop(f);
            return;
        }
        XMM_ASSERT(window_.range().contains(f.standing), "dropped a frame of another node");
        if (driver_.call(&driver_api::mem_unmap, CUdeviceptr{f.standing}, f.bytes)) {
            window_.give(f.standing, f.bytes);
        }
        (void)driver_.call(&driver_api::mem_release, CUmemGenericAllocationHandle{f.handle});
    }

    // Lets the CPU reach the standing addresses, of frames to come as well: once no device is left to copy. Those
    // of our own it always does.
    void open_to_cpu() noexcept {
        if (ours_ != nullptr) {
            return;
        }
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
        if (const status opened = window_.open(bytes_, granularity_); !opened) {
            return opened;
        }
        return probe();
    }
    void drop_handle_type(CUmemAllocationHandleType one) noexcept {
        about_.requestedHandleTypes =
            static_cast<CUmemAllocationHandleType>(about_.requestedHandleTypes & ~one);
    }
    // Abilities that are advertised may be refused all the same: by a sandbox, in a container, or where no IMEX channel
    // leads into the fabric.
    [[nodiscard]] status probe() noexcept {
        while (true) {
            CUmemGenericAllocationHandle handle = 0;
            status made =
                driver_.call(&driver_api::mem_create, &handle, granularity_, &about_, 0ull);
            if (made) {
                if (is_on_fabric()) {
                    CUmemFabricHandle name;
                    made = driver_.call(&driver_api::mem_export_to_shareable_handle,
                                        static_cast<void*>(&name), handle,
                                        CU_MEM_HANDLE_TYPE_FABRIC, 0ull);
                }
                (void)driver_.call(&driver_api::mem_release, handle);
            }
            if (made || made.code == errc::no_memory) {
                return {};
            }
            if (is_on_fabric()) {
                drop_handle_type(CU_MEM_HANDLE_TYPE_FABRIC);
            } else if (is_rdma_capable()) {
                about_.allocFlags.gpuDirectRDMACapable = 0;
            } else if (is_exportable()) {
                drop_handle_type(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
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
    const std::unique_ptr<host_frames> ours_;
    CUmemAllocationProp about_{};  // (C) once open, as are the next two
    std::size_t granularity_ = page_bytes;
    status state_;
    reserved_window window_;
    std::atomic<bool> is_open_to_cpu_{false};
};

}  // namespace xmm::cuda
