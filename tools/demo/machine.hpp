// SPDX-License-Identifier: Apache-2.0
// machine.hpp - the machine and the devices of a space as a tree: nodes, sizes, links.
#pragma once

#include <sched.h>
#include <sys/utsname.h>

#include <memory>
#include <string>
#include <vector>

#include <xmm/xmm.hpp>

#include "check.hpp"
#include "format.hpp"
#include "table.hpp"
#include "tree.hpp"

namespace xmm::demo {

namespace detail {

// "0-3,8": as the kernel writes lists of CPUs.
[[nodiscard]] inline std::string show_ranges(const std::vector<unsigned>& ascending) {
    std::string out;
    for (std::size_t i = 0; i < ascending.size();) {
        std::size_t last = i;
        while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) {
            ++last;
        }
        out += fmt::format("{}{}", out.empty() ? "" : ",", ascending[i]);
        out += last > i ? fmt::format("-{}", ascending[last]) : "";
        i = last + 1;
    }
    return out;
}

// The CPUs that this process may use, by host.
[[nodiscard]] inline std::vector<unsigned> cpus_of(const topology& machine, node_id host) {
    constexpr unsigned most_cpus = 4096;
    std::vector<unsigned> out;
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask{
        CPU_ALLOC(most_cpus), [](cpu_set_t* one) { CPU_FREE(one); }};
    const std::size_t bytes = CPU_ALLOC_SIZE(most_cpus);
    if (sched_getaffinity(0, bytes, mask.get()) == 0) {
        for (unsigned cpu = 0; cpu < most_cpus; ++cpu) {
            if (CPU_ISSET_S(cpu, bytes, mask.get()) && machine.host_of_cpu(cpu) == host) {
                out.push_back(cpu);
            }
        }
    }
    return out;
}

[[nodiscard]] inline std::string show_link(const node_description& device) {
    const std::uint64_t in = device.link_in_bytes_per_second,
                        out = device.link_out_bytes_per_second;
    std::string text = in == out ? fmt::format("link {} each way", show_rate(in))
                                 : fmt::format("link {} in, {} out", show_rate(in), show_rate(out));
    if (device.link_latency_ns != 0) {
        text += fmt::format(", {:.3g} us", static_cast<double>(device.link_latency_ns) / 1000);
    }
    return text;
}

[[nodiscard]] inline std::string show_abilities(abilities able) {
    constexpr struct {
        ability bit;
        const char* words;
    } known[] = {{ability::device_faults, "takes page faults"},
                 {ability::moves_under_access, "pages move under access"},
                 {ability::concurrent_access, "shares pages with the CPU"},
                 {ability::peer, "reaches its peers"}};
    std::string out;
    for (const auto& one : known) {
        if (able.has(one.bit)) {
            out += (out.empty() ? "" : ", ") + std::string{one.words};
        }
    }
    return out;
}

}  // namespace detail

[[nodiscard]] inline tree describe_machine(space& memory) {
    utsname system{};
    uname(&system);
    const topology& machine = machine_topology();
    tree root{fmt::format("{} ({} {})", system.nodename, system.sysname, system.machine), {}};
    for (const host_node& host : machine.hosts()) {
        tree& at = root.add(fmt::format("node {}  {}  {}", host.id.value, host.name.data(),
                                        show_bytes(host.bytes)));
        const auto cpus = detail::cpus_of(machine, host.id);
        if (!cpus.empty()) {
            at.add(fmt::format("{} CPU{} {}", cpus.size(), cpus.size() == 1 ? "" : "s",
                               detail::show_ranges(cpus)));
        }
        for (const host_node& other : machine.hosts()) {
            if (other.id != host.id) {
                at.add(fmt::format(
                    "distance to node {}: {:.1f}", other.id.value,
                    machine.distance(host.id, other.id) / double{topology::local_distance}));
            }
        }
        for (const node_id device : memory.devices()) {
            const node_description about = check(memory.describe(device), "describe a device");
            const node_id nearest =
                about.nearest_host == any_host ? node_id{0} : about.nearest_host;
            if (nearest != host.id) {
                continue;
            }
            tree& xpu = at.add(fmt::format("node {}  {}  {}", device.value, about.name.data(),
                                           show_bytes(about.bytes)));
            xpu.add(detail::show_link(about));
            if (const std::string able = detail::show_abilities(about.able); !able.empty()) {
                xpu.add(able);
            }
        }
    }
    return root;
}

}  // namespace xmm::demo
