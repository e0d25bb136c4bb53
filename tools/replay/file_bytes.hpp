// SPDX-License-Identifier: Apache-2.0
// file_bytes.hpp - a whole file in memory, unpacked if it is a gzip archive; its lines and fields.
//
// Failure  bad_input with file and reason: not readable, cut short, corrupt, too large, a device.
#pragma once

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "../demo/bad_input.hpp"
#include "../demo/format.hpp"

namespace xmm::trace_replay {

using demo::bad_input;

// A gzip archive may hold a thousand times its size: what is unpacked has a limit.
inline constexpr std::size_t largest_file_bytes = std::size_t{4} << 30;
// A pipe need not come to an end.
inline constexpr std::size_t largest_pipe_bytes = std::size_t{1} << 30;

[[nodiscard]] inline std::string read_file(const std::string& path,
                                           std::size_t most = largest_file_bytes) {
    struct closer {
        void operator()(gzFile file) const noexcept { gzclose(file); }
    };
    struct stat about {};
    if (::stat(path.c_str(), &about) == 0 && !S_ISREG(about.st_mode)) {
        if (S_ISDIR(about.st_mode) || S_ISCHR(about.st_mode) || S_ISBLK(about.st_mode)) {
            throw bad_input(
                path + (S_ISDIR(about.st_mode) ? ": is a folder" : ": is a device, not a file"));
        }
        most = std::min(most, largest_pipe_bytes);
    }
    errno = 0;
    const std::unique_ptr<gzFile_s, closer> file{gzopen(path.c_str(), "rb")};
    if (!file) {
        throw bad_input(fmt::format("{}: cannot be opened: {}", path,
                                    errno != 0 ? std::strerror(errno) : "out of memory"));
    }
    gzbuffer(file.get(), 1u << 17);
    std::string out;
    for (;;) {
        constexpr std::size_t step = std::size_t{1} << 20;
        const std::size_t had = out.size();
        out.resize(had + step);
        const int count = gzread(file.get(), out.data() + had, static_cast<unsigned>(step));
        int code = Z_OK;
        const char* why = gzerror(file.get(), &code);
        out.resize(had + static_cast<std::size_t>(std::max(count, 0)));
        // A cut archive yields its last bytes together with Z_BUF_ERROR.
        if (count < 0 || (code != Z_OK && code != Z_STREAM_END)) {
            throw bad_input(fmt::format("{}: after {} bytes: {}", path, out.size(),
                                        code == Z_BUF_ERROR ? "the gzip data is cut short"
                                        : code == Z_ERRNO
                                            ? std::strerror(errno)
                                            : fmt::format("the gzip data is corrupt ({})", why)));
        }
        if (out.size() > most) {
            throw bad_input(fmt::format("{}: holds more than {} bytes", path, most));
        }
        if (count == 0) {
            return out;
        }
    }
}

// The lines of a text, one after the other, and errors that name them.
class line_reader {
public:
    static constexpr std::size_t longest_line = 4096;

    line_reader(std::string_view name, std::string_view text) : name_{name}, rest_{text} {}

    bool next(std::string_view& line) {
        if (rest_.empty()) {
            return false;
        }
        ++number_;
        const std::size_t end = rest_.find('\n');
        line = rest_.substr(0, end);
        rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
        if (line.size() > longest_line) {
            fail(fmt::format("the line is longer than {} characters; is this a trace?",
                             longest_line));
        }
        if (line.ends_with('\r')) {
            line.remove_suffix(1);
        }
        return true;
    }
    // Of the line that was read last, from 1.
    [[nodiscard]] std::size_t number() const noexcept { return number_; }
    [[noreturn]] void fail(std::string_view reason) const {
        throw bad_input(fmt::format("{}:{}: {}", name_, number_, reason));
    }

private:
    std::string_view name_;
    std::string_view rest_;
    std::size_t number_ = 0;
};

// Text from a file, fit for a message: short, and without what a terminal would obey.
[[nodiscard]] inline std::string quote(std::string_view text) {
    constexpr std::size_t longest = 40;
    std::string out = "'";
    for (const char letter : text.substr(0, longest)) {
        out += letter >= ' ' && letter <= '~' ? letter : '?';
    }
    return out + (text.size() > longest ? "...'" : "'");
}

[[nodiscard]] inline std::uint64_t decimal_field(const line_reader& lines, std::string_view text,
                                                 const char* name) {
    std::uint64_t value = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::result_out_of_range) {
        lines.fail(fmt::format("{} {} is too large", name, quote(text)));
    }
    if (error != std::errc{} || stop != text.data() + text.size()) {
        lines.fail(fmt::format("{} {} is not a number", name, quote(text)));
    }
    return value;
}

// Splits at commas into at most Count fields; how many there are, or nothing if there are more.
template <std::size_t Count>
[[nodiscard]] std::optional<std::size_t> split_fields(std::string_view line,
                                                      std::array<std::string_view, Count>& fields) {
    for (std::size_t count = 0; count < Count;) {
        const std::size_t comma = line.find(',');
        fields[count++] = line.substr(0, comma);
        if (comma == std::string_view::npos) {
            return count;
        }
        line.remove_prefix(comma + 1);
    }
    return std::nullopt;
}

}  // namespace xmm::trace_replay
