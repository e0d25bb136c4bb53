// SPDX-License-Identifier: Apache-2.0
// check.hpp - the library's statuses and results, turned into the demo's exceptions.
#pragma once

#include <string>
#include <utility>

#include <xmm/core/status.hpp>

#include "bad_input.hpp"
#include "format.hpp"

namespace xmm::demo {

inline void check(status outcome, const char* what) {
    if (!outcome.is_ok()) {
        throw demo_failure(fmt::format("{}: {}{}{}", what, name_of(outcome.code),
                                       *outcome.why != '\0' ? ": " : "", outcome.why));
    }
}

template <class T>
T check(result<T> outcome, const char* what) {
    if (!outcome) {
        check(outcome.error(), what);
    }
    return std::move(*outcome);
}

}  // namespace xmm::demo
