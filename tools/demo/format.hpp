// SPDX-License-Identifier: Apache-2.0
// format.hpp - {fmt}, without a false alarm.
#pragma once

// g++ 12 may take a write into fmt's own digit buffers for an overflow, depending on what it inlines.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#endif
#include <fmt/format.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
