// SPDX-License-Identifier: Apache-2.0
// cgroup.hpp - the memory limit that control groups, v1 or v2, put on this process.
//
// Model    The least limit on the way from the process's group up to where the hierarchy is mounted.
// Threads  Any. Reads files through fixed buffers; allocates nothing. errno may change.
// Failure  What cannot be read is no limit.
#pragma once

#include <cstddef>
#include <cstring>
#include <limits>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

namespace xmm {

inline constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();

namespace detail {

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
        const bool is_wanted = is_v2 ? controllers.empty()
                                     : controllers == "memory" ||
                                           controllers.substr(0, 7) == "memory," ||
                                           controllers.find(",memory") != std::string_view::npos;
        if (is_wanted) {
            group.add(line.substr(second + 1));
        }
    }
    return group;
}

[[nodiscard]] inline std::size_t cgroup_limit(const char* proc_cgroup,
                                              const char* proc_mountinfo) noexcept {
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
}  // namespace xmm
