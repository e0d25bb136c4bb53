// SPDX-License-Identifier: Apache-2.0
// main.cpp - xmm-replay: recorded allocations through named allocators.
//
// Model    All input is read and checked before anything runs or is written: generated traces then, results at the
//          end, each file whole or not at all. Runs are spread over threads, as many as can be had. Exit status: 0 all
//          replayed, 1 an allocator found no memory, 2 something that was given cannot be used.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "../demo/format.hpp"
#include "../demo/output_file.hpp"
#include "../demo/png.hpp"
#include "../demo/progress.hpp"
#include "../demo/same_file.hpp"
#include "../demo/try_write.hpp"
#include "allocators.hpp"
#include "backends.hpp"
#include "generate.hpp"
#include "options.hpp"
#include "plot.hpp"
#include "prices.hpp"
#include "read_trace.hpp"
#include "report.hpp"
#include "run_trace.hpp"

namespace xmm::trace_replay {
namespace {

[[nodiscard]] prices choose_prices(const options& wanted, const replay_backend* real) {
    if (wanted.prices == "idle") {
        return prices::idle();
    }
    if (wanted.prices == "loaded") {
        return prices::loaded();
    }
    if (wanted.prices == "measured") {
        return real != nullptr ? real->measure() : measure_prices(wanted.backend);
    }
    return prices::from_json(wanted.prices, read_file(wanted.prices, std::size_t{1} << 20));
}

[[nodiscard]] std::vector<std::string> files_to_read(const options& wanted) {
    return wanted.traces.empty() && !wanted.generated.empty() ? std::vector<std::string>{}
                                                              : find_traces(wanted.traces);
}

// Every file that cannot be used is named, not only the first.
[[nodiscard]] std::vector<trace> read_all(const options& wanted,
                                          const std::vector<std::string>& files) {
    std::vector<trace> out;
    std::string errors;
    for (const std::string& file : files) {
        try {
            for (trace& one : read_traces(file)) {
                out.push_back(std::move(one));
            }
        } catch (const bad_input& error) {
            errors += std::string{errors.empty() ? "" : "\nxmm-replay: "} + error.what();
        }
    }
    if (!errors.empty()) {
        throw bad_input(errors);
    }
    for (const std::string& name : wanted.generated) {
        out.push_back(generate_trace(name));
    }
    return out;
}

// A real device stays open from here to the end: it is one, and opening it takes longer than many a replay.
[[nodiscard]] std::unique_ptr<replay_backend> open_real_device(const options& wanted) {
    return wanted.backend == "cuda"
               ? std::make_unique<replay_backend>(wanted.backend, wanted.device_bytes)
               : nullptr;
}

void check_sizes(const std::vector<trace>& traces, const replay_backend& on, double scale) {
    std::string errors;
    const std::uint64_t free_bytes = on.most_live_bytes();
    for (const trace& one : traces) {
        if (const std::string why = why_too_large(one, free_bytes, scale); !why.empty()) {
            errors += (errors.empty() ? "" : "\nxmm-replay: ") + why;
        }
    }
    if (!errors.empty()) {
        throw bad_input(errors);
    }
}

struct text_file {
    std::string path;
    std::string text;
};

// As they are before they are scaled.
[[nodiscard]] std::vector<text_file> files_to_save(const options& wanted,
                                                   const std::vector<trace>& traces) {
    std::vector<text_file> files;
    for (const trace& one : traces) {
        if (one.form == "generated" && !wanted.save_folder.empty()) {
            std::string name = one.name;
            std::replace(name.begin(), name.end(), ':', '-');
            files.push_back({(std::filesystem::path{wanted.save_folder} / (name + ".csv")).string(),
                             trace_as_csv(one)});
        }
    }
    return files;
}

// Not over what was read nor over each other, whatever they are called.
void check_overwriting(const options& wanted, std::vector<std::string> inputs,
                       const std::vector<text_file>& saved) {
    if (wanted.prices != "idle" && wanted.prices != "loaded" && wanted.prices != "measured") {
        inputs.push_back(wanted.prices);
    }
    std::vector<std::string> outputs;
    for (const std::string& path : {wanted.json_path, wanted.plot_path}) {
        if (!path.empty()) {
            outputs.push_back(path);
        }
    }
    for (const text_file& one : saved) {
        outputs.push_back(one.path);
    }
    if (!wanted.save_folder.empty()) {  // one that is yet to be made; without a slash at its end
        outputs.push_back((std::filesystem::path{wanted.save_folder} / "").parent_path().string());
    }
    demo::refuse_to_overwrite(inputs, outputs);
}

void save(const options& wanted, const std::vector<text_file>& files) {
    if (wanted.save_folder.empty()) {
        return;
    }
    demo::make_folder(wanted.save_folder);
    for (const text_file& one : files) {
        demo::write_text(one.path, one.text);
    }
}

class replay_all {
public:
    // real: the device of all runs, one after the other; null: each opens its own.
    replay_all(const options& wanted, const std::vector<trace>& traces, const prices& list,
               const replay_backend* real)
        : wanted_{wanted}, traces_{traces}, list_{list}, real_{real} {}

    [[nodiscard]] std::vector<run_result> run() {
        results_.resize(traces_.size() * wanted_.allocators.size());
        order_jobs();
        std::vector<std::thread> workers;
        const std::size_t count =
            std::min<std::size_t>(real_ != nullptr ? 1 : wanted_.jobs, jobs_.size());
        try {
            for (std::size_t i = 0; i < count; ++i) {
                workers.emplace_back([this] { work(); });
            }
        } catch (const std::system_error&) {
            if (workers.empty()) {
                work();  // the others, if there are any, do it
            }
        }
        show_progress(workers.size());
        for (std::thread& one : workers) {
            one.join();
        }
        if (failure_) {
            std::rethrow_exception(failure_);
        }
        return std::move(results_);
    }

private:
    // The longest first, so that no thread is left alone with it at the end.
    void order_jobs() {
        for (std::size_t i = 0; i < results_.size(); ++i) {
            jobs_.push_back(i);
        }
        std::stable_sort(jobs_.begin(), jobs_.end(), [this](std::size_t a, std::size_t b) {
            return trace_of(a).events.size() > trace_of(b).events.size();
        });
    }
    [[nodiscard]] const trace& trace_of(std::size_t job) const {
        return traces_[job / wanted_.allocators.size()];
    }
    void work() {
        try {
            for (;;) {
                // relaxed: only the number counts, the jobs were there before the threads
                const std::size_t next = next_.fetch_add(1, std::memory_order_relaxed);
                if (next >= jobs_.size()) {
                    break;
                }
                run_job(jobs_[next]);
            }
        } catch (...) {
            const std::lock_guard guard{lock_};
            failure_ = std::current_exception();
        }
        const std::lock_guard guard{lock_};
        ++finished_;
        is_finished_.notify_all();
    }
    void run_job(std::size_t job) {
        const std::string& name = wanted_.allocators[job % wanted_.allocators.size()];
        std::optional<replay_backend> own;
        if (real_ == nullptr) {
            own.emplace(wanted_.backend, wanted_.device_bytes);
        }
        candidate_options with;
        with.list = &list_;
        with.simulation = (real_ != nullptr ? *real_ : *own).simulation();
        with.simulation.device_bytes = wanted_.device_bytes;
        with.simulation.lag_us = wanted_.lag_us;
        with.simulation.can_alias = wanted_.may_alias;
        with.simulation.is_timed = wanted_.prices == "measured";
        const auto one = make_candidate(name, with);
        results_[job] = run_trace(trace_of(job), name, *one, done_);
        results_[job].source = job / wanted_.allocators.size();
    }
    void show_progress(std::size_t threads) {
        const bool is_shown = !wanted_.is_quiet && isatty(STDERR_FILENO) != 0;
        std::uint64_t total = 0;
        for (const std::size_t job : jobs_) {
            total += trace_of(job).events.size();
        }
        demo::progress_bar bar{"replay", total,
                               is_shown ? demo::progress_style::bar : demo::progress_style::silent};
        std::unique_lock guard{lock_};
        while (finished_ < threads) {
            is_finished_.wait_for(guard, std::chrono::milliseconds{100});
            // relaxed: a number for the eye
            bar.show(done_.load(std::memory_order_relaxed));
        }
    }

    const options& wanted_;
    const std::vector<trace>& traces_;
    const prices& list_;
    const replay_backend* const real_;
    std::vector<run_result> results_;
    std::vector<std::size_t> jobs_;
    std::atomic<std::size_t> next_{0};
    std::atomic<std::uint64_t> done_{0};
    std::mutex lock_;
    std::condition_variable is_finished_;
    std::size_t finished_ = 0;
    std::exception_ptr failure_;
};

int run(int count, char** words) {
    options wanted;
    if (const auto code = parse_options(count, words, wanted)) {
        return *code;
    }
    // Found out before a minute's work.
    for (const std::string& path : {wanted.json_path, wanted.plot_path}) {
        if (!path.empty()) {
            demo::try_output(path);
        }
    }
    const std::unique_ptr<replay_backend> real = open_real_device(wanted);
    const prices list = choose_prices(wanted, real.get());
    const std::vector<std::string> inputs = files_to_read(wanted);
    std::vector<trace> traces = read_all(wanted, inputs);
    const std::vector<text_file> files = files_to_save(wanted, traces);
    check_overwriting(wanted, inputs, files);
    for (trace& one : traces) {
        scale_trace(one, wanted.scale);
    }
    if (real != nullptr) {
        check_sizes(traces, *real, wanted.scale);
    }
    save(wanted, files);
    if (!xmm_heap::has_jemalloc() && std::find(wanted.allocators.begin(), wanted.allocators.end(),
                                               "xmm") != wanted.allocators.end()) {
        fmt::print(stderr, "xmm-replay: no jemalloc in this build: xmm is as xmm-nojemalloc\n");
    }
    const std::vector<run_result> results = replay_all{wanted, traces, list, real.get()}.run();
    fmt::print("{}{}", results_table(results), results_legend);
    if (real != nullptr) {
        fmt::print("xmm's on {}, in {} time; models: by the list of prices.\n", real->device_name(),
                   wanted.prices == "measured" ? "measured" : "listed");
    }
    if (wanted.scale != 1) {
        fmt::print("sizes are scaled 1 : {}.\n", wanted.scale);
    }
    if (const std::string sum = summary_table(results); !sum.empty()) {
        fmt::print("\n{}", sum);
    }
    if (!wanted.json_path.empty()) {
        nlohmann::ordered_json out = nlohmann::ordered_json::array();
        for (const run_result& one : results) {
            out.push_back(result_json(one));
            out.back()["backend"] = wanted.backend;
            out.back()["prices"] = list.name;
            out.back()["scale"] = wanted.scale;
        }
        demo::write_text(
            wanted.json_path,
            out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n');
    }
    if (!wanted.plot_path.empty()) {
        demo::write_png(wanted.plot_path, draw_plot(results));
    }
    return std::any_of(results.begin(), results.end(),
                       [](const run_result& one) { return one.out_of_memory_at.has_value(); })
               ? 1
               : 0;
}

}  // namespace
}  // namespace xmm::trace_replay

int main(int count, char** words) {
    try {
        return xmm::trace_replay::run(count, words);
    } catch (const xmm::demo::bad_input& error) {
        fmt::print(stderr, "xmm-replay: {}\n", error.what());
    } catch (const std::bad_alloc&) {
        fmt::print(stderr, "xmm-replay: out of host memory\n");
    } catch (const std::exception& error) {
        fmt::print(stderr, "xmm-replay: {}\n", error.what());
    }
    return 2;
}
