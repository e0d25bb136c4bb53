// SPDX-License-Identifier: Apache-2.0
// sanitizer.hpp - whether this program is built with the address or the thread sanitizer.
#pragma once

namespace xmm::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool has_sanitizer = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool has_sanitizer = true;
#else
inline constexpr bool has_sanitizer = false;
#endif
#else
inline constexpr bool has_sanitizer = false;
#endif

// Twenty times as slow: what is repeated is repeated less.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool has_thread_sanitizer = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr bool has_thread_sanitizer = true;
#else
inline constexpr bool has_thread_sanitizer = false;
#endif
#else
inline constexpr bool has_thread_sanitizer = false;
#endif

}  // namespace xmm::test
