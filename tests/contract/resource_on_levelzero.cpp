// SPDX-License-Identifier: Apache-2.0
// resource_on_levelzero.cpp - the same contract over a space with Level Zero devices, and its malloc: what the small
// blocks of unified memory come from.
#include "resource.hpp"

#include <array>
#include <string>

#include <xmm/facade/resource_port.hpp>
#include <xmm/levelzero.hpp>
#include <xmm/resources/unified_pool.hpp>

namespace {

using namespace xmm;
using namespace xmm::literals;

// Two spaces over one driver, so that one is the other's "not equal".
struct over_levelzero_space {
    static constexpr std::size_t most_alignment = 2 * page_bytes;
    static constexpr std::size_t block_bytes = 20'000;

    static bool is_available() {
        auto found = levelzero::find_drivers();
        const status able = found ? open()->why_no_host_frames() : found.error();
        if (!able) {
            MESSAGE("skipped, no unified pointers on Level Zero here: ", std::string{able.why});
        }
        return able.is_ok();
    }
    static std::unique_ptr<levelzero::vmm> open() {
        const std::array devices{node_id{1}};
        const std::array hosts{node_id{0}};
        const std::array bytes{std::size_t{4} << 30};
        return std::move(levelzero::vmm::open(levelzero::find_drivers()->at(0), devices, hosts,
                                              {.host_numa = {}, .host_bytes = bytes})
                             .value());
    }

    std::unique_ptr<levelzero::vmm> driver = open();
    space one_space = std::move(space::create_on(*driver).value());
    space another_space = std::move(space::create_on(*driver).value());
    node_id device = one_space.devices()[0];
    space_port port = port_of(one_space);
    space_port other_port = port_of(another_space);

    // Pages mapped by anyone.
    std::size_t live() {
        std::size_t bytes = one_space.is_valid() && another_space.is_valid() ? 0 : 1;
        one_space.for_each_granule([&](const granule_view& view) { bytes += view.va.bytes; });
        another_space.for_each_granule([&](const granule_view& view) { bytes += view.va.bytes; });
        return bytes;
    }
    // More than the addresses of this machine.
    std::size_t too_many_bytes() { return std::size_t{1} << 47; }
};

struct unified_on_levelzero : over_levelzero_space {
    using resource_type = unified_resource;
    unified_resource one{port, device, 2_MiB};
    unified_resource same{port, device, 2_MiB};
    unified_resource different{other_port, device, 2_MiB};
    unified_resource& resource() { return one; }
    unified_resource& equal() { return same; }
    unified_resource& other() { return different; }
};

struct pool_on_levelzero : over_levelzero_space {
    using resource_type = unified_pool;
    unified_pool one{port, device};
    unified_pool different{port, device};
    unified_pool& resource() { return one; }
    unified_pool& equal() { return one; }
    unified_pool& other() { return different; }
    std::size_t live() {
        one.release();
        different.release();
        return over_levelzero_space::live();
    }
};

}  // namespace

TEST_CASE_TEMPLATE("the contract of a resource, Level Zero", F, unified_on_levelzero,
                   pool_on_levelzero) {
    if (over_levelzero_space::is_available()) {
        test::check_resource<F>();
    }
}
