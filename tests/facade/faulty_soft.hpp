// SPDX-License-Identifier: Apache-2.0
// faulty_soft.hpp - software devices whose driver fails on demand, under a space that finds what it is.
#pragma once

#include <xmm/xmm.hpp>

#include "../support/faulty_backend.hpp"

namespace xmm::test {

struct faulty_soft : faulty_backend<soft::driver> {
    using faulty_backend::faulty_backend;
    static constexpr const char* native_kind = soft::driver::native_kind;
    soft::driver* native() noexcept { return &inner(); }
};

static_assert(backend<faulty_soft>);

}  // namespace xmm::test
