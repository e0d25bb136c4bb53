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
    // Goes into the queue ids (12 bits): drivers that live at the same time need different ones.
    std::uint32_t queue_salt = 1;
    // Host frames are handles of the driver also where memory of our own would do: to compare the two.
    bool has_host_handles = false;
};

class vmm {
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
        for (queue_slot& one : *slots_) {
            if (one.is_taken) {
                std::lock_guard hold{one.ending};
                one.work.close();
            }
        }
        are_queues_gone_.store(true,
                               std::memory_order_relaxed);  // relaxed: the drain below orders it
        locker_.drain();
    }
    vmm(const vmm&) = delete;
    vmm& operator=(const vmm&) = delete;

    // ---- vendor

    [[nodiscard]] std::span<const node_id> nodes() const noexcept { return device_ids_; }

    // Host nodes are described too.
    [[nodiscard]] result<node_description> describe(node_id node) const noexcept {
        const node_memory* memory = find_memory(node);
        if (memory == nullptr) {
            return fail(errc::unknown_node, "not a node of this driver");
        }
        node_description about;
        about.bytes = align_down(memory->bytes(), page_bytes);
        about.smallest_frame_bytes = memory->smallest_frame_bytes();
        about.able = abilities_;
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
        about.headroom_bytes =
            std::min(std::max(std::size_t{512} << 20, about.bytes / 50), about.bytes / 8);
        while (about.granule_bytes > about.smallest_frame_bytes &&
               about.granule_bytes > about.bytes / 16) {
            about.granule_bytes /= 2;
        }
        about.link_in_bytes_per_second = about.link_out_bytes_per_second =
            one->link_bytes_per_second();
        about.nearest_host = nearest_host(*one);
        return about;
    }

    // A proposal may lie anywhere; a given range is claimed if the driver still has those very addresses.
    [[nodiscard]] result<va_range> va_examine(va_range range, std::size_t alignment) noexcept {
        XMM_ASSERT(
            range.bytes != 0 && range.bytes % page_bytes == 0 && range.begin % page_bytes == 0,
            "a range is a whole number of pages");
        alignment = std::max(alignment, page_bytes);
        XMM_ASSERT((alignment & (alignment - 1)) == 0, "an alignment is a power of two");
        if (range.bytes >> mapping_table::address_bits != 0) {
            return fail(errc::no_memory, "more than 48 bits of addresses");
        }
        if (range.begin % alignment != 0) {
            return fail(errc::unsupported, "the range is not aligned as asked");
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
            found.begin % alignment == 0 && (found.end() - 1) >> mapping_table::address_bits == 0;
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
        return take_slot([&](queue& work, queue_id id) {
            return work.open(id, *devices_[index], *calls_[index], priority);
        });
    }
    // Lets the submitted work finish; an adopted stream stays its owner's. Not from a host call of that queue.
    void queue_destroy(queue_id id) noexcept {
        queue_slot& slot = slot_of(id);
        XMM_ASSERT(slot.id.load(std::memory_order_relaxed) == id.value,
                   "destroyed a queue that is gone");
        slot.id.store(0, std::memory_order_relaxed);
        with(slot.ending, [&] { slot.work.close(); });
        with(lock_, [&] { slot.is_taken = false; });
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
    // Tickets of queues that are gone, and of other drivers, are reached.
    [[nodiscard]] bool is_done(ticket point) const noexcept {
        return point.value == 0 || !is_mine(point.queue) ||
               slot_of(point.queue).work.is_done(point.value);
    }
    // Returns when the ticket is reached; device_lost if its work was lost.
    [[nodiscard]] status wait(ticket point) noexcept {
        if (point.value == 0) {
            return {};
        }
        if (!is_mine(point.queue)) {
            return foreign_ticket();
        }
        const status outcome = slot_of(point.queue).work.wait(point.value);
        open_hosts_if_alone();
        return outcome;
    }
    // busy while the stream is being captured; the capture goes on.
    [[nodiscard]] result<ticket> record(queue_id id) noexcept {
        queue* one = is_mine(id) ? find_queue(id) : nullptr;
        auto point = one == nullptr ? result<ticket>{no_queue()} : one->record();
        if (point.code() == errc::device_lost) {
            open_hosts_if_alone();
        }
        return point;
    }
    [[nodiscard]] status make_wait(queue_id id, ticket point) noexcept {
        queue* one = is_mine(id) ? find_queue(id) : nullptr;
        if (one == nullptr) {
            return no_queue();
        }
        if (point.value == 0) {
            return {};
        }
        if (!is_mine(point.queue)) {
            return foreign_ticket();
        }
        queue& other = slot_of(point.queue).work;
        if (!other.is_submitted(point.value)) {
            return fail(errc::invalid_argument, "a ticket that was never given");
        }
        return one->await_in_stream(other, point.value);
    }

    // ---- owns_frames

    // bytes is a whole number of pages, at most largest_frame_bytes. A handle's contents are undefined.
    [[nodiscard]] result<frame> frame_create(node_id node, std::size_t bytes) noexcept {
        XMM_ASSERT(bytes != 0 && bytes % page_bytes == 0 && bytes <= largest_frame_bytes,
                   "a frame is a whole number of pages, at most largest_frame_bytes");
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
        for ([[maybe_unused]] const run& one : runs) {
            XMM_ASSERT(one.va.begin % page_bytes == 0 && one.va.bytes % page_bytes == 0 &&
                           one.va.bytes != 0 && one.va.bytes <= one.backing.bytes,
                       "a run is whole pages, no longer than its frame");
        }
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
        for ([[maybe_unused]] const va_range& one : ranges) {
            XMM_ASSERT(one.begin % page_bytes == 0 && one.bytes % page_bytes == 0,
                       "a range is whole pages");
        }
        const context_scope nowhere{driver_, frame_context_};
        return mappings_.clear(accessor_of(node), ranges);
    }

    // fn runs in queue order on a thread of ours, even if the device is lost meanwhile, and may call the driver.
    [[nodiscard]] result<ticket> call(queue_id id, void (*fn)(void*) noexcept,
                                      void* context) noexcept {
        queue* one = find_queue(id);
        return one == nullptr ? result<ticket>{no_queue()} : one->call(fn, context);
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
                return take_slot([&](queue& work, queue_id id) {
                    return work.adopt(id, *devices_[i], *calls_[i], stream);
                });
            }
        }
        return fail(errc::unsupported, "the stream belongs to no device of this driver");
    }
    void forget(queue_id id) noexcept { queue_destroy(id); }

    [[nodiscard]] CUstream stream_of(queue_id id) const noexcept {
        const queue* one = is_mine(id) ? find_queue(id) : nullptr;
        return one == nullptr ? nullptr : one->stream();
    }
    // The device that a queue belongs to; null if there is no such queue.
    [[nodiscard]] const device* device_of(queue_id id) const noexcept {
        const queue* one = is_mine(id) ? find_queue(id) : nullptr;
        return one == nullptr ? nullptr : &one->on();
    }
    // Null where the node is none of this driver's devices.
    [[nodiscard]] const device* device_at(node_id node) const noexcept { return find_device(node); }
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
    [[nodiscard]] bool is_lost(node_id node) const noexcept {
        const device* one = find_device(node);
        return one != nullptr && one->is_lost();
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
    static constexpr std::uint32_t slot_count = 256;

    struct queue_slot {
        std::atomic<std::uint32_t> id{0};  // 0: no queue
        bool is_taken = false;             // under lock_, as is the next
        std::uint32_t generation = 0;
        queue work;
        // Held by the locker's thread while it waits for the work, and by who ends the queue. No rank: before all.
        std::mutex ending;
    };

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
        : driver_{on},
          device_ids_(device_ids.begin(), device_ids.end()),
          queue_salt_{queue_salt & 0xfff},
          mappings_{on, locker_},
          slots_{std::make_unique<std::array<queue_slot, slot_count>>()} {}

    // On the locker's thread. Streams under capture are passed over: nothing of theirs runs.
    static void await_work(void* self) noexcept {
        auto& me = *static_cast<vmm*>(self);
        if (me.are_queues_gone_.load(std::memory_order_relaxed)) {
            return;
        }
        for (queue_slot& one : *me.slots_) {
            std::lock_guard hold{one.ending};
            if (one.id.load(std::memory_order_acquire) == 0) {
                continue;
            }
            if (result<ticket> point = one.work.record()) {
                (void)one.work.wait(point->value);
            }
        }
    }

    status build(std::span<const CUdevice> ordinals, std::span<const node_id> host_ids,
                 const vmm_options& options) {
        XMM_ASSERT(ordinals.size() == device_ids_.size(), "one id for each device");
        XMM_ASSERT(!host_ids.empty(), "a driver needs a host node");
        std::vector<CUmemLocation> locations;
        for (std::size_t i = 0; i < ordinals.size(); ++i) {
            devices_.push_back(std::make_unique<device>(driver_, ordinals[i], device_ids_[i]));
            calls_.push_back(std::make_unique<call_thread>());
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
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const int numa = i < options.host_numa.size() ? options.host_numa[i] : 0;
            host_numa_.push_back(std::max(numa, 0));
        }
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
            wanted.bytes = i < options.host_bytes.size() ? options.host_bytes[i] : default_host;
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
            wanted.bytes = i < options.host_bytes.size() ? options.host_bytes[i] : default_host;
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

    [[nodiscard]] node_memory* find_memory(node_id node) const noexcept {
        for (const auto& one : memories_) {
            if (one->node() == node) {
                return one.get();
            }
        }
        return node == any_host ? memories_[0].get() : nullptr;
    }
    [[nodiscard]] std::size_t device_index(node_id node) const noexcept {
        std::size_t i = 0;
        while (i < devices_.size() && devices_[i]->node() != node) {
            ++i;
        }
        return i;
    }
    [[nodiscard]] device* find_device(node_id node) const noexcept {
        const std::size_t i = device_index(node);
        return i == devices_.size() ? nullptr : devices_[i].get();
    }
    [[nodiscard]] pmap::accessor accessor_of(node_id node) const noexcept {
        const std::size_t i = device_index(node);
        XMM_ASSERT(i != devices_.size() || find_memory(node) != nullptr,
                   "not a node of this driver");
        return i == devices_.size() ? pmap::accessor{}
                                    : pmap::accessor{devices_[i].get(), static_cast<unsigned>(i)};
    }
    [[nodiscard]] node_id nearest_host(const device& one) const noexcept {
        const int numa = one.host_numa();
        for (std::size_t i = 0; i < host_numa_.size(); ++i) {
            if (host_numa_[i] == numa) {
                return memories_[i]->node();
            }
        }
        return memories_[0]->node();
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

    template <class Open>
    [[nodiscard]] result<queue_id> take_slot(Open&& open) noexcept {
        std::lock_guard hold{lock_};
        for (std::uint32_t i = 0; i < slot_count; ++i) {
            queue_slot& slot = (*slots_)[i];
            if (slot.is_taken) {
                continue;
            }
            slot.generation = slot.generation % 0xfff + 1;
            const queue_id id{queue_salt_ << 20 | slot.generation << 8 | i};
            if (const status opened = open(slot.work, id); !opened) {
                return opened;
            }
            slot.is_taken = true;
            slot.id.store(id.value,
                          std::memory_order_release);  // pairs with the acquire in find_queue
            return id;
        }
        return fail(errc::no_memory, "256 queues are in use");
    }
    [[nodiscard]] bool is_mine(queue_id id) const noexcept { return id.value >> 20 == queue_salt_; }
    [[nodiscard]] queue_slot& slot_of(queue_id id) const noexcept {
        XMM_ASSERT(is_mine(id), "a queue of another driver");
        return (*slots_)[id.value & 0xff];
    }
    [[nodiscard]] queue* find_queue(queue_id id) const noexcept {
        queue_slot& slot = slot_of(id);
        return slot.id.load(std::memory_order_acquire) == id.value ? &slot.work : nullptr;
    }
    template <class Enqueue>
    [[nodiscard]] result<ticket> submit(queue_id id, Enqueue&& enqueue) noexcept {
        queue* one = find_queue(id);
        return one == nullptr ? result<ticket>{no_queue()} : one->submit(enqueue);
    }
    [[nodiscard]] static status no_queue() noexcept {
        return fail(errc::invalid_argument, "no such queue");
    }
    [[nodiscard]] static status foreign_ticket() noexcept {
        return fail(errc::invalid_argument, "a ticket of another driver");
    }

    static constexpr std::size_t default_host = std::size_t{64} << 30;

    const driver& driver_;
    const std::vector<node_id> device_ids_;
    const std::uint32_t queue_salt_;
    std::vector<std::unique_ptr<device>> devices_;  // (C) once built, as are the next seven
    std::atomic<bool> are_queues_gone_{false};
    page_locker locker_{driver_, devices_, {&await_work, this}};
    std::vector<std::unique_ptr<call_thread>> calls_;     // one a device
    std::vector<std::unique_ptr<node_memory>> memories_;  // hosts first, then devices
    std::vector<int> host_numa_;
    status own_host_state_;
    CUcontext frame_context_ = nullptr;  // current while frames and addresses are dealt with
    abilities abilities_;
    pmap mappings_;
    std::atomic<bool> are_hosts_open_{false};
    ranked_mutex<lock_rank::backend_queue> lock_;  // of the queues' slots, and of late_
    std::array<late_release, 64> late_;
    std::unique_ptr<std::array<queue_slot, slot_count>> slots_;
};

static_assert(backend<vmm> && owns_frames<vmm>);
static_assert(makes_host_calls<vmm> && !takes_device_faults<vmm>);

}  // namespace xmm::cuda
