// SPDX-License-Identifier: Apache-2.0
// report.hpp - the results of a replay: as a table, as JSON, and in sum.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "../demo/format.hpp"
#include "../demo/table.hpp"
#include "run_trace.hpp"

namespace xmm::trace_replay {

// "opt13b_b8" of ".../opt13b_b8.csv.gz".
[[nodiscard]] inline std::string short_name(const std::string& trace) {
    std::string file = std::filesystem::path{trace}.filename().string();
    for (const char* ending : {".gz", ".csv", ".log", ".pickle", ".pkl"}) {
        if (file.size() > std::string_view{ending}.size() && file.ends_with(ending)) {
            file.resize(file.size() - std::string_view{ending}.size());
        }
    }
    return file.empty() ? trace : file;
}

[[nodiscard]] inline std::string results_table(const std::vector<run_result>& results) {
    demo::table out{{"trace", "allocator", "events", "streams", "live GB", "reserved GB", "ratio",
                     "calls", "moved", "driver ms", "of run", "first ms", "ns/event"},
                    2};
    for (const run_result& one : results) {
        std::vector<std::string> row = {
            short_name(one.trace), one.allocator, demo::show_count(one.events),
            std::to_string(one.streams),
            fmt::format("{:.3f}", static_cast<double>(one.peak_live_bytes) / 1e9)};
        if (one.out_of_memory_at) {
            row.push_back(fmt::format("none left at event {}", *one.out_of_memory_at + 1));
        } else {
            for (std::string& cell : std::vector<std::string>{
                     fmt::format("{:.3f}", static_cast<double>(one.peak_reserved_bytes) / 1e9),
                     fmt::format("{:.4f}", one.ratio()), demo::show_count(one.driver_calls),
                     demo::show_count(one.frames_moved), fmt::format("{:.1f}", one.driver_us / 1e3),
                     one.duration_us == 0 ? "-" : fmt::format("{:.3f} %", one.driver_share()),
                     fmt::format("{:.1f}", one.first_creation_us / 1e3),
                     fmt::format("{:.0f}", one.ns_per_event)}) {
                row.push_back(std::move(cell));
            }
        }
        out.add(std::move(row));
    }
    return out.text();
}

inline constexpr const char* results_legend =
    "live: what was asked for and not yet free; reserved: all memory taken from the driver and not "
    "given back;\n"
    "driver: frames moved or made again, waits, and frames beyond the most live bytes; first: "
    "frames up to "
    "there.\n";

// Means over the traces, of one stream and of several apart; empty with a single trace.
[[nodiscard]] inline std::string summary_table(const std::vector<run_result>& results) {
    struct sum {
        double logs = 0, worst = 0;
        std::size_t count = 0;

        void add(double ratio) {
            logs += std::log(ratio);
            worst = std::max(worst, ratio);
            ++count;
        }
        [[nodiscard]] std::string mean() const {
            return count == 0 ? "-"
                              : fmt::format("{:.4f}", std::exp(logs / static_cast<double>(count)));
        }
        [[nodiscard]] std::string most() const {
            return count == 0 ? "-" : fmt::format("{:.4f}", worst);
        }
    };
    struct sums {
        sum one_stream, several;
        double most_share = 0;
        std::size_t failed = 0;
    };
    std::vector<std::string> order;
    std::map<std::string, sums> all;
    for (const run_result& one : results) {
        if (!all.contains(one.allocator)) {
            order.push_back(one.allocator);
        }
        sums& to = all[one.allocator];
        if (one.out_of_memory_at) {
            ++to.failed;
            continue;
        }
        (one.streams > 1 ? to.several : to.one_stream).add(one.ratio());
        to.most_share = std::max(to.most_share, one.driver_share());
    }
    demo::table out{{"allocator", "traces", "one stream: mean", "worst", "several: mean", "worst",
                     "most driver time"}};
    bool is_useful = false;
    for (const std::string& name : order) {
        const sums& one = all[name];
        const std::size_t count = one.one_stream.count + one.several.count;
        is_useful = is_useful || count + one.failed > 1;
        out.add({name,
                 one.failed == 0 ? std::to_string(count)
                                 : fmt::format("{} of {}", count, count + one.failed),
                 one.one_stream.mean(), one.one_stream.most(), one.several.mean(),
                 one.several.most(), fmt::format("{:.3f} %", one.most_share)});
    }
    return is_useful ? out.text() : std::string{};
}

[[nodiscard]] inline nlohmann::ordered_json result_json(const run_result& one) {
    nlohmann::ordered_json out = {
        {"trace", short_name(one.trace)},
        {"file", one.trace},
        {"allocator", one.allocator},
        {"events", one.events},
        {"streams", one.streams},
        {"peak_live_bytes", one.peak_live_bytes},
        {"peak_reserved_bytes", one.peak_reserved_bytes},
        {"ratio", one.ratio()},
        {"driver_calls", one.driver_calls},
        {"driver_us", one.driver_us},
        {"move_us", one.move_us},
        {"wait_us", one.wait_us},
        {"beyond_peak_us", one.beyond_peak_us},
        {"first_creation_us", one.first_creation_us},
        {"early_us", one.early_us},
        {"create_us", one.first_creation_us + one.beyond_peak_us},
        {"frames_moved", one.frames_moved},
        {"ns_per_event", one.ns_per_event},
        {"duration_us", one.duration_us},
    };
    if (one.out_of_memory_at) {
        out["out_of_memory_at"] = *one.out_of_memory_at;
    }
    return out;
}

}  // namespace xmm::trace_replay
