// SPDX-License-Identifier: Apache-2.0
// soft.hpp - the software XPU: its driver and its launcher.
#pragma once

// Installed, a backend stands beside this header; in the source tree it has a folder of its own.
#if __has_include("soft/launcher.hpp")
#include "soft/launcher.hpp"
#else
#include "../../backends/soft/launcher.hpp"
#endif
