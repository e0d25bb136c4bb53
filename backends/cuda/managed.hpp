// SPDX-License-Identifier: Apache-2.0
// managed.hpp - CUDA devices over memory whose pages the driver owns and moves when told.
//
// Model    A range is one managed allocation. Devices, queues, tickets, copies and launches are those of a vmm that it
//          holds and that never makes a frame; kernels are launched through its streams. place() is a prefetch,
//          discard() what the driver calls by that name. Who prefers a host is also told that all devices access it:
//          then they map a host's page where it is, and none comes to a device unless placed there.
// Threads  As vmm. The lock, rank backend_queue, guards the list of allocations, never across a call of the driver.
// Failure  As concepts/backend.hpp says. What a failed place() or advise() had passed on by then stays; both may be
//          repeated. An allocation that the driver does not take back, since its device is lost, stays reserved.
// See      managed.md for abilities and limits.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include <xmm/concepts/backend.hpp>
#include <xmm/core/lock.hpp>

#include "../shared/claims.hpp"
#include "../shared/runs.hpp"

#include "vmm.hpp"

namespace xmm::cuda {

class managed {
public:
    // As vmm::open. unsupported, too: a device that cannot use managed memory while the CPU does.
    [[nodiscard]] static result<std::unique_ptr<managed>> open(
        std::span<const CUdevice> ordinals, std::span<const node_id> device_ids,
        std::span<const node_id> host_ids, const vmm_options& options = {}) noexcept {
        auto inner = vmm::open(ordinals, device_ids, host_ids, options);
        if (!inner) {
            return inner.error();
        }
        try {
            std::unique_ptr<managed> made{new managed{std::move(*inner), host_ids, options}};
            const status outcome = made->find_devices_of_queues();
            return outcome ? result<std::unique_ptr<managed>>{std::move(made)}
                           : result<std::unique_ptr<managed>>{outcome};
        } catch (const std::bad_alloc&) {
            return fail(errc::no_memory, "the host has no memory for a driver");
        }
    }
    ~managed() {
        for (const queue_id one : own_queues_) {
            vmm_->queue_destroy(one);
        }
    }
    managed(const managed&) = delete;
    managed& operator=(const managed&) = delete;

    // ---- vendor

    [[nodiscard]] std::span<const node_id> nodes() const noexcept { return vmm_->nodes(); }
    // Host nodes are described too.
    [[nodiscard]] result<node_description> describe(node_id node) const noexcept {
        auto about = vmm_->describe(node);
        if (about) {
            about->able = {};
            about->able.add(ability::moves_under_access)
                .add(ability::concurrent_access)
                .add(ability::cpu_coherent)
                .add(ability::split_views)
                .add(ability::host_calls);
            about->kept_bytes = 0;
            about->host_bytes_per_table_byte = 0;
            about->is_lowering_dear = false;
        }
        return about;
    }

    // Managed memory lies where the driver puts it: a given range is declined.
    [[nodiscard]] result<va_range> va_examine(va_range range, std::size_t alignment) noexcept {
        XMM_ASSERT(
            range.bytes != 0 && range.bytes % page_bytes == 0 && range.begin % page_bytes == 0,
            "a range is a whole number of pages");
        alignment = std::max(alignment, page_bytes);
        XMM_ASSERT((alignment & (alignment - 1)) == 0, "an alignment is a power of two");
        if (range.begin != 0) {
            return fail(errc::unsupported, "the CUDA driver chooses where managed memory lies");
        }
        if ((range.bytes | alignment) >> shared::address_bits != 0) {
            return fail(errc::no_memory, "more than 48 bits of addresses");
        }
        auto base = allocate_aligned(range.bytes, alignment);
        if (!base) {
            return base.error();
        }
        const va_range found{align_up(*base, alignment), range.bytes};
        if (const status noted = claims_.add(found, {*base, range.bytes}); !noted) {
            drop(*base);
            return noted;
        }
        return found;
    }
    // Nobody uses it any more. Waits for the work of the devices, as the driver does.
    void va_release(va_range range) noexcept { drop(claims_.remove(range).begin); }

    [[nodiscard]] result<queue_id> queue_create(node_id node, queue_priority priority) noexcept {
        return vmm_->queue_create(node, priority);
    }
    void queue_destroy(queue_id id) noexcept { vmm_->queue_destroy(id); }
    [[nodiscard]] result<ticket> memcpy(queue_id id, std::span<const piece> pieces) noexcept {
        return vmm_->memcpy(id, pieces);
    }
    [[nodiscard]] result<ticket> zero(queue_id id, std::span<const va_range> ranges) noexcept {
        return vmm_->zero(id, ranges);
    }
    [[nodiscard]] bool is_done(ticket point) const noexcept { return vmm_->is_done(point); }
    [[nodiscard]] status wait(ticket point) noexcept { return vmm_->wait(point); }
    [[nodiscard]] result<ticket> record(queue_id id) noexcept { return vmm_->record(id); }
    [[nodiscard]] status make_wait(queue_id id, ticket point) noexcept {
        return vmm_->make_wait(id, point);
    }

    // ---- steers_driver

    // Ranges that lie in a row are one call. A page that is there already stays.
    [[nodiscard]] result<ticket> place(queue_id id, std::span<const va_range> ranges,
                                       node_id node) noexcept {
        const CUmemLocation to = location_of(node);
        if (to.type == CU_MEM_LOCATION_TYPE_INVALID) {
            return fail(errc::unknown_node, "not a node of this driver");
        }
        return submit(id, [&](CUstream stream) {
            return shared::for_each_run(ranges, shared::no_seams, [&](va_range all) {
                return driver_.call(&driver_api::mem_prefetch_async, CUdeviceptr{all.begin},
                                    all.bytes, to, 0u, stream);
            });
        });
    }
    // At once, not in the order of any queue. The node counts for `preferred` alone.
    [[nodiscard]] status advise(std::span<const va_range> ranges, driver_advice what,
                                node_id node) noexcept {
        CUmemLocation where = location_of(node);
        if (where.type == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
            // A NUMA node is accepted as preferred, and forgotten (driver 580): the host as a whole is remembered.
            where = {CU_MEM_LOCATION_TYPE_HOST, 0};
        }
        if (what == driver_advice::preferred && where.type == CU_MEM_LOCATION_TYPE_INVALID) {
            return fail(errc::unknown_node, "not a node of this driver");
        }
        return shared::for_each_run(ranges, shared::no_seams, [&](va_range all) {
            constexpr CUmemLocation nowhere{CU_MEM_LOCATION_TYPE_HOST, 0};
            switch (what) {
                case driver_advice::read_mostly: {
                    const status told = tell(all, CU_MEM_ADVISE_SET_READ_MOSTLY, nowhere);
                    // Of pages that devices are told to map, the copies take 25 times as long to go (measured).
                    return told ? tell_devices(all, CU_MEM_ADVISE_UNSET_ACCESSED_BY) : told;
                }
                case driver_advice::unset_read_mostly:
                    return tell(all, CU_MEM_ADVISE_UNSET_READ_MOSTLY, nowhere);
                case driver_advice::preferred: {
                    const status told = tell(all, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, where);
                    const bool is_host = where.type != CU_MEM_LOCATION_TYPE_DEVICE;
                    return told && is_host ? tell_devices(all, CU_MEM_ADVISE_SET_ACCESSED_BY)
                                           : told;
                }
                case driver_advice::mapped_in_place:
                    return tell_devices(all, CU_MEM_ADVISE_SET_ACCESSED_BY);
                case driver_advice::unset_preferred: {
                    const status told = tell(all, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, nowhere);
                    return told ? tell_devices(all, CU_MEM_ADVISE_UNSET_ACCESSED_BY) : told;
                }
            }
            return fail(errc::invalid_argument, "no such advice");
        });
    }
    // Where each range was placed last as a whole; no_node: never, or in several places. That is what the driver was
    // told, not where the pages are: touches of the CPU and of kernels may have moved them since.
    [[nodiscard]] status residency(std::span<const va_range> ranges,
                                   std::span<node_id> where) noexcept {
        XMM_ASSERT(where.size() >= ranges.size(), "one answer for each range");
        const context_scope here{driver_, usable_device().context()};
        for (std::size_t i = 0; i < ranges.size(); ++i) {
            std::array<int, 2> found{CU_MEM_LOCATION_TYPE_INVALID, 0};
            std::array<void*, 2> to{&found[0], &found[1]};
            std::array<std::size_t, 2> bytes{sizeof(int), sizeof(int)};
            std::array<CUmem_range_attribute, 2> which{
                CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE,
                CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID};
            const status asked = driver_.call(&driver_api::mem_range_get_attributes, to.data(),
                                              bytes.data(), which.data(), to.size(),
                                              CUdeviceptr{ranges[i].begin}, ranges[i].bytes);
            if (!asked) {
                return asked;
            }
            where[i] = node_of({static_cast<CUmemLocationType>(found[0]), found[1]});
        }
        return {};
    }
    // unsupported before CUDA 13.
    [[nodiscard]] result<ticket> discard(queue_id id, std::span<const va_range> ranges) noexcept {
        if (!driver_.has(&driver_api::mem_discard_batch_async)) {
            return fail(errc::unsupported, "this CUDA driver discards no managed memory");
        }
        return submit(id, [&](CUstream stream) {
            return shared::for_each_run(ranges, shared::no_seams, [&](va_range all) {
                CUdeviceptr at{all.begin};
                std::size_t bytes = all.bytes;
                return driver_.call(&driver_api::mem_discard_batch_async, &at, &bytes,
                                    std::size_t{1}, 0ull, stream);
            });
        });
    }

    // ---- beside them

    // As vmm: on a thread of ours, in queue order.
    [[nodiscard]] result<ticket> call(queue_id id, void (*fn)(void*) noexcept,
                                      void* context) noexcept {
        return vmm_->call(id, fn, context);
    }
    [[nodiscard]] result<std::size_t> free_bytes(node_id node) const noexcept {
        return vmm_->free_bytes(node);
    }
    // Kernels are launched as beside vmm: through cuda::stream, over this one.
    static constexpr const char* native_kind = vmm::native_kind;
    [[nodiscard]] vmm* native() noexcept { return vmm_.get(); }
    [[nodiscard]] bool is_lost(node_id node) const noexcept { return vmm_->is_lost(node); }

private:
    struct host {
        node_id id;
        int numa = -1;
    };

    managed(std::unique_ptr<vmm> inner, std::span<const node_id> host_ids,
            const vmm_options& options)
        : driver_{driver::instance()}, vmm_{std::move(inner)} {
        for (std::size_t i = 0; i < host_ids.size(); ++i) {
            hosts_.push_back(
                {host_ids[i], i < options.host_numa.size() ? options.host_numa[i] : 0});
        }
    }
    // A queue of each device, kept: calls that belong to none need the device's context.
    status find_devices_of_queues() {
        for (const node_id id : vmm_->nodes()) {
            auto made = vmm_->queue_create(id, queue_priority::normal);
            if (!made) {
                return made.error();
            }
            own_queues_.push_back(*made);
            devices_.push_back(vmm_->device_of(*made));
            if (!devices_.back()->has(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) ||
                !devices_.back()->has(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)) {
                return fail(errc::unsupported,
                            "the CUDA device cannot use managed memory while the CPU does",
                            CUDA_ERROR_NOT_SUPPORTED);
            }
        }
        return {};
    }

    // A device whose context still works, if there is one.
    [[nodiscard]] const device& usable_device() const noexcept {
        const auto found = std::find_if(devices_.begin(), devices_.end(),
                                        [](const device* one) { return !one->is_lost(); });
        return found == devices_.end() ? *devices_[0] : **found;
    }
    [[nodiscard]] CUmemLocation location_of(node_id node) const noexcept {
        for (const device* one : devices_) {
            if (one->node() == node) {
                return one->location();
            }
        }
        for (const host& one : hosts_) {
            // Of one host, that: what was placed as HOST and as HOST_NUMA is told as two places.
            const bool is_meant = one.id == node || (node == any_host && hosts_.size() == 1);
            if (is_meant && one.numa >= 0) {
                return {CU_MEM_LOCATION_TYPE_HOST_NUMA, one.numa};
            }
            if (one.id == node || node == any_host) {
                return {CU_MEM_LOCATION_TYPE_HOST, 0};
            }
        }
        return {CU_MEM_LOCATION_TYPE_INVALID, 0};
    }
    [[nodiscard]] node_id node_of(CUmemLocation where) const noexcept {
        if (where.type == CU_MEM_LOCATION_TYPE_DEVICE) {
            for (const device* one : devices_) {
                if (one->ordinal() == where.id) {
                    return one->node();
                }
            }
        }
        for (const host& one : hosts_) {
            if (where.type == CU_MEM_LOCATION_TYPE_HOST ||
                (where.type == CU_MEM_LOCATION_TYPE_HOST_NUMA && where.id == one.numa)) {
                return one.id;
            }
        }
        return no_node;
    }

    [[nodiscard]] result<address> allocate(std::size_t bytes) noexcept {
        const context_scope here{driver_, usable_device().context()};
        CUdeviceptr got = 0;
        const status made = driver_.call(&driver_api::mem_alloc_managed, &got, bytes,
                                         static_cast<unsigned>(CU_MEM_ATTACH_GLOBAL));
        return made ? result<address>{address{got}} : result<address>{made};
    }
    // The first multiple of the alignment in it begins so many bytes.
    [[nodiscard]] result<address> allocate_aligned(std::size_t bytes,
                                                   std::size_t alignment) noexcept {
        // The driver passes over alignments beyond its own. Addresses beside the range are never touched, and cost
        // nothing; what turns out to lie wrong could only be freed, which waits for the devices, under locks of ours.
        if (alignment > page_bytes) {
            return allocate(bytes + alignment);
        }
        auto base = allocate(bytes);
        if (!base || *base % alignment == 0) {
            return base;
        }
        drop(*base);
        return allocate(bytes + alignment);
    }
    void drop(address base) noexcept {
        const context_scope here{driver_, usable_device().context()};
        (void)driver_.call(&driver_api::mem_free, CUdeviceptr{base});
    }
    [[nodiscard]] status tell(va_range all, CUmem_advise what, CUmemLocation where) noexcept {
        const context_scope here{driver_, usable_device().context()};
        return driver_.call(&driver_api::mem_advise, CUdeviceptr{all.begin}, all.bytes, what,
                            where);
    }
    [[nodiscard]] status tell_devices(va_range all, CUmem_advise what) noexcept {
        for (const device* one : devices_) {
            if (one->is_lost()) {
                continue;
            }
            if (const status told = tell(all, what, one->location()); !told) {
                return told;
            }
        }
        return {};
    }
    // A ticket behind what was enqueued. The first point refuses a stream that is being captured, which a move would
    // break, and one whose device is lost.
    template <class Enqueue>
    [[nodiscard]] result<ticket> submit(queue_id id, Enqueue&& enqueue) noexcept {
        if (auto able = vmm_->record(id); !able) {
            return able;
        }
        status outcome;
        {
            const context_scope here{driver_, vmm_->device_of(id)->context()};
            outcome = enqueue(vmm_->stream_of(id));
        }
        auto point = vmm_->record(id);
        if (outcome) {
            return point;
        }
        if (point) {
            (void)vmm_->wait(*point);
        }
        return outcome;
    }

    const driver& driver_;
    const std::unique_ptr<vmm> vmm_;
    std::vector<host> hosts_;           // (C) once built, as are the next two
    std::vector<queue_id> own_queues_;  // one a device
    std::vector<const device*> devices_;
    shared::claims claims_;  // of each range, where its allocation begins
};

static_assert(backend<managed> && steers_driver<managed> && !owns_frames<managed>);
static_assert(makes_host_calls<managed> && !takes_device_faults<managed>);
static_assert(measures_free_memory<managed>);

}  // namespace xmm::cuda
