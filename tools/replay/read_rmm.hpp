// SPDX-License-Identifier: Apache-2.0
// read_rmm.hpp - RMM's allocation logs, and those of xmm's logging_resource.
//
// Model    Columns are found by their names in the first line: Thread,Time,Action,Pointer,Size,Stream of
//          today, and Event Type,Device ID,Address,Stream,Size (bytes),...,Start,... of RMM before 0.15,
//          whose frees have no size. Time is a clock's (the microseconds after a point or a colon) or
//          seconds; a clock that goes back by more than half a day has passed midnight.
//          Failed attempts and blocks of no bytes hold no memory and are passed over. A block whose first line is
//          a free with a size was there before: it is allocated when the log begins.
// Failure  bad_input with file, line and reason.
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "file_bytes.hpp"
#include "trace.hpp"

namespace xmm::trace_replay {

namespace detail {

struct rmm_columns {
    static constexpr std::size_t most = 16;
    static constexpr std::size_t none = most;
    std::size_t count = 0;
    std::size_t time = none, action = none, pointer = none, size = none, stream = none;
    std::size_t device = none;
    bool is_old = false;
};

[[nodiscard]] inline std::string_view trim(std::string_view text) noexcept {
    while (!text.empty() && (text.front() == ' ' || text.front() == '"')) {
        text.remove_prefix(1);
    }
    while (!text.empty() && (text.back() == ' ' || text.back() == '"')) {
        text.remove_suffix(1);
    }
    return text;
}

// Nothing if the line is not the head of such a log.
[[nodiscard]] inline std::optional<rmm_columns> find_rmm_columns(std::string_view head) {
    if (head.starts_with("\xef\xbb\xbf")) {
        head.remove_prefix(3);
    }
    std::array<std::string_view, rmm_columns::most> names;
    const auto count = split_fields(head, names);
    if (!count) {
        return std::nullopt;
    }
    rmm_columns out;
    out.count = *count;
    for (std::size_t i = 0; i < *count; ++i) {
        const std::string_view name = trim(names[i]);
        if (name == "Time" || name == "Start") {
            out.time = i;
        } else if (name == "Action" || name == "Event Type") {
            out.action = i;
            out.is_old = name == "Event Type";
        } else if (name == "Pointer" || name == "Address") {
            out.pointer = i;
        } else if (name == "Size" || name == "Size (bytes)") {
            out.size = i;
        } else if (name == "Stream") {
            out.stream = i;
        } else if (name == "Device ID") {
            out.device = i;
        }
    }
    const bool has_all = out.time != rmm_columns::none && out.action != rmm_columns::none &&
                         out.pointer != rmm_columns::none && out.size != rmm_columns::none;
    return has_all ? std::optional{out} : std::nullopt;
}

// "0x7f...", "7f..." is not decimal either, a plain number, "(nil)" or nothing.
[[nodiscard]] inline std::uint64_t pointer_field(const line_reader& lines, std::string_view text,
                                                 const char* name) {
    if (text.empty() || text == "(nil)" || text == "nullptr") {
        return 0;
    }
    const bool is_hex = text.starts_with("0x") || text.starts_with("0X");
    const std::string_view digits = is_hex ? text.substr(2) : text;
    std::uint64_t value = 0;
    const auto parse = [&](int base) {
        const auto [stop, error] =
            std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
        return error == std::errc{} && stop == digits.data() + digits.size();
    };
    if (!(is_hex ? parse(16) : parse(10) || parse(16))) {
        lines.fail(fmt::format("{} {} is not an address", name, quote(text)));
    }
    return value;
}

// Microseconds since midnight, or since whatever plain seconds count from.
class rmm_clock {
public:
    [[nodiscard]] std::uint64_t read(const line_reader& lines, std::string_view text) {
        const std::uint64_t day = std::uint64_t{24} * 3600 * 1'000'000;
        if (text.find(':') == std::string_view::npos) {
            double seconds = 0;
            const auto [stop, error] =
                std::from_chars(text.data(), text.data() + text.size(), seconds);
            if (error != std::errc{} || stop != text.data() + text.size() ||
                !(seconds >= 0 && seconds < 1e12)) {
                bad(lines, text);
            }
            return static_cast<std::uint64_t>(std::llround(seconds * 1e6));
        }
        const std::uint64_t now = clock_time(lines, text);
        if (last_ > now && last_ - now > day / 2) {
            days_ += day;
        }
        last_ = now;
        return days_ + now;
    }

private:
    [[noreturn]] static void bad(const line_reader& lines, std::string_view text) {
        lines.fail(fmt::format("time {} is neither hh:mm:ss.ffffff nor seconds", quote(text)));
    }
    [[nodiscard]] static std::uint64_t clock_time(const line_reader& lines, std::string_view text) {
        const std::string_view whole = text;
        const std::size_t day = text.find_last_of(" T");  // a date in front is passed over
        text = day == std::string_view::npos ? text : text.substr(day + 1);
        std::array<std::uint64_t, 3> parts{};
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const auto [stop, error] =
                std::from_chars(text.data(), text.data() + text.size(), parts[i]);
            if (error != std::errc{}) {
                bad(lines, whole);
            }
            text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
            if (i < 2) {
                if (!text.starts_with(':')) {
                    bad(lines, whole);
                }
                text.remove_prefix(1);
            }
        }
        std::uint64_t fraction = 0;
        if (!text.empty()) {
            if (text.front() != '.' && text.front() != ':') {
                bad(lines, whole);
            }
            text.remove_prefix(1);
            std::uint64_t unit = 100'000;
            for (const char digit : text) {
                if (digit < '0' || digit > '9') {
                    bad(lines, whole);
                }
                fraction += unit * static_cast<std::uint64_t>(digit - '0');
                unit /= 10;
            }
        }
        if (parts[0] > 23 || parts[1] > 59 || parts[2] > 60) {
            bad(lines, whole);
        }
        return ((parts[0] * 60 + parts[1]) * 60 + parts[2]) * 1'000'000 + fraction;
    }

    std::uint64_t last_ = 0;
    std::uint64_t days_ = 0;
};

struct rmm_line {
    std::size_t number = 0;  // of the line
    bool is_allocation = false;
    std::uint64_t pointer = 0;
    std::uint64_t bytes = 0;
    std::uint64_t stream = 0;
    std::uint64_t us = 0;
};

// Without failed attempts.
[[nodiscard]] inline std::vector<rmm_line> read_rmm_lines(line_reader& lines,
                                                          const rmm_columns& columns) {
    std::vector<rmm_line> out;
    rmm_clock clock;
    std::optional<std::string_view> device;
    std::string_view line;
    while (lines.next(line)) {
        if (line.empty() || line.front() == '#') {
            continue;
        }
        std::array<std::string_view, rmm_columns::most> fields;
        const auto count = split_fields(line, fields);
        // Locations of old logs may hold commas; they come last.
        if (count && *count < columns.count) {
            lines.fail(fmt::format("{} of the {} fields of the first line", *count, columns.count));
        }
        if (!columns.is_old && (!count || *count > columns.count)) {
            lines.fail(fmt::format("more than the {} fields of the first line", columns.count));
        }
        for (std::string_view& field : fields) {
            field = trim(field);
        }
        const std::string_view action = fields[columns.action];
        rmm_line one;
        one.number = lines.number();
        one.us = clock.read(lines, fields[columns.time]);
        one.pointer = pointer_field(lines, fields[columns.pointer], "pointer");
        one.bytes = decimal_field(lines, fields[columns.size], "size");
        one.stream = columns.stream == rmm_columns::none
                         ? 0
                         : pointer_field(lines, fields[columns.stream], "stream");
        if (columns.device != rmm_columns::none) {
            if (device.value_or(fields[columns.device]) != fields[columns.device]) {
                lines.fail("more than one device; split the log");
            }
            device = fields[columns.device];
        }
        one.is_allocation = action == "allocate" || action == "Alloc";
        if (one.is_allocation && one.bytes != 0 && one.pointer == 0) {
            lines.fail("an allocation without an address");
        }
        if (one.is_allocation || action == "free" || action == "Free") {
            out.push_back(one);
        } else if (action != "allocate failure") {
            lines.fail(fmt::format("unknown action {}: expected allocate, allocate failure or free",
                                   quote(action)));
        }
    }
    return out;
}

}  // namespace detail

[[nodiscard]] inline bool is_rmm_log(std::string_view text) {
    const std::string_view head = text.substr(0, text.find('\n'));
    return head.size() < line_reader::longest_line &&
           detail::find_rmm_columns(head.ends_with('\r') ? head.substr(0, head.size() - 1) : head)
               .has_value();
}

[[nodiscard]] inline trace read_rmm(const std::string& name, std::string_view text) {
    line_reader lines{name, text};
    std::string_view line;
    const auto columns =
        lines.next(line) ? detail::find_rmm_columns(line) : std::optional<detail::rmm_columns>{};
    if (!columns) {
        throw bad_input(name +
                        ":1: not the head of an allocation log: expected "
                        "Thread,Time,Action,Pointer,Size,Stream");
    }
    const std::vector<detail::rmm_line> all = detail::read_rmm_lines(lines, *columns);
    trace_builder out;
    std::unordered_set<std::uint64_t> seen;
    for (const detail::rmm_line& one : all) {
        if (seen.insert(one.pointer).second && !one.is_allocation && one.pointer != 0 &&
            one.bytes > 0) {
            (void)out.allocate(one.pointer, one.bytes, one.stream, all.front().us);  // the first
        }
    }
    std::unordered_set<std::uint64_t> empty_blocks;
    for (const detail::rmm_line& one : all) {
        trace_builder::outcome why;
        if (one.is_allocation && one.bytes == 0) {
            empty_blocks.insert(one.pointer);
        } else if (one.is_allocation) {
            empty_blocks.erase(one.pointer);
            why = out.allocate(one.pointer, one.bytes, one.stream, one.us);
        } else if (out.is_alive(one.pointer) ||
                   (one.pointer != 0 && empty_blocks.erase(one.pointer) == 0)) {
            why = out.complete_free(
                one.pointer,
                columns->is_old && one.bytes == 0 ? std::nullopt : std::optional{one.bytes},
                one.stream, one.us);
        }
        if (why) {
            throw bad_input(
                fmt::format("{}:{}: block 0x{:x}: {}", name, one.number, one.pointer, *why));
        }
    }
    if (out.is_empty()) {
        throw bad_input(name + ": no allocation in this log");
    }
    return std::move(out).finish(name, "rmm");
}

}  // namespace xmm::trace_replay
