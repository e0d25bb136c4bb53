// SPDX-License-Identifier: Apache-2.0
// vmm.hpp - CUDA devices whose frames we create and map ourselves, behind the operators of a backend.
//
// Model    One object for any number of devices and the host nodes beside them, over the driver API. Frames
//          of a device are handles of the driver; those of a host are shared memory of our own, or handles, too,
//          where that does not work here. Addresses are reservations of the driver's. Kernels are launched beside
//          the backend: launcher.hpp.
// Threads  Any thread may call any operator, with ranks above backend_queue held. The last call has returned
//          before the destructor starts; it lets the submitted work finish.
// Failure  As concepts/backend.hpp says. open() says why there is nothing to drive. A child of fork must not
//          call anything here.
// See      README.md for abilities and limits.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <vector>

#include <xmm/concepts/backend.hpp>

#include "../shared/device_driver.hpp"

#include "copy.hpp"
#include "device.hpp"
#include "frames.hpp"
#include "host_frames.hpp"
#include "page_locker.hpp"
#include "pmap.hpp"
#include "queue.hpp"

namespace xmm::cuda {

struct vmm_options {
    // The OS's number of each host node, in the order of host_ids; what is missing or -1 counts as 0.
    std::span<const int> host_numa;
    // Of each host node, in the same order: what xmm may think it has.
    std::span<const std::size_t> host_bytes;
    // Goes into the queue ids, below 4096: drivers that live at the same time need different ones. 0: one that no other
    // driver has that got it so.
    std::uint32_t queue_salt = 0;
    // Host frames are handles of the driver also where memory of our own would do: to compare the two.
    bool has_host_handles = false;
    // Of each device's link, each way; 0: what the kernel says, which virtual machines may hide.
    std::uint64_t link_bytes_per_second = 0;
};

class vmm : public shared::device_driver<device, node_memory, queue> {
public:
    // As many ids as ordinals (see find_devices), at least one host id; ids are process-wide and given from
    // outside. unsupported: no driver, or a device that cannot do it.
    [[nodiscard]] static result<std::unique_ptr<vmm>> open(
        std::span<const CUdevice> ordinals, std::span<const node_id> device_ids,
        std::span<const node_id> host_ids, const vmm_options& options = {}) noexcept {
        const driver& on = driver::instance();
        if (!on.state()) {
            return on.state();
        }
        if (ordinals.empty() || ordinals.size() > device::max_devices) {
            return fail(errc::unsupported, "from 1 to 32 CUDA devices are driven together");
        }
        try {
            std::unique_ptr<vmm> made{new vmm{on, device_ids, options.queue_salt}};
            const status outcome = made->build(ordinals, host_ids, options);
            return outcome ? result<std::unique_ptr<vmm>>{std::move(made)}
                           : result<std::unique_ptr<vmm>>{outcome};
        } catch (const std::bad_alloc&) {
            return fail(errc::no_memory, "the host has no memory for a driver");
        }
    }
    ~vmm() {
        queues_.end_all();
        are_queues_gone_.store(true,
                               std::memory_order_relaxed);  // relaxed: the drain below orders it
        locker_.drain();
        memories_.clear();  // before the locker
    }

    // ---- vendor

    // Host nodes are described too.
    [[nodiscard]] result<node_description> describe(node_id node) const noexcept {
        const node_memory* memory = find_memory(node);
        if (memory == nullptr) {
            return fail(errc::unknown_node, "not a node of this driver");
        }
        node_description about = describe_memory(*memory);
        const device* one = find_device(node);
        if (one == nullptr) {
            const bool is_ours = memory->ours() != nullptr;
            std::snprintf(about.name.data(), about.name.size(), "host memory %d, %s", node.value,
                          is_ours ? "shared memory" : "the driver's handles");
            // Page-locking fresh memory goes at 4.5 GB/s a thread, a twelfth of the link's rate; of either kind.
            about.kept_bytes = std::max(about.kept_bytes, about.bytes / 4);
            // The driver's, 32 MiB: 0.4 ms by mprotect, 0.9 to unmap them. Ours are in huge pages: microseconds.
            about.is_lowering_dear = !is_ours;
            return about;
        }
        if (!memory->state()) {
            return memory->state();
        }
        std::snprintf(about.name.data(), about.name.size(), "%s", one->name());
        about.is_lowering_dear = true;          // 37 us against 16 for clearing a mapping
        about.host_bytes_per_table_byte = 512;  // 8 bytes for each 4 KiB
        describe_device(*one, about);
        if (link_bytes_per_second_ != 0) {
            about.link_in_bytes_per_second = about.link_out_bytes_per_second =
                link_bytes_per_second_;
        }
        return about;
    }

    // A proposal may lie anywhere; a given range is claimed if the driver still has those very addresses.
    [[nodiscard]] result<va_range> va_examine(va_range range, std::size_t alignment) noexcept {
        if (const status able = check_proposal(range, alignment); !able) {
            return able;
        }
        va_range found;
        status outcome = reserve(range, alignment, found);
        if (outcome && range.begin == 0 && found.begin % alignment != 0) {
            // A driver that passes over the alignment: find room for it, then ask for the place in that room.
            va_release(found);
            outcome = reserve({0, range.bytes + alignment}, alignment, found);
            if (outcome) {
                va_release(found);
                range.begin = align_up(found.begin, alignment);
                outcome = reserve(range, alignment, found);
            }
        }
        if (!outcome) {
            return outcome;
        }
        const bool is_usable =
            found.begin % alignment == 0 && (found.end() - 1) >> shared::address_bits == 0;
        if ((range.begin != 0 && found.begin != range.begin) || !is_usable) {
            va_release(found);
            return fail(errc::busy, "the CUDA driver does not get these addresses");
        }
        return found;
    }
    // Nothing is mapped there any more. Where host frames are leaving still, a thread waits until they have.
    void va_release(va_range range) noexcept {
        if (!mappings_.settle(range)) {
            release_later(range);
            return;
        }
        XMM_ASSERT(!mappings_.has_any(range), "released a range that is still mapped");
        const context_scope nowhere{driver_, frame_context_};
        (void)driver_.call(&driver_api::mem_address_free, CUdeviceptr{range.begin}, range.bytes);
    }

    [[nodiscard]] result<queue_id> queue_create(node_id node, queue_priority priority) noexcept {
        const std::size_t index = device_index(node);
        if (index == devices_.size()) {
            return fail(errc::unknown_node, "a queue belongs to a device of this driver");
        }
        return queues_.take([&](queue& work, queue_id id) {
            return work.open(id, *devices_[index], *calls_[index], *events_[index], priority);
        });
    }
    [[nodiscard]] result<ticket> memcpy(queue_id id, std::span<const piece> pieces) noexcept {
        const auto seam = [this](address at) { return is_seam(at); };
        return submit(
            id, [&](CUstream stream) { return enqueue_copies(driver_, stream, pieces, seam); });
    }
    [[nodiscard]] result<ticket> zero(queue_id id, std::span<const va_range> ranges) noexcept {
        const auto seam = [this](address at) { return is_seam(at); };
        return submit(
            id, [&](CUstream stream) { return enqueue_zeros(driver_, stream, ranges, seam); });
    }
    // With all devices lost the CPU gets to the hosts' frames.
    [[nodiscard]] status wait(ticket point) noexcept {
        const status outcome = device_driver::wait(point);
        if (point.value != 0 && queues_.is_mine(point.queue)) {
            open_hosts_if_alone();
        }
        return outcome;
    }
    // busy while the stream is being captured; the capture goes on.
    [[nodiscard]] result<ticket> record(queue_id id) noexcept {
        auto point = device_driver::record(id);
        if (point.code() == errc::device_lost) {
            open_hosts_if_alone();
        }
        return point;
    }

    // ---- owns_frames

    // bytes is a whole number of pages, at most largest_frame_bytes. A handle's contents are undefined.
    [[nodiscard]] result<frame> frame_create(node_id node, std::size_t bytes) noexcept {
        check_frame(bytes);
        node_memory* memory = find_memory(node);
        if (memory == nullptr) {
            return fail(errc::unknown_node, "not a node of this driver");
        }
        device* one = find_device(node);
        if (one != nullptr && one->is_lost()) {
            return fail(errc::device_lost, "the CUDA device is lost");
        }
        const context_scope nowhere{driver_, frame_context_};
        return memory->create(bytes);
    }
    void frame_drop(frame f) noexcept {
        node_memory* memory = find_memory(f.node);
        XMM_ASSERT(memory != nullptr, "dropped a frame of another driver");
        const context_scope nowhere{driver_, frame_context_};
        memory->drop(f);
    }
    [[nodiscard]] progress pmap_enter(node_id node, std::span<const run> runs) noexcept {
        check_runs(runs);
        const context_scope nowhere{driver_, frame_context_};
        return mappings_.enter(accessor_of(node), runs, [&](const frame& backing) {
            if (find_device(backing.node) != nullptr) {
                return pmap::kind::device;
            }
            return has_own_host_frames() ? pmap::kind::ours : pmap::kind::host;
        });
    }
    // Ranges without a mapping are passed over.
    [[nodiscard]] progress pmap_clear(node_id node, std::span<const va_range> ranges) noexcept {
        check_ranges(ranges);
        const context_scope nowhere{driver_, frame_context_};
        return mappings_.clear(accessor_of(node), ranges);
    }

    // ---- beside the backend

    static constexpr const char* native_kind = "cuda/1";
    [[nodiscard]] vmm* native() noexcept { return this; }

    // A user's stream as a queue of its device: a launch there, and points in its work. The stream must
    // outlive it. The legacy stream (0) is that of the context that is current. The same stream twice is two
    // queues. unsupported: a stream of a context that is not the device's primary one.
    [[nodiscard]] result<queue_id> adopt(CUstream stream) noexcept {
        if (reinterpret_cast<std::uintptr_t>(stream) == stream_per_thread) {
            return fail(errc::unsupported, "the per-thread stream is another one on each thread");
        }
        const relaxed_capture quiet{driver_};
        CUcontext context = nullptr;
        if (const status asked = driver_.call(&driver_api::stream_get_ctx, stream, &context);
            !asked) {
            return asked;
        }
        for (std::size_t i = 0; i < devices_.size(); ++i) {
            if (devices_[i]->context() == context) {
                return queues_.take([&](queue& work, queue_id id) {
                    return work.adopt(id, *devices_[i], *calls_[i], *events_[i], stream);
                });
            }
        }
        return fail(errc::unsupported, "the stream belongs to no device of this driver");
    }
    void forget(queue_id id) noexcept { queue_destroy(id); }

    [[nodiscard]] CUstream stream_of(queue_id id) const noexcept {
        const queue* one = queues_.find(id);
        return one == nullptr ? nullptr : one->stream();
    }
    // The device that a queue belongs to; null if there is no such queue.
    [[nodiscard]] const device* device_of(queue_id id) const noexcept {
        const queue* one = queues_.find(id);
        return one == nullptr ? nullptr : &one->on();
    }
    // Of a device: what it has left, for whoever else is on it as well.
    [[nodiscard]] result<std::size_t> free_bytes(node_id node) const noexcept {
        const device* one = find_device(node);
        return one == nullptr ? fail(errc::unknown_node, "not a device of this driver")
                              : one->free_bytes();
    }
    // A file descriptor for another process; the caller closes it. The frame must not be dropped or moved while
    // others use it.
    [[nodiscard]] result<int> export_frame(const frame& f) const noexcept {
        int file = -1;
        const status outcome = export_as(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, f, &file);
        return outcome ? result<int>{file} : result<int>{outcome};
    }
    // The same by a name that processes on all machines of one NVLink fabric can import: 64 plain bytes.
    [[nodiscard]] result<CUmemFabricHandle> export_to_fabric(const frame& f) const noexcept {
        CUmemFabricHandle name{};
        const status outcome = export_as(CU_MEM_HANDLE_TYPE_FABRIC, f, &name);
        return outcome ? result<CUmemFabricHandle>{name} : result<CUmemFabricHandle>{outcome};
    }
    // Whether the frames of a device can be exported so; the driver was asked for one at the start.
    [[nodiscard]] bool is_on_fabric(node_id node) const noexcept {
        const node_memory* memory = find_memory(node);
        return memory != nullptr && memory->is_on_fabric();
    }
    // Whether network cards may be given the frames of a device.
    [[nodiscard]] bool is_rdma_capable(node_id node) const noexcept {
        const node_memory* memory = find_memory(node);
        return memory != nullptr && memory->is_rdma_capable();
    }
    // False: a device that enters a frame for reading could write it, since the driver knows no less. Host frames of
    // our own it could write in any case.
    [[nodiscard]] bool has_read_only_devices() const noexcept {
        return mappings_.has_read_only_devices();
    }
    // Whether host frames are shared memory of our own: all of them are, or none.
    [[nodiscard]] bool has_own_host_frames() const noexcept {
        return memories_[0]->ours() != nullptr;
    }
    // Why they are not; ok if they are, or were not asked for.
    [[nodiscard]] status why_no_own_host_frames() const noexcept { return own_host_state_; }
    // What a host's frames take of its memory; 0 where they are handles.
    [[nodiscard]] std::size_t bytes_in_use(node_id node) const noexcept {
        const node_memory* memory = find_memory(node);
        const host_frames* ours = memory == nullptr ? nullptr : memory->ours();
        return ours == nullptr ? 0 : ours->bytes_in_use();
    }

private:
    // Addresses that wait for frames to leave them.
    struct late_release {
        page_locker::errand job;
        vmm* owner = nullptr;
        va_range range;  // under the owner's lock_; empty: unused

        void run() noexcept {
            const va_range all = with(owner->lock_, [&] { return range; });
            owner->va_release(all);  // what left has been unlocked before, by the same thread
            with(owner->lock_, [&] { range = {}; });
        }
    };

    vmm(const driver& on, std::span<const node_id> device_ids, std::uint32_t queue_salt)
        : device_driver{device_ids, queue_salt}, driver_{on}, mappings_{on, locker_} {}

    // On the locker's thread. Streams under capture are passed over: nothing of theirs runs.
    static void await_work(void* self) noexcept {
        auto& me = *static_cast<vmm*>(self);
        if (me.are_queues_gone_.load(std::memory_order_relaxed)) {
            return;
        }
        me.queues_.for_each([](queue& one) {
            if (result<ticket> point = one.record()) {
                (void)one.wait(point->value);
            }
        });
    }

    status build(std::span<const CUdevice> ordinals, std::span<const node_id> host_ids,
                 const vmm_options& options) {
        XMM_ASSERT(ordinals.size() == device_ids_.size(), "one id for each device");
        XMM_ASSERT(!host_ids.empty(), "a driver needs a host node");
        std::vector<CUmemLocation> locations;
        for (std::size_t i = 0; i < ordinals.size(); ++i) {
            devices_.push_back(std::make_unique<device>(driver_, ordinals[i], device_ids_[i]));
            calls_.push_back(std::make_unique<call_thread>());
            events_.push_back(std::make_unique<event_stock>(event_source{devices_[i].get()}));
            if (const status opened = devices_[i]->open(); !opened) {
                return opened;
            }
            locations.push_back(devices_[i]->location());
        }
        find_frame_context();
        const context_scope nowhere{driver_, frame_context_};
        build_hosts(host_ids, locations, options);
        build_devices(locations);
        return {};
    }
    // Frames belong to no context, so none is current while they are made. A driver that wants one gets one.
    void find_frame_context() noexcept {
        const context_scope nowhere{driver_, nullptr};
        CUmemAllocationProp about{};
        about.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        about.location = devices_[0]->location();
        CUmemGenericAllocationHandle handle = 0;
        const status made = driver_.call(&driver_api::mem_create, &handle, page_bytes,
                                         static_cast<const CUmemAllocationProp*>(&about), 0ull);
        if (made) {
            (void)driver_.call(&driver_api::mem_release, handle);
        } else if (made.driver_code == static_cast<int>(CUDA_ERROR_INVALID_CONTEXT)) {
            frame_context_ = devices_[0]->context();
        }
    }
    // With a begin, that is what the driver is asked for; it may answer another one.
    [[nodiscard]] status reserve(va_range wanted, std::size_t alignment, va_range& found) noexcept {
        const context_scope nowhere{driver_, frame_context_};
        CUdeviceptr got = 0;
        const status reserved = driver_.call(&driver_api::mem_address_reserve, &got, wanted.bytes,
                                             alignment, CUdeviceptr{wanted.begin}, 0ull);
        found = {address{got}, wanted.bytes};
        return reserved ? status{}
                        : fail(errc::no_memory, "the CUDA driver has no such addresses",
                               reserved.driver_code);
    }
    void build_hosts(std::span<const node_id> ids, std::span<const CUmemLocation> reached_by,
                     const vmm_options& options) {
        set_hosts(ids.size(), options.host_numa);
        link_bytes_per_second_ = options.link_bytes_per_second;
        if (!options.has_host_handles) {
            own_host_state_ = build_own_hosts(ids, options);
            if (own_host_state_) {
                return;
            }
        }
        bool is_able = true;
        bool may_export = true;
        for (const auto& one : devices_) {
            is_able = is_able &&
                      one->has(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
            may_export = may_export && can_export(*one);
        }
        for (std::size_t i = 0; i < ids.size(); ++i) {
            memory_options wanted;
            wanted.node = ids[i];
            wanted.where = {CU_MEM_LOCATION_TYPE_HOST_NUMA, host_numa_[i]};
            wanted.bytes = bytes_of_host(i, options.host_bytes);
            wanted.reached_by = reached_by;
            wanted.may_export = may_export;
            memories_.push_back(std::make_unique<node_memory>(driver_, wanted));
            is_able = is_able && memories_.back()->state().is_ok();
        }
        if (is_able) {
            abilities_.add(ability::host_frames);
        }
    }
    // All hosts or none, so that what the CPU sees is of one kind everywhere.
    [[nodiscard]] status build_own_hosts(std::span<const node_id> ids, const vmm_options& options) {
        for (const auto& one : devices_) {
            if (!one->has(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM)) {
                return fail(errc::unsupported,
                            "the CUDA device reaches page-locked memory at other addresses");
            }
        }
        if (const status started = locker_.start(); !started) {
            return started;
        }
        std::vector<std::unique_ptr<node_memory>> made;
        bool can_split = true;
        for (std::size_t i = 0; i < ids.size(); ++i) {
            memory_options wanted;
            wanted.node = ids[i];
            wanted.bytes = bytes_of_host(i, options.host_bytes);
            auto ours = std::make_unique<host_frames>(driver_, locker_, wanted.node, host_numa_[i],
                                                      wanted.bytes);
            if (const status opened = ours->open(devices_[0]->location()); !opened) {
                return opened;
            }
            can_split = can_split && ours->can_split();
            made.push_back(std::make_unique<node_memory>(driver_, wanted, std::move(ours)));
        }
        memories_ = std::move(made);
        mappings_.set_split(can_split);
        abilities_.add(ability::host_frames);
        if (can_split) {
            abilities_.add(ability::split_cpu_view);
        }
        return {};
    }
    void build_devices(std::span<const CUmemLocation> all) {
        bool are_exportable = true;
        bool are_peers = devices_.size() > 1;
        for (const auto& one : devices_) {
            std::vector<CUmemLocation> reached_by;
            for (std::size_t i = 0; i < devices_.size(); ++i) {
                if (devices_[i]->can_reach(*one)) {
                    reached_by.push_back(all[i]);
                }
            }
            memory_options wanted;
            wanted.node = one->node();
            wanted.where = one->location();
            wanted.bytes = one->bytes();
            wanted.reached_by = reached_by;
            wanted.may_export = can_export(*one);
            wanted.may_rdma = one->has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
            wanted.may_fabric = one->has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
            memories_.push_back(std::make_unique<node_memory>(driver_, wanted));
            are_exportable = are_exportable && memories_.back()->is_exportable();
            are_peers = are_peers && reached_by.size() == devices_.size();
        }
        abilities_.add(ability::alias).add(ability::host_calls);
        if (are_exportable) {
            abilities_.add(ability::exportable);
        }
        if (are_peers) {
            abilities_.add(ability::peer);
        }
    }
    [[nodiscard]] status export_as(CUmemAllocationHandleType type, const frame& f,
                                   void* handle) const noexcept {
        const node_memory* memory = find_memory(f.node);
        if (memory != nullptr && memory->ours() != nullptr) {
            return fail(errc::unsupported, "host frames are this process's own memory: no handle");
        }
        if (memory == nullptr || !memory->has_handle_type(type)) {
            return fail(errc::unsupported, type == CU_MEM_HANDLE_TYPE_FABRIC
                                               ? "frames of this node are not on a fabric"
                                               : "frames of this node cannot be exported");
        }
        const context_scope nowhere{driver_, frame_context_};
        return driver_.call(&driver_api::mem_export_to_shareable_handle, handle,
                            CUmemGenericAllocationHandle{f.handle}, type, 0ull);
    }
    [[nodiscard]] static bool can_export(const device& one) noexcept {
        return one.has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
    }

    [[nodiscard]] pmap::accessor accessor_of(node_id node) const noexcept {
        const std::size_t i = device_index(node);
        XMM_ASSERT(i != devices_.size() || find_memory(node) != nullptr,
                   "not a node of this driver");
        return i == devices_.size() ? pmap::accessor{}
                                    : pmap::accessor{devices_[i].get(), static_cast<unsigned>(i)};
    }
    // Once the errands before it are done. With all slots taken the addresses are lost.
    void release_later(va_range range) noexcept {
        late_release* const one = with(lock_, [&]() -> late_release* {
            for (late_release& each : late_) {
                if (each.range.is_empty()) {
                    each.range = range;
                    return &each;
                }
            }
            return nullptr;
        });
        if (one != nullptr) {
            one->owner = this;
            one->job.context = one;
            one->job.run = [](void* self) noexcept { static_cast<late_release*>(self)->run(); };
            locker_.push(one->job);
        }
    }
    // Where one call must not go on: at the first address of what may be another host frame of our own.
    [[nodiscard]] bool is_seam(address at) const noexcept {
        if (at % page_bytes != 0) {
            return false;
        }
        for (std::size_t i = 0; i < host_numa_.size(); ++i) {
            const host_frames* ours = memories_[i]->ours();
            if (ours != nullptr && ours->contains(at)) {
                return true;
            }
        }
        return false;
    }
    // Without a device nobody copies for the floors above: the CPU has to, through the standing addresses.
    void open_hosts_if_alone() noexcept {
        for (const auto& one : devices_) {
            if (!one->is_lost()) {
                return;
            }
        }
        // relaxed: once is enough, and twice does no harm.
        if (!are_hosts_open_.exchange(true, std::memory_order_relaxed)) {
            for (std::size_t i = 0; i < host_numa_.size(); ++i) {
                memories_[i]->open_to_cpu();
            }
        }
    }

    const driver& driver_;
    std::atomic<bool> are_queues_gone_{false};
    page_locker locker_{driver_, devices_, {&await_work, this}};
    std::vector<std::unique_ptr<call_thread>> calls_;  // one a device
    std::vector<std::unique_ptr<event_stock>> events_;
    status own_host_state_;
    std::uint64_t link_bytes_per_second_ = 0;  // (C) once built; 0: the kernel's word
    CUcontext frame_context_ = nullptr;        // current while frames and addresses are dealt with
    pmap mappings_;
    std::atomic<bool> are_hosts_open_{false};
    ranked_mutex<lock_rank::backend_queue> lock_;  // of late_
    std::array<late_release, 64> late_;
};

static_assert(backend<vmm> && owns_frames<vmm>);
static_assert(makes_host_calls<vmm> && !takes_device_faults<vmm>);

}  // namespace xmm::cuda
