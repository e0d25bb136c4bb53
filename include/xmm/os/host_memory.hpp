// SPDX-License-Identifier: Apache-2.0
// host_memory.hpp - what the kernel says about host memory: nodes, limits, what is mapped.
//
// Model    Raw system calls and files of /proc and /sys; nothing is kept.
// Threads  Any. Nothing here allocates; errno is left as it was, but where a function speaks of it.
// Failure  Limits that cannot be read are "none"; a refused call is a status with its errno.
#pragma once

#include <array>
#include <cerrno>
#include <cstdint>
#include <string_view>

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/os/cgroup.hpp>

namespace xmm {

// One NUMA node of the host, or the whole host where there are none.
struct host_node {
    node_id id = no_node;
    unsigned os_index = 0;        // the kernel's number for it
    std::array<char, 64> name{};  // NUL-terminated
    std::size_t bytes = 0;        // its memory, or its share where a cgroup limits the process
    bool can_bind = false;        // memory can be bound to it: real, and the kernel lets us
};

enum class binding : std::uint8_t {
    prefer,  // take memory elsewhere when the node is full
    strict,  // never elsewhere: a full node means the kernel's out-of-memory killer
};

[[nodiscard]] inline std::size_t os_page_bytes() noexcept {
    return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

namespace detail {

struct errno_keeper {
    int before = errno;
    errno_keeper() = default;
    errno_keeper(const errno_keeper&) = delete;
    errno_keeper& operator=(const errno_keeper&) = delete;
    ~errno_keeper() { errno = before; }
};

// mmap by its number. To the thread sanitizer the library's mmap is a write to the whole range, which
// would race with every thread that uses the addresses; but who changes a mapping under its users (a
// sink of the fault trap, a move) writes no data. MAP_FAILED and errno as ever.
[[nodiscard]] inline void* map_quietly(void* at, std::size_t bytes, int protection, int flags,
                                       int file, std::size_t offset) noexcept {
    return reinterpret_cast<void*>(::syscall(SYS_mmap, at, bytes, protection, flags, file, offset));
}

// The host nodes that a memory policy names, as mbind takes them. A raw system call: libnuma would be a
// dependency for one line.
class node_mask {
public:
    // By the kernel's number. False: it is beyond what a mask holds.
    bool add(unsigned os_index) noexcept {
        if (os_index >= most_nodes) {
            return false;
        }
        words_[os_index / word_bits] |= 1UL << (os_index % word_bits);
        is_empty_ = false;
        return true;
    }
    [[nodiscard]] bool is_empty() const noexcept { return is_empty_; }
    // Mode and flags are mbind's; the range begins at an OS page. False, with errno, if the kernel refuses.
    bool apply(va_range range, int mode, unsigned flags = 0) const noexcept {
        // One more than the highest bit: the kernel takes maxnode - 1 bits.
        return ::syscall(SYS_mbind, range.begin, range.bytes, mode, words_.data(),
                         static_cast<unsigned long>(most_nodes) + 1, flags) == 0;
    }

private:
    static constexpr unsigned word_bits = 8 * sizeof(unsigned long);
    static constexpr unsigned most_nodes = 1024;

    std::array<unsigned long, most_nodes / word_bits> words_{};
    bool is_empty_ = true;
};

// Faults a mapped range in at once, as `wanted` would OS page by OS page; contents stay. What a kernel before 5.14
// (unsupported), or one short of memory, leaves out comes in by access. The range must not be a hole of the fault trap:
// the call would wait for who serves it.
inline status populate(va_range range, access wanted) noexcept {
    constexpr int populate_read =
        22;  // MADV_POPULATE_READ and _WRITE, which older C libraries do not name
    constexpr int populate_write = 23;
    const errno_keeper keep;
    if (::madvise(to_pointer(range.begin), range.bytes,
                  has_write(wanted) ? populate_write : populate_read) == 0) {
        return {};
    }
    return errno == EINVAL
               ? fail(errc::unsupported, "the kernel is too old to bring memory in ahead", errno)
               : fail(errc::no_memory, "the host has no memory to bring in", errno);
}

}  // namespace detail

// The least memory limit, of cgroups v1 or v2, on this process; no_limit if there is none.
[[nodiscard]] inline std::size_t cgroup_memory_limit() noexcept {
    detail::errno_keeper keep;
    return detail::cgroup_limit("/proc/self/cgroup", "/proc/self/mountinfo");
}

// vm.max_map_count: so many mappings may a process have.
[[nodiscard]] inline std::size_t map_limit() noexcept {
    detail::errno_keeper keep;
    return detail::read_limit("/proc/sys/vm/max_map_count");
}

// The mappings that this process has now. Milliseconds when there are many.
[[nodiscard]] inline std::size_t map_count() noexcept {
    detail::errno_keeper keep;
    detail::line_reader maps{"/proc/self/maps"};
    std::size_t count = 0;
    for (std::string_view line; maps.next(line);) {
        ++count;
    }
    return count;
}

// Whether each OS page of the range belongs to some mapping, readable or not. A range that is empty or
// wraps around is not mapped.
[[nodiscard]] inline bool is_mapped(va_range range) noexcept {
    const std::size_t os_page = os_page_bytes();
    // Nothing is ever mapped in the last page of all addresses, whose end is 0.
    if (range.is_empty() || range.end() < range.begin ||
        range.end() > align_down(SIZE_MAX, os_page)) {
        return false;
    }
    detail::errno_keeper keep;
    const address begin = align_down(range.begin, os_page);
    const std::size_t bytes = align_up(range.end(), os_page) - begin;
    // Since 2.6.19 this only walks the mappings; it starts no I/O.
    return ::msync(to_pointer(begin), bytes, MS_ASYNC) == 0;
}

// Places the memory of a mapped range on a host node; pages that exist already move there where they
// can. The range is whole OS pages. unsupported where the node or the kernel refuses.
inline status bind_memory(va_range range, const host_node& node,
                          binding how = binding::prefer) noexcept {
    const std::size_t os_page = os_page_bytes();
    if (range.is_empty() || range.end() < range.begin || range.begin % os_page != 0 ||
        range.bytes % os_page != 0) {
        return fail(errc::invalid_argument, "bind_memory takes whole OS pages");
    }
    detail::node_mask mask;
    if (!node.can_bind || !mask.add(node.os_index)) {
        return fail(errc::unsupported, "memory cannot be bound to this node");
    }
    detail::errno_keeper keep;
    if (mask.apply(range, how == binding::strict ? MPOL_BIND : MPOL_PREFERRED, MPOL_MF_MOVE)) {
        return {};
    }
    switch (errno) {
        case EFAULT: return fail(errc::not_mapped, "bind_memory: the range is not mapped", errno);
        case ENOMEM: return fail(errc::no_memory, "bind_memory: the kernel has no memory", errno);
        case EINVAL: return fail(errc::unsupported, "bind_memory: not a node with memory", errno);
        default: return fail(errc::unsupported, "bind_memory: the kernel refuses", errno);
    }
}

}  // namespace xmm
