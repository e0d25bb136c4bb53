// SPDX-License-Identifier: Apache-2.0
// trace.hpp - reads an allocation trace: CSV, gzipped or plain, one event a line.
//
// Model    op,id,size,stream,us as traces/README.md describes. A trace that was read is consistent:
//          no block is allocated twice, none is freed that is not alive, sizes agree.
// Failure  bad_input with file, line and reason; also for an archive that is cut short or corrupt.
#pragma once

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bad_input.hpp"
#include "format.hpp"

namespace xmm::demo {

enum class trace_op : std::uint8_t { allocate, free_done, free_requested };

struct trace_event {
    trace_op op = trace_op::allocate;
    std::uint32_t stream = 0;
    std::uint32_t block = 0;  // counts allocations from 0: an id that comes back is a new block
    std::uint64_t bytes = 0;
    std::uint64_t microseconds = 0;
};

struct trace {
    std::string path;
    std::vector<trace_event> events;
    std::uint32_t blocks = 0;
    std::uint64_t peak_bytes = 0;   // the most alive at once
    std::uint64_t total_bytes = 0;  // all allocations together
};

namespace detail {

inline constexpr std::size_t longest_line = 512;
inline constexpr std::uint64_t largest_block_bytes = std::uint64_t{1} << 46;

// Yields the lines of a file that zlib opens; plain files pass through it unchanged.
class line_reader {
public:
    explicit line_reader(const std::string& path) : path_{path}, file_{gzopen(path.c_str(), "rb")} {
        if (!file_) {
            throw bad_input(fmt::format("{}: cannot be opened: {}", path,
                                        errno != 0 ? std::strerror(errno) : "out of memory"));
        }
        gzbuffer(file_.get(), 1u << 17);
    }

    // False at the end of a file that ended properly. The view lives until the next call.
    bool next(std::string_view& line) {
        line_.clear();
        for (;;) {
            if (at_ == end_ && !fill()) {
                line = line_;
                line_number_ += line_.empty() ? 0 : 1;
                return !line_.empty();
            }
            const char* begin = buffer_.data() + at_;
            const auto* stop = static_cast<const char*>(std::memchr(begin, '\n', end_ - at_));
            const std::size_t count =
                stop != nullptr ? static_cast<std::size_t>(stop - begin) : end_ - at_;
            line_.append(begin, count);
            at_ += count + (stop != nullptr ? 1 : 0);
            if (line_.size() > longest_line) {
                ++line_number_;
                fail(fmt::format("the line is longer than {} characters; is this a trace?",
                                 longest_line));
            }
            if (stop != nullptr) {
                ++line_number_;
                if (!line_.empty() && line_.back() == '\r') {
                    line_.pop_back();
                }
                line = line_;
                return true;
            }
        }
    }

    [[noreturn]] void fail(std::string_view reason) const {
        throw bad_input(fmt::format("{}:{}: {}", path_, line_number_, reason));
    }

private:
    bool fill() {
        at_ = end_ = 0;
        const int count =
            gzread(file_.get(), buffer_.data(), static_cast<unsigned>(buffer_.size()));
        int code = Z_OK;
        const char* why = gzerror(file_.get(), &code);
        // A cut archive yields its last bytes together with Z_BUF_ERROR.
        if (count < 0 || (code != Z_OK && code != Z_STREAM_END)) {
            ++line_number_;
            fail(code == Z_BUF_ERROR ? "the gzip data is cut short"
                 : code == Z_ERRNO   ? std::strerror(errno)
                                     : fmt::format("the gzip data is corrupt ({})", why));
        }
        end_ = static_cast<std::size_t>(count);
        return count > 0;
    }

    struct closer {
        void operator()(gzFile file) const noexcept { gzclose(file); }
    };
    std::string path_;
    std::unique_ptr<gzFile_s, closer> file_;
    std::array<char, 1u << 16> buffer_{};
    std::size_t at_ = 0;
    std::size_t end_ = 0;
    std::string line_;
    std::size_t line_number_ = 0;
};

inline std::uint64_t number_field(const line_reader& lines, std::string_view text, const char* name,
                                  std::uint64_t largest) {
    std::uint64_t value = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::result_out_of_range || (error == std::errc{} && value > largest)) {
        lines.fail(fmt::format("{} '{}' is too large", name, text));
    }
    if (error != std::errc{} || stop != text.data() + text.size()) {
        lines.fail(fmt::format("{} '{}' is not a number", name, text));
    }
    return value;
}

inline std::array<std::string_view, 5> split_fields(const line_reader& lines,
                                                    std::string_view line) {
    std::array<std::string_view, 5> fields;
    std::size_t count = 0;
    for (std::string_view rest = line;;) {
        const std::size_t comma = rest.find(',');
        if (count == fields.size()) {
            lines.fail("more than the 5 fields op,id,size,stream,us");
        }
        fields[count++] = rest.substr(0, comma);
        if (comma == std::string_view::npos) {
            break;
        }
        rest.remove_prefix(comma + 1);
    }
    if (count != fields.size()) {
        lines.fail(fmt::format("{} of the 5 fields op,id,size,stream,us", count));
    }
    return fields;
}

}  // namespace detail

inline trace read_trace(const std::string& path) {
    struct alive_block {
        std::uint32_t block;
        std::uint64_t bytes;
        bool is_requested;
    };
    errno = 0;
    detail::line_reader lines{path};
    std::unordered_map<std::uint64_t, alive_block> alive;
    trace out;
    out.path = path;
    std::uint64_t live_bytes = 0;
    for (std::string_view line; lines.next(line);) {
        const bool is_heading = out.events.empty() && line == "op,id,size,stream,us";
        if (line.empty() || line.front() == '#' || is_heading) {
            continue;
        }
        const auto fields = detail::split_fields(lines, line);
        trace_event event;
        if (fields[0] == "a") {
            event.op = trace_op::allocate;
        } else if (fields[0] == "f") {
            event.op = trace_op::free_done;
        } else if (fields[0] == "r") {
            event.op = trace_op::free_requested;
        } else {
            lines.fail(fmt::format("unknown operation '{}': expected a, f or r", fields[0]));
        }
        const std::uint64_t id = detail::number_field(lines, fields[1], "id", UINT64_MAX);
        event.bytes = detail::number_field(lines, fields[2], "size", detail::largest_block_bytes);
        event.stream = static_cast<std::uint32_t>(
            detail::number_field(lines, fields[3], "stream", UINT32_MAX));
        event.microseconds = detail::number_field(lines, fields[4], "time", UINT64_MAX);
        if (event.bytes == 0) {
            lines.fail("a block of 0 bytes");
        }
        const auto found = alive.find(id);
        if (event.op == trace_op::allocate) {
            if (found != alive.end()) {
                lines.fail(fmt::format("block {} is allocated again while it is alive", id));
            }
            if (out.blocks == UINT32_MAX || live_bytes > UINT64_MAX / 2) {
                lines.fail("too many blocks");
            }
            event.block = out.blocks++;
            alive.emplace(id, alive_block{event.block, event.bytes, false});
            live_bytes += event.bytes;
            out.peak_bytes = std::max(out.peak_bytes, live_bytes);
            out.total_bytes += event.bytes;
        } else {
            if (found == alive.end()) {
                lines.fail(fmt::format("block {} is freed but not alive", id));
            }
            if (found->second.bytes != event.bytes) {
                lines.fail(fmt::format("block {} is freed with {} bytes but has {}", id,
                                       event.bytes, found->second.bytes));
            }
            event.block = found->second.block;
            if (event.op == trace_op::free_done) {
                live_bytes -= event.bytes;
                alive.erase(found);
            } else if (std::exchange(found->second.is_requested, true)) {
                lines.fail(fmt::format("block {} is let go of twice", id));
            }
        }
        out.events.push_back(event);
    }
    if (out.blocks == 0) {
        throw bad_input(fmt::format("{}: no events; expected lines op,id,size,stream,us", path));
    }
    return out;
}

}  // namespace xmm::demo
