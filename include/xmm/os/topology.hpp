// SPDX-License-Identifier: Apache-2.0
// topology.hpp - host nodes and distances; the only header that knows hwloc.
//
// Model    What hwloc finds is copied out and its handle closed. Hosts are numbered from 0 in hwloc's
//          order; nodes without memory, and nodes that are a GPU's own memory, are no hosts. A machine
//          without NUMA nodes is one host. Device nodes are numbered after the hosts, process-wide.
// Threads  A topology is constant. register_device_node and node_name: any thread, no lock.
// Failure  discover() fails on a malformed description; the process's own topology falls back to one
//          host instead.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <hwloc.h>
#include <sched.h>

#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/os/host_memory.hpp>
#include <xmm/os/registry.hpp>

namespace xmm {

// What keeps hosts from being used as they are.
struct host_limits {
    std::size_t cgroup_bytes = no_limit;  // the process may have no more, all its nodes together
    bool is_numa_refused = false;         // the kernel, or a sandbox, refuses mbind
};

class topology {
public:
    static constexpr unsigned local_distance = 10;
    static constexpr unsigned remote_distance = 20;
    static constexpr unsigned unknown_distance = 255;

    // This machine, or the one that HWLOC_SYNTHETIC or HWLOC_XMLFILE describe; or, if a description is
    // given, that one: hwloc's synthetic form, "numa:4 core:2 pu:1".
    static result<topology> discover(const char* synthetic = nullptr) noexcept;

    [[nodiscard]] std::span<const host_node> hosts() const noexcept { return hosts_; }
    [[nodiscard]] bool is_host(node_id node) const noexcept {
        return node.value >= 0 && static_cast<std::size_t>(node.value) < hosts_.size();
    }

    // Between hosts, as firmware tells it: 10 is local, 20 twice as far. any_host counts as node 0.
    // unknown_distance if either is no host.
    [[nodiscard]] unsigned distance(node_id from, node_id to) const noexcept {
        const node_id a = from == any_host ? node_id{0} : from;
        const node_id b = to == any_host ? node_id{0} : to;
        if (!is_host(a) || !is_host(b)) {
            return unknown_distance;
        }
        return distances_[static_cast<std::size_t>(a.value) * hosts_.size() +
                          static_cast<std::size_t>(b.value)];
    }

    // One host with all the machine's memory: what is left where hwloc can tell nothing.
    static topology whole_machine() {
        topology one;
        one.add_whole_machine();
        one.distances_.assign(1, local_distance);
        one.notice_limits(true);
        return one;
    }

    // The host whose CPU runs the calling thread now.
    [[nodiscard]] node_id local_host() const noexcept {
        const int cpu = ::sched_getcpu();
        return cpu >= 0 ? host_of_cpu(static_cast<unsigned>(cpu)) : node_id{0};
    }
    [[nodiscard]] node_id host_of_cpu(unsigned cpu) const noexcept {
        return cpu < cpu_hosts_.size() ? cpu_hosts_[cpu] : node_id{0};
    }

    // The host next to a PCI device ("0000:3b:00.0"); node 0 if the machine does not say.
    [[nodiscard]] node_id nearest_host(const char* pci_bus_id) const noexcept;

    [[nodiscard]] const char* origin() const noexcept {
        return is_this_machine_ ? "this machine" : "synthetic";
    }
    [[nodiscard]] const host_limits& limits() const noexcept { return limits_; }

private:
    struct hwloc_closer {
        void operator()(hwloc_topology* open) const noexcept { hwloc_topology_destroy(open); }
    };
    using hwloc_handle = std::unique_ptr<hwloc_topology, hwloc_closer>;

    topology() = default;

    void read_hosts(hwloc_topology* from);
    void read_distances(hwloc_topology* from);
    void add_whole_machine();
    [[nodiscard]] std::size_t bytes_of_hosts() const noexcept;
    void notice_limits(bool has_all_nodes) noexcept;

    std::vector<host_node> hosts_;
    std::vector<unsigned> distances_;  // row by row
    std::vector<node_id> cpu_hosts_;   // by the kernel's CPU number
    host_limits limits_;
    std::size_t device_bytes_ =
        0;  // of nodes that are a GPU's own memory, which the kernel counts as the machine's
    bool is_this_machine_ = true;
};

namespace detail {

// Asks for what bind_memory will ask, on a page of its own.
[[nodiscard]] inline bool is_mbind_refused(unsigned os_index) noexcept {
    const std::size_t bytes = os_page_bytes();
    void* page = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        return true;
    }
    host_node node;
    node.os_index = os_index;
    node.can_bind = true;
    const status bound = bind_memory({to_address(page), bytes}, node);
    ::munmap(page, bytes);
    return !bound.is_ok();
}

[[nodiscard]] inline host_node make_host(std::size_t id, unsigned os_index,
                                         std::size_t bytes) noexcept {
    host_node host;
    host.id = node_id{static_cast<std::int32_t>(id)};
    host.os_index = os_index;
    host.bytes = bytes;
    std::snprintf(host.name.data(), host.name.size(), "host %u", os_index);
    return host;
}

[[nodiscard]] inline bool is_gpu_memory(hwloc_obj_t node) noexcept {
    return node->subtype != nullptr && std::strcmp(node->subtype, "GPUMemory") == 0;
}

// False where a cpuset denies the process some nodes of the machine: hwloc leaves those out.
[[nodiscard]] inline bool has_all_nodes(hwloc_topology* from) noexcept {
    return hwloc_bitmap_isequal(hwloc_topology_get_complete_nodeset(from),
                                hwloc_topology_get_allowed_nodeset(from)) != 0;
}

}  // namespace detail

inline result<topology> topology::discover(const char* synthetic) noexcept {
    hwloc_topology* opened = nullptr;
    if (hwloc_topology_init(&opened) != 0) {
        return fail(errc::no_memory, "hwloc cannot start");
    }
    const hwloc_handle handle{opened};
    if (synthetic != nullptr && hwloc_topology_set_synthetic(handle.get(), synthetic) != 0) {
        return fail(errc::invalid_argument, "malformed synthetic topology");
    }
    if (hwloc_topology_load(handle.get()) != 0) {
        return fail(errc::unsupported, "hwloc cannot read this machine");
    }
    try {
        topology found;
        found.is_this_machine_ = hwloc_topology_is_thissystem(handle.get()) != 0;
        found.read_hosts(handle.get());
        found.read_distances(handle.get());
        found.notice_limits(detail::has_all_nodes(handle.get()));
        return found;
    } catch (const std::bad_alloc&) {
        return fail(errc::no_memory, "no memory for the topology");
    }
}

inline void topology::read_hosts(hwloc_topology* from) {
    for (hwloc_obj_t node = nullptr;
         (node = hwloc_get_next_obj_by_type(from, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
        const auto bytes = static_cast<std::size_t>(node->attr->numanode.local_memory);
        if (detail::is_gpu_memory(node)) {
            device_bytes_ += bytes;
        } else if (bytes > 0) {
            hosts_.push_back(detail::make_host(hosts_.size(), node->os_index, bytes));
        }
    }
    if (hosts_.empty()) {
        add_whole_machine();
    }
    for (hwloc_obj_t cpu = nullptr;
         (cpu = hwloc_get_next_obj_by_type(from, HWLOC_OBJ_PU, cpu)) != nullptr;) {
        if (cpu->os_index >= cpu_hosts_.size()) {
            cpu_hosts_.resize(cpu->os_index + 1, node_id{0});
        }
        for (const host_node& host : hosts_) {
            hwloc_obj_t node = hwloc_get_numanode_obj_by_os_index(from, host.os_index);
            // The first node that has the CPU: slower memory beside it (CXL) comes later in the order.
            if (node != nullptr && hwloc_bitmap_isset(node->cpuset, cpu->os_index) != 0) {
                cpu_hosts_[cpu->os_index] = host.id;
                break;
            }
        }
    }
}

inline void topology::read_distances(hwloc_topology* from) {
    const std::size_t count = hosts_.size();
    distances_.assign(count * count, remote_distance);
    for (std::size_t i = 0; i < count; ++i) {
        distances_[i * count + i] = local_distance;
    }
    hwloc_distances_s* table = nullptr;
    unsigned tables = 1;
    if (hwloc_distances_get_by_type(from, HWLOC_OBJ_NUMANODE, &tables, &table,
                                    HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0) != 0 ||
        tables == 0) {
        return;
    }
    const auto host_at = [&](unsigned column) -> const host_node* {
        for (const host_node& host : hosts_) {
            if (table->objs[column] != nullptr && host.os_index == table->objs[column]->os_index) {
                return &host;
            }
        }
        return nullptr;
    };
    for (unsigned row = 0; row < table->nbobjs; ++row) {
        for (unsigned column = 0; column < table->nbobjs; ++column) {
            const host_node* a = host_at(row);
            const host_node* b = host_at(column);
            if (a != nullptr && b != nullptr) {
                distances_[static_cast<std::size_t>(a->id.value) * count +
                           static_cast<std::size_t>(b->id.value)] =
                    static_cast<unsigned>(table->values[row * table->nbobjs + column]);
            }
        }
    }
    hwloc_distances_release(from, table);
}

namespace detail {

[[nodiscard]] inline std::size_t bytes_of_machine() noexcept {
    const long pages = ::sysconf(_SC_PHYS_PAGES);
    return static_cast<std::size_t>(pages > 0 ? pages : 0) * os_page_bytes();
}

// A virtual machine may be given its memory as it is used: then its nodes tell what they have by now, and only the
// machine as a whole what there will be. What no node has yet is taken as spread evenly.
inline void add_memory_to_come(std::span<host_node> hosts, std::size_t whole_bytes) noexcept {
    std::size_t known = 0;
    for (const host_node& host : hosts) {
        known += host.bytes;
    }
    for (host_node& host : hosts) {
        host.bytes += whole_bytes > known ? (whole_bytes - known) / hosts.size() : 0;
    }
}

// The hosts together get no more than the limit, each as much of it as it has of their memory.
inline void share_limit(std::span<host_node> hosts, std::size_t limit) noexcept {
    std::size_t whole = 0;
    for (const host_node& host : hosts) {
        whole += host.bytes;
    }
    if (whole <= limit) {
        return;
    }
    const double part = static_cast<double>(limit) / static_cast<double>(whole);
    for (host_node& host : hosts) {
        host.bytes = align_down(static_cast<std::size_t>(part * static_cast<double>(host.bytes)),
                                os_page_bytes());
    }
}

}  // namespace detail

inline std::size_t topology::bytes_of_hosts() const noexcept {
    const std::size_t all = detail::bytes_of_machine();
    return all - std::min(all, device_bytes_);
}

inline void topology::add_whole_machine() {
    hosts_.push_back(detail::make_host(0, 0, bytes_of_hosts()));
}

inline void topology::notice_limits(bool has_all_nodes) noexcept {
    if (!is_this_machine_) {
        return;
    }
    if (has_all_nodes) {  // else what these hosts lack of the machine's memory is others'
        detail::add_memory_to_come(hosts_, bytes_of_hosts());
    }
    limits_.cgroup_bytes = cgroup_memory_limit();
    limits_.is_numa_refused = detail::is_mbind_refused(hosts_.front().os_index);
    detail::share_limit(hosts_, limits_.cgroup_bytes);
    for (host_node& host : hosts_) {
        host.can_bind = !limits_.is_numa_refused;
    }
}

inline node_id topology::nearest_host(const char* pci_bus_id) const noexcept {
    if (!is_this_machine_ || pci_bus_id == nullptr) {
        return node_id{0};
    }
    detail::path_buffer path;
    path.add("/sys/bus/pci/devices/");
    // Drivers write the domain in eight digits or leave it out, sysfs uses four; case differs as well.
    const std::size_t length = std::strlen(pci_bus_id);
    if (length == 7) {
        path.add("0000:");
    }
    for (const char c : std::string_view{pci_bus_id + (length == 16 ? 4 : 0)}) {
        const char lower = c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
        path.add({&lower, 1});
    }
    const std::size_t device = path.length;
    const std::size_t os_index = detail::read_limit(path.add("/numa_node").text);
    for (const host_node& host : hosts_) {
        if (host.os_index == os_index) {
            return host.id;
        }
    }
    path.cut(device);
    const std::size_t first_cpu = detail::read_limit(path.add("/local_cpulist").text);
    return first_cpu < cpu_hosts_.size() ? cpu_hosts_[first_cpu] : node_id{0};
}

namespace detail {

// The topology of this process, and the names of its nodes.
class machine {
public:
    static constexpr const char* registry_key = "machine/2";
    static constexpr std::size_t block_count = 1024;
    static constexpr std::size_t per_block = 64;

    machine() noexcept : topology_{find()} {}
    machine(const machine&) = delete;
    machine& operator=(const machine&) = delete;

    [[nodiscard]] const topology& found() const noexcept { return topology_; }

    [[nodiscard]] node_id add_device(std::string_view name) noexcept {
        // relaxed: the name is published by its own flag.
        const std::uint32_t index = claimed_.fetch_add(1, std::memory_order_relaxed);
        if (index >= block_count * per_block) {
            claimed_.fetch_sub(1, std::memory_order_relaxed);  // or it would wrap one day
            return no_node;
        }
        device_name* found = find_or_make(index);
        if (found == nullptr) {
            return no_node;  // the number is lost: given back, it might be given a second time
        }
        device_name& mine = *found;
        mine.length = name.size() < sizeof mine.text ? name.size() : sizeof mine.text - 1;
        std::memcpy(mine.text, name.data(), mine.length);
        mine.text[mine.length] = '\0';
        // release: pairs with the acquire in name_of.
        mine.is_set.store(true, std::memory_order_release);
        return node_id{static_cast<std::int32_t>(topology_.hosts().size() + index)};
    }

    [[nodiscard]] std::string_view name_of(node_id node) const noexcept {
        if (node == any_host) {
            return "any host";
        }
        if (topology_.is_host(node)) {
            return topology_.hosts()[static_cast<std::size_t>(node.value)].name.data();
        }
        const std::size_t index = static_cast<std::size_t>(node.value) - topology_.hosts().size();
        if (node.value < 0 || index >= block_count * per_block) {
            return "no node";
        }
        // acquire: pairs with the release in find_or_make.
        const block* names = blocks_[index / per_block].load(std::memory_order_acquire);
        // acquire: pairs with the release in add_device.
        if (names == nullptr ||
            !names->names[index % per_block].is_set.load(std::memory_order_acquire)) {
            return "no node";
        }
        return {names->names[index % per_block].text, names->names[index % per_block].length};
    }

private:
    struct device_name {
        std::atomic<bool> is_set{false};
        std::size_t length = 0;
        char text[64] = {};
    };
    struct block {
        device_name names[per_block];
    };

    // Blocks come on demand and stay, as node numbers do.
    [[nodiscard]] device_name* find_or_make(std::size_t index) noexcept {
        std::atomic<block*>& slot = blocks_[index / per_block];
        block* found = slot.load(std::memory_order_acquire);  // pairs with the release below
        if (found == nullptr) {
            auto* made = new (std::nothrow) block;
            // release: a block is complete before it is found.
            if (made == nullptr ||
                slot.compare_exchange_strong(found, made, std::memory_order_acq_rel)) {
                return made == nullptr ? nullptr : &made->names[index % per_block];
            }
            delete made;
        }
        return &found->names[index % per_block];
    }

    static topology find() noexcept {
        result<topology> found = topology::discover();
        return found ? std::move(*found) : topology::whole_machine();
    }

    topology topology_;
    std::atomic<std::uint32_t> claimed_{0};
    std::atomic<block*> blocks_[block_count] = {};
};

}  // namespace detail

// The topology of this process; found once.
[[nodiscard]] inline const topology& machine_topology() {
    return registry::object<detail::machine>().found();
}

// The next node number of this process, after the hosts'. The name is copied, at most 63 characters of
// it. no_node after 65536 devices.
[[nodiscard]] inline node_id register_device_node(std::string_view name) {
    return registry::object<detail::machine>().add_device(name);
}

// NUL-terminated, never freed; "no node" for a number that was not given.
[[nodiscard]] inline std::string_view node_name(node_id node) {
    return registry::object<detail::machine>().name_of(node);
}

}  // namespace xmm
