// SPDX-License-Identifier: Apache-2.0
// config.hpp - version, check levels, assertions.
//
// Model    XMM_CHECKS is 0 (off), 1 (fast: assertions and lock ranks) or 2 (full: besides, the invariants of a page's
//          record where it was changed, and the loader's own words on stderr where a shared library is not found).
//          It changes no layout, but functions: one level a program. Invariants that take a walk are asked for:
//          is_valid(), where a class has it.
// Failure  A failed assertion prints the reason and the place, then aborts.
#pragma once

#if __cplusplus < 202002L
#error "xmm needs C++20: compile with -std=c++20 (g++ 12, clang 16, or later)"
#endif

#include <cstdio>
#include <cstdlib>

#define XMM_VERSION_MAJOR 0
#define XMM_VERSION_MINOR 4
#define XMM_VERSION_PATCH 0

#ifndef XMM_CHECKS
#ifdef NDEBUG
#define XMM_CHECKS 0
#else
#define XMM_CHECKS 1
#endif
#endif

// Host functions that kernels may call too; empty unless a device compiler reads the header.
#if defined(__CUDACC__) || defined(__HIPCC__)
#define XMM_HOST_DEVICE __host__ __device__
#else
#define XMM_HOST_DEVICE
#endif

// Whether a device compiler is making device code of what it reads now. A macro, since names of the host's
// variables may not even be parsed there.
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define XMM_IN_DEVICE_CODE 1
#else
#define XMM_IN_DEVICE_CODE 0
#endif

namespace xmm {

inline constexpr int check_level = XMM_CHECKS;
inline constexpr bool checks_fast = check_level >= 1;
inline constexpr bool checks_full = check_level >= 2;

namespace detail {

[[noreturn]] inline void assertion_failed(const char* reason, const char* file, int line) noexcept {
    std::fprintf(stderr, "xmm: %s (%s:%d)\n", reason, file, line);
    std::abort();
}

[[noreturn]] inline void value_is_missing(const char* reason, const char* code,
                                          int driver_code) noexcept {
    std::fprintf(stderr, "xmm: value() of a failed result: %s (%s", reason, code);
    if (driver_code != 0) {
        std::fprintf(stderr, ", the driver's code %d", driver_code);
    }
    std::fputs(")\n", stderr);
    std::abort();
}

}  // namespace detail
}  // namespace xmm

// A macro, since only a macro knows the caller's line.
#define XMM_ASSERT(condition, reason)                                        \
    do {                                                                     \
        if constexpr (::xmm::checks_fast) {                                  \
            if (!(condition)) {                                              \
                ::xmm::detail::assertion_failed(reason, __FILE__, __LINE__); \
            }                                                                \
        }                                                                    \
    } while (false)
