// SPDX-License-Identifier: Apache-2.0
// whole_file.hpp - a file that is written as a whole or not at all.
//
// Model    Written beside its place and renamed into it, so that what lay there before stays until the new one is
//          complete; a link is followed, and a file that is there keeps its mode. What is no regular file (a pipe, a
//          terminal) is written straight.
// Failure  errno's number; 0 is success. EINVAL: the path names an open descriptor that is a file, as /dev/stdout may. fn's exceptions pass through, and leave what was there.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <streambuf>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace xmm::c_interface {

namespace detail {

// What is written goes to an open file.
class file_buffer : public std::streambuf {
public:
    explicit file_buffer(int file) noexcept : file_{file} {
        setp(bytes_.data(), bytes_.data() + bytes_.size());
    }

protected:
    int_type overflow(int_type next) override {
        if (sync() != 0) {
            return traits_type::eof();
        }
        if (!traits_type::eq_int_type(next, traits_type::eof())) {
            *pptr() = traits_type::to_char_type(next);
            pbump(1);
        }
        return traits_type::not_eof(next);
    }
    int sync() override {
        const char* at = pbase();
        while (at != pptr()) {
            const ssize_t written = ::write(file_, at, static_cast<std::size_t>(pptr() - at));
            if (written < 0 && errno != EINTR) {
                return -1;
            }
            at += std::max<ssize_t>(written, 0);
        }
        setp(bytes_.data(), bytes_.data() + bytes_.size());
        return 0;
    }

private:
    const int file_;
    std::array<char, std::size_t{1} << 16> bytes_;
};

// A new file beside the path: what others have put there, a link above all, is not opened. It is removed again unless
// it was renamed.
class draft {
public:
    explicit draft(const std::string& path) {
        constexpr unsigned most_tries = 1000;
        // Not the path with an ending: a name may be as long as names can be.
        const std::string folder = path.substr(0, path.rfind('/') + 1);
        for (unsigned tries = 0; tries < most_tries && file_ < 0; ++tries) {
            name_ = folder + "xmm-" + std::to_string(::getpid()) + "-" +
                    std::to_string(next_number()) + ".part";
            file_ =
                ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
            error_ = file_ < 0 ? errno : 0;
            if (error_ != 0 && error_ != EEXIST) {
                break;
            }
        }
    }
    draft(const draft&) = delete;
    draft& operator=(const draft&) = delete;
    ~draft() {
        if (file_ >= 0) {
            ::close(file_);
        }
        if (error_ == 0 && !is_in_place_) {
            ::unlink(name_.c_str());
        }
    }
    // errno's number, or 0.
    [[nodiscard]] int error() const noexcept { return error_; }
    template <class Fn>
    [[nodiscard]] int write(Fn&& fn) {
        file_buffer buffer{file_};
        std::ostream out{&buffer};
        errno = 0;
        fn(out);
        out.flush();
        return out ? 0 : (errno != 0 ? errno : EIO);
    }
    [[nodiscard]] int set_mode(mode_t mode) noexcept {
        return ::fchmod(file_, mode) == 0 ? 0 : errno;
    }
    [[nodiscard]] int rename_to(const std::string& path) noexcept {
        if (::close(std::exchange(file_, -1)) != 0) {
            return errno;
        }
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
    int file_ = -1;
    int error_ = 0;
    bool is_in_place_ = false;
};

// Also through links that lead to nothing yet. Empty where a link is one of the kernel's own to an open file
// (/dev/stdout, /proc/self/fd): its text need not name that file, and another one in its place would not be open there.
inline std::string behind_links(const std::string& path) {
    constexpr auto procfs = 0x9fa0;  // PROC_SUPER_MAGIC
    std::filesystem::path place = path;
    std::error_code error;
    for (int links = 0; links < 40 && std::filesystem::is_symlink(place, error); ++links) {
        const std::filesystem::path folder = place.has_parent_path() ? place.parent_path() : ".";
        struct statfs system;
        if (::statfs(folder.c_str(), &system) == 0 && system.f_type == procfs) {
            return {};
        }
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
    if (place.empty()) {
        return EINVAL;
    }
    detail::draft fresh{place};
    if (fresh.error() != 0) {
        return fresh.error();
    }
    if (const int failed = fresh.write(fn); failed != 0) {
        return failed;
    }
    if (const int failed = is_there ? fresh.set_mode(there.st_mode & 07777) : 0; failed != 0) {
        return failed;
    }
    return fresh.rename_to(place);
}

}  // namespace xmm::c_interface
