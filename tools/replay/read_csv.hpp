// SPDX-License-Identifier: Apache-2.0
// read_csv.hpp - the project's own traces: op,id,size,stream,us, as traces/README.md describes.
//
// Failure  bad_input with file, line and reason.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "file_bytes.hpp"
#include "trace.hpp"

namespace xmm::trace_replay {

[[nodiscard]] inline trace read_csv(const std::string& name, std::string_view text) {
    line_reader lines{name, text};
    trace_builder out;
    for (std::string_view line; lines.next(line);) {
        if (line.empty() || line.front() == '#' || line == "op,id,size,stream,us") {
            continue;
        }
        std::array<std::string_view, 5> fields;
        const auto count = split_fields(line, fields);
        if (!count) {
            lines.fail("more than the 5 fields op,id,size,stream,us");
        }
        if (*count != fields.size()) {
            lines.fail(fmt::format("{} of the 5 fields op,id,size,stream,us", *count));
        }
        if (fields[0] != "a" && fields[0] != "r" && fields[0] != "f") {
            lines.fail(fmt::format("unknown operation {}: expected a, f or r", quote(fields[0])));
        }
        const std::uint64_t id = decimal_field(lines, fields[1], "id");
        const std::uint64_t bytes = decimal_field(lines, fields[2], "size");
        const std::uint64_t stream = decimal_field(lines, fields[3], "stream");
        const std::uint64_t us = decimal_field(lines, fields[4], "time");
        const trace_builder::outcome why = fields[0] == "a" ? out.allocate(id, bytes, stream, us)
                                           : fields[0] == "r"
                                               ? out.request_free(id, bytes, stream, us)
                                               : out.complete_free(id, bytes, stream, us);
        if (why) {
            lines.fail(fmt::format("block {}: {}", id, *why));
        }
    }
    if (out.is_empty()) {
        throw bad_input(name + ": no events; expected lines op,id,size,stream,us");
    }
    return std::move(out).finish(name, "csv");
}

}  // namespace xmm::trace_replay
