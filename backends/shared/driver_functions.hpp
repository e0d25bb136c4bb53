// SPDX-License-Identifier: Apache-2.0
// driver_functions.hpp - the functions of a driver that is found at run time: every call leaves as a status.
//
// Model    Api is a struct of functions, each with its name and where it was found (`at`); status_of(code) beside the
//          driver's types says what an answer means.
// Threads  Any, once they are found.
#pragma once

#include <type_traits>

#include <xmm/core/config.hpp>
#include <xmm/core/status.hpp>

namespace xmm::shared {

template <class Api>
class driver_functions {
public:
    // call(&driver_api::mem_release, handle); arguments convert as in a call of the function itself.
    template <template <class> class Function, class Result, class... Args>
    status call(Function<Result(Args...)> Api::*which,
                std::type_identity_t<Args>... args) const noexcept {
        XMM_ASSERT((api_.*which).at != nullptr, "a function that this driver does not have");
        return status_of((api_.*which)(args...));
    }
    // Whether one of the optional functions is there.
    template <class Function>
    [[nodiscard]] bool has(Function Api::*which) const noexcept {
        return (api_.*which).at != nullptr;
    }

protected:
    Api api_;  // (C) once found
};

}  // namespace xmm::shared
