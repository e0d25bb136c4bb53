// SPDX-License-Identifier: Apache-2.0
// copy.hpp - memcpy and zero: batches as calls of the driver.
//
// Model    What lies in a row on both sides is one call, except across a seam: the driver refuses a copy from one
//          page-locked piece of memory into the next, so is_seam(address) says where one may begin. Addresses are
//          standing ones or plain host memory; the driver tells them apart. Plain memory that is not page-locked is
//          staged by the driver, and the calling thread works for it.
// Failure  The first refusal; what is in the stream by then is in the stream.
#pragma once

#include <span>

#include <xmm/core/types.hpp>

#include "../shared/runs.hpp"

#include "driver.hpp"

namespace xmm::cuda {

template <class IsSeam>
[[nodiscard]] status enqueue_copies(const driver& on, CUstream stream,
                                    std::span<const piece> pieces, IsSeam&& is_seam) noexcept {
    return shared::for_each_copy(pieces, is_seam, [&](const piece& all) {
        return on.call(&driver_api::memcpy_async, CUdeviceptr{all.to.begin},
                       CUdeviceptr{all.from.begin}, all.to.bytes, stream);
    });
}

template <class IsSeam>
[[nodiscard]] status enqueue_zeros(const driver& on, CUstream stream,
                                   std::span<const va_range> ranges, IsSeam&& is_seam) noexcept {
    return shared::for_each_run(ranges, is_seam, [&](va_range all) {
        const CUdeviceptr at{all.begin};
        if ((all.begin | all.bytes) % sizeof(std::uint32_t) == 0) {
            return on.call(&driver_api::memset_d32_async, at, 0u, all.bytes / sizeof(std::uint32_t),
                           stream);
        }
        return on.call(&driver_api::memset_d8_async, at, static_cast<unsigned char>(0), all.bytes,
                       stream);
    });
}

}  // namespace xmm::cuda
