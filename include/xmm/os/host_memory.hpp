// SPDX-License-Identifier: Apache-2.0
// host_memory.hpp - what the kernel says about host memory: nodes, limits, what is mapped.
//
// Model    Raw system calls and files of /proc and /sys; nothing is kept.
// Threads  Any. Nothing here allocates; errno is left as it was.
// Failure  Limits that cannot be read are "none"; a refused call is a status with its errno.
#pragma once

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>

namespace xmm {

// One NUMA node of the host, or the whole host where there are none.
struct host_node {
    node_id id = no_node;
    unsigned os_index = 0;          // the kernel's number for it
    std::array<char, 64> name{};    // NUL-terminated
    std::size_t bytes = 0;          // its memory, or less where a cgroup limits the process
    bool can_bind = false;          // memory can be bound to it: real, and the kernel lets us
};

inline constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();

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

// A file read line by line through a fixed buffer. Lines longer than that come truncated.
class line_reader {
public:
    explicit line_reader(const char* path) noexcept : file_{::open(path, O_RDONLY | O_CLOEXEC)} {}
    line_reader(const line_reader&) = delete;
    line_reader& operator=(const line_reader&) = delete;
    ~line_reader() {
        if (file_ >= 0) {
            ::close(file_);
        }
    }

    // Valid until the next call; false at the end.
    [[nodiscard]] bool next(std::string_view& line) noexcept {
        std::size_t length = 0;
        bool is_any = false;
        for (char c = 0; get(c);) {
            is_any = true;
            if (c == '\n') {
                break;
            }
            if (length < sizeof line_) {
                line_[length++] = c;
            }
        }
        line = {line_, length};
        return is_any;
    }

private:
    bool get(char& c) noexcept {
        if (at_ == filled_) {
            const ssize_t got = file_ < 0 ? 0 : ::read(file_, buffer_, sizeof buffer_);
            if (got <= 0) {
                return false;
            }
            at_ = 0;
            filled_ = static_cast<std::size_t>(got);
        }
        c = buffer_[at_++];
        return true;
    }

    int file_;
    std::size_t at_ = 0;
    std::size_t filled_ = 0;
    char buffer_[1024];
    char line_[1024];
};

// The number that opens the text; no_limit for "max" and for anything else.
[[nodiscard]] inline std::size_t to_limit(std::string_view text) noexcept {
    std::size_t value = 0;
    bool is_number = false;
    for (const char c : text) {
        if (c < '0' || c > '9') {
            break;
        }
        is_number = true;
        if (value > (no_limit - 9) / 10) {
            return no_limit;
        }
        value = value * 10 + static_cast<std::size_t>(c - '0');
    }
    return is_number ? value : no_limit;
}

[[nodiscard]] inline std::size_t read_limit(const char* path) noexcept {
    line_reader file{path};
    std::string_view line;
    return file.next(line) ? to_limit(line) : no_limit;
}

// A path built in place; too long makes it empty, which opens nothing.
struct path_buffer {
    char text[1024] = {};
    std::size_t length = 0;

    path_buffer& add(std::string_view part) noexcept {
        if (length + part.size() < sizeof text) {
            std::memcpy(text + length, part.data(), part.size());
            length += part.size();
            text[length] = '\0';
        } else {
            cut(0);
        }
        return *this;
    }
    void cut(std::size_t to) noexcept {
        length = to;
        text[length] = '\0';
    }
};

[[nodiscard]] inline std::string_view word(std::string_view line, unsigned index) noexcept {
    for (;; --index) {
        const std::size_t end = line.find(' ');
        if (index == 0) {
            return line.substr(0, end);
        }
        if (end == std::string_view::npos) {
            return {};
        }
        line.remove_prefix(end + 1);
    }
}

// The smallest limit on the way from the process's group up to the mount point. A group of which the
// mount shows only the inside (a container) starts at the mount point itself.
[[nodiscard]] inline std::size_t smallest_limit(std::string_view mount, std::string_view mount_root,
                                                std::string_view group, const char* file) noexcept {
    if (mount_root != "/" && group.substr(0, mount_root.size()) == mount_root) {
        group.remove_prefix(mount_root.size());
    }
    std::size_t smallest = no_limit;
    path_buffer path;
    path.add(mount);
    const std::size_t top = path.length;
    if (group != "/" && group.find("/..") == std::string_view::npos) {
        path.add(group);
    }
    for (;;) {
        const std::size_t here = path.length;
        path.add("/").add(file);
        const std::size_t limit = read_limit(path.text);
        smallest = limit < smallest ? limit : smallest;
        if (here <= top) {
            return smallest;
        }
        std::size_t parent = here;
        while (parent > top && path.text[parent - 1] != '/') {
            --parent;
        }
        path.cut(parent > top ? parent - 1 : top);
    }
}

// This process's group in the hierarchy that has the memory controller: "0::/x" or "4:memory:/x".
[[nodiscard]] inline path_buffer memory_group(bool is_v2, const char* proc_cgroup) noexcept {
    path_buffer group;
    line_reader groups{proc_cgroup};
    for (std::string_view line; groups.next(line);) {
        const std::size_t first = line.find(':');
        const std::size_t second = line.find(':', first + 1);
        if (first == std::string_view::npos || second == std::string_view::npos) {
            continue;
        }
        const std::string_view controllers = line.substr(first + 1, second - first - 1);
        const bool is_wanted =
            is_v2 ? controllers.empty()
                  : controllers == "memory" || controllers.substr(0, 7) == "memory," ||
                        controllers.find(",memory") != std::string_view::npos;
        if (is_wanted) {
            group.add(line.substr(second + 1));
        }
    }
    return group;
}

[[nodiscard]] inline std::size_t cgroup_limit(const char* proc_cgroup, const char* proc_mountinfo) noexcept {
    std::size_t smallest = no_limit;
    line_reader mounts{proc_mountinfo};
    for (std::string_view line; mounts.next(line);) {
        const std::size_t dash = line.find(" - ");
        if (dash == std::string_view::npos) {
            continue;
        }
        const std::string_view type = word(line.substr(dash + 3), 0);
        const bool is_v2 = type == "cgroup2";
        if (!is_v2 && (type != "cgroup" || line.find("memory", dash) == std::string_view::npos)) {
            continue;
        }
        const path_buffer group = memory_group(is_v2, proc_cgroup);
        const std::size_t limit = smallest_limit(word(line, 4), word(line, 3), group.text,
                                                 is_v2 ? "memory.max" : "memory.limit_in_bytes");
        smallest = limit < smallest ? limit : smallest;
    }
    // v1 writes "none" as the largest multiple of the OS page.
    return smallest > (no_limit >> 2) ? no_limit : smallest;
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
    if (range.is_empty() || range.end() < range.begin) {
        return false;
    }
    detail::errno_keeper keep;
    const std::size_t os_page = os_page_bytes();
    const address begin = align_down(range.begin, os_page);
    const std::size_t bytes = align_up(range.end(), os_page) - begin;
    // Since 2.6.19 this only walks the mappings; it starts no I/O.
    return ::msync(to_pointer(begin), bytes, MS_ASYNC) == 0;
}

// Places the memory of a mapped range on a host node; pages that exist already move there where they
// can. The range is whole OS pages. unsupported where the node or the kernel refuses.
inline status bind_memory(va_range range, const host_node& node, binding how = binding::prefer) noexcept {
    const std::size_t os_page = os_page_bytes();
    if (range.is_empty() || range.end() < range.begin || range.begin % os_page != 0 ||
        range.bytes % os_page != 0) {
        return fail(errc::invalid_argument, "bind_memory takes whole OS pages");
    }
    constexpr unsigned word_bits = 8 * sizeof(unsigned long);
    unsigned long mask[1024 / word_bits] = {};
    if (!node.can_bind || node.os_index >= 1024) {
        return fail(errc::unsupported, "memory cannot be bound to this node");
    }
    mask[node.os_index / word_bits] = 1UL << (node.os_index % word_bits);
    detail::errno_keeper keep;
    // One more than the highest bit: the kernel takes maxnode - 1 bits.
    if (::syscall(SYS_mbind, range.begin, range.bytes, how == binding::strict ? MPOL_BIND : MPOL_PREFERRED,
                  mask, 1025UL, MPOL_MF_MOVE) == 0) {
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
