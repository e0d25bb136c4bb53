// SPDX-License-Identifier: Apache-2.0
// try_write.hpp - whether files can be made in a folder or by a name, found out before a minute's work.
//
// Model    Tries it, and takes back what it made: the folders that were missing, and an empty file.
// Failure  bad_input with folder or file, and reason.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <xmm/os/whole_file.hpp>

#include "bad_input.hpp"
#include "output_file.hpp"

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

// As an output_file, by its name or behind links. Its folder has to be there.
inline void try_output(const std::string& path) {
    namespace fs = std::filesystem;
    std::error_code error;
    if (fs::is_directory(path, error)) {
        throw bad_input(path + ": is a folder, not a name for a file");
    }
    if (fs::path{path}.filename().empty()) {
        throw bad_input(path + ": is not a name for a file");
    }
    const file_place place = file_place::of(path);
    if (place.error != 0) {
        refuse_output(path, why_not_written(place, place.error));
    }
    if (place.is_straight) {
        return;
    }
    const fs::path folder = fs::path{place.path}.parent_path();
    if (!folder.empty() && !fs::is_directory(folder, error)) {
        throw bad_input(path + ": there is no folder " + folder.string());
    }
    try_write(folder.empty() ? "." : folder.string());
}

}  // namespace xmm::demo
