// SPDX-License-Identifier: Apache-2.0
// options.hpp - the command line of the demo.
//
// Failure  bad_input for what cannot be used; nothing has been written by then.
#pragma once

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "bad_input.hpp"
#include "kmeans.hpp"
#include "size_value.hpp"
#include "trace_folders.hpp"

namespace xmm::demo {

struct options {
    std::string trace_path;    // a file, or the short name of one that comes with the project
    std::string picture_path;  // empty: the demo draws one
    std::string out_folder = "xmm-demo-out";
    std::string json_path;              // empty: report.json in out_folder
    std::vector<std::string> policies;  // empty: all that the library has
    std::uint32_t clusters = 12;
    std::uint32_t iterations = 12;
    std::uint64_t device_bytes = 0;  // 0: half of what each part needs
    double link_gb_per_second = 4;
    bool is_quick = false;
};

// A path that exists is taken as it is; a name without a slash may be one of the project's traces.
[[nodiscard]] inline std::string find_trace(const std::string& name) {
    std::error_code error;
    if (std::filesystem::exists(name, error) && !std::filesystem::is_directory(name, error)) {
        return name;
    }
    if (name.find('/') == std::string::npos) {
        for (const auto& folder : trace_folders()) {
            for (const char* ending : {"", ".csv.gz"}) {
                const auto path = folder / (name + ending);
                if (std::filesystem::exists(path, error) &&
                    !std::filesystem::is_directory(path, error)) {
                    return path.string();
                }
            }
        }
    }
    if (std::filesystem::is_directory(name, error)) {
        throw bad_input(name + ": is a folder; --trace takes a file");
    }
    throw bad_input(
        name + ": no such trace, neither a file nor one of the project's (see traces/README.md)");
}

// Fills `out` from the command line; a value is the exit code where nothing more is to be done.
[[nodiscard]] inline std::optional<int> parse_options(int count, char** words, options& out) {
    CLI::App app{
        "Shows unified memory at work: replays the allocations of a real training run, and "
        "clusters\n"
        "the colours of a picture, both on a device that is too small for them, under each "
        "placement\n"
        "policy. Every result is checked against a plain run on the CPU."};
    std::string policies = "all";
    app.add_option(
        "--trace", out.trace_path,
        "allocation trace to replay: a .csv or .csv.gz file, or the name of one in traces/ "
        "(default: opt13b_b8)");
    app.add_option(
        "--picture", out.picture_path,
        "PNG file whose colours are clustered (default: a landscape that the demo draws)");
    app.add_option(
        "--out", out.out_folder,
        "folder for the clustered picture, the heat maps and the report (default: ./xmm-demo-out)");
    app.add_option("--policy", policies,
                   "placement policies to compare, separated by commas, such as first_touch,mapped "
                   "(default: all)");
    app.add_option("--clusters", out.clusters,
                   "number of colours that the picture is reduced to (default: 12)")
        ->check(CLI::Range(1, static_cast<int>(most_clusters)));
    app.add_option("--iterations", out.iterations,
                   "most steps of k-means (default: 12; 4 with --quick)")
        ->check(CLI::Range(1, 1000));
    app.add_option("--json", out.json_path,
                   "file for the report as JSON (default: report.json in the --out folder)");
    app.add_flag("--quick", out.is_quick,
                 "a small round of everything, in seconds: small data, few events");
    take_as_size(
        app.add_option("--device-bytes", out.device_bytes,
                       "memory of the device, such as 256MiB; a multiple of 2 MiB, from 8 MiB "
                       "(default: half of what each part needs)"));
    app.add_option(
           "--link", out.link_gb_per_second,
           "speed of the software device's link in GB/s, each way; 0 is unlimited (default: 4)")
        ->check(CLI::Range(0.0, 1000.0));
    try {
        app.parse(count, words);
    } catch (const CLI::Success& asked) {
        return app.exit(asked);
    } catch (const CLI::ParseError& error) {
        throw bad_input(std::string{error.what()} + " (see xmm-demo --help)");
    }
    if (out.is_quick && app.count("--iterations") == 0) {
        out.iterations = 4;
    }
    constexpr std::uint64_t mib = std::uint64_t{1} << 20;
    if (out.device_bytes != 0 &&
        (out.device_bytes < 8 * mib || out.device_bytes % (2 * mib) != 0)) {
        throw bad_input("--device-bytes: give a multiple of 2 MiB, at least 8 MiB");
    }
    if (!(out.link_gb_per_second >= 0)) {
        throw bad_input("--link: not a number");
    }
    if (policies != "all") {
        out.policies.clear();
        for (std::size_t at = 0; at <= policies.size();) {
            const std::size_t comma = std::min(policies.find(',', at), policies.size());
            const std::string name = policies.substr(at, comma - at);
            if (name.empty() ||
                std::find(out.policies.begin(), out.policies.end(), name) != out.policies.end()) {
                throw bad_input("--policy: '" + policies + "' is not a list of different names");
            }
            out.policies.push_back(name);
            at = comma + 1;
        }
    }
    return std::nullopt;
}

}  // namespace xmm::demo
