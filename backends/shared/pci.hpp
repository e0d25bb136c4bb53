// SPDX-License-Identifier: Apache-2.0
// pci.hpp - what the kernel says of a PCI device.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include <fcntl.h>
#include <unistd.h>

namespace xmm::shared::pci {

// The leading number of a file of a PCI device ("32.0 GT/s PCIe" is 32); less than 0 if there is none.
[[nodiscard]] inline double read_number(const char* bus_id, const char* file) noexcept {
    std::array<char, 160> path{};
    std::snprintf(path.data(), path.size(), "/sys/bus/pci/devices/%s/%s", bus_id, file);
    const int fd = ::open(path.data(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    std::array<char, 64> text{};
    const auto got = ::read(fd, text.data(), text.size() - 1);
    ::close(fd);
    char* end = text.data();
    const double value = got > 0 ? std::strtod(text.data(), &end) : -1;
    return end == text.data() ? -1 : value;
}

// Bytes a second each way; 0 is unknown. A device at rest slows its link down, so what counts is the
// speed that both ends can do, at the width that they agreed on.
[[nodiscard]] inline std::uint64_t link_speed(const char* bus_id) noexcept {
    double transfers = read_number(bus_id, "max_link_speed");  // in 10^9 a second
    std::array<char, 48> bridge{};
    std::snprintf(bridge.data(), bridge.size(), "%s/..", bus_id);
    const double above = read_number(bridge.data(), "max_link_speed");
    if (above > 0 && above < transfers) {
        transfers = above;
    }
    const double width = read_number(bus_id, "current_link_width");
    if (transfers <= 0 || width <= 0 || width > 64) {
        return 0;
    }
    const double payload = transfers >= 8 ? 128.0 / 130.0 : 0.8;  // what the line code leaves
    return static_cast<std::uint64_t>(transfers * 1e9 * width * payload / 8);
}

}  // namespace xmm::shared::pci
