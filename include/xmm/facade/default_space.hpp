// SPDX-License-Identifier: Apache-2.0
// default_space.hpp - the space that is there without being made.
//
// Threads  Any; made once, by the first call.
#pragma once

#include <xmm/facade/space.hpp>

namespace xmm {

namespace detail {

class default_space_holder {
public:
    static constexpr const char* registry_key = "default_space/1";
    default_space_holder() : made_{space::create()} {}
    [[nodiscard]] result<space>& get() noexcept { return made_; }

private:
    result<space> made_;
};

}  // namespace detail

// The process-wide space, shared by all shared objects, made at the first call and never destroyed.
// Ends the program with the reason if it cannot be made.
[[nodiscard]] inline space& default_space() {
    return registry::object<detail::default_space_holder>().get().value();
}

}  // namespace xmm
