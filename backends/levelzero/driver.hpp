// SPDX-License-Identifier: Apache-2.0
// driver.hpp - every call of the interface passes here once and leaves as a status.
//
// Model    libze_loader.so.1 is loaded and started once a process, at the first question, and stays. Its answer to
//          the first start is its answer forever, and after a refusal nothing of it may be called. Functions that
//          older loaders lack are optional: has() says whether they are there.
// Threads  Any.
// Failure  A status with the driver's own code. What a device does not survive is device_lost.
#pragma once

#include <xmm/core/status.hpp>
#include <xmm/os/dynamic_library.hpp>
#include <xmm/os/registry.hpp>

#include "../shared/driver_functions.hpp"

#include "abi.hpp"

namespace xmm::levelzero {

[[nodiscard]] constexpr status status_of(ze_result_t code) noexcept {
    const auto own = static_cast<std::int32_t>(code);
    switch (code) {
        case ZE_RESULT_SUCCESS: return {};
        case ZE_RESULT_NOT_READY: return fail(errc::busy, "Level Zero: not ready yet", own);
        case ZE_RESULT_ERROR_DEVICE_LOST:
        case ZE_RESULT_ERROR_DEVICE_REQUIRES_RESET:
            return fail(errc::device_lost, "the Level Zero device failed and is lost", own);
        case ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY:
            return fail(errc::no_memory, "the Level Zero driver is out of host memory", own);
        case ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY:
            return fail(errc::no_memory, "the Level Zero device is out of memory", own);
        case ZE_RESULT_ERROR_UNINITIALIZED:
            return fail(errc::unsupported, "Level Zero finds no driver", own);
        case ZE_RESULT_ERROR_UNSUPPORTED_VERSION:
        case ZE_RESULT_ERROR_UNSUPPORTED_FEATURE:
        case ZE_RESULT_ERROR_UNSUPPORTED_SIZE:
        case ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT:
        case ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION:
            return fail(errc::unsupported, "this device or Level Zero driver cannot do it", own);
        case ZE_RESULT_ERROR_INVALID_ARGUMENT:
        case ZE_RESULT_ERROR_INVALID_NULL_HANDLE:
        case ZE_RESULT_ERROR_INVALID_NULL_POINTER:
        case ZE_RESULT_ERROR_INVALID_SIZE:
        case ZE_RESULT_ERROR_INVALID_ENUMERATION:
            return fail(errc::invalid_argument, "the Level Zero driver refused an argument", own);
        default: return fail(errc::unsupported, "a Level Zero call failed", own);
    }
}

class driver : public shared::driver_functions<driver_api> {
public:
    static constexpr const char* registry_key = "levelzero_driver/1";

    // The process's loader; ask for its state before anything else.
    static driver& instance() {
        prepare();
        return registry::object<driver>();
    }

    // Starts it, once, for instance(). The dynamic linker's lock is taken for that: a thread that has it, in the
    // constructor of a library, may be waiting for a lock of ours or for an object of the registry. So who holds one
    // of those while it asks for the instance calls this before.
    static void prepare() noexcept { static_cast<void>(started_.find()); }

    driver() noexcept {
        const driver* from = started_.find();
        if (registry::is_forked_child()) {
            state_ = fail(errc::forked, "a forked child cannot start Level Zero");
        } else if (from == nullptr) {
            state_ = fail(errc::no_memory, "the host has no memory for a driver");
        } else {
            api_ = from->api_;
            state_ = from->state_;
        }
    }
    driver(const driver&) = delete;
    driver& operator=(const driver&) = delete;

    // ok: it is started, and there is a driver.
    [[nodiscard]] status state() const noexcept { return state_; }

private:
    friend shared::started<driver>;
    explicit driver(shared::is_starting) noexcept : state_{start()} {}
    status start() noexcept {
        if (registry::is_forked_child()) {
            return fail(errc::forked, "a forked child cannot start Level Zero");
        }
        auto library = dynamic_library::open("libze_loader.so.1");
        if (!library) {
            return fail(errc::unsupported,
                        "no Level Zero here: libze_loader.so.1 cannot be loaded");
        }
        bool has_all = true;
        for_each_function(api_, [&](auto& one) {
            using signature = typename std::remove_reference_t<decltype(one)>::signature;
            auto found = library->find<signature>(one.name);
            one.at = found ? *found : nullptr;
            has_all &= one.at != nullptr || one.is_optional;
        });
        if (!has_all) {
            return fail(errc::unsupported, "the Level Zero loader is older than 1.4");
        }
        const status started = call(&driver_api::init, 0);
        return started
                   ? status{}
                   : status{started.code == errc::device_lost ? errc::unsupported : started.code,
                            started.driver_code, started.why};
    }

    status state_;  // (C) once built

    [[gnu::visibility("hidden")]] static inline shared::started<driver> started_;
};

}  // namespace xmm::levelzero
