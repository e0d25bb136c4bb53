// SPDX-License-Identifier: Apache-2.0
// host_resource.hpp - plain memory of the CPU: of one host node, or interleaved over several.
//
// Model    Large blocks are mappings of their own with a memory policy; small ones of host_resource come
//          from operator new and lie where they are first touched.
//          The policy is "preferred": a full node hands over to its neighbour, where "bind" would have
//          the kernel kill the process. A kernel that refuses (containers) is obeyed silently.
// Threads  Any.
// Failure  No memory or no address space: out_of_memory with errno. Nothing else can fail.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <new>
#include <span>

#include <linux/mempolicy.h>
#include <sys/mman.h>

#include <xmm/os/topology.hpp>
#include <xmm/resources/memory_resource.hpp>

namespace xmm {
namespace detail {

// The host nodes that a mapping is placed on, and how.
class numa_policy {
public:
    enum class kind : int { preferred = MPOL_PREFERRED, interleave = MPOL_INTERLEAVE };

    explicit numa_policy(kind how) noexcept : how_{how} {}

    // Passes over what is no host, and hosts that memory cannot be bound to.
    void add(node_id node) {
        const topology& machine = machine_topology();
        if (!machine.is_host(node)) {
            return;
        }
        const host_node& host = machine.hosts()[static_cast<std::size_t>(node.value)];
        if (host.can_bind) {
            mask_.add(host.os_index);
        }
    }
    // A kernel that refuses is obeyed.
    void apply(void* begin, std::size_t bytes) const noexcept {
        if (!mask_.is_empty()) {
            mask_.apply({to_address(begin), align_up(bytes, os_page_bytes())},
                        static_cast<int>(how_));
        }
    }

private:
    node_mask mask_;
    kind how_;
};

// A private mapping, aligned as asked; nullptr with errno set if there is none.
[[nodiscard]] inline void* map_plain(std::size_t bytes, std::size_t alignment) noexcept {
    const std::size_t length = align_up(bytes, os_page_bytes());
    const std::size_t spare = alignment > os_page_bytes() ? alignment - os_page_bytes() : 0;
    void* raw =
        ::mmap(nullptr, length + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) {
        return nullptr;
    }
    const address begin = align_up(to_address(raw), alignment);
    const std::size_t before = begin - to_address(raw);
    if (before != 0) {
        ::munmap(raw, before);
    }
    if (spare != before) {
        ::munmap(to_pointer(begin + length), spare - before);
    }
    if (length >= page_bytes) {
        ::madvise(to_pointer(begin), length, MADV_HUGEPAGE);  // a wish; ENOSYS and EINVAL are fine
    }
    return to_pointer(begin);
}

inline void unmap_plain(void* pointer, std::size_t bytes) noexcept {
    ::munmap(pointer, align_up(bytes, os_page_bytes()));
}

}  // namespace detail

// Memory of one host node. All of them are equal: how to free a block shows in its size.
class host_resource final : public memory_resource {
public:
    static constexpr reach static_reach = reach::host;
    static constexpr std::size_t least_mapped_bytes = std::size_t{256} << 10;

    explicit host_resource(node_id node = any_host) : memory_resource{"host", node, static_reach} {
        policy_.add(node);
    }

private:
    [[nodiscard]] static bool is_mapped(std::size_t bytes, std::size_t alignment) noexcept {
        return bytes >= least_mapped_bytes || alignment >= least_mapped_bytes;
    }
    void* do_allocate_on(stream_ref, std::size_t bytes, std::size_t alignment) override {
        void* pointer = nullptr;
        if (is_mapped(bytes, alignment)) {
            pointer = detail::map_plain(bytes, alignment);
            if (pointer != nullptr) {
                policy_.apply(pointer, bytes);
            }
        } else {
            pointer = ::operator new(bytes, std::align_val_t{alignment}, std::nothrow);
        }
        if (pointer == nullptr) {
            refuse(bytes, "the system has no memory or no address space left", errno);
        }
        return pointer;
    }
    void do_deallocate_on(stream_ref stream, void* pointer, std::size_t bytes,
                          std::size_t alignment) noexcept override {
        if (!try_await(stream)) {  // copies on the stream may still read the block
            say_left_alone(pointer);
            return;
        }
        if (is_mapped(bytes, alignment)) {
            detail::unmap_plain(pointer, bytes);
        } else {
            ::operator delete(pointer, std::align_val_t{alignment});  // clang 16 has no sized form
        }
    }
    bool do_is_equal_to(const resource_base& other) const noexcept override {
        return dynamic_cast<const host_resource*>(&other) != nullptr;
    }

    detail::numa_policy policy_{detail::numa_policy::kind::preferred};
};

// Memory whose OS pages lie on several host nodes in turn: the bandwidth of all of them for one array.
// Each block is whole OS pages, so small blocks want a pool above. All of them are equal.
class interleave_resource final : public memory_resource {
public:
    static constexpr reach static_reach = reach::host;

    // No nodes: first touch decides, as if there were no policy.
    explicit interleave_resource(std::span<const node_id> nodes)
        : memory_resource{"interleave", any_host, static_reach} {
        for (const node_id node : nodes) {
            policy_.add(node);
        }
    }

private:
    void* do_allocate_on(stream_ref, std::size_t bytes, std::size_t alignment) override {
        void* pointer = detail::map_plain(bytes, alignment);
        if (pointer == nullptr) {
            refuse(bytes, "the system has no memory or no address space left", errno);
        }
        policy_.apply(pointer, bytes);
        return pointer;
    }
    void do_deallocate_on(stream_ref stream, void* pointer, std::size_t bytes,
                          std::size_t) noexcept override {
        if (!try_await(stream)) {
            say_left_alone(pointer);
            return;
        }
        detail::unmap_plain(pointer, bytes);
    }
    bool do_is_equal_to(const resource_base& other) const noexcept override {
        return dynamic_cast<const interleave_resource*>(&other) != nullptr;
    }

    detail::numa_policy policy_{detail::numa_policy::kind::interleave};
};

}  // namespace xmm
