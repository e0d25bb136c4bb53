// SPDX-License-Identifier: Apache-2.0
// The mode of spaces that name no driver. Apart from managed.cpp and after it: their driver stays for good, and a
// device that was lost is well again only while nobody holds it.
#include <xmm/xmm.hpp>

#include <doctest/doctest.h>

#include "../support/cuda_managed.hpp"

using namespace xmm;
using namespace xmm::literals;

TEST_CASE("managed: the mode of spaces that name no driver, if XMM_CONF says so") {
    if (!test::managed_state()) {
        MESSAGE("skipped, no managed memory");
        return;
    }
    auto made = space::create({.devices = device_kind::cuda});
    REQUIRE(made);
    const bool is_managed = conf::of_process().text("cuda", "vmm") == "managed";
    const node_id device = made->devices()[0];
    CHECK(made->describe(device)->able.has(ability::cpu_coherent) == is_managed);
    CHECK(made->describe(device)->able.has(ability::host_frames) != is_managed);
    CHECK(made->heap(device).code() == (is_managed ? errc::unsupported : errc::ok));
    auto* data = static_cast<std::uint64_t*>(made->map(2_MiB).value());
    data[1] = 1;
    CHECK(made->make_resident(data, 2_MiB, device));
    CHECK(data[1] == 1);
    CHECK(made->residency_of(data).value() == (is_managed ? device : made->hosts()[0]));
    REQUIRE(made->unmap(data));
}
