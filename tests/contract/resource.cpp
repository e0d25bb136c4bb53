// SPDX-License-Identifier: Apache-2.0
// resource.cpp - every stock resource and every adaptor joins the contract.
#include "resource.hpp"

#include <functional>

#include <xmm/resources/adaptors/aligned_resource.hpp>
#include <xmm/resources/adaptors/binning_resource.hpp>
#include <xmm/resources/adaptors/failure_callback_resource.hpp>
#include <xmm/resources/adaptors/limit_resource.hpp>
#include <xmm/resources/adaptors/logging_resource.hpp>
#include <xmm/resources/adaptors/prefetch_resource.hpp>
#include <xmm/resources/adaptors/statistics_resource.hpp>
#include <xmm/resources/adaptors/thread_cache_resource.hpp>
#include <xmm/resources/adaptors/thread_safe_resource.hpp>
#include <xmm/resources/adaptors/tracking_resource.hpp>
#include <xmm/resources/debug_resource.hpp>
#include <xmm/resources/host_resource.hpp>
#include <xmm/resources/space_resource.hpp>
#include <xmm/resources/unified_pool.hpp>

#include "../resources/fake_space.hpp"

namespace {

using namespace xmm;
using test::fake_space;

// Two resources of different spaces, so that one is the other's "not equal".
template <class R, class... Arguments>
struct over_space {
    using resource_type = R;
    static constexpr std::size_t most_alignment = 2 * page_bytes;
    static constexpr std::size_t block_bytes = 20'000;

    fake_space space;
    fake_space other_space;

    std::size_t too_many_bytes() { return std::size_t{1} << 31; }
    std::size_t live() { return space.used() + other_space.used(); }
};

struct unified_fixture : over_space<unified_resource> {
    unified_resource one{space.port(), fake_space::device};
    unified_resource same{space.port()};
    unified_resource different{other_space.port(), fake_space::device};
    unified_resource& resource() { return one; }
    unified_resource& equal() { return same; }
    unified_resource& other() { return different; }
};

struct device_fixture : over_space<device_resource> {
    device_resource one{space.port(), fake_space::device};
    device_resource same{space.port(), fake_space::device};
    device_resource different{other_space.port(), fake_space::device};
    device_resource& resource() { return one; }
    device_resource& equal() { return same; }
    device_resource& other() { return different; }
};

struct pinned_fixture : over_space<pinned_resource> {
    pinned_resource one{space.port(), fake_space::host};
    pinned_resource same{space.port(), fake_space::host};
    pinned_resource different{other_space.port(), fake_space::host};
    pinned_resource& resource() { return one; }
    pinned_resource& equal() { return same; }
    pinned_resource& other() { return different; }
};

struct unified_pool_fixture : over_space<unified_pool> {
    unified_pool one{space.port(), fake_space::device};
    unified_pool different{space.port(), fake_space::device};
    unified_pool& resource() { return one; }
    unified_pool& equal() { return one; }
    unified_pool& other() { return different; }
    std::size_t live() {
        one.release();
        different.release();
        return over_space::live();
    }
};

struct device_pool_fixture : over_space<pool_resource<device_resource>> {
    device_resource device{space.port(), fake_space::device};
    pool_resource<device_resource> one{device};
    pool_resource<device_resource> different{device};
    pool_resource<device_resource>& resource() { return one; }
    pool_resource<device_resource>& equal() { return one; }
    pool_resource<device_resource>& other() { return different; }
    std::size_t live() {
        one.release();
        different.release();
        return over_space::live();
    }
};

// Plain host memory cannot be counted here: the sanitizers' leak checks do that.
struct host_fixture {
    using resource_type = host_resource;
    static constexpr std::size_t most_alignment = 2 * page_bytes;
    static constexpr std::size_t block_bytes = 600'000;
    host_resource one{node_id{0}};
    host_resource same;
    host_resource& resource() { return one; }
    host_resource& equal() { return same; }
    std::size_t too_many_bytes() { return std::size_t{1} << 60; }
    std::size_t live() { return 0; }
};

struct interleave_fixture {
    using resource_type = interleave_resource;
    static constexpr std::size_t most_alignment = 2 * page_bytes;
    static constexpr std::size_t block_bytes = 60'000;
    std::array<node_id, 1> nodes{node_id{0}};
    interleave_resource one{nodes};
    interleave_resource& resource() { return one; }
    interleave_resource& equal() { return one; }
    std::size_t too_many_bytes() { return std::size_t{1} << 60; }
    std::size_t live() { return 0; }
};

// All plain resources are equal among themselves: the other one is of another class.
template <class Fixture>
struct with_unequal_host : Fixture {
    using resource_type = memory_resource;
    fake_space space;
    unified_resource different{space.port()};
    memory_resource& resource() { return this->one; }
    memory_resource& equal() { return Fixture::equal(); }
    memory_resource& other() { return different; }
};

// An adaptor over unified memory, or over a device.
template <class R, class Upstream = unified_resource>
struct over_upstream : over_space<R> {
    Upstream upstream{this->space.port(), fake_space::device};
    Upstream other_upstream{this->other_space.port(), fake_space::device};
};

template <template <class> class Adaptor, class Upstream, auto... Extra>
struct adaptor_fixture : over_upstream<Adaptor<Upstream>, Upstream> {
    Adaptor<Upstream> one{this->upstream, Extra...};
    Adaptor<Upstream> different{this->other_upstream, Extra...};
    Adaptor<Upstream>& resource() { return one; }
    Adaptor<Upstream>& equal() { return one; }
    Adaptor<Upstream>& other() { return different; }
    std::size_t live() {
        if constexpr (requires { one.flush(); }) {
            one.flush();
        }
        return over_upstream<Adaptor<Upstream>, Upstream>::live();
    }
};

bool never_retry(std::size_t, void*) { return false; }

template <class Upstream>
struct logging_fixture : over_upstream<logging_resource<Upstream>, Upstream> {
    logging_resource<Upstream> one{this->upstream, "/dev/null"};
    logging_resource<Upstream> different{this->other_upstream, "/dev/null"};
    logging_resource<Upstream>& resource() { return one; }
    logging_resource<Upstream>& equal() { return one; }
    logging_resource<Upstream>& other() { return different; }
};

template <class Upstream>
struct prefetch_fixture : over_upstream<prefetch_resource<Upstream>, Upstream> {
    using type = prefetch_resource<Upstream>;
    type one{this->upstream, this->space.port(), fake_space::device};
    type same{this->upstream, this->space.port(), fake_space::device};
    type different{this->other_upstream, this->other_space.port(), fake_space::device};
    type& resource() { return one; }
    type& equal() { return same; }
    type& other() { return different; }
};

template <class Upstream>
struct binning_fixture : over_upstream<binning_resource<Upstream>, Upstream> {
    pool_resource<Upstream> pool{this->upstream};
    binning_resource<Upstream> one{this->upstream};
    binning_resource<Upstream> different{this->other_upstream};
    binning_fixture() {
        one.add_bin(4096, pool);
        one.add_bin(16, this->upstream);
    }
    binning_resource<Upstream>& resource() { return one; }
    binning_resource<Upstream>& equal() { return one; }
    binning_resource<Upstream>& other() { return different; }
    std::size_t live() {
        pool.release();
        return over_upstream<binning_resource<Upstream>, Upstream>::live();
    }
};

struct debug_fixture : over_space<debug_resource<unified_pool>> {
    static constexpr std::size_t most_alignment = 4096;
    unified_pool pool{space.port()};
    debug_resource<unified_pool> one{pool};
    debug_resource<unified_pool> different{pool};
    debug_resource<unified_pool>& resource() { return one; }
    debug_resource<unified_pool>& equal() { return one; }
    debug_resource<unified_pool>& other() { return different; }
    std::size_t live() {
        return one.live_count() + one.check();
    }  // what is kept poisoned is not live
};

// One of everything, each fault would show as another adaptor's.
struct stack_fixture : over_space<statistics_resource<thread_cache_resource<unified_pool>>> {
    unified_pool pool{space.port(), fake_space::device};
    thread_cache_resource<unified_pool> cache{pool};
    statistics_resource<thread_cache_resource<unified_pool>> one{cache};
    statistics_resource<thread_cache_resource<unified_pool>> different{cache};
    auto& resource() { return one; }
    auto& equal() { return one; }
    auto& other() { return different; }
    std::size_t live() {
        cache.flush();
        pool.release();
        const auto seen = one.statistics();
        return over_space::live() +
               static_cast<std::size_t>(seen.bytes.current + seen.blocks.current);
    }
};

}  // namespace

namespace xmm::test {

TEST_CASE_TEMPLATE_INVOKE(resource_contract, unified_fixture, device_fixture, pinned_fixture,
                          unified_pool_fixture, device_pool_fixture,
                          with_unequal_host<host_fixture>, with_unequal_host<interleave_fixture>);

TEST_CASE_TEMPLATE_INVOKE(
    resource_contract, adaptor_fixture<limit_resource, unified_resource, std::size_t{1} << 30>,
    adaptor_fixture<limit_resource, device_resource, std::size_t{1} << 30>,
    adaptor_fixture<statistics_resource, unified_resource>,
    adaptor_fixture<statistics_resource, device_resource>,
    adaptor_fixture<tracking_resource, unified_resource>,
    adaptor_fixture<tracking_resource, device_resource>,
    adaptor_fixture<failure_callback_resource, unified_resource, &never_retry>,
    adaptor_fixture<failure_callback_resource, device_resource, &never_retry>,
    adaptor_fixture<aligned_resource, unified_resource, std::size_t{4096}>,
    adaptor_fixture<aligned_resource, device_resource, std::size_t{4096}>,
    adaptor_fixture<thread_safe_resource, unified_resource>,
    adaptor_fixture<thread_safe_resource, device_resource>,
    adaptor_fixture<thread_cache_resource, unified_resource>,
    adaptor_fixture<thread_cache_resource, device_resource>);

TEST_CASE_TEMPLATE_INVOKE(resource_contract, logging_fixture<unified_resource>,
                          logging_fixture<device_resource>, prefetch_fixture<unified_resource>,
                          binning_fixture<unified_resource>, binning_fixture<device_resource>,
                          debug_fixture, stack_fixture);

}  // namespace xmm::test
