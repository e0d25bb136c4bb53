// SPDX-License-Identifier: Apache-2.0
// errors.hpp - what libxmm says of failures: a status, and a text of the thread's own.
//
// Model    Every function of the C interface runs inside answer() or answer_with(): what fails or throws inside is
//          kept for xmm_last_error() and comes out as a status or as a value.
// Threads  Any; each has its own last failure.
#pragma once

#include <array>
#include <cstdio>
#include <exception>
#include <new>

#include <xmm/core/status.hpp>
#include <xmm/resources/out_of_memory.hpp>

#include "xmm.h"

namespace xmm::c_interface {

static_assert(static_cast<int>(errc::no_memory) == XMM_NO_MEMORY &&
              static_cast<int>(errc::busy) == XMM_BUSY &&
              static_cast<int>(errc::not_mapped) == XMM_NOT_MAPPED &&
              static_cast<int>(errc::unsupported) == XMM_UNSUPPORTED &&
              static_cast<int>(errc::device_lost) == XMM_DEVICE_LOST &&
              static_cast<int>(errc::invalid_argument) == XMM_INVALID_ARGUMENT &&
              static_cast<int>(errc::unknown_node) == XMM_UNKNOWN_NODE &&
              static_cast<int>(errc::forked) == XMM_FORKED);

struct last_failure {
    xmm_status status = XMM_OK;
    std::array<char, 256> text{};

    static last_failure& of_thread() noexcept {
        thread_local last_failure mine;
        return mine;
    }
    xmm_status set(const char* function, xmm_status code, const char* why,
                   std::int32_t driver_code = 0) noexcept {
        status = code;
        if (driver_code != 0) {
            std::snprintf(text.data(), text.size(), "%s: %s: %s (%d)", function,
                          xmm_status_name(code), why, driver_code);
        } else {
            std::snprintf(text.data(), text.size(), "%s: %s: %s", function, xmm_status_name(code),
                          why);
        }
        return code;
    }
    xmm_status set(const char* function, const xmm::status& failure) noexcept {
        return set(function, static_cast<xmm_status>(failure.code), failure.why,
                   failure.driver_code);
    }
    xmm_status set(const char* function, const out_of_memory& refused) noexcept {
        status = XMM_NO_MEMORY;
        std::array<char, 16> code{};
        if (refused.driver_code() != 0) {
            std::snprintf(code.data(), code.size(), " (%d)", refused.driver_code());
        }
        std::snprintf(text.data(), text.size(),
                      "%s: %s on node %d: %zu bytes asked, %zu used, limit %zu: %s%s", function,
                      xmm_status_name(status), refused.node().value, refused.bytes(),
                      refused.used(), refused.limit(), refused.cause(), code.data());
        return status;
    }
};

// fn() is a status.
template <class Fn>
xmm_status answer(const char* function, Fn&& fn) noexcept {
    last_failure& last = last_failure::of_thread();
    try {
        const status outcome = fn();
        return outcome ? XMM_OK : last.set(function, outcome);
    } catch (const out_of_memory& refused) {
        return last.set(function, refused);
    } catch (const std::bad_alloc&) {
        return last.set(function, XMM_NO_MEMORY, "the host has no memory for bookkeeping");
    } catch (const std::exception& unexpected) {
        return last.set(function, XMM_FAILED, unexpected.what());
    } catch (...) {
        return last.set(function, XMM_FAILED, "an unknown exception");
    }
}

// fn() is a result; what is answered instead of a value is its type's zero.
template <class T, class Fn>
T answer_with(const char* function, Fn&& fn) noexcept {
    T value{};
    answer(function, [&]() -> status {
        result<T> got = fn();
        if (got) {
            value = *got;
        }
        return got ? status{} : got.error();
    });
    return value;
}

}  // namespace xmm::c_interface
