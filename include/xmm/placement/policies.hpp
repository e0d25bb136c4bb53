// SPDX-License-Identifier: Apache-2.0
// policies.hpp - the stock placement policies.
//
// Model    first_touch  GMM: a device's access brings the page to it; the least recently mapped pages make
//                       room. Fast while the working set fits, and the one that thrashes when it does not.
//          mapped       pages stay on the host; devices reach them over the link. Never thrashes.
// See      placement/fault.hpp asks them.
#pragma once

#include <array>
#include <cstring>

#include <xmm/concepts/policy.hpp>
#include <xmm/os/registry.hpp>

namespace xmm {

struct first_touch_policy {
    static const char* name() noexcept { return "first_touch"; }
    static placement_choice choose(const device_touch&) noexcept {
        return placement_choice::on_device;
    }
};

struct mapped_policy {
    static const char* name() noexcept { return "mapped"; }
    static placement_choice choose(const device_touch&) noexcept {
        return placement_choice::in_place;
    }
};

static_assert(policy<first_touch_policy> && policy<mapped_policy>);

namespace detail {

// The stock policies have no state, so one object of each serves every space.
inline first_touch_policy the_first_touch_policy;
inline mapped_policy the_mapped_policy;

}  // namespace detail

inline constexpr std::array stock_policy_names{"first_touch", "mapped"};

// False if there is no stock policy of that name.
[[nodiscard]] inline bool find_stock_policy(const char* name, policy_ref& found) noexcept {
    detail::keep_this_object();  // they are its own, and the space may be another's
    if (std::strcmp(name, "first_touch") == 0) {
        found = policy_ref{detail::the_first_touch_policy};
        return true;
    }
    if (std::strcmp(name, "mapped") == 0) {
        found = policy_ref{detail::the_mapped_policy};
        return true;
    }
    return false;
}

}  // namespace xmm
