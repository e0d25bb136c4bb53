// SPDX-License-Identifier: Apache-2.0
// size_value.hpp - a size on a command line: 80GiB, 256MiB, 4096.
//
// Failure  What is negative is refused: as an unsigned number it would be a vast one.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace xmm::demo {

inline CLI::Option* take_as_size(CLI::Option* option) {
    option->transform(CLI::AsSizeValue(false));
    // The one that is added last is asked first.
    return option->transform(CLI::Validator{[](std::string& text) {
                                                return text.find('-') == std::string::npos
                                                           ? std::string{}
                                                           : text + " is not a size";
                                            },
                                            ""});
}

}  // namespace xmm::demo
