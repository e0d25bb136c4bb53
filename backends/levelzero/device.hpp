// SPDX-License-Identifier: Apache-2.0
// device.hpp - discovery: drivers, devices and tiles; their sizes, links, and groups of command queues.
//
// Model    A device is the driver's handle and what the driver says of it: of the whole of it, or of one tile. What it
//          says is free is not asked for: often it is the total, or nothing. Once a call reports that the device is
//          gone, it is lost.
// Threads  Constant once opened, except whether it is lost.
// Failure  open() says why a device cannot be driven.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include <xmm/concepts/backend.hpp>

#include "../shared/loss.hpp"
#include "../shared/pci.hpp"

#include "driver.hpp"

namespace xmm::levelzero {

// One driver of those that the loader has, with the devices of it that can be driven.
struct found_driver {
    ze_driver_handle_t handle = nullptr;
    std::uint32_t version = 0;  // see make_version
    std::vector<ze_device_handle_t> devices;
};

class device : public shared::loss {
public:
    static constexpr unsigned max_devices = 32;  // one bit each in a mapping's record

    device(const driver& on, ze_device_handle_t handle, node_id node) noexcept
        : driver_{on}, handle_{handle}, node_{node} {}
    device(const device&) = delete;
    device& operator=(const device&) = delete;

    [[nodiscard]] status open() noexcept {
        if (const status asked = driver_.call(&driver_api::device_get_properties, handle_, &about_);
            !asked) {
            return asked;
        }
        if (const status sized = add_memories(); !sized) {
            return sized;
        }
        if (const status grouped = find_groups(); !grouped) {
            return grouped;
        }
        if (driver_.has(&driver_api::device_pci_get_properties_ext) &&
            !driver_.call(&driver_api::device_pci_get_properties_ext, handle_, &pci_)) {
            pci_ = {};
        }
        return {};
    }

    [[nodiscard]] node_id node() const noexcept { return node_; }
    [[nodiscard]] ze_device_handle_t handle() const noexcept { return handle_; }
    [[nodiscard]] const driver& calls() const noexcept { return driver_; }
    // A call that may say that the device is gone.
    template <class Function, class... Args>
    status call(Function driver_api::*which, Args... args) noexcept {
        return note(driver_.call(which, args...));
    }
    [[nodiscard]] const char* name() const noexcept { return about_.name; }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    // More than that in one allocation only with relaxed limits.
    [[nodiscard]] std::size_t largest_allocation() const noexcept { return about_.maxMemAllocSize; }
    [[nodiscard]] std::uint32_t compute_group() const noexcept { return compute_group_; }
    // One that only copies, where there is one: else that of the kernels.
    [[nodiscard]] std::uint32_t copy_group() const noexcept { return copy_group_; }
    [[nodiscard]] bool has_copy_engine() const noexcept { return copy_group_ != compute_group_; }
    // Each way; 0 is unknown.
    [[nodiscard]] std::uint64_t link_bytes_per_second() const noexcept {
        return pci_.maxSpeed.maxBandwidth > 0
                   ? static_cast<std::uint64_t>(pci_.maxSpeed.maxBandwidth)
                   : 0;
    }
    // The OS's number of the host node next to it; less than 0 if nobody knows.
    [[nodiscard]] int host_numa() const noexcept {
        std::array<char, 32> bus_id{};
        std::snprintf(bus_id.data(), bus_id.size(), "%04x:%02x:%02x.%x", pci_.address.domain,
                      pci_.address.bus, pci_.address.device, pci_.address.function);
        return static_cast<int>(shared::pci::read_number(bus_id.data(), "numa_node"));
    }

    // Asks the driver: for who waits and hears nothing.
    [[nodiscard]] bool is_gone() noexcept {
        (void)note(driver_.call(&driver_api::device_get_status, handle_));
        return is_lost();
    }

private:
    [[nodiscard]] status add_memories() noexcept {
        std::array<ze_device_memory_properties_t, 8> all;
        auto count = static_cast<std::uint32_t>(all.size());
        const status asked =
            driver_.call(&driver_api::device_get_memory_properties, handle_, &count, all.data());
        for (std::uint32_t i = 0; asked && i < std::min<std::size_t>(count, all.size()); ++i) {
            bytes_ += all[i].totalSize;
        }
        return asked && bytes_ < page_bytes
                   ? fail(errc::unsupported, "the Level Zero device has no memory of its own")
                   : asked;
    }
    [[nodiscard]] status find_groups() noexcept {
        std::array<ze_command_queue_group_properties_t, 16> all;
        auto count = static_cast<std::uint32_t>(all.size());
        if (const status asked =
                driver_.call(&driver_api::device_get_command_queue_group_properties, handle_,
                             &count, all.data());
            !asked) {
            return asked;
        }
        constexpr std::uint32_t none = ~0u;
        std::uint32_t compute = none;
        std::uint32_t copy = none;
        for (std::uint32_t i = 0; i < std::min<std::size_t>(count, all.size()); ++i) {
            const std::uint32_t flags = all[i].flags;
            if (compute == none && (flags & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE) != 0) {
                compute = i;
            } else if (copy == none && (flags & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY) != 0 &&
                       (flags & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE) == 0) {
                copy = i;
            }
        }
        if (compute == none) {
            return fail(errc::unsupported, "the Level Zero device runs no kernels");
        }
        compute_group_ = compute;
        copy_group_ = copy != none ? copy : compute;
        return {};
    }

    const driver& driver_;
    const ze_device_handle_t handle_;
    const node_id node_;
    ze_device_properties_t about_;  // (C) once open, as are the next four
    ze_pci_ext_properties_t pci_;
    std::size_t bytes_ = 0;
    std::uint32_t compute_group_ = 0;
    std::uint32_t copy_group_ = 0;
};

// What a device of several tiles is to be: one node for each of them, whose memory is its own, or one node for all,
// whose memory the driver spreads. The driver may show tiles as devices in any case.
enum class tiles : std::uint8_t { apart, together };

namespace detail {

template <class Handle, class Function, class Of>
[[nodiscard]] status list_handles(const driver& on, Function driver_api::*which, Of of,
                                  std::vector<Handle>& found) {
    std::uint32_t count = 0;
    if (const status counted = on.call(which, of, &count, nullptr); !counted) {
        return counted;
    }
    found.resize(count);
    const status listed = count == 0 ? status{} : on.call(which, of, &count, found.data());
    found.resize(listed ? std::min<std::size_t>(count, found.size()) : 0);
    return listed;
}
[[nodiscard]] inline bool is_usable(const driver& on, ze_device_handle_t one) noexcept {
    ze_device_properties_t about;
    return on.call(&driver_api::device_get_properties, one, &about) &&
           about.type == ZE_DEVICE_TYPE_GPU && device{on, one, no_node}.open();
}

}  // namespace detail

// The drivers with devices that can be driven; a status if there is none. Throws std::bad_alloc.
[[nodiscard]] inline result<std::vector<found_driver>> find_drivers(tiles how = tiles::apart) {
    const driver& on = driver::instance();
    if (!on.state()) {
        return on.state();
    }
    std::uint32_t count = 0;
    if (const status counted = on.call(&driver_api::driver_get, &count, nullptr); !counted) {
        return counted;
    }
    std::vector<ze_driver_handle_t> handles(count);
    if (const status listed = on.call(&driver_api::driver_get, &count, handles.data()); !listed) {
        return listed;
    }
    std::vector<found_driver> found;
    status last = fail(errc::unsupported, "Level Zero sees no GPU with memory of its own here");
    for (const ze_driver_handle_t handle : handles) {
        found_driver one{handle, 0, {}};
        std::vector<ze_device_handle_t> devices;
        ze_api_version_t version{};
        status asked = on.call(&driver_api::driver_get_api_version, handle, &version);
        one.version = version;
        if (asked) {
            asked = detail::list_handles(on, &driver_api::device_get, handle, devices);
        }
        last = asked ? last : asked;
        for (const ze_device_handle_t root : devices) {
            std::vector<ze_device_handle_t> parts;
            if (how == tiles::together ||
                !detail::list_handles(on, &driver_api::device_get_sub_devices, root, parts) ||
                parts.empty()) {
                parts.assign(1, root);
            }
            for (const ze_device_handle_t part : parts) {
                if (one.devices.size() < device::max_devices && detail::is_usable(on, part)) {
                    one.devices.push_back(part);
                }
            }
        }
        if (!one.devices.empty()) {
            found.push_back(std::move(one));
        }
    }
    return found.empty() ? result<std::vector<found_driver>>{last}
                         : result<std::vector<found_driver>>{std::move(found)};
}

}  // namespace xmm::levelzero
