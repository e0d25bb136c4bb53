// SPDX-License-Identifier: Apache-2.0
// soft.hpp - the software XPU, under the name that users include.
//
// Model    In the source tree the backend lies in backends/soft/; an installed one lies beside this header.
#pragma once

#if __has_include("../../backends/soft/soft.hpp")
#include "../../backends/soft/soft.hpp"
#else
#include <xmm/soft/soft.hpp>
#endif
