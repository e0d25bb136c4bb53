// SPDX-License-Identifier: Apache-2.0
// resource_concept.cpp - one wrong type per requirement of the resource concept.
#include <xmm/concepts/resource.hpp>

#include <doctest/doctest.h>

#include <xmm/resources/host_resource.hpp>
#include <xmm/resources/space_resource.hpp>

namespace {

using xmm::node_id;
using xmm::reach;
using xmm::stream_ref;

struct complete {
    static constexpr reach static_reach = reach::host;
    void* allocate(stream_ref, std::size_t, std::size_t);
    void* allocate_sync(std::size_t, std::size_t);
    void deallocate(stream_ref, void*, std::size_t, std::size_t) noexcept;
    void deallocate_sync(void*, std::size_t, std::size_t) noexcept;
    node_id node() const noexcept;
    reach reachable_by() const noexcept;
    bool operator==(const complete&) const;
};
static_assert(xmm::resource<complete>);
static_assert(xmm::host_reachable<complete>);
static_assert(!xmm::device_reachable<complete>);

struct lacks_reach : complete {
    int static_reach;
};
struct lacks_allocate : complete {
    void allocate(stream_ref) = delete;
};
struct lacks_allocate_sync : complete {
    void allocate_sync() = delete;
};
struct wrong_allocate : complete {
    int* allocate(stream_ref, std::size_t, std::size_t);
};
struct throwing_deallocate : complete {
    void deallocate(stream_ref, void*, std::size_t, std::size_t);
};
struct throwing_deallocate_sync : complete {
    void deallocate_sync(void*, std::size_t, std::size_t);
};
struct lacks_node : complete {
    void node() const = delete;
};
struct lacks_reachable_by : complete {
    void reachable_by() const = delete;
};
struct lacks_equality : complete {
    bool operator==(const lacks_equality&) const = delete;
};
static_assert(!xmm::resource<lacks_reach>);
static_assert(!xmm::resource<lacks_allocate>);
static_assert(!xmm::resource<lacks_allocate_sync>);
static_assert(!xmm::resource<wrong_allocate>);
static_assert(!xmm::resource<throwing_deallocate>);
static_assert(!xmm::resource<throwing_deallocate_sync>);
static_assert(!xmm::resource<lacks_node>);
static_assert(!xmm::resource<lacks_reachable_by>);
static_assert(!xmm::resource<lacks_equality>);

// Who reaches what is known when a program is compiled.
static_assert(xmm::host_reachable<xmm::host_resource> &&
              !xmm::device_reachable<xmm::host_resource>);
static_assert(xmm::host_reachable<xmm::unified_resource> &&
              xmm::device_reachable<xmm::unified_resource>);
static_assert(xmm::host_reachable<xmm::pinned_resource> &&
              xmm::device_reachable<xmm::pinned_resource>);
static_assert(!xmm::host_reachable<xmm::device_resource> &&
              xmm::device_reachable<xmm::device_resource>);
static_assert(std::is_base_of_v<std::pmr::memory_resource, xmm::unified_resource>);
static_assert(!std::is_base_of_v<std::pmr::memory_resource, xmm::device_resource>);
static_assert(!std::is_convertible_v<xmm::device_resource*, std::pmr::memory_resource*>);
static_assert(!std::is_copy_constructible_v<xmm::unified_resource>);

struct own_queue {
    xmm::queue_id id() const;
    xmm::status synchronize() const;
};
struct foreign_with_sync {
    using value_type = int*;
    explicit foreign_with_sync(int*);
    int* get() const;
    void sync() const;
};
struct foreign_with_wait {
    using value_type = int*;
    explicit foreign_with_wait(int*);
    int* get() const;
    void wait() const;
};
struct foreign_without_wait {
    using value_type = int*;
    explicit foreign_without_wait(int*);
    int* get() const;
};
static_assert(std::is_convertible_v<own_queue&, stream_ref>);
static_assert(std::is_convertible_v<foreign_with_sync, stream_ref>);
static_assert(std::is_convertible_v<foreign_with_wait, stream_ref>);
static_assert(!std::is_convertible_v<foreign_without_wait, stream_ref>);
static_assert(!std::is_convertible_v<int, stream_ref>);
static_assert(!std::is_convertible_v<std::size_t, stream_ref>);
static_assert(!std::is_convertible_v<std::nullptr_t, stream_ref>);
static_assert(!std::is_convertible_v<void*, stream_ref>);

}  // namespace

TEST_CASE("resource concept: checked when compiled") {
    CHECK(xmm::includes(reach::host_and_device, reach::device));
    CHECK_FALSE(xmm::includes(reach::host, reach::host_and_device));
    CHECK(xmm::includes(reach::none, reach::none));
}
