// SPDX-License-Identifier: Apache-2.0
#include <xmm/os/topology.hpp>

#include <set>
#include <string>
#include <thread>

#include <doctest/doctest.h>

#include "child.hpp"

using namespace xmm;
using xmm_test::child_case;
using xmm_test::run_child;

TEST_CASE("topology: this machine has a host, and the caller runs on one") {
    const topology& here = machine_topology();
    CHECK(&here == &machine_topology());
    REQUIRE(here.hosts().size() >= 1);
    for (std::size_t i = 0; i < here.hosts().size(); ++i) {
        CHECK(here.hosts()[i].id.value == static_cast<int>(i));
        CHECK(here.hosts()[i].bytes > 0);
        CHECK(std::strlen(here.hosts()[i].name.data()) > 0);
        CHECK(here.distance(here.hosts()[i].id, here.hosts()[i].id) == topology::local_distance);
    }
    CHECK(here.is_host(here.local_host()));
    CHECK(here.is_host(here.nearest_host("0000:00:00.0")));
    CHECK(here.nearest_host("no such device") == node_id{0});
    CHECK(here.nearest_host(nullptr) == node_id{0});
}

TEST_CASE("topology: four synthetic nodes") {
    result<topology> found = topology::discover("numa:4 core:2 pu:1");
    REQUIRE(found.has_value());
    const topology& four = *found;
    REQUIRE(four.hosts().size() == 4);
    CHECK(std::string{four.origin()} == "synthetic");
    for (int i = 0; i < 4; ++i) {
        CHECK(four.hosts()[static_cast<std::size_t>(i)].os_index == static_cast<unsigned>(i));
        CHECK_FALSE(four.hosts()[static_cast<std::size_t>(i)].can_bind);
        for (int j = 0; j < 4; ++j) {
            CHECK(four.distance(node_id{i}, node_id{j}) == (i == j ? 10u : 20u));
        }
    }
    CHECK(four.host_of_cpu(0) == node_id{0});
    CHECK(four.host_of_cpu(1) == node_id{0});
    CHECK(four.host_of_cpu(2) == node_id{1});
    CHECK(four.host_of_cpu(7) == node_id{3});
    CHECK(four.host_of_cpu(99) == node_id{0});
    CHECK(four.limits().cgroup_bytes == no_limit);
}

TEST_CASE("topology: sizes from the description; unknown nodes have no distance") {
    result<topology> found = topology::discover("numa:2(memory=3221225472) core:1 pu:1");
    REQUIRE(found.has_value());
    CHECK(found->hosts()[1].bytes == std::size_t{3} << 30);
    CHECK(found->distance(any_host, node_id{0}) == 10);
    CHECK(found->distance(any_host, node_id{1}) == 20);
    CHECK(found->distance(node_id{0}, node_id{2}) == topology::unknown_distance);
    CHECK(found->distance(no_node, node_id{0}) == topology::unknown_distance);
    CHECK_FALSE(found->is_host(any_host));
}

TEST_CASE("topology: nodes without memory are no hosts, their CPUs belong to a neighbour") {
    result<topology> found = topology::discover("numa:1(memory=0) core:2 pu:1");
    REQUIRE(found.has_value());
    REQUIRE(found->hosts().size() == 1);
    CHECK(found->hosts()[0].bytes > 0);
    CHECK(found->host_of_cpu(1) == node_id{0});
}

TEST_CASE("topology: a malformed description is an error") {
    CHECK(topology::discover("numa:oops").code() == errc::invalid_argument);
    CHECK(topology::discover("core:").code() == errc::invalid_argument);
}

TEST_CASE("topology: device nodes are numbered after the hosts and keep their names") {
    const auto hosts = static_cast<int>(machine_topology().hosts().size());
    std::string name = "soft 0";
    const node_id first = register_device_node(name);
    name = "gone";
    const node_id second = register_device_node(std::string(200, 'x'));
    CHECK(first.value >= hosts);
    CHECK(second.value == first.value + 1);
    CHECK(node_name(first) == "soft 0");
    CHECK(node_name(second) == std::string(63, 'x'));
    CHECK(node_name(node_id{0}) == machine_topology().hosts()[0].name.data());
    CHECK(node_name(any_host) == "any host");
    CHECK(node_name(no_node) == "no node");
    CHECK(node_name(node_id{second.value + 1}) == "no node");
    CHECK(node_name(node_id{100'000}) == "no node");
    CHECK(node_name(node_id{INT32_MIN}) == "no node");
}

namespace {

const child_case honours_environment{"topology environment", [] {
                                         const topology& found = machine_topology();
                                         XMM_EXPECT(found.hosts().size() == 3);
                                         XMM_EXPECT(std::string{found.origin()} == "synthetic");
                                         XMM_EXPECT(!found.hosts()[2].can_bind);
                                         XMM_EXPECT(found.is_host(found.local_host()));
                                         XMM_EXPECT(register_device_node("dev") == node_id{3});
                                         return 0;
                                     }};

// Two nodes, 10 and 31 apart, as hwloc writes them to a file.
const char* const two_far_nodes = R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x00000003" complete_cpuset="0x00000003" allowed_cpuset="0x00000003" nodeset="0x00000003" complete_nodeset="0x00000003" allowed_nodeset="0x00000003" gp_index="1">
    <object type="Package" os_index="0" cpuset="0x00000001" complete_cpuset="0x00000001" nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="2">
      <object type="NUMANode" os_index="0" cpuset="0x00000001" complete_cpuset="0x00000001" nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="3" local_memory="1073741824"/>
      <object type="Core" os_index="0" cpuset="0x00000001" complete_cpuset="0x00000001" nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="4">
        <object type="PU" os_index="0" cpuset="0x00000001" complete_cpuset="0x00000001" nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="5"/>
      </object>
    </object>
    <object type="Package" os_index="1" cpuset="0x00000002" complete_cpuset="0x00000002" nodeset="0x00000002" complete_nodeset="0x00000002" gp_index="6">
      <object type="NUMANode" os_index="1" cpuset="0x00000002" complete_cpuset="0x00000002" nodeset="0x00000002" complete_nodeset="0x00000002" gp_index="7" local_memory="2147483648"/>
      <object type="Core" os_index="1" cpuset="0x00000002" complete_cpuset="0x00000002" nodeset="0x00000002" complete_nodeset="0x00000002" gp_index="8">
        <object type="PU" os_index="1" cpuset="0x00000002" complete_cpuset="0x00000002" nodeset="0x00000002" complete_nodeset="0x00000002" gp_index="9"/>
      </object>
    </object>
  </object>
  <distances2 type="NUMANode" nbobjs="2" kind="5" name="NUMALatency" indexing="os">
    <indexes length="4">0 1 </indexes>
    <u64values length="12">10 31 21 10 </u64values>
  </distances2>
</topology>
)";

const child_case reads_distances{"topology distances", [] {
                                     const topology& found = machine_topology();
                                     XMM_EXPECT(found.hosts().size() == 2);
                                     XMM_EXPECT(found.distance(node_id{0}, node_id{0}) == 10);
                                     XMM_EXPECT(found.distance(node_id{0}, node_id{1}) == 31);
                                     XMM_EXPECT(found.distance(node_id{1}, node_id{0}) == 21);
                                     XMM_EXPECT(found.hosts()[1].bytes == std::size_t{2} << 30);
                                     return 0;
                                 }};

const child_case without_gpu_memory{
    "topology GPU memory", [] {
        const topology& found = machine_topology();
        XMM_EXPECT(found.hosts().size() == 1);
        XMM_EXPECT(std::string{found.origin()} == "this machine");
        const std::size_t own = xmm::detail::bytes_of_machine() - (std::size_t{2} << 30);
        const std::size_t limit = found.limits().cgroup_bytes;
        XMM_EXPECT(found.hosts()[0].bytes <= own);
        XMM_EXPECT(found.hosts()[0].bytes > own - os_page_bytes() || limit < own);
        return 0;
    }};

const child_case without_denied_node{
    "topology denied node", [] {
        const topology& found = machine_topology();
        XMM_EXPECT(found.hosts().size() == 1);
        XMM_EXPECT(std::string{found.origin()} == "this machine");
        XMM_EXPECT(found.hosts()[0].bytes <= std::size_t{1} << 30);
        XMM_EXPECT(found.hosts()[0].bytes == std::size_t{1} << 30 ||
                   found.limits().cgroup_bytes < std::size_t{1} << 30);
        return 0;
    }};

const child_case many_devices{"topology many devices", [] {
                                  std::set<int> seen;
                                  std::vector<std::thread> threads;
                                  std::mutex lock;
                                  for (int t = 0; t < 4; ++t) {
                                      threads.emplace_back([&] {
                                          for (int i = 0; i < 16384; ++i) {
                                              const node_id id =
                                                  register_device_node("one of many");
                                              const std::lock_guard guard{lock};
                                              seen.insert(id.value);
                                          }
                                      });
                                  }
                                  for (std::thread& t : threads) {
                                      t.join();
                                  }
                                  XMM_EXPECT(seen.size() == 65536);
                                  XMM_EXPECT(register_device_node("one too many") == no_node);
                                  return 0;
                              }};

}  // namespace

TEST_CASE("topology: HWLOC_SYNTHETIC describes the process's machine") {
    const auto end = run_child("topology environment", {"HWLOC_SYNTHETIC=numa:3 core:1 pu:1"});
    CAPTURE(end.errors);
    CHECK(end.exit_code == 0);
}

TEST_CASE("topology: distances come from the machine where it tells them") {
    std::string path = "/tmp/xmm-topology-XXXXXX";
    const int file = ::mkstemp(path.data());
    REQUIRE(file >= 0);
    REQUIRE(::write(file, two_far_nodes, std::strlen(two_far_nodes)) > 0);
    ::close(file);
    const auto end = run_child("topology distances", {"HWLOC_XMLFILE=" + path});
    ::unlink(path.c_str());
    CAPTURE(end.errors);
    CHECK(end.exit_code == 0);
}

TEST_CASE("topology: 65536 devices, each number once, then no more") {
    const auto end = run_child("topology many devices");
    CAPTURE(end.errors);
    CHECK(end.exit_code == 0);
}

TEST_CASE("topology: memory that a machine is still to be given counts") {
    host_node hosts[2];
    hosts[0].bytes = 3 * page_bytes;
    hosts[1].bytes = page_bytes;
    detail::add_memory_to_come(hosts, 14 * page_bytes);
    CHECK(hosts[0].bytes == 8 * page_bytes);
    CHECK(hosts[1].bytes == 6 * page_bytes);
    detail::add_memory_to_come(hosts, 10 * page_bytes);  // the nodes know of more than the machine
    CHECK(hosts[0].bytes == 8 * page_bytes);
    detail::add_memory_to_come({}, page_bytes);
}

TEST_CASE("topology: a GPU's memory is no memory that the hosts are still to be given") {
    if (xmm::detail::bytes_of_machine() < std::size_t{4} << 30) {
        MESSAGE("skipped: the machine has less memory than the one described");
        return;
    }
    std::string described = two_far_nodes;
    const std::string_view node = "<object type=\"NUMANode\" os_index=\"1\"";
    described.replace(described.find(node), node.size(),
                      std::string{node} + " subtype=\"GPUMemory\"");
    std::string path = "/tmp/xmm-topology-XXXXXX";
    const int file = ::mkstemp(path.data());
    REQUIRE(file >= 0);
    REQUIRE(::write(file, described.data(), described.size()) > 0);
    ::close(file);
    const auto end =
        run_child("topology GPU memory", {"HWLOC_XMLFILE=" + path, "HWLOC_THISSYSTEM=1"});
    ::unlink(path.c_str());
    CAPTURE(end.errors);
    CHECK(end.exit_code == 0);
}

TEST_CASE(
    "topology: memory of nodes that a cpuset denies is no memory that the others are still to be "
    "given") {
    if (xmm::detail::bytes_of_machine() < std::size_t{2} << 30) {
        MESSAGE("skipped: the machine has less memory than the nodes described");
        return;
    }
    std::string described = two_far_nodes;
    const std::string_view all = "allowed_nodeset=\"0x00000003\"";
    described.replace(described.find(all), all.size(), "allowed_nodeset=\"0x00000001\"");
    std::string path = "/tmp/xmm-topology-XXXXXX";
    const int file = ::mkstemp(path.data());
    REQUIRE(file >= 0);
    REQUIRE(::write(file, described.data(), described.size()) > 0);
    ::close(file);
    const auto end =
        run_child("topology denied node", {"HWLOC_XMLFILE=" + path, "HWLOC_THISSYSTEM=1"});
    ::unlink(path.c_str());
    CAPTURE(end.errors);
    CHECK(end.exit_code == 0);
}

TEST_CASE("topology: hosts share the limit of a cgroup in proportion to their sizes") {
    result<topology> found = topology::discover("numa:4(memory=3221225472) core:1 pu:1");
    REQUIRE(found.has_value());
    std::vector<host_node> hosts{found->hosts().begin(), found->hosts().end()};
    const auto sum = [&] {
        std::size_t all = 0;
        for (const host_node& host : hosts) {
            all += host.bytes;
        }
        return all;
    };
    xmm::detail::share_limit(hosts, no_limit);
    CHECK(sum() == std::size_t{12} << 30);
    hosts[0].bytes *= 5;
    xmm::detail::share_limit(hosts, std::size_t{6} << 30);
    CHECK(sum() <= std::size_t{6} << 30);
    CHECK(sum() > (std::size_t{6} << 30) - 4 * os_page_bytes());
    CHECK(hosts[0].bytes / 5 >= hosts[1].bytes);
    CHECK(hosts[0].bytes / 5 < hosts[1].bytes + 2 * os_page_bytes());
    xmm::detail::share_limit({}, 1);
}
