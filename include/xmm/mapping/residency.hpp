// SPDX-License-Identifier: Apache-2.0
// residency.hpp - the states of a page and the legal steps between them.
//
// Model    untouched    no frame anywhere; reads as zero
//          on_host      one frame on a host node holds the data; devices may map it
//          on_device    one frame on a device holds the data; the CPU has no mapping
//          duplicated   read-mostly: the data on its home node and as clean copies elsewhere, all
//                       mappings read-only
//          released     its region is gone; the record waits to be used again
//          Where a driver owns the pages it is what we told it last: untouched, nothing yet; on_host or on_device, to
//          place it there; duplicated, to keep copies. The CPU's touches, which nobody sees, may have moved it since:
//          where it is now is unknown until it is placed again, by hand or by a launch that names it.
#pragma once

#include <cstdint>

namespace xmm {

enum class residency : std::uint8_t { released, untouched, on_host, on_device, duplicated };

enum class residency_step : std::uint8_t {
    map,          // released -> untouched
    first_touch,  // untouched -> on_host, on_device
    move,         // on_host, on_device -> on_host, on_device: the data changes its node
    duplicate,    // on_host, on_device, duplicated -> duplicated: one more clean copy
    collapse,     // duplicated -> on_host, on_device: one copy stays
    discard,      // any but released -> untouched: the contents are given up
    unmap,        // any but released -> released
};

[[nodiscard]] constexpr const char* name_of(residency state) noexcept {
    switch (state) {
        case residency::released: return "released";
        case residency::untouched: return "untouched";
        case residency::on_host: return "on host";
        case residency::on_device: return "on device";
        case residency::duplicated: return "duplicated";
    }
    return "?";
}

[[nodiscard]] constexpr bool is_resident(residency state) noexcept {
    return state == residency::on_host || state == residency::on_device ||
           state == residency::duplicated;
}

[[nodiscard]] constexpr bool is_legal(residency from, residency_step step, residency to) noexcept {
    const bool is_single = to == residency::on_host || to == residency::on_device;
    switch (step) {
        case residency_step::map: return from == residency::released && to == residency::untouched;
        case residency_step::first_touch: return from == residency::untouched && is_single;
        case residency_step::move:
            return (from == residency::on_host || from == residency::on_device) && is_single;
        case residency_step::duplicate: return is_resident(from) && to == residency::duplicated;
        case residency_step::collapse: return from == residency::duplicated && is_single;
        case residency_step::discard:
            return from != residency::released && to == residency::untouched;
        case residency_step::unmap: return from != residency::released && to == residency::released;
    }
    return false;
}

}  // namespace xmm
