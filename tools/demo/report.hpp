// SPDX-License-Identifier: Apache-2.0
// report.hpp - what a run did, as a table, in words and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "format.hpp"
#include "table.hpp"

namespace xmm::demo {

// Stands for the policy in the run that all others are measured by: on a device that holds all of it.
inline constexpr const char* in_core = "in core";

// One part of the demo under one policy.
struct run_report {
    std::string part;
    std::string policy;  // or in_core
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

// How many times as long as in core; 0 if that is not known.
[[nodiscard]] inline double slowdown_of(const run_report& run,
                                        const std::vector<run_report>& runs) noexcept {
    for (const run_report& one : runs) {
        if (one.part == run.part && one.policy == in_core && one.seconds > 0) {
            return run.seconds / one.seconds;
        }
    }
    return 0;
}

[[nodiscard]] inline std::string report_table(const std::vector<run_report>& runs) {
    table out{{"part", "policy", "seconds", "slowdown", "to device", "to host", "mapped",
               "dev faults", "CPU faults", "coalesced", "reclaimed", "pages dev/host", "check"},
              2};
    for (const run_report& run : runs) {
        out.add({run.part, run.policy, fmt::format("{:.2f}", run.seconds),
                 fmt::format("{:.2f}", slowdown_of(run, runs)), show_bytes(run.bytes_to_device),
                 show_bytes(run.bytes_to_host), show_bytes(run.mapped_bytes),
                 show_count(run.device_faults), show_count(run.cpu_faults),
                 show_count(run.coalesced), show_bytes(run.reclaimed_bytes),
                 fmt::format("{}/{}", run.pages_on_device, run.pages_on_host),
                 run.is_correct ? "equal" : "DIFFERS"});
    }
    return out.text();
}

inline constexpr const char* report_legend =
    "slowdown: times as long as in core, on a device that holds everything; mapped: reached over "
    "the link, not moved;\n"
    "coalesced: faults whose page was there or on its way; reclaimed: taken from the device to "
    "make "
    "room;\n"
    "pages dev/host: where the 2 MiB pages were at the end, copies on both.\n";

// One part's runs in a sentence.
[[nodiscard]] inline std::string report_sentence(const std::string& part,
                                                 const std::vector<run_report>& runs) {
    std::string out = part + ":";
    const char* separator = " ";
    for (const run_report& run : runs) {
        if (run.part != part) {
            continue;
        }
        out += std::exchange(separator, "; ");
        if (run.policy == in_core) {
            out += fmt::format("{} it takes {:.1f} s", in_core, run.seconds);
            continue;
        }
        std::string what;
        if (run.bytes_to_device + run.bytes_to_host > 0) {
            what = fmt::format(" moved {} to the device and {} back",
                               show_bytes(run.bytes_to_device), show_bytes(run.bytes_to_host));
        }
        if (run.mapped_bytes > 0) {
            what += fmt::format("{} {} over the link", what.empty() ? " reached" : " and reached",
                                show_bytes(run.mapped_bytes));
        }
        out += fmt::format("{}{}: {:.1f} s", run.policy, what.empty() ? " moved nothing" : what,
                           run.seconds);
        if (const double slowdown = slowdown_of(run, runs); slowdown > 0) {
            out += slowdown < 1.05 ? fmt::format(", no longer than {}", in_core)
                                   : fmt::format(", {:.2g} times as long", slowdown);
        }
    }
    return out + ".";
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
