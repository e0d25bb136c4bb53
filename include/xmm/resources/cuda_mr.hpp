// SPDX-License-Identifier: Apache-2.0
// cuda_mr.hpp - resources as CCCL's cuda::mr sees them; empty where CCCL is not on the include path.
//
// Model    From CCCL 3.1 on every xmm resource is a cuda::mr::resource by its members alone; this header
//          adds the properties (get_property), which need CCCL's own types. What holds a resource by value
//          (any_resource, cuda::buffer, RMM's types) copies it: give it a cuda_resource, a handle that also has
//          the names of CCCL 3.0 (allocate, allocate_async), or from 3.1 on a shared_resource.
//          What is given back on a cuda::stream_ref, which is no queue of the space, waits for that stream.
//          CCCL 3.0 wants LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE before its first header.
//          XMM_HAS_CUDA_MR says whether there is anything here.
#pragma once

#include <xmm/resources/memory_resource.hpp>
#include <xmm/resources/shared_resource.hpp>
#include <xmm/resources/upstream.hpp>

#if __has_include(<cuda/memory_resource>)
#ifndef LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#endif
#include <cuda/memory_resource>
#include <cuda/stream_ref>
#define XMM_HAS_CUDA_MR 1
#else
#define XMM_HAS_CUDA_MR 0
#endif

#if XMM_HAS_CUDA_MR
namespace xmm {

template <host_reachable R>
constexpr void get_property(const R&, ::cuda::mr::host_accessible) noexcept {}
template <device_reachable R>
constexpr void get_property(const R&, ::cuda::mr::device_accessible) noexcept {}

// A property of ours, with a value: whose memory it is.
struct node_property {
    using value_type = node_id;
};
template <resource R>
[[nodiscard]] node_id get_property(const R& one, node_property) noexcept {
    return one.node();
}

#if CCCL_VERSION >= 3002000
namespace detail {

template <reach>
struct properties_of_reach {};
template <>
struct properties_of_reach<reach::host> {
    using default_queries = ::cuda::mr::properties_list<::cuda::mr::host_accessible>;
};
template <>
struct properties_of_reach<reach::device> {
    using default_queries = ::cuda::mr::properties_list<::cuda::mr::device_accessible>;
};
template <>
struct properties_of_reach<reach::host_and_device> {
    using default_queries =
        ::cuda::mr::properties_list<::cuda::mr::host_accessible, ::cuda::mr::device_accessible>;
};

}  // namespace detail
#endif

// Refers to a resource that outlives all copies.
template <resource R>
class cuda_resource {
public:
    static constexpr reach static_reach = R::static_reach;
#if CCCL_VERSION >= 3002000
    // The properties of a buffer that is made without naming any.
    using default_queries = typename detail::properties_of_reach<R::static_reach>::default_queries;
#endif

    explicit cuda_resource(R& one) noexcept : one_{&one} {}

    [[nodiscard]] node_id node() const noexcept { return one_->node(); }
    [[nodiscard]] reach reachable_by() const noexcept { return one_->reachable_by(); }
    [[nodiscard]] resource_usage usage() const noexcept { return detail::usage_of(*one_); }
    [[nodiscard]] queue_port queues() const noexcept { return detail::queues_of(*one_); }

    [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment = host_alignment) {
        return one_->allocate_sync(bytes, alignment);
    }
    void deallocate_sync(void* pointer, std::size_t bytes,
                         std::size_t alignment = host_alignment) noexcept {
        one_->deallocate_sync(pointer, bytes, alignment);
    }
    [[nodiscard]] void* allocate(stream_ref stream, std::size_t bytes,
                                 std::size_t alignment = host_alignment) {
        return one_->allocate(stream, bytes, alignment);
    }
    void deallocate(stream_ref stream, void* pointer, std::size_t bytes,
                    std::size_t alignment = host_alignment) noexcept {
        one_->deallocate(stream, pointer, bytes, alignment);
    }

    // The names of CCCL 3.0.
    [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment = host_alignment) {
        return allocate_sync(bytes, alignment);
    }
    void deallocate(void* pointer, std::size_t bytes,
                    std::size_t alignment = host_alignment) noexcept {
        deallocate_sync(pointer, bytes, alignment);
    }
    [[nodiscard]] void* allocate_async(std::size_t bytes, std::size_t alignment,
                                       stream_ref stream) {
        return allocate(stream, bytes, alignment);
    }
    [[nodiscard]] void* allocate_async(std::size_t bytes, stream_ref stream) {
        return allocate(stream, bytes);
    }
    void deallocate_async(void* pointer, std::size_t bytes, std::size_t alignment,
                          stream_ref stream) noexcept {
        deallocate(stream, pointer, bytes, alignment);
    }
    void deallocate_async(void* pointer, std::size_t bytes, stream_ref stream) noexcept {
        deallocate(stream, pointer, bytes);
    }

    friend bool operator==(const cuda_resource& a, const cuda_resource& b) noexcept {
        return *a.one_ == *b.one_;
    }

private:
    R* one_;
};

}  // namespace xmm
#endif
