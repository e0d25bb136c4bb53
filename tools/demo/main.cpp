// SPDX-License-Identifier: Apache-2.0
// main.cpp - xmm-demo: unified memory at work, on devices that are too small for what is asked.
//
// Model    Shows the machine as a tree, replays a training run's allocations, and clusters the colours
//          of a picture, under each placement policy; everything is checked against the CPU.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <xmm/xmm.hpp>

#include "block_plan.hpp"
#include "check.hpp"
#include "cluster.hpp"
#include "format.hpp"
#include "landscape.hpp"
#include "machine.hpp"
#include "malloc_part.hpp"
#include "memory.hpp"
#include "options.hpp"
#include "output_file.hpp"
#include "png.hpp"
#include "progress.hpp"
#include "replay.hpp"
#include "report.hpp"
#include "same_file.hpp"
#include "trace.hpp"
#include "try_write.hpp"

namespace xmm::demo {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

// All input, read and checked before anything is written.
struct demo_input {
    trace source;
    block_plan plan;
    image picture;
    std::string picture_name;
    bool had_alpha = false;
    cluster_input colours;
};

[[nodiscard]] std::size_t half_of(std::size_t bytes) {
    return std::max<std::size_t>(bytes / 2 / page_bytes * page_bytes, 8 * mib);
}

// A small part of what is free, so that the copies on both nodes and the CPU's own run fit well.
[[nodiscard]] std::size_t replay_peak(bool is_quick) {
    constexpr std::size_t quick_bytes = 48 * mib;
    return is_quick ? quick_bytes
                    : std::clamp<std::size_t>(available_bytes() / 8, 64 * mib, 512 * mib);
}

[[nodiscard]] image read_picture(const options& wanted, std::string& name) {
    if (!wanted.picture_path.empty()) {
        name = wanted.picture_path;
        image picture = read_png(wanted.picture_path);
        const std::uint64_t needed =
            picture.pixels.size() * (2 * cluster_input::bytes_per_pixel() + 12);
        if (needed > available_bytes()) {
            throw bad_input(fmt::format(
                "{}: clustering {} x {} pixels takes {} of memory, {} are free", name,
                picture.width, picture.height, show_bytes(needed), show_bytes(available_bytes())));
        }
        return picture;
    }
    name = "a landscape, drawn by the demo";
    if (wanted.is_quick) {
        return draw_landscape(1500, 1000);
    }
    return available_bytes() < 2048 * mib ? draw_landscape(2250, 1500) : draw_landscape(3600, 2400);
}

[[nodiscard]] demo_input read_input(const options& wanted) {
    constexpr std::size_t quick_events = 4000;
    constexpr std::size_t most_written = 6144 * mib;  // by one run: what long traces are scaled to
    demo_input in;
    in.source = read_trace(find_trace(wanted.trace_path.empty() ? "opt13b_b8" : wanted.trace_path));
    const std::size_t peak = replay_peak(wanted.is_quick);
    const std::size_t events = wanted.is_quick ? quick_events : in.source.events.size();
    in.plan = plan_blocks(in.source, peak, events);
    if (in.plan.written_bytes > most_written) {
        const double share = double{most_written} / static_cast<double>(in.plan.written_bytes);
        in.plan =
            plan_blocks(in.source,
                        std::max<std::size_t>(
                            static_cast<std::size_t>(static_cast<double>(peak) * share), 64 * mib),
                        events);
    }
    in.picture = read_picture(wanted, in.picture_name);
    in.had_alpha = flatten_onto_white(in.picture);
    return in;
}

// A small device for each part, on the software XPU.
[[nodiscard]] space make_space(const options& wanted, std::size_t replay_bytes,
                               std::size_t picture_bytes) {
    const auto link = static_cast<std::uint64_t>(wanted.link_gb_per_second * 1e9);
    soft::device_options replay_device;
    replay_device.bytes = replay_bytes;
    replay_device.link_in_bytes_per_second = link;
    replay_device.link_out_bytes_per_second = link;
    soft::device_options picture_device = replay_device;
    picture_device.bytes = picture_bytes;
    return check(space::create_soft({replay_device, picture_device}), "create a space");
}

[[nodiscard]] std::size_t bytes_of_picture(const demo_input& in) noexcept {
    return in.picture.pixels.size() * cluster_input::bytes_per_pixel();
}

[[nodiscard]] space make_small_space(const options& wanted, const demo_input& in) {
    return wanted.device_bytes != 0
               ? make_space(wanted, wanted.device_bytes, wanted.device_bytes)
               : make_space(wanted, half_of(in.plan.peak_bytes), half_of(bytes_of_picture(in)));
}

// Devices that hold everything, and what the library keeps free on them.
[[nodiscard]] space make_large_space(const options& wanted, const demo_input& in) {
    const auto roomy = [](std::size_t bytes) {
        return align_up(bytes + bytes / 8, page_bytes) + 16 * page_bytes;
    };
    return make_space(wanted, roomy(in.plan.extent_bytes), roomy(bytes_of_picture(in)));
}

void print_input(const demo_input& in, const options& wanted, space& memory) {
    const auto size_of = [&](std::size_t device) {
        return check(memory.describe(memory.devices()[device]), "describe a device").bytes;
    };
    fmt::print("The devices are software XPUs: host memory behind a link of set speed.\n\n");
    fmt::print("(a) replay of {}\n", std::filesystem::path{in.source.path}.filename().string());
    fmt::print("    {}{} allocations, at most {} alive at once\n",
               in.plan.blocks < in.source.blocks ? "the first " : "", show_count(in.plan.blocks),
               show_bytes(in.plan.trace_peak_bytes));
    fmt::print("    scaled 1 : {:.1f} to {}, on a device of {} (node {})\n", 1 / in.plan.scale,
               show_bytes(in.plan.peak_bytes), show_bytes(size_of(0)), memory.devices()[0].value);
    fmt::print("    kernels write {}, all of it is verified\n", show_bytes(in.plan.written_bytes));
    const std::size_t bytes = bytes_of_picture(in);
    fmt::print("(b) k-means of {}{}\n", in.picture_name,
               in.had_alpha ? ", its transparency laid onto white" : "");
    fmt::print("    {} x {} pixels, {} clusters, at most {} steps\n", in.picture.width,
               in.picture.height, wanted.clusters, wanted.iterations);
    fmt::print("    {} of std::pmr::vectors, on a device of {} (node {}){}\n\n", show_bytes(bytes),
               show_bytes(size_of(1)), memory.devices()[1].value,
               bytes <= size_of(1) ? ", which holds them all" : "");
}

class runner {
public:
    runner(const options& wanted, const demo_input& in)
        : wanted_{wanted}, in_{in}, folder_{wanted.out_folder} {}

    // Nothing that was read is written over, whatever it is called.
    void check_overwriting() const {
        std::vector<std::string> inputs{in_.source.path};
        std::vector<std::string> outputs{json_path(), name_of_file(name_of_clustered())};
        if (wanted_.picture_path.empty()) {
            outputs.push_back(name_of_file(landscape_name));
        } else {
            inputs.push_back(wanted_.picture_path);
        }
        for (const std::string& policy : wanted_.policies) {
            outputs.push_back(name_of_file(name_of_heat_map("replay", trace_name(), policy)));
            outputs.push_back(name_of_file(name_of_heat_map("kmeans", picture_name(), policy)));
        }
        refuse_to_overwrite(inputs, outputs);
    }

    void run_all(space& memory) {
        {
            space large = make_large_space(wanted_, in_);
            run_parts(large, in_core);
        }
        for (const std::string& policy : wanted_.policies) {
            check(memory.set_policy(policy.c_str()), "set the policy");
            run_parts(memory, policy);
        }
    }

    void write_results() {
        image clustered{in_.picture.width, in_.picture.height};
        clustered.pixels = pixels_;
        write_picture(name_of_clustered(), clustered);
        if (wanted_.picture_path.empty()) {
            write_picture(landscape_name, in_.picture);
        }
        const std::string path = json_path();
        write_text(
            path,
            json().dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n');
        written_.push_back(path);
    }

    // The trace as it is, not scaled to a small device: nothing is stored in its blocks.
    void run_allocators() { allocators_ = replay_allocators(in_.source.path); }

    [[nodiscard]] bool is_correct() const noexcept {
        return std::all_of(reports_.begin(), reports_.end(),
                           [](const run_report& one) { return one.is_correct; });
    }
    void print() const {
        fmt::print("{}{}\n{}\n{}\n\n", report_table(reports_), report_legend,
                   report_sentence("replay", reports_), report_sentence("k-means", reports_));
        for (const run_report& one : reports_) {
            fmt::print("{}, {}: {}\n", one.part, one.policy, one.check);
        }
        fmt::print(
            "\n(c) the allocations of {} through xmm's malloc and models of PyTorch's two "
            "allocators\n"
            "    simulated frames, prices of an H200's driver\n\n{}{}",
            trace_name(), trace_replay::results_table(allocators_), trace_replay::results_legend);
        fmt::print("\nwritten:\n");
        for (const std::string& path : written_) {
            fmt::print("  {}\n", path);
        }
    }

private:
    // Both parts, on a device each. In core nothing has to give way: there is nothing to draw.
    void run_parts(space& memory, const std::string& policy) {
        heat_map places;
        {
            replay part{memory, memory.devices()[0], in_.plan};
            finish(part.run("replay, " + policy, style_, places), memory, 0, policy);
        }
        if (policy != in_core) {
            draw(places, "replay", trace_name());
        }
        {
            cluster_run part{memory, memory.devices()[1], in_.colours};
            finish(part.run("k-means, " + policy, style_, places), memory, 1, policy);
            pixels_ = part.picture();
        }
        if (policy != in_core) {
            draw(places, "kmeans", picture_name());
        }
    }
    void finish(run_report report, space& memory, std::size_t device, const std::string& policy) {
        report.policy = policy;
        report.device_bytes =
            check(memory.describe(memory.devices()[device]), "describe a device").bytes;
        reports_.push_back(std::move(report));
    }
    // The run that was finished last.
    void draw(heat_map& places, const char* part, const std::string& of) {
        const run_report& run = reports_.back();
        places.device_bytes = run.device_bytes;
        places.title = fmt::format("{} of {} under {}, device of {}", run.part, of, run.policy,
                                   show_bytes(run.device_bytes));
        write_picture(name_of_heat_map(part, of, run.policy), draw_heat_map(places));
    }
    void write_picture(const std::string& name, const image& picture) {
        write_png(name_of_file(name), picture);
        written_.push_back(name_of_file(name));
    }
    [[nodiscard]] std::string name_of_file(const std::string& name) const {
        return (folder_ / name).string();
    }

    [[nodiscard]] std::string json_path() const {
        return wanted_.json_path.empty() ? name_of_file("report.json") : wanted_.json_path;
    }
    [[nodiscard]] std::string name_of_clustered() const {
        return fmt::format("clustered-{}.png", picture_name());
    }
    [[nodiscard]] static std::string name_of_heat_map(const char* part, const std::string& of,
                                                      const std::string& policy) {
        return fmt::format("heat-{}-{}-{}.png", part, of, policy);
    }

    static constexpr const char* landscape_name = "landscape.png";
    static constexpr std::size_t longest_name = 32;  // in titles and in names of files

    // "opt13b_b8" of ".../opt13b_b8.csv.gz".
    [[nodiscard]] std::string trace_name() const {
        std::filesystem::path file = std::filesystem::path{in_.source.path}.filename();
        for (const char* ending : {".gz", ".csv"}) {
            file = file.extension() == ending ? file.stem() : file;
        }
        return file.string().substr(0, longest_name);
    }
    [[nodiscard]] std::string picture_name() const {
        return wanted_.picture_path.empty()
                   ? "landscape"
                   : std::filesystem::path{wanted_.picture_path}.stem().string().substr(
                         0, longest_name);
    }

    [[nodiscard]] nlohmann::ordered_json json() const {
        nlohmann::ordered_json out = {
            {"trace", in_.source.path},
            {"scale", in_.plan.scale},
            {"picture", in_.picture_name},
            {"width", in_.picture.width},
            {"height", in_.picture.height},
            {"clusters", in_.colours.clusters},
            {"link_bytes_per_second", static_cast<std::uint64_t>(wanted_.link_gb_per_second * 1e9)},
            {"is_correct", is_correct()},
            {"runs", nlohmann::ordered_json::array()}};
        for (const run_report& one : reports_) {
            out["runs"].push_back(report_json(one));
            out["runs"].back()["slowdown"] = slowdown_of(one, reports_);
        }
        out["allocators"] = nlohmann::ordered_json::array();
        for (const trace_replay::run_result& one : allocators_) {
            out["allocators"].push_back(trace_replay::result_json(one));
        }
        return out;
    }

    const options& wanted_;
    const demo_input& in_;
    std::filesystem::path folder_;
    progress_style style_ = default_progress_style();
    std::vector<run_report> reports_;
    std::vector<trace_replay::run_result> allocators_;
    std::vector<rgba> pixels_;
    std::vector<std::string> written_;
};

// All policies that the library has, unless some are named.
void settle_policies(options& wanted) {
    if (wanted.policies.empty()) {
        wanted.policies.assign(stock_policy_names.begin(), stock_policy_names.end());
    }
    for (const std::string& policy : wanted.policies) {
        policy_ref found;
        if (!find_stock_policy(policy.c_str(), found)) {
            throw bad_input(fmt::format("--policy: there is no policy '{}'; known are {}", policy,
                                        fmt::join(stock_policy_names, ", ")));
        }
    }
}

// Nothing stays: only what would fail after a minute's work is found out now.
void check_outputs(const options& wanted) {
    try_write(wanted.out_folder);
    if (!wanted.json_path.empty()) {
        try_output(wanted.json_path);
    }
}

// XMM_CONF describes the devices of programs that name none; this one does.
void warn_of_unused_conf() {
    constexpr std::string_view unset = "\n";  // no value is a blank
    std::string names;
    for (const conf_key& key : conf::known_keys) {
        if (key.name.starts_with("soft_") && conf::of_process().text(key.name, unset) != unset) {
            names += fmt::format("{}{}", names.empty() ? "" : ", ", key.name);
        }
    }
    if (!names.empty()) {
        fmt::print(stderr,
                   "xmm-demo: XMM_CONF: {} not used: the demo makes its own devices "
                   "(--device-bytes, --link)\n",
                   names);
    }
}

int run(int count, char** words) {
    options wanted;
    if (const auto code = parse_options(count, words, wanted)) {
        return *code;
    }
    const auto begin = std::chrono::steady_clock::now();
    warn_of_unused_conf();
    settle_policies(wanted);
    check_outputs(wanted);
    demo_input in = read_input(wanted);
    runner work{wanted, in};
    work.check_overwriting();
    space memory = make_small_space(wanted, in);
    fmt::print("{}\n", draw_tree(describe_machine(memory), is_utf8_locale()));
    print_input(in, wanted, memory);
    std::fflush(stdout);
    in.colours = prepare_clustering(in.picture, wanted.clusters, wanted.iterations);
    make_folder(wanted.out_folder);
    work.run_all(memory);
    work.run_allocators();
    work.write_results();
    work.print();
    fmt::print(
        "\n{} in {:.0f} s\n",
        work.is_correct() ? "All results equal the CPU's," : "RESULTS DIFFER FROM THE CPU'S,",
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    return work.is_correct() ? 0 : 2;
}

}  // namespace
}  // namespace xmm::demo

int main(int count, char** words) {
    try {
        return xmm::demo::run(count, words);
    } catch (const xmm::demo::bad_input& error) {
        fmt::print(stderr, "xmm-demo: {}\n", error.what());
        return 1;
    } catch (const std::exception& error) {
        fmt::print(stderr, "xmm-demo: {}\n", error.what());
        return 2;
    }
}
