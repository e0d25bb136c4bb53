// SPDX-License-Identifier: Apache-2.0
// cuda_mr.cpp - resources as cuda::mr resources; skipped where CCCL or the CUDA headers are missing.
#include <xmm/resources/cuda_mr.hpp>

#include <doctest/doctest.h>

#if XMM_HAS_CUDA_MR

#include <xmm/resources/adaptors/statistics_resource.hpp>
#include <xmm/resources/host_resource.hpp>
#include <xmm/resources/unified_pool.hpp>

#include "fake_space.hpp"

namespace {

using namespace xmm;
using test::fake_space;
namespace mr = ::cuda::mr;

using counted_device = statistics_resource<device_resource>;

// Who reaches what, in CCCL's words, kept by adaptors.
static_assert(::cuda::has_property<unified_resource, mr::host_accessible>);
static_assert(::cuda::has_property<unified_resource, mr::device_accessible>);
static_assert(::cuda::has_property<unified_pool, mr::device_accessible>);
static_assert(::cuda::has_property<host_resource, mr::host_accessible>);
static_assert(!::cuda::has_property<host_resource, mr::device_accessible>);
static_assert(::cuda::has_property<device_resource, mr::device_accessible>);
static_assert(!::cuda::has_property<device_resource, mr::host_accessible>);
static_assert(!::cuda::has_property<counted_device, mr::host_accessible>);
static_assert(::cuda::has_property_with<counted_device, node_property, node_id>);

// Both generations of names.
#if CCCL_VERSION >= 3001000
template <class R, class... Properties>
inline constexpr bool conforms = mr::resource_with<R, Properties...>;
static_assert(conforms<host_resource, mr::host_accessible>);
static_assert(conforms<unified_resource, mr::host_accessible, mr::device_accessible>);
static_assert(conforms<device_resource, mr::device_accessible>);
static_assert(conforms<counted_device, mr::device_accessible>);
static_assert(conforms<shared_resource<unified_pool>, mr::host_accessible, mr::device_accessible>);
static_assert(!conforms<device_resource, mr::host_accessible>);
#else
template <class R, class... Properties>
inline constexpr bool conforms = mr::async_resource_with<R, Properties...>;
static_assert(mr::resource_with<host_resource, mr::host_accessible>);
static_assert(mr::resource_with<unified_resource, mr::host_accessible, mr::device_accessible>);
#endif
static_assert(conforms<cuda_resource<host_resource>, mr::host_accessible>);
static_assert(conforms<cuda_resource<unified_pool>, mr::host_accessible, mr::device_accessible>);
static_assert(conforms<cuda_resource<counted_device>, mr::device_accessible>);
static_assert(!conforms<cuda_resource<counted_device>, mr::host_accessible>);

#if CCCL_VERSION >= 3002000
// What a buffer's properties are when none are named.
template <class R, class... Properties>
inline constexpr bool offers =
    std::is_same_v<typename cuda_resource<R>::default_queries, mr::properties_list<Properties...>>;
static_assert(offers<host_resource, mr::host_accessible>);
static_assert(offers<counted_device, mr::device_accessible>);
static_assert(offers<unified_pool, mr::host_accessible, mr::device_accessible>);

// Held by value, and shared.
static_assert(std::is_constructible_v<mr::any_resource<mr::device_accessible>,
                                      cuda_resource<counted_device>>);
static_assert(
    !std::is_constructible_v<mr::any_resource<mr::host_accessible>, cuda_resource<counted_device>>);
static_assert(
    std::is_constructible_v<mr::any_resource<mr::host_accessible>, shared_resource<unified_pool>>);
#endif

// A resource is a std::pmr one and a cuda::mr one at once.
static_assert(std::is_base_of_v<std::pmr::memory_resource, unified_resource>);

}  // namespace

TEST_CASE("cuda_mr: through CCCL's references") {
    fake_space space;
    unified_pool pool{space.port(), fake_space::device};
    cuda_resource handle{pool};
    CHECK(handle == cuda_resource{pool});
    CHECK(get_property(handle, node_property{}) == fake_space::device);
#if CCCL_VERSION >= 3001000
    mr::synchronous_resource_ref<mr::host_accessible, mr::device_accessible> direct{handle};
    void* pointer = direct.allocate_sync(1000, 256);
    CHECK(to_address(pointer) % 256 == 0);
    direct.deallocate_sync(pointer, 1000, 256);
    mr::resource_ref<mr::device_accessible> narrower{handle};
    CHECK(narrower.allocate_sync(1000, 256) == pointer);  // the same pool
    narrower.deallocate_sync(pointer, 1000, 256);
#if CCCL_VERSION >= 3002000
    mr::any_synchronous_resource<mr::host_accessible> owned{handle};
    auto copy = owned;
    CHECK(copy == owned);
    CHECK(copy.allocate_sync(1000, 256) == pointer);
    copy.deallocate_sync(pointer, 1000, 256);
#endif
#else
    mr::resource_ref<mr::host_accessible, mr::device_accessible> direct{pool};
    void* pointer = direct.allocate(1000, 256);
    CHECK(to_address(pointer) % 256 == 0);
    direct.deallocate(pointer, 1000, 256);
    mr::resource_ref<mr::host_accessible> through{handle};
    CHECK(through.allocate(1000, 256) == pointer);  // the same pool
    through.deallocate(pointer, 1000, 256);
#endif
}

#else
TEST_CASE("cuda_mr: CCCL is not on the include path" * doctest::skip()) {}
#endif
