// SPDX-License-Identifier: Apache-2.0
// memory.hpp - how much memory this machine, or the container that we are in, can still give.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>

namespace xmm::demo {

namespace detail {

// The one number in a file of the system; `missing` if there is none ("max" is none).
[[nodiscard]] inline std::uint64_t number_in(const char* path, std::uint64_t missing) {
    std::ifstream file{path};
    std::uint64_t value = 0;
    return file >> value ? value : missing;
}

}  // namespace detail

// Free and easily freed memory, or what the cgroup's limit leaves if that is less; 0 if unknown.
[[nodiscard]] inline std::uint64_t available_bytes() {
    std::uint64_t bytes = 0;
    std::ifstream file{"/proc/meminfo"};
    for (std::string name, unit; file >> name;) {
        std::uint64_t kib = 0;
        file >> kib;
        if (name == "MemAvailable:") {
            bytes = kib << 10;
            break;
        }
        std::getline(file, unit);
    }
    constexpr const char* limits[][2] = {
        {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
         "/sys/fs/cgroup/memory/memory.usage_in_bytes"}};
    for (const auto& [limit_path, used_path] : limits) {
        const std::uint64_t limit = detail::number_in(limit_path, UINT64_MAX);
        const std::uint64_t used = detail::number_in(used_path, 0);
        bytes = std::min(bytes, limit - std::min(limit, used));
    }
    return bytes;
}

}  // namespace xmm::demo
