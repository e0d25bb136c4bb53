// SPDX-License-Identifier: Apache-2.0
// try_write.hpp - whether files can be made in a folder, found out before a minute's work.
//
// Model    Tries it, and takes back what it made: the folders that were missing, and an empty file.
// Failure  bad_input with folder and reason.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "bad_input.hpp"

namespace xmm::demo {

inline void make_folder(const std::string& path) {
    std::error_code error;
    if (std::filesystem::exists(path, error) && !std::filesystem::is_directory(path, error)) {
        throw bad_input(path + ": is a file, not a folder");
    }
    std::filesystem::create_directories(path, error);
    if (error) {
        throw bad_input(path + ": cannot be made: " + error.message());
    }
}

// The folder need not be there yet.
inline void try_write(const std::string& folder) {
    namespace fs = std::filesystem;
    std::error_code ignored;
    struct made_folders {
        std::vector<fs::path> paths;  // the innermost first
        ~made_folders() {
            for (const fs::path& one : paths) {
                std::error_code error;
                fs::remove(one, error);  // the empty ones: others may have come to use them
            }
        }
    } made;
    for (fs::path at = fs::absolute(folder, ignored); !fs::exists(at, ignored);
         at = at.parent_path()) {
        made.paths.push_back(at);
        if (at == at.parent_path()) {
            break;
        }
    }
    make_folder(folder);
    std::string name = (fs::path{folder} / ".xmm-demo-XXXXXX").string();
    const int file = ::mkstemp(name.data());
    if (file < 0) {
        throw bad_input(folder + ": no files can be made there: " + std::strerror(errno));
    }
    ::close(file);
    ::unlink(name.c_str());
}

}  // namespace xmm::demo
