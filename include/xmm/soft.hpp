// SPDX-License-Identifier: Apache-2.0
// soft.hpp - the software XPU, its driver and its launcher, under the name that users include.
//
// Model    In the source tree the backend lies in backends/soft/; an installed one lies beside this header.
#pragma once

#if __has_include("../../backends/soft/launcher.hpp")
#include "../../backends/soft/launcher.hpp"
#else
#include <xmm/soft/launcher.hpp>
#endif
