// SPDX-License-Identifier: Apache-2.0
// stream_file.hpp - a whole file, its contents written to a std::ostream.
//
// Failure  errno's number; 0 is success, and else what was there is there still, as os/whole_file.hpp says. fn's
//          exceptions pass through, and leave what was there too.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <ostream>
#include <streambuf>
#include <string>

#include <unistd.h>

#include <xmm/os/whole_file.hpp>

namespace xmm::c_interface {

namespace detail {

// What is written goes to an open file.
class file_buffer : public std::streambuf {
public:
    explicit file_buffer(int file) noexcept : file_{file} {
        setp(bytes_.data(), bytes_.data() + bytes_.size());
    }
    // The last failure: errno's number, or 0.
    [[nodiscard]] int error() const noexcept { return error_; }

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
                error_ = errno;
                return -1;
            }
            at += std::max<ssize_t>(written, 0);
        }
        setp(bytes_.data(), bytes_.data() + bytes_.size());
        return 0;
    }

private:
    const int file_;
    int error_ = 0;
    std::array<char, std::size_t{1} << 16> bytes_;
};

}  // namespace detail

// fn(std::ostream&) writes the contents.
template <class Fn>
[[nodiscard]] int write_whole_file(const std::string& path, Fn&& fn) {
    whole_file file{path};
    if (file.error() != 0) {
        return file.error();
    }
    detail::file_buffer buffer{file.descriptor()};
    std::ostream out{&buffer};
    fn(out);
    out.flush();
    if (!out) {
        return buffer.error() != 0 ? buffer.error() : EIO;
    }
    return file.finish();
}

}  // namespace xmm::c_interface
