// SPDX-License-Identifier: Apache-2.0
// report.hpp - what a run did, as a table and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "table.hpp"

namespace xmm::demo {

// One part of the demo under one policy.
struct run_report {
    std::string part;
    std::string policy;
    double seconds = 0;
    std::uint64_t work_bytes = 0;  // what kernels and the CPU read and wrote, as the part counts it
    std::uint64_t data_bytes = 0;  // unified memory in use
    std::uint64_t device_bytes = 0;  // the device's size
    std::uint64_t bytes_to_device = 0;
    std::uint64_t bytes_to_host = 0;
    std::uint64_t mapped_bytes = 0;  // reached over the link without a move
    std::uint64_t device_faults = 0;
    std::uint64_t cpu_faults = 0;
    std::uint64_t coalesced = 0;  // faults that found their page already there or on its way
    std::uint64_t reclaimed_bytes = 0;
    std::uint64_t pages_on_device = 0;
    std::uint64_t pages_on_host = 0;
    std::string check;  // what was compared with the CPU
    bool is_correct = false;
};

[[nodiscard]] inline std::string report_table(const std::vector<run_report>& runs) {
    table out{{"part", "policy", "seconds", "to device", "to host", "mapped", "dev faults",
               "CPU faults", "coalesced", "reclaimed", "pages dev/host", "check"},
              2};
    for (const run_report& run : runs) {
        out.add({run.part, run.policy, fmt::format("{:.2f}", run.seconds),
                 show_bytes(run.bytes_to_device), show_bytes(run.bytes_to_host),
                 show_bytes(run.mapped_bytes), show_count(run.device_faults),
                 show_count(run.cpu_faults), show_count(run.coalesced),
                 show_bytes(run.reclaimed_bytes),
                 fmt::format("{}/{}", run.pages_on_device, run.pages_on_host),
                 run.is_correct ? "equal" : "DIFFERS"});
    }
    return out.text();
}

[[nodiscard]] inline nlohmann::ordered_json report_json(const run_report& run) {
    return {{"part", run.part},
            {"policy", run.policy},
            {"seconds", run.seconds},
            {"work_bytes", run.work_bytes},
            {"data_bytes", run.data_bytes},
            {"device_bytes", run.device_bytes},
            {"bytes_to_device", run.bytes_to_device},
            {"bytes_to_host", run.bytes_to_host},
            {"mapped_bytes", run.mapped_bytes},
            {"device_faults", run.device_faults},
            {"cpu_faults", run.cpu_faults},
            {"coalesced", run.coalesced},
            {"reclaimed_bytes", run.reclaimed_bytes},
            {"pages_on_device", run.pages_on_device},
            {"pages_on_host", run.pages_on_host},
            {"check", run.check},
            {"is_correct", run.is_correct}};
}

}  // namespace xmm::demo
