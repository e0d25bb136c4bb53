// SPDX-License-Identifier: Apache-2.0
// memory.hpp - how much memory the demo may count on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

#include <xmm/os/cgroup.hpp>

namespace xmm::demo {

// Free and easily freed memory; in a container at most half of its limit, since what others use of
// that is not looked up. 0 if unknown.
[[nodiscard]] inline std::uint64_t available_bytes() {
    std::ifstream file{"/proc/meminfo"};
    std::uint64_t kib = 0;
    for (std::string name; file >> name && name != "MemAvailable:";) {
        file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
    }
    file >> kib;
    const std::size_t limit = cgroup_memory_limit();
    return limit == no_limit ? kib << 10 : std::min<std::uint64_t>(kib << 10, limit / 2);
}

}  // namespace xmm::demo
