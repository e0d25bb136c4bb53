// SPDX-License-Identifier: Apache-2.0
// same_file.hpp - whether a file to be written is one that was read (by its own name, through a link or as a hard
// link), or comes to lie where another one that is to be written does (through links, there already or not).
//
// Failure  bad_input that names both; nothing has been written by then.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <xmm/os/whole_file.hpp>

#include "bad_input.hpp"
#include "format.hpp"

namespace xmm::demo {

[[nodiscard]] inline bool is_same_file(const std::string& a, const std::string& b) {
    struct stat of_a;
    struct stat of_b;
    return ::stat(a.c_str(), &of_a) == 0 && ::stat(b.c_str(), &of_b) == 0 &&
           S_ISREG(of_a.st_mode) && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

// Of two files that are written as a whole: hard links part then. What is no regular file keeps nothing that could be
// written over.
[[nodiscard]] inline bool is_same_place(const std::string& a, const std::string& b) {
    namespace fs = std::filesystem;
    const file_place of_a = file_place::of(a);
    const file_place of_b = file_place::of(b);
    if (of_a.error != 0 || of_b.error != 0 || of_a.is_straight || of_b.is_straight) {
        return false;
    }
    // What cannot be found out has no path, and is refused when it is written.
    std::error_code error;
    const fs::path at_a = fs::absolute(of_a.path, error);
    const fs::path at_b = fs::absolute(of_b.path, error);
    if (at_a.empty() || at_a.filename() != at_b.filename()) {
        return false;
    }
    if (fs::equivalent(at_a.parent_path(), at_b.parent_path(), error)) {
        return true;
    }
    const fs::path whole_a = fs::weakly_canonical(at_a, error);
    return !whole_a.empty() && whole_a == fs::weakly_canonical(at_b, error);
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
    for (std::size_t i = 0; i < outputs.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) {
            if (is_same_place(outputs[i], outputs[j])) {
                throw bad_input(fmt::format("{}: would be written over {}, which is written too",
                                            outputs[i], outputs[j]));
            }
        }
    }
}

}  // namespace xmm::demo
