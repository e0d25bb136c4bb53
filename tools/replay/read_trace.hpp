// SPDX-License-Identifier: Apache-2.0
// read_trace.hpp - reads a trace of any of the three forms; what it is shows in what it holds.
//
// Failure  bad_input with file, place and reason.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "file_bytes.hpp"
#include "read_csv.hpp"
#include "read_rmm.hpp"
#include "read_snapshot.hpp"
#include "trace.hpp"

namespace xmm::trace_replay {

// More than one only from a snapshot of several devices.
[[nodiscard]] inline std::vector<trace> parse_trace(const std::string& name,
                                                    std::string_view bytes) {
    if (bytes.empty()) {
        throw bad_input(name + ": is empty");
    }
    if (bytes.starts_with('\x80')) {
        return read_snapshot(name, bytes);
    }
    if (bytes.starts_with("PK\x03\x04")) {
        throw bad_input(name +
                        ": a zip archive, as torch.save writes; store the snapshot with "
                        "pickle.dump instead");
    }
    std::vector<trace> out;
    out.push_back(is_rmm_log(bytes) ? read_rmm(name, bytes) : read_csv(name, bytes));
    return out;
}

[[nodiscard]] inline std::vector<trace> read_traces(const std::string& path) {
    return parse_trace(path, read_file(path));
}

}  // namespace xmm::trace_replay
