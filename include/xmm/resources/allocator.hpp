// SPDX-License-Identifier: Apache-2.0
// allocator.hpp - a typed std allocator over a resource.
//
// Model    Refers to a resource that outlives it, or shares one (xmm::shared_resource). Moves and swaps
//          take the resource along, copies of containers keep it.
//          Over device-only memory it allocates, for kernels to fill; a container that constructs
//          elements there from the host is refused when it is compiled, with a sentence.
// Failure  allocate throws std::bad_array_new_length if the bytes overflow, else what the resource throws.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include <xmm/resources/memory_resource.hpp>
#include <xmm/resources/shared_resource.hpp>

namespace xmm {
namespace detail {

// How an allocator holds its resource: by pointer, or a handle as it is.
template <class R>
class resource_holder {
public:
    using argument = R&;
    resource_holder(R& one) noexcept : one_{&one} {}
    [[nodiscard]] R& get() const noexcept { return *one_; }

private:
    R* one_;
};

template <class R>
class resource_holder<shared_resource<R>> {
public:
    using argument = const shared_resource<R>&;
    resource_holder(const shared_resource<R>& one) noexcept : one_{one} {}
    [[nodiscard]] R& get() const noexcept { return one_.get(); }

private:
    shared_resource<R> one_;
};

}  // namespace detail

template <class T, resource Resource = memory_resource>
class allocator {
public:
    using value_type = T;
    using size_type = std::size_t;
    using difference_type = std::ptrdiff_t;
    using propagate_on_container_copy_assignment = std::false_type;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;
    using is_always_equal = std::false_type;
    template <class U>
    struct rebind {
        using other = allocator<U, Resource>;
    };

    // A resource by reference; a shared handle is copied.
    allocator(typename detail::resource_holder<Resource>::argument from) noexcept : held_{from} {}
    template <class U>
    allocator(const allocator<U, Resource>& other) noexcept : held_{other.held_} {}

    [[nodiscard]] auto& resource() const noexcept { return held_.get(); }

    [[nodiscard]] T* allocate(std::size_t count) {
        if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
            throw std::bad_array_new_length{};
        }
        return static_cast<T*>(held_.get().allocate_sync(count * sizeof(T), alignof(T)));
    }
    void deallocate(T* pointer, std::size_t count) noexcept {
        held_.get().deallocate_sync(pointer, count * sizeof(T), alignof(T));
    }

    template <class U, class... Arguments>
    void construct(U* where, Arguments&&... arguments) {
        refuse_device_only();
        std::construct_at(where, std::forward<Arguments>(arguments)...);
    }
    template <class U>
    void destroy(U* where) noexcept {
        refuse_device_only();
        std::destroy_at(where);
    }

    template <class U>
    friend bool operator==(const allocator& a, const allocator<U, Resource>& b) noexcept {
        return a.resource() == b.resource();
    }

private:
    template <class, xmm::resource>
    friend class allocator;

    static constexpr void refuse_device_only() noexcept {
        static_assert(
            includes(Resource::static_reach, reach::host),
            "this memory is out of the host's reach: the host cannot construct or destroy "
            "objects in a device-only resource. Use unified memory that prefers the device, "
            "or allocate raw memory here and fill it by a kernel or a copy");
    }

    detail::resource_holder<Resource> held_;
};

}  // namespace xmm
