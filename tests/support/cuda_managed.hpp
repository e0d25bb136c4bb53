// SPDX-License-Identifier: Apache-2.0
// cuda_managed.hpp - for tests of the mode `managed`: a backend, and the software driver's figures of managed memory.
#pragma once

#include "../../backends/cuda/managed.hpp"
#include "cuda_device.hpp"

namespace xmm::test {

// As open_cuda.
[[nodiscard]] inline result<std::unique_ptr<cuda::managed>> open_managed(
    std::size_t most, std::uint32_t salt = 1, std::uint64_t link_bytes_per_second = 0) noexcept {
    auto found = cuda::find_devices();
    if (!found) {
        return found.error();
    }
    const std::size_t count = std::min(most, found->size());
    static constexpr std::array ids{node_id{1}, node_id{2}, node_id{3}, node_id{4}};
    const std::array host{node_id{0}};
    const std::array bytes{std::size_t{1} << 30};
    cuda::vmm_options options;
    options.host_bytes = bytes;
    options.queue_salt = salt;
    options.link_bytes_per_second = link_bytes_per_second;
    return cuda::managed::open({found->data(), count}, {ids.data(), count}, host, options);
}
// Whether the devices here can do it; ok, or why not.
[[nodiscard]] inline status managed_state() noexcept { return open_managed(1, 99).error(); }

// All null on a real driver.
struct soft_managed_controls {
    int (*residency)(cuda::CUdeviceptr at) = nullptr;  // a device, -1 the host, -2 nowhere yet
    unsigned long long (*count)(const char* name) = nullptr;

    [[nodiscard]] explicit operator bool() const noexcept { return count != nullptr; }
};
[[nodiscard]] inline soft_managed_controls find_soft_managed() noexcept {
    soft_managed_controls all;
    all.residency =
        find_in_libcuda<std::remove_pointer_t<decltype(all.residency)>>("xmmSoftCudaResidency");
    all.count = find_in_libcuda<std::remove_pointer_t<decltype(all.count)>>("xmmSoftCudaCount");
    return all;
}

}  // namespace xmm::test
