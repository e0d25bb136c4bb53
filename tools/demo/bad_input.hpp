// SPDX-License-Identifier: Apache-2.0
// bad_input.hpp - what the demo throws when a file or an option cannot be used.
//
// Failure  The message names the file, the line where there is one, and the reason; main prints it.
#pragma once

#include <stdexcept>
#include <string>

namespace xmm::demo {

struct bad_input : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A promise of the library that did not hold: a call failed, or a result differs from the CPU's.
struct demo_failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace xmm::demo
