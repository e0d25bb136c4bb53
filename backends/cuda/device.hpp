// SPDX-License-Identifier: Apache-2.0
// device.hpp - discovery: which devices can be driven, their sizes, links, nearest hosts and peers.
//
// Model    A device is its ordinal, its primary context, kept for as long as the object lives, and what
//          the driver says of it. Once a call reports an error that it does not survive, it is lost.
// Threads  Constant once opened, except whether it is lost.
// Failure  open() says why a device cannot be driven.
#pragma once

#include <array>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <xmm/concepts/backend.hpp>

#include "driver.hpp"

namespace xmm::cuda {

namespace sysfs {

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

}  // namespace sysfs

class device {
public:
    static constexpr unsigned max_devices = 32;  // one bit each in a mapping's record

    device(const driver& on, CUdevice ordinal, node_id node) noexcept
        : driver_{on}, ordinal_{ordinal}, node_{node} {}
    ~device() {
        if (context_ != nullptr) {
            (void)driver_.call(&driver_api::device_primary_ctx_release, ordinal_);
        }
    }
    device(const device&) = delete;
    device& operator=(const device&) = delete;

    // Whether frames can be made and mapped on it at all.
    [[nodiscard]] static bool is_usable(const driver& on, CUdevice ordinal) noexcept {
        return attribute(on, ordinal, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) ==
                   1 &&
               attribute(on, ordinal, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING) == 1;
    }

    [[nodiscard]] status open() noexcept {
        if (!is_usable(driver_, ordinal_)) {
            return fail(errc::unsupported, "the CUDA device cannot map memory at chosen addresses");
        }
        status outcome = driver_.call(&driver_api::device_primary_ctx_retain, &context_, ordinal_);
        if (!outcome) {
            return outcome;
        }
        outcome = driver_.call(&driver_api::device_total_mem, &bytes_, ordinal_);
        if (!outcome) {
            return outcome;
        }
        (void)driver_.call(&driver_api::device_get_name, name_.data(),
                           static_cast<int>(name_.size() - 1), ordinal_);
        (void)driver_.call(&driver_api::device_get_pci_bus_id, bus_id_.data(),
                           static_cast<int>(bus_id_.size() - 1), ordinal_);
        for (char& one : bus_id_) {  // sysfs writes them in small letters
            one = static_cast<char>(std::tolower(static_cast<unsigned char>(one)));
        }
        const context_scope here{driver_, context_};
        if (!driver_.call(&driver_api::ctx_get_stream_priority_range, &least_priority_,
                          &greatest_priority_)) {
            least_priority_ = greatest_priority_ = 0;
        }
        return {};
    }

    [[nodiscard]] node_id node() const noexcept { return node_; }
    [[nodiscard]] CUdevice ordinal() const noexcept { return ordinal_; }
    [[nodiscard]] CUcontext context() const noexcept { return context_; }
    [[nodiscard]] const driver& calls() const noexcept { return driver_; }
    [[nodiscard]] const char* name() const noexcept { return name_.data(); }
    [[nodiscard]] const char* bus_id() const noexcept { return bus_id_.data(); }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] bool has(CUdevice_attribute one) const noexcept {
        return attribute(driver_, ordinal_, one) == 1;
    }
    [[nodiscard]] CUmemLocation location() const noexcept {
        return {CU_MEM_LOCATION_TYPE_DEVICE, ordinal_};
    }
    [[nodiscard]] bool can_reach(const device& other) const noexcept {
        int can = 0;
        return this == &other ||
               (driver_.call(&driver_api::device_can_access_peer, &can, ordinal_, other.ordinal_) &&
                can == 1);
    }
    // Of the device itself, what other processes take included.
    [[nodiscard]] result<std::size_t> free_bytes() const noexcept {
        const context_scope here{driver_, context_};
        std::size_t left = 0;
        std::size_t all = 0;
        const status asked = driver_.call(&driver_api::mem_get_info, &left, &all);
        return asked ? result<std::size_t>{left} : result<std::size_t>{asked};
    }
    // The OS's number of the host node next to it; less than 0 if nobody knows.
    [[nodiscard]] int host_numa() const noexcept {
        const int said = attribute(driver_, ordinal_, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
        return said >= 0 ? said : static_cast<int>(sysfs::read_number(bus_id(), "numa_node"));
    }
    [[nodiscard]] std::uint64_t link_bytes_per_second() const noexcept {
        return sysfs::link_speed(bus_id());
    }
    // Lower is more urgent.
    [[nodiscard]] int stream_priority(queue_priority wanted) const noexcept {
        switch (wanted) {
            case queue_priority::background: return least_priority_;
            case queue_priority::urgent: return greatest_priority_;
            case queue_priority::normal: break;
        }
        return least_priority_ + (greatest_priority_ - least_priority_) / 2;
    }

    // relaxed: nothing but the fact itself is read.
    [[nodiscard]] bool is_lost() const noexcept { return is_lost_.load(std::memory_order_relaxed); }
    // Passes an outcome on, and remembers what it says of the device.
    status note(status outcome) noexcept {
        if (outcome.code == errc::device_lost) {
            is_lost_.store(true, std::memory_order_relaxed);
        }
        return outcome;
    }

private:
    [[nodiscard]] static int attribute(const driver& on, CUdevice ordinal,
                                       CUdevice_attribute which) noexcept {
        int value = -1;
        return on.call(&driver_api::device_get_attribute, &value, which, ordinal) ? value : -1;
    }

    const driver& driver_;
    const CUdevice ordinal_;
    const node_id node_;
    CUcontext context_ = nullptr;
    std::array<char, 64> name_{};
    std::array<char, 32> bus_id_{};
    std::size_t bytes_ = 0;
    int least_priority_ = 0;
    int greatest_priority_ = 0;
    std::atomic<bool> is_lost_{false};
};

// The ordinals of the devices that can be driven; a status if there is no driver or no such device.
// Throws std::bad_alloc.
[[nodiscard]] inline result<std::vector<CUdevice>> find_devices() {
    const driver& on = driver::instance();
    if (!on.state()) {
        return on.state();
    }
    int count = 0;
    if (const status counted = on.call(&driver_api::device_get_count, &count); !counted) {
        return counted;
    }
    std::vector<CUdevice> found;
    for (int i = 0; i < count && found.size() < device::max_devices; ++i) {
        CUdevice ordinal = 0;
        if (on.call(&driver_api::device_get, &ordinal, i) && device::is_usable(on, ordinal)) {
            found.push_back(ordinal);
        }
    }
    if (found.empty()) {
        return fail(errc::unsupported, "no CUDA device here maps memory at chosen addresses");
    }
    return found;
}

}  // namespace xmm::cuda
