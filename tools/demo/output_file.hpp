// SPDX-License-Identifier: Apache-2.0
// output_file.hpp - a file that a tool writes as a whole or not at all.
//
// Model    Written beside its place and renamed into it; a link is followed, and a file that is there keeps its mode.
//          What is no regular file (a pipe, a terminal, a device) is written straight.
// Failure  bad_input with file and reason; what was there before is there still.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "bad_input.hpp"
#include "format.hpp"

namespace xmm::demo {

class output_file {
public:
    explicit output_file(const std::string& path) : path_{path} {
        struct stat there;
        const bool is_there = ::stat(path.c_str(), &there) == 0;
        if (!is_there && errno != ENOENT) {
            refuse(std::strerror(errno));
        }
        target_ = place_of(path);
        if (target_.empty()) {
            open(path);
            return;
        }
        const std::string partial = target_ + partial_ending;
        open(partial);
        partial_ = partial;
        if (is_there && ::fchmod(::fileno(file_), there.st_mode & 07777) != 0) {
            refuse(std::strerror(errno));
        }
    }
    output_file(const output_file&) = delete;
    output_file& operator=(const output_file&) = delete;
    ~output_file() { give_up(); }

    // Where the file comes to lie: behind links, also such as lead to nothing yet. Empty: it is written straight.
    static std::string place_of(const std::string& path) {
        namespace fs = std::filesystem;
        std::error_code error;
        if (fs::exists(path, error)) {
            return fs::is_regular_file(path, error) ? fs::canonical(path, error).string() : "";
        }
        fs::path place = path;
        for (int links = 0; links < 40 && fs::is_symlink(place, error); ++links) {
            place = place.parent_path() / fs::read_symlink(place, error);
        }
        return place.string();
    }

    // What it is called until all is written; empty: it is written straight.
    static std::string partial_of(const std::string& path) {
        const std::string place = place_of(path);
        return place.empty() ? place : place + partial_ending;
    }

    [[nodiscard]] std::FILE* get() const noexcept { return file_; }
    // All is written: puts it in its place.
    void finish() {
        if (std::fclose(std::exchange(file_, nullptr)) != 0) {
            refuse(std::strerror(errno));
        }
        if (!partial_.empty() && std::rename(partial_.c_str(), target_.c_str()) != 0) {
            refuse(std::strerror(errno));
        }
        partial_.clear();
    }
    [[noreturn]] void refuse(const std::string& reason) {
        give_up();
        throw bad_input(fmt::format("{}: cannot be written: {}", path_, reason));
    }

private:
    static constexpr const char* partial_ending = ".part";

    void open(const std::string& name) {
        file_ = std::fopen(name.c_str(), "wb");
        if (file_ == nullptr) {
            refuse(std::strerror(errno));
        }
    }
    void give_up() noexcept {
        if (file_ != nullptr) {
            std::fclose(std::exchange(file_, nullptr));
        }
        if (!partial_.empty()) {
            ::unlink(partial_.c_str());
            partial_.clear();
        }
    }

    const std::string path_;
    std::string target_;
    std::string partial_;  // empty: written straight
    std::FILE* file_ = nullptr;
};

}  // namespace xmm::demo
