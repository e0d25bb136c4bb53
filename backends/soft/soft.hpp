// SPDX-License-Identifier: Apache-2.0
// soft.hpp - the software XPU: devices made of host memory, behind the operators of a backend.
//
// Model    One driver object for any number of devices and the host nodes beside them. Frames are
//          stretches of sparse files, each device has a page table, ports, a link and compute threads.
//          Kernels are launched beside the backend: launcher.hpp.
// Threads  Any thread may call any operator, with ranks above backend_queue held. The last call has
//          returned before the destructor starts; it lets the submitted work finish.
// Failure  As concepts/backend.hpp says. A child of fork has no threads and no memory of it: it must
//          not call anything here.
// See      README.md for abilities and limits.
#pragma once

#include <array>
#include <bit>
#include <cstdio>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include <xmm/concepts/backend.hpp>

#include "../shared/queue_slots.hpp"

#include "claims.hpp"
#include "compute.hpp"
#include "cpu_map.hpp"
#include "device.hpp"
#include "queue.hpp"

namespace xmm::soft {

struct driver_options {
    // The OS's number of each host node, in the order of host_ids; empty or -1: memory is not bound.
    std::span<const int> host_numa;
    // Of each host node, in the same order; what is missing or 0 is a share of the machine's memory.
    std::span<const std::size_t> host_bytes;
    // Makes an address range a hole for the CPU; nullptr is a PROT_NONE mapping.
    hole_maker make_hole = nullptr;
    void* hole_context = nullptr;
    // Goes into the queue ids, below 4096: drivers that live at the same time need different ones. 0: one that no other
    // driver has that got it so.
    std::uint32_t queue_salt = 0;
};

class driver {
public:
    // As many device ids as devices, at least one host id; ids are process-wide and given from
    // outside. Throws std::bad_alloc only; describe says what else is refused, and why.
    driver(std::span<const device_options> devices, std::span<const node_id> device_ids,
           std::span<const node_id> host_ids, driver_options options = {})
        : cpu_{options.make_hole, options.hole_context},
          device_ids_(device_ids.begin(), device_ids.end()),
          has_hole_maker_{options.make_hole != nullptr},
          queues_{options.queue_salt} {
        XMM_ASSERT(devices.size() == device_ids.size(), "one id for each device");
        XMM_ASSERT(!host_ids.empty(), "a driver needs a host node");
        const std::size_t share = machine_bytes() / host_ids.size();
        for (std::size_t i = 0; i < host_ids.size(); ++i) {
            const int numa = i < options.host_numa.size() ? options.host_numa[i] : -1;
            const std::size_t bytes = i < options.host_bytes.size() ? options.host_bytes[i] : 0;
            memories_.push_back(
                std::make_unique<node_memory>(host_ids[i], bytes != 0 ? bytes : share, numa));
        }
        host_count_ = memories_.size();
        devices_.resize(host_count_);
        for (std::size_t i = 0; i < devices.size(); ++i) {
            memories_.push_back(std::make_unique<node_memory>(device_ids[i], devices[i].bytes, -1));
            const auto index = static_cast<unsigned>(host_count_ + i);
            devices_.push_back(std::make_unique<device>(devices[i], *memories_.back(), index,
                                                        unit_count(devices[i]), sinks_, devices_,
                                                        host_count_ + devices.size()));
        }
        for (const auto& one : devices_) {
            pools_.push_back(one == nullptr ? nullptr : std::make_unique<compute_pool>(*one));
        }
    }
    ~driver() {
        queues_.end_all();
        pools_.clear();
    }
    driver(const driver&) = delete;
    driver& operator=(const driver&) = delete;

    // ---- vendor

    [[nodiscard]] std::span<const node_id> nodes() const noexcept { return device_ids_; }

    // Host nodes are described too.
    [[nodiscard]] result<node_description> describe(node_id node) const noexcept {
        const std::size_t index = index_of(node);
        if (index == memories_.size()) {
            return fail(errc::unknown_node, "not a node of this driver");
        }
        if (const status usable = usability(index); !usable) {
            return usable;
        }
        node_description about;
        about.bytes = memories_[index]->bytes();
        const device* one = devices_[index].get();
        if (one == nullptr) {
            // Fresh pages of a file cost a third more than the system's anonymous ones, used ones less.
            about.kept_bytes = std::max(about.kept_bytes, about.bytes / 16);
        }
        const char* kind = one == nullptr ? "host memory" : "soft device";
        std::snprintf(about.name.data(), about.name.size(), "%s %d", kind,
                      memories_[index]->node().value);
        if (one != nullptr) {
            const device_options& options = one->options();
            about.granule_bytes = granule_bytes(options);
            about.link_in_bytes_per_second = options.link_in_bytes_per_second;
            about.link_out_bytes_per_second = options.link_out_bytes_per_second;
            about.link_latency_ns = options.link_latency_ns;
            about.headroom_bytes = options.headroom_bytes;
            about.nearest_host =
                options.nearest_host == any_host ? memories_[0]->node() : options.nearest_host;
            about.able.add(ability::alias)
                .add(ability::host_frames)
                .add(ability::peer)
                .add(ability::host_calls);
            if (options.split_views) {
                about.able.add(ability::split_views);
            }
            if (options.faults) {
                about.able.add(ability::device_faults)
                    .add(ability::moves_under_access)
                    .add(ability::concurrent_access);
            }
        }
        return about;
    }

    // A proposal is reserved here and shows as a hole; a range from elsewhere is only claimed.
    [[nodiscard]] result<va_range> va_examine(va_range range, std::size_t alignment) noexcept {
        XMM_ASSERT(
            range.bytes != 0 && range.bytes % page_bytes == 0 && range.begin % page_bytes == 0,
            "a range is a whole number of pages");
        alignment = alignment < page_bytes ? page_bytes : alignment;
        XMM_ASSERT((alignment & (alignment - 1)) == 0, "an alignment is a power of two");
        const auto has_mappings = [this](va_range one) { return is_mapped(one); };
        if (range.begin != 0) {
            return claims_.add(range, alignment, has_mappings);
        }
        return claims_.propose(range.bytes, alignment, has_mappings, [this](va_range one) {
            return has_hole_maker_ ? cpu_.make_hole(one) : status{};
        });
    }
    // Nothing is mapped there any more.
    void va_release(va_range range) noexcept {
        XMM_ASSERT(!is_mapped(range), "released a range that is still mapped");
        claims_.remove(range);
    }

    [[nodiscard]] result<queue_id> queue_create(node_id node, queue_priority priority) noexcept {
        device* on = find_device(node);
        if (on == nullptr) {
            return fail(errc::unknown_node, "a queue belongs to a device of this driver");
        }
        const queue::surroundings around{this, &device_at, &owns_frame, &await};
        return queues_.take([&](queue& work, queue_id id) {
            return work.open(id, priority, *on, *pools_[on->index()], around);
        });
    }
    // Lets the submitted work finish. Not from a host call of that queue.
    void queue_destroy(queue_id id) noexcept { queues_.end(id); }

    [[nodiscard]] result<ticket> memcpy(queue_id id, std::span<const piece> pieces) noexcept {
        return submit(id, pieces.size(), [&](std::size_t i, operation& one) {
            XMM_ASSERT(pieces[i].to.bytes == pieces[i].from.bytes,
                       "both sides of a copy are equally long");
            one.what = operation::kind::copy;
            one.to = pieces[i].to;
            one.from = pieces[i].from.begin;
        });
    }
    [[nodiscard]] result<ticket> zero(queue_id id, std::span<const va_range> ranges) noexcept {
        return submit(id, ranges.size(), [&](std::size_t i, operation& one) {
            one.what = operation::kind::zero;
            one.to = ranges[i];
        });
    }
    // Tickets of queues that are gone, and of other drivers, are reached.
    [[nodiscard]] bool is_done(ticket point) const noexcept { return queues_.is_done(point); }
    // Returns when the ticket is reached; device_lost if its work was lost.
    [[nodiscard]] status wait(ticket point) noexcept {
        if (point.value == 0) {
            return {};
        }
        return queues_.is_mine(point.queue) ? queues_.of(point.queue).wait(point.value)
                                            : shared::foreign_ticket();
    }
    // Users name queues, of other drivers too.
    [[nodiscard]] result<ticket> record(queue_id id) noexcept {
        queue* one = queues_.find(id);
        return one == nullptr ? result<ticket>{shared::no_queue()} : one->record();
    }
    [[nodiscard]] status make_wait(queue_id id, ticket point) noexcept {
        if (const status known = queues_.check(point); !known) {
            return known;
        }
        return submit(id, 1,
                      [&](std::size_t, operation& one) {
                          one.what = operation::kind::await;
                          one.point = point;
                      })
            .error();
    }

    // ---- owns_frames

    // bytes is a whole number of pages, at most largest_frame_bytes. Fresh frames read as zero.
    [[nodiscard]] result<frame> frame_create(node_id node, std::size_t bytes) noexcept {
        XMM_ASSERT(bytes != 0 && bytes % page_bytes == 0 && bytes <= largest_frame_bytes,
                   "a frame is a whole number of pages, at most largest_frame_bytes");
        const std::size_t index = index_of(node);
        if (index == memories_.size()) {
            return fail(errc::unknown_node, "not a node of this driver");
        }
        if (devices_[index] != nullptr && devices_[index]->is_lost()) {
            return fail(errc::device_lost, "the device is lost");
        }
        if (const status usable = usability(index); !usable) {
            return usable;
        }
        return memories_[index]->create(bytes);
    }
    void frame_drop(frame f) noexcept {
        const std::size_t index = index_of(f.node);
        XMM_ASSERT(index != memories_.size() && memories_[index]->contains(f.standing),
                   "dropped a frame of another driver");
        memories_[index]->drop(f);
    }
    [[nodiscard]] progress pmap_enter(node_id node, std::span<const run> runs) noexcept {
        for ([[maybe_unused]] const run& one : runs) {
            XMM_ASSERT(one.va.begin % page_bytes == 0 && one.va.bytes % page_bytes == 0 &&
                           one.va.bytes != 0 && one.va.bytes <= one.backing.bytes,
                       "a run is whole pages, no longer than its frame");
        }
        device* on = find_device(node);
        if (on == nullptr) {
            XMM_ASSERT(index_of(node) < host_count_, "not a node of this driver");
            return cpu_.enter(runs, [&](const frame& f) {
                const std::size_t index = index_of(f.node);
                node_memory* owner = index < host_count_ ? memories_[index].get() : nullptr;
                return std::pair{owner, static_cast<unsigned>(index)};
            });
        }
        shootdown_batch stale{*on};
        for (std::size_t done = 0; done < runs.size(); ++done) {
            const std::size_t index = index_of(runs[done].backing.node);
            XMM_ASSERT(index != memories_.size(), "a frame of another driver");
            bool must_shoot = false;
            const status outcome = on->enter(runs[done], static_cast<unsigned>(index), must_shoot);
            if (must_shoot) {
                stale.add(runs[done].va);
            }
            if (!outcome) {
                return {done, outcome};
            }
        }
        return {runs.size(), {}};
    }
    // Ranges without a mapping are passed over.
    [[nodiscard]] progress pmap_clear(node_id node, std::span<const va_range> ranges) noexcept {
        for ([[maybe_unused]] const va_range& one : ranges) {
            XMM_ASSERT(one.begin % page_bytes == 0 && one.bytes % page_bytes == 0,
                       "a range is whole pages");
        }
        device* on = find_device(node);
        if (on == nullptr) {
            XMM_ASSERT(index_of(node) < host_count_, "not a node of this driver");
            return cpu_.clear(ranges);
        }
        shootdown_batch stale{*on};
        for (const va_range& one : ranges) {
            bool must_shoot = false;
            on->clear(one, must_shoot);
            if (must_shoot) {
                stale.add(one);
            }
        }
        return {ranges.size(), {}};
    }

    // ---- faults and host calls

    [[nodiscard]] status on_device_fault(device_fault_sink sink) noexcept {
        for (const auto& one : devices_) {
            if (one != nullptr && one->options().faults) {
                return sinks_.add(sink);
            }
        }
        return fail(errc::unsupported, "no device of this driver takes faults");
    }
    // Waits for calls in progress; not from inside the sink.
    void off_device_fault(void* context) noexcept { sinks_.remove(context); }

    // fn runs in queue order on a thread of the driver, even if the queue is lost meanwhile.
    [[nodiscard]] result<ticket> call(queue_id id, void (*fn)(void*) noexcept,
                                      void* context) noexcept {
        return submit(id, 1, [&](std::size_t, operation& one) {
            one.what = operation::kind::call;
            one.fn = fn;
            one.context = context;
        });
    }

    // ---- beside the backend

    static constexpr const char* native_kind = "soft/2";
    [[nodiscard]] driver* native() noexcept { return this; }

    // Runs the kernel in queue order and destroys it; on failure it is the caller's still.
    [[nodiscard]] result<ticket> launch(queue_id id, kernel& body) noexcept {
        return submit(id, 1, [&](std::size_t, operation& one) {
            one.what = operation::kind::launch;
            one.body = &body;
        });
    }
    [[nodiscard]] unsigned units(queue_id id) const noexcept {
        queue* one = queues_.find(id);
        return one == nullptr ? 0 : static_cast<unsigned>(one->on().ports().size());
    }
    [[nodiscard]] device_statistics statistics(node_id node) noexcept {
        device* one = find_device(node);
        return one == nullptr ? device_statistics{} : one->statistics();
    }
    // What neither frames nor others hold of a node.
    [[nodiscard]] result<std::size_t> free_bytes(node_id node) noexcept {
        const std::size_t index = index_of(node);
        return index == memories_.size() ? fail(errc::unknown_node, "not a node of this driver")
                                         : result<std::size_t>{memories_[index]->free_bytes()};
    }
    // Another process, so to speak, takes memory of a node, as far as it is free; answers how many bytes it got.
    std::size_t take_bytes(node_id node, std::size_t bytes) noexcept {
        const std::size_t index = index_of(node);
        return index == memories_.size() ? 0 : memories_[index]->take_bytes(bytes);
    }
    // It gives back some of what it took.
    void give_bytes(node_id node, std::size_t bytes) noexcept {
        const std::size_t index = index_of(node);
        XMM_ASSERT(index != memories_.size(), "not a node of this driver");
        memories_[index]->give_bytes(bytes);
    }
    [[nodiscard]] bool is_lost(node_id node) const noexcept {
        device* one = find_device(node);
        return one != nullptr && one->is_lost();
    }
    // Why the memory of a host node is not bound to it, where that was asked for.
    [[nodiscard]] status host_binding(node_id host) const noexcept {
        const std::size_t index = index_of(host);
        XMM_ASSERT(index < host_count_, "not a host node of this driver");
        return memories_[index]->binding();
    }

private:
    // Collects stretches whose old translations must go, and has them gone at its end.
    class shootdown_batch {
    public:
        explicit shootdown_batch(device& on) noexcept : on_{on} {}
        ~shootdown_batch() { flush(); }
        shootdown_batch(const shootdown_batch&) = delete;
        shootdown_batch& operator=(const shootdown_batch&) = delete;

        void add(va_range one) noexcept {
            if (count_ != 0 && ranges_[count_ - 1].end() == one.begin) {
                ranges_[count_ - 1].bytes += one.bytes;
                return;
            }
            if (count_ == ranges_.size()) {
                flush();
            }
            ranges_[count_++] = one;
        }

    private:
        void flush() noexcept {
            if (count_ != 0) {
                on_.shoot({ranges_.data(), count_});
                count_ = 0;
            }
        }
        device& on_;
        std::array<va_range, 16> ranges_;
        std::size_t count_ = 0;
    };

    [[nodiscard]] static std::size_t machine_bytes() noexcept {
        return align_down(static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
                              static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)),
                          page_bytes);
    }
    [[nodiscard]] static unsigned unit_count(const device_options& options) noexcept {
        const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
        return options.units != 0 ? options.units : std::min(2u, cores);
    }
    [[nodiscard]] static std::size_t granule_bytes(const device_options& options) noexcept {
        if (options.granule_bytes != 0) {
            return std::max(std::bit_floor(options.granule_bytes), page_bytes);
        }
        std::size_t granule = std::size_t{32} << 20;
        while (granule > page_bytes && granule > options.bytes / 16) {
            granule /= 2;
        }
        return granule;
    }

    // Why the node of that index cannot be used; ok otherwise.
    [[nodiscard]] status usability(std::size_t index) const noexcept {
        if (memories_.size() > page_entry::most_nodes) {
            return fail(errc::invalid_argument,
                        "a driver of the software backend has at most 255 nodes, hosts included");
        }
        const device* one = devices_[index].get();
        const status options = one != nullptr ? one->options().check() : status{};
        return options ? memories_[index]->state() : options;
    }

    // The place among hosts and devices; memories_.size() if there is none.
    [[nodiscard]] std::size_t index_of(node_id node) const noexcept {
        for (std::size_t i = 0; i < memories_.size(); ++i) {
            if (memories_[i]->node() == node) {
                return i;
            }
        }
        return node == any_host ? 0 : memories_.size();
    }
    [[nodiscard]] device* find_device(node_id node) const noexcept {
        const std::size_t index = index_of(node);
        return index == memories_.size() ? nullptr : devices_[index].get();
    }
    [[nodiscard]] static bool owns_frame(void* self, address at) noexcept {
        const driver& all = *static_cast<driver*>(self);
        return std::any_of(all.memories_.begin(), all.memories_.end(),
                           [&](const auto& one) { return one->contains(at); });
    }
    [[nodiscard]] static device* device_at(void* self, address at) noexcept {
        for (const auto& one : static_cast<driver*>(self)->devices_) {
            if (one != nullptr && one->memory().contains(at)) {
                return one.get();
            }
        }
        return nullptr;
    }

    static void await(void* self, ticket point) noexcept {
        (void)static_cast<driver*>(self)->wait(point);  // what was lost elsewhere is lost there
    }
    template <class Fill>
    [[nodiscard]] result<ticket> submit(queue_id id, std::size_t count, Fill&& fill) noexcept {
        queue* one = queues_.find(id);
        if (one == nullptr) {
            return shared::no_queue();
        }
        return count == 0 ? one->record() : one->submit(count, fill);
    }

    [[nodiscard]] bool is_mapped(va_range range) const noexcept {
        for (const auto& one : devices_) {
            if (one != nullptr && one->table().has_any(range)) {
                return true;
            }
        }
        return cpu_.table().has_any(range);
    }
    std::vector<std::unique_ptr<node_memory>>
        memories_;                                  // (C) hosts first, then devices, as the next
    std::vector<std::unique_ptr<device>> devices_;  // (C) nullptr for hosts
    std::size_t host_count_ = 0;                    // (C)
    fault_sinks sinks_;
    cpu_map cpu_;
    const std::vector<node_id> device_ids_;
    const bool has_hole_maker_;
    claim_table claims_;
    std::vector<std::unique_ptr<compute_pool>> pools_;  // (C) by node index
    shared::queue_slots<queue> queues_;
};

static_assert(backend<driver> && owns_frames<driver>);
static_assert(takes_device_faults<driver> && makes_host_calls<driver>);

}  // namespace xmm::soft
