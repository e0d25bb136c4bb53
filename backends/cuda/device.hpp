// SPDX-License-Identifier: Apache-2.0
// device.hpp - discovery: which devices can be driven, their sizes, links, nearest hosts and peers.
//
// Model    A device is its ordinal, its primary context, kept for as long as the object lives, and what
//          the driver says of it. Once a call reports an error that it does not survive, it is lost.
// Threads  Constant once opened, except whether it is lost.
// Failure  open() says why a device cannot be driven.
#pragma once

#include <array>
#include <cctype>
#include <vector>

#include <xmm/concepts/backend.hpp>

#include "../shared/loss.hpp"
#include "../shared/pci.hpp"

#include "driver.hpp"

namespace xmm::cuda {

class device : public shared::loss {
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
        return said >= 0 ? said : static_cast<int>(shared::pci::read_number(bus_id(), "numa_node"));
    }
    [[nodiscard]] std::uint64_t link_bytes_per_second() const noexcept {
        return shared::pci::link_speed(bus_id());
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
