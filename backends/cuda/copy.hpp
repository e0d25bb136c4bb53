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

#include "driver.hpp"

namespace xmm::cuda {

template <class IsSeam>
[[nodiscard]] status enqueue_copies(const driver& on, CUstream stream,
                                    std::span<const piece> pieces, IsSeam&& is_seam) noexcept {
    for (std::size_t i = 0; i < pieces.size();) {
        piece all = pieces[i++];
        XMM_ASSERT(all.to.bytes == all.from.bytes, "both sides of a copy are equally long");
        for (; i < pieces.size() && pieces[i].to.begin == all.to.end() &&
               pieces[i].from.begin == all.from.end() && !is_seam(pieces[i].to.begin) &&
               !is_seam(pieces[i].from.begin);
             ++i) {
            all.to.bytes += pieces[i].to.bytes;
            all.from.bytes += pieces[i].from.bytes;
        }
        if (all.to.is_empty()) {
            continue;
        }
        if (const status outcome = on.call(&driver_api::memcpy_async, CUdeviceptr{all.to.begin},
                                           CUdeviceptr{all.from.begin}, all.to.bytes, stream);
            !outcome) {
            return outcome;
        }
    }
    return {};
}

template <class IsSeam>
[[nodiscard]] status enqueue_zeros(const driver& on, CUstream stream,
                                   std::span<const va_range> ranges, IsSeam&& is_seam) noexcept {
    for (std::size_t i = 0; i < ranges.size();) {
        va_range all = ranges[i++];
        for (; i < ranges.size() && ranges[i].begin == all.end() && !is_seam(ranges[i].begin);
             ++i) {
            all.bytes += ranges[i].bytes;
        }
        const CUdeviceptr at{all.begin};
        const bool is_words = (all.begin | all.bytes) % sizeof(std::uint32_t) == 0;
        status outcome;
        if (all.is_empty()) {
            continue;
        }
        if (is_words) {
            outcome = on.call(&driver_api::memset_d32_async, at, 0u,
                              all.bytes / sizeof(std::uint32_t), stream);
        } else {
            outcome = on.call(&driver_api::memset_d8_async, at, static_cast<unsigned char>(0),
                              all.bytes, stream);
        }
        if (!outcome) {
            return outcome;
        }
    }
    return {};
}

}  // namespace xmm::cuda
