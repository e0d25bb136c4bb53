// SPDX-License-Identifier: Apache-2.0
// same_file.hpp - whether a file to be written is one that was read: by its own name, through a link or as a hard link.
//
// Failure  bad_input that names both; nothing has been written by then.
#pragma once

#include <sys/stat.h>

#include <string>
#include <vector>

#include "bad_input.hpp"
#include "format.hpp"

namespace xmm::demo {

[[nodiscard]] inline bool is_same_file(const std::string& a, const std::string& b) {
    struct stat of_a;
    struct stat of_b;
    return ::stat(a.c_str(), &of_a) == 0 && ::stat(b.c_str(), &of_b) == 0 &&
           S_ISREG(of_a.st_mode) && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

inline void refuse_to_overwrite(const std::vector<std::string>& inputs,
                                const std::vector<std::string>& outputs) {
    for (const std::string& output : outputs) {
        for (const std::string& input : inputs) {
            if (is_same_file(output, input)) {
                throw bad_input(
                    fmt::format("{}: would be written over {}, which is read", output, input));
            }
        }
    }
}

}  // namespace xmm::demo
