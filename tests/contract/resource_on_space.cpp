// SPDX-License-Identifier: Apache-2.0
// resource_on_space.cpp - the same contract over a space with software devices.
#include "resource.hpp"

#include <xmm/facade/resource_port.hpp>
#include <xmm/resources/unified_pool.hpp>

namespace {

using namespace xmm;
using namespace xmm::literals;

struct over_soft_space {
    static constexpr std::size_t most_alignment = 2 * page_bytes;
    static constexpr std::size_t block_bytes = 20'000;
    // Frames are sparse: two gigabytes cost what is touched.
    static space make() {
        return std::move(space::create_soft({{.bytes = 2_GiB, .granule_bytes = 2_MiB}}).value());
    }

    space one_space = make();
    space another_space = make();
    node_id device = one_space.devices()[0];
    space_port port = port_of(one_space);
    space_port other_port = port_of(another_space);
    node_id other_device = another_space.devices()[0];

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

template <class R>
struct plain_fixture : over_soft_space {
    using resource_type = R;
    R one;
    R same;
    R different;
    template <class Make>
    explicit plain_fixture(Make make)
        : one{make(port, device)},
          same{make(port, device)},
          different{make(other_port, other_device)} {}
    R& resource() { return one; }
    R& equal() { return same; }
    R& other() { return different; }
};

struct unified_on_space : plain_fixture<unified_resource> {
    unified_on_space()
        : plain_fixture{[](space_port space, node_id at) {
              return unified_resource{space, at, 2_MiB};
          }} {}
};
struct device_on_space : plain_fixture<device_resource> {
    device_on_space()
        : plain_fixture{[](space_port space, node_id at) {
              return device_resource{space, at};
          }} {}
    std::size_t too_many_bytes() { return 3_GiB; }
};
struct pinned_on_space : plain_fixture<pinned_resource> {
    pinned_on_space()
        : plain_fixture{[](space_port space, node_id) {
              return pinned_resource{space, any_host, {.touch = false}};
          }} {}
};

struct pool_on_space : over_soft_space {
    using resource_type = unified_pool;
    unified_pool one{port, device};
    unified_pool different{port, device};
    unified_pool& resource() { return one; }
    unified_pool& equal() { return one; }
    unified_pool& other() { return different; }
    std::size_t live() {
        one.release();
        different.release();
        return over_soft_space::live();
    }
};

}  // namespace

namespace xmm::test {

TEST_CASE_TEMPLATE_INVOKE(resource_contract, unified_on_space, device_on_space, pinned_on_space,
                          pool_on_space);

}  // namespace xmm::test
