// SPDX-License-Identifier: Apache-2.0
// options.hpp - the command line of xmm-replay.
//
// Failure  bad_input for what cannot be used; nothing has been read or written by then.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "../demo/format.hpp"
#include "../demo/size_value.hpp"
#include "../demo/trace_folders.hpp"
#include "allocators.hpp"
#include "backends.hpp"
#include "generate.hpp"
#include "prices.hpp"

#include <CLI/CLI.hpp>

namespace xmm::trace_replay {

struct options {
    std::vector<std::string> traces;      // files, folders, or short names of the project's traces
    std::vector<std::string> generated;   // NAME or NAME:SEED
    std::vector<std::string> allocators;  // empty: all
    std::string backend = "simulated";
    std::string prices = "idle";
    std::string json_path;
    std::string plot_path;
    std::string save_folder;
    std::uint64_t device_bytes = 0;
    std::uint64_t lag_us = 0;
    std::uint32_t jobs = 0;
    double scale = 1;
    bool may_alias = true;
    bool is_quiet = false;
};

namespace detail {

// "a,b" as a list of different names, all of them known.
[[nodiscard]] inline std::vector<std::string> name_list(const std::string& option,
                                                        const std::string& text,
                                                        const std::vector<std::string>& known) {
    std::vector<std::string> out;
    for (std::size_t at = 0; at <= text.size();) {
        const std::size_t comma = std::min(text.find(',', at), text.size());
        const std::string name = text.substr(at, comma - at);
        if (std::find(known.begin(), known.end(), name) == known.end()) {
            throw bad_input(fmt::format("{}: there is no '{}'; known are {}", option, name,
                                        fmt::join(known, ", ")));
        }
        if (std::find(out.begin(), out.end(), name) != out.end()) {
            throw bad_input(fmt::format("{}: '{}' is named twice", option, name));
        }
        out.push_back(name);
        at = comma + 1;
    }
    return out;
}

inline constexpr const char* trace_endings[] = {".csv", ".csv.gz", ".log",    ".log.gz",
                                                ".pkl", ".pkl.gz", ".pickle", ".pickle.gz"};

[[nodiscard]] inline bool is_trace_name(const std::string& file) {
    return std::any_of(std::begin(trace_endings), std::end(trace_endings),
                       [&](const char* ending) { return file.ends_with(ending); });
}

[[nodiscard]] inline std::vector<std::string> traces_in(const std::filesystem::path& folder) {
    std::vector<std::string> out;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator{folder, error}) {
        if (entry.is_regular_file(error) && is_trace_name(entry.path().filename().string())) {
            out.push_back(entry.path().string());
        }
    }
    std::sort(out.begin(), out.end());
    return out;
}

}  // namespace detail

// The files that are meant, in order. A folder stands for all traces in it; nothing at all for those that come
// with the project.
[[nodiscard]] inline std::vector<std::string> find_traces(const std::vector<std::string>& wanted) {
    namespace fs = std::filesystem;
    std::error_code error;
    std::vector<std::string> out;
    if (wanted.empty()) {
        for (const auto& folder : demo::trace_folders()) {
            if (out = detail::traces_in(folder); !out.empty()) {
                return out;
            }
        }
        throw bad_input("no trace is named, and the project's own are not found (see --help)");
    }
    for (const std::string& name : wanted) {
        if (fs::is_directory(name, error)) {
            const auto inside = detail::traces_in(name);
            if (inside.empty()) {
                throw bad_input(fmt::format("{}: no trace in this folder (names end in {})", name,
                                            fmt::join(detail::trace_endings, ", ")));
            }
            out.insert(out.end(), inside.begin(), inside.end());
            continue;
        }
        if (fs::exists(name, error)) {
            out.push_back(name);
            continue;
        }
        std::string found;
        if (name.find('/') == std::string::npos) {
            for (const auto& folder : demo::trace_folders()) {
                for (const char* ending : {"", ".csv.gz"}) {
                    const auto path = folder / (name + ending);
                    if (found.empty() && fs::is_regular_file(path, error)) {
                        found = path.string();
                    }
                }
            }
        }
        if (found.empty()) {
            throw bad_input(
                name +
                ": no such trace, neither a file nor one of the project's (see traces/README.md)");
        }
        out.push_back(found);
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
        if (std::find(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(i), out[i]) !=
            out.begin() + static_cast<std::ptrdiff_t>(i)) {
            throw bad_input(out[i] + ": is named twice");
        }
    }
    return out;
}

// Fills `out` from the command line; a value is the exit code where nothing more is to be done.
[[nodiscard]] inline std::optional<int> parse_options(int count, char** words, options& out) {
    CLI::App app{
        "Replays recorded allocations through allocators and shows how much memory each takes "
        "from\n"
        "the driver, and what the driver's calls cost. A trace is a CSV of the project, a log of\n"
        "RMM or of xmm's logging_resource, or a pickled torch.cuda.memory._snapshot(); gzipped or\n"
        "not."};
    std::string allocators = "all";
    app.add_option("traces", out.traces,
                   "trace files, folders of them, or names of those in traces/ (default: all "
                   "in traces/)");
    app.add_option("--allocators", allocators,
                   fmt::format("allocators to compare, separated by commas, of {} (default: all)",
                               fmt::join(allocator_names(), ", ")));
    app.add_option("--backend", out.backend,
                   fmt::format("whose memory xmm's allocators use: {}; soft is a device in host "
                               "memory, cuda this machine's first (default: simulated)",
                               fmt::join(backend_names(), ", ")));
    app.add_option("--prices", out.prices,
                   "what a driver's call costs: idle or loaded, as on an H200; measured, timed on "
                   "the backend; or a JSON file of microseconds by call and MiB (default: idle)");
    app.add_option("--json", out.json_path, "file for the results as JSON");
    app.add_option("--plot", out.plot_path,
                   "PNG file: live bytes and what each allocator had reserved, over time");
    app.add_option("--generate", out.generated,
                   fmt::format("adds made-up loads, NAME or NAME:SEED or all, of {}",
                               fmt::join(generator_names(), ", ")))
        ->delimiter(',')
        ->allow_extra_args(false);
    app.add_option("--save", out.save_folder,
                   "folder that the made-up loads are written into as CSV");
    demo::take_as_size(
        app.add_option("--device-bytes", out.device_bytes,
                       "size of the device, such as 80GiB (default: it never runs out)"));
    app.add_option("--lag-us", out.lag_us,
                   "how long after its free the work of a block goes on, where the trace does "
                   "not tell (default: 0)")
        ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{1'000'000'000}));
    app.add_option("--scale", out.scale,
                   "divides the sizes of all blocks, for a device that is too small (default: 1)")
        ->check(CLI::Range(1.0, 1e9));
    bool is_alias_off = false;
    app.add_flag("--no-alias", is_alias_off, "a device that maps a frame at one address only");
    app.add_option("--jobs", out.jobs,
                   "runs at a time (default: one a processor; on cuda always 1)")
        ->check(CLI::Range(1, 256));
    app.add_flag("--quiet", out.is_quiet, "no progress bar");
    try {
        app.parse(count, words);
    } catch (const CLI::Success& asked) {
        return app.exit(asked);
    } catch (const CLI::ParseError& error) {
        throw bad_input(std::string{error.what()} + " (see xmm-replay --help)");
    }
    if (!(out.scale >= 1)) {  // every comparison lets it pass
        throw bad_input("--scale: not a number");
    }
    if (out.device_bytes == UINT64_MAX) {  // what a number that is larger is read as
        throw bad_input("--device-bytes: more than 64 bits can say");
    }
    out.may_alias = !is_alias_off;
    out.jobs = out.jobs != 0 ? out.jobs : std::max(1u, std::thread::hardware_concurrency());
    out.allocators = allocators == "all"
                         ? allocator_names()
                         : detail::name_list("--allocators", allocators, allocator_names());
    (void)detail::name_list("--backend", out.backend, backend_names());
    if (out.generated == std::vector<std::string>{"all"}) {
        out.generated = generator_names();
    }
    if (!out.save_folder.empty() && out.generated.empty()) {
        throw bad_input("--save: there is nothing to save without --generate");
    }
    return std::nullopt;
}

}  // namespace xmm::trace_replay
