// SPDX-License-Identifier: Apache-2.0
// driver_functions.hpp - the functions of a driver that is found at run time: every call leaves as a status.
//
// Model    Api is a struct of functions, each with its name and where it was found (`at`); status_of(code) beside the
//          driver's types says what an answer means.
// Threads  Any, once they are found; any may be the first to look for them.
#pragma once

#include <atomic>
#include <memory>
#include <new>
#include <type_traits>

#include <xmm/core/config.hpp>
#include <xmm/core/status.hpp>
#include <xmm/os/registry.hpp>

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

struct is_starting {};

// Starts a driver, once and without a lock: several threads may start it at the same time, which does no harm. Hidden,
// since each shared object has its own, as its code is; the process's driver is a copy of the first object's.
template <class Driver>
class [[gnu::visibility("hidden")]] started {
public:
    // Null: no memory, or a forked child.
    [[nodiscard]] const Driver* find() noexcept {
        // acquire: pairs with the release below.
        const Driver* known = first_.load(std::memory_order_acquire);
        if (known != nullptr || registry::is_forked_child()) {
            return known;
        }
        std::unique_ptr<Driver> mine{new (std::nothrow) Driver{is_starting{}}};
        // release: it is complete before it is found. acquire: as above.
        return mine != nullptr &&
                       first_.compare_exchange_strong(known, mine.get(), std::memory_order_acq_rel,
                                                      std::memory_order_acquire)
                   ? mine.release()
                   : known;
    }

private:
    std::atomic<const Driver*> first_{nullptr};
};

}  // namespace xmm::shared
