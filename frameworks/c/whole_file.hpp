// SPDX-License-Identifier: Apache-2.0
// whole_file.hpp - a file that is written as a whole or not at all.
//
// Model    Written beside its place and renamed into it, so that what lay there before stays until the new one is
//          complete; a link is followed, and a file that is there keeps its mode. What is no regular file (a pipe, a
//          terminal) is written straight.
// Failure  errno's number; 0 is success. fn's exceptions pass through, and leave what was there.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include <sys/stat.h>
#include <unistd.h>

namespace xmm::c_interface {

namespace detail {

// A name beside the path that nobody else uses; what lies there is removed again unless it was renamed.
class draft {
public:
    explicit draft(const std::string& path)
        : name_{path + ".part-" + std::to_string(::getpid()) + "-" +
                std::to_string(next_number())} {}
    draft(const draft&) = delete;
    draft& operator=(const draft&) = delete;
    ~draft() {
        if (!is_in_place_) {
            ::unlink(name_.c_str());
        }
    }
    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[nodiscard]] int rename_to(const std::string& path) noexcept {
        is_in_place_ = ::rename(name_.c_str(), path.c_str()) == 0;
        return is_in_place_ ? 0 : errno;
    }

private:
    // One count for this library's functions is enough: others have another process or path.
    static unsigned next_number() noexcept {
        static std::atomic<unsigned> last{0};
        return last.fetch_add(1, std::memory_order_relaxed);  // relaxed: only that it differs
    }

    std::string name_;
    bool is_in_place_ = false;
};

// Also through links that lead to nothing yet.
inline std::string behind_links(const std::string& path) {
    std::filesystem::path place = path;
    std::error_code error;
    for (int links = 0; links < 40 && std::filesystem::is_symlink(place, error); ++links) {
        place = place.parent_path() / std::filesystem::read_symlink(place, error);
    }
    return place.string();
}

template <class Fn>
int write_straight(const std::string& path, Fn&& fn) {
    errno = 0;
    std::ofstream out{path, std::ios::binary | std::ios::trunc};
    if (out) {
        fn(out);
        out.close();
    }
    return out ? 0 : (errno != 0 ? errno : EIO);
}

}  // namespace detail

// fn(std::ostream&) writes the contents.
template <class Fn>
[[nodiscard]] int write_whole_file(const std::string& path, Fn&& fn) {
    struct stat there;
    const bool is_there = ::stat(path.c_str(), &there) == 0;
    if (is_there && !S_ISREG(there.st_mode)) {
        return detail::write_straight(path, fn);
    }
    if (!is_there && errno != ENOENT) {
        return errno;
    }
    const std::string place = detail::behind_links(path);
    detail::draft fresh{place};
    if (const int failed = detail::write_straight(fresh.name(), fn); failed != 0) {
        return failed;
    }
    if (is_there && ::chmod(fresh.name().c_str(), there.st_mode & 07777) != 0) {
        return errno;
    }
    return fresh.rename_to(place);
}

}  // namespace xmm::c_interface
