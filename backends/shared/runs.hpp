// SPDX-License-Identifier: Apache-2.0
// runs.hpp - what lies in a row, as one call.
//
// Model    is_seam(address) says where a call must not go on from what lies before.
// Failure  The first refusal ends it.
#pragma once

#include <span>

#include <xmm/core/config.hpp>
#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>

namespace xmm::shared {

inline constexpr auto no_seams = [](address) noexcept { return false; };

// call(piece) -> status for pieces in a row on both sides.
template <class IsSeam, class Call>
[[nodiscard]] status for_each_copy(std::span<const piece> pieces, IsSeam&& is_seam,
                                   Call&& call) noexcept {
    status outcome;
    for (std::size_t i = 0; i < pieces.size() && outcome;) {
        piece all = pieces[i++];
        XMM_ASSERT(all.to.bytes == all.from.bytes, "both sides of a copy are equally long");
        for (; i < pieces.size() && pieces[i].to.begin == all.to.end() &&
               pieces[i].from.begin == all.from.end() && !is_seam(pieces[i].to.begin) &&
               !is_seam(pieces[i].from.begin);
             ++i) {
            all.to.bytes += pieces[i].to.bytes;
            all.from.bytes += pieces[i].from.bytes;
        }
        outcome = all.to.is_empty() ? status{} : call(all);
    }
    return outcome;
}

// call(va_range) -> status for ranges in a row.
template <class IsSeam, class Call>
[[nodiscard]] status for_each_run(std::span<const va_range> ranges, IsSeam&& is_seam,
                                  Call&& call) noexcept {
    status outcome;
    for (std::size_t i = 0; i < ranges.size() && outcome;) {
        va_range all = ranges[i++];
        for (; i < ranges.size() && ranges[i].begin == all.end() && !is_seam(ranges[i].begin);
             ++i) {
            all.bytes += ranges[i].bytes;
        }
        outcome = all.is_empty() ? status{} : call(all);
    }
    return outcome;
}

}  // namespace xmm::shared
