// SPDX-License-Identifier: Apache-2.0
// default_devices.hpp - the devices that a space gets when none are named.
//
// Model    The best vendor's; without one, software XPUs as XMM_CONF describes them: soft_devices (1),
//          soft_bytes (a quarter of the host's memory, at most 1 GiB), soft_link (bytes a second, 0 =
//          unlimited). One driver a process, shared by all spaces and shared objects.
// Threads  Any; made once.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include <xmm/os/conf.hpp>
#include <xmm/os/fault_trap.hpp>
#include <xmm/os/topology.hpp>
#include <xmm/soft.hpp>

namespace xmm::detail {

// Holes that work for system calls as well, where the kernel grants userfaultfd.
inline status make_trapped_hole(void*, va_range range) noexcept {
    return fault_trap::instance().make_hole(range);
}

// A software driver over this machine's hosts, its devices entered among the process's nodes.
inline result<std::unique_ptr<soft::driver>> make_soft_driver(
    const std::vector<soft::device_options>& devices, const topology& machine) noexcept {
    try {
        std::vector<node_id> device_ids;
        for (std::size_t i = 0; i < devices.size(); ++i) {
            // The hosts of a machine other than this process's may be more: their numbers are passed over.
            node_id given = register_device_node("soft device");
            while (given != no_node && machine.is_host(given)) {
                given = register_device_node("soft device");
            }
            if (given == no_node) {
                return fail(errc::no_memory, "this process has no numbers left for devices");
            }
            device_ids.push_back(given);
        }
        std::vector<node_id> host_ids;
        std::vector<int> host_numa;
        std::vector<std::size_t> host_bytes;  // a cgroup may grant less than the machine has
        for (const host_node& host : machine.hosts()) {
            host_ids.push_back(host.id);
            host_numa.push_back(host.can_bind ? static_cast<int>(host.os_index) : -1);
            host_bytes.push_back(align_down(host.bytes, page_bytes));
        }
        soft::driver_options options;
        options.host_numa = host_numa;
        options.host_bytes = host_bytes;
        options.make_hole = &make_trapped_hole;
        options.queue_salt = registry::next_number(number_kind::backend);
        return std::make_unique<soft::driver>(devices, device_ids, host_ids, options);
    } catch (const std::bad_alloc&) {
        return fail(errc::no_memory, "the host has no memory for a driver");
    }
}

class default_soft_devices {
public:
    static constexpr const char* registry_key = "default_soft_devices/1";

    default_soft_devices() noexcept : driver_{make()} {}
    [[nodiscard]] result<soft::driver*> driver() noexcept {
        return driver_ ? result<soft::driver*>{driver_->get()}
                       : result<soft::driver*>{driver_.error()};
    }

private:
    static result<std::unique_ptr<soft::driver>> make() noexcept {
        try {
            return make_soft_driver(from_conf(), machine_topology());
        } catch (const std::bad_alloc&) {
            return fail(errc::no_memory, "the host has no memory for the default devices");
        }
    }
    static std::vector<soft::device_options> from_conf() {
        const conf& set = conf::of_process();
        std::size_t host_bytes = 0;
        for (const host_node& host : machine_topology().hosts()) {
            host_bytes += host.bytes;
        }
        constexpr std::size_t most = std::size_t{1} << 30;
        soft::device_options one;
        one.bytes = set.bytes("soft_bytes", std::min(most, host_bytes / 4));
        one.bytes = std::max(align_down(one.bytes, page_bytes), 8 * page_bytes);
        one.link_in_bytes_per_second = one.link_out_bytes_per_second = set.bytes("soft_link", 0);
        return std::vector<soft::device_options>(set.number("soft_devices", 1, 0, 8), one);
    }

    result<std::unique_ptr<soft::driver>> driver_;
};

}  // namespace xmm::detail
