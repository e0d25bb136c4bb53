// SPDX-License-Identifier: Apache-2.0
// rig.hpp - what the benchmarks on a CUDA device share: a space, checks, rates of both sides in turn.
//
// Model    Every figure stands beside its peer's from the same run: rounds of ours and theirs alternate. What was moved
//          or computed is checked between the rounds; wrong values make the program fail at its end. With --short
//          sizes are small, so that the software driver of the tests can run it; figures mean nothing then.
#pragma once

#include <xmm/cuda.hpp>
#include <xmm/xmm.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../support/report.hpp"

namespace cuda_bench {

using namespace xmm::literals;

inline void must(xmm::status outcome, const char* what) {
    if (!outcome) {
        std::fprintf(stderr, "%s: %s: %s (driver: %d)\n", what, xmm::name_of(outcome.code),
                     outcome.why, outcome.driver_code);
        std::exit(1);
    }
}
inline void must(cudaError_t outcome, const char* what) {
    if (outcome != cudaSuccess) {
        std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(outcome));
        std::exit(1);
    }
}
template <class T>
T must(xmm::result<T> got, const char* what) {
    must(got ? xmm::status{} : got.error(), what);
    return std::move(*got);
}
#define CUDA_BENCH_MUST(call) ::cuda_bench::must((call), #call)

inline std::string size_name(std::size_t bytes) {
    const char* units[] = {"B", "KiB", "MiB", "GiB"};
    unsigned unit = 0;
    for (; bytes >= 1024 && bytes % 1024 == 0 && unit < 3; bytes /= 1024) {
        ++unit;
    }
    return std::to_string(bytes) + " " + units[unit];
}
// Before main: each line is out when it is over, also where the program is stopped and its output is no terminal.
inline const int line_by_line = std::setvbuf(stdout, nullptr, _IOLBF, 0);

inline double gib(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

// ---- the command line

struct request {
    report::options options;
    bool is_managed = false;
    std::vector<std::string> parts;

    // Parts are named before or between the options; all of them are meant if none is.
    [[nodiscard]] bool has(const char* part) const {
        return parts.empty() || std::find(parts.begin(), parts.end(), part) != parts.end();
    }
    [[nodiscard]] bool names_any(std::initializer_list<const char*> some) const {
        return std::any_of(some.begin(), some.end(), [&](const char* part) {
            return std::find(parts.begin(), parts.end(), part) != parts.end();
        });
    }
    [[nodiscard]] const char* mode() const { return is_managed ? "managed" : "vmm"; }
};

// Ends the program with 2, after the usage, if the arguments are not understood.
inline request read_arguments(int argc, char** argv, std::string what,
                              std::initializer_list<const char*> parts, bool has_modes = false) {
    request found;
    std::vector<char*> rest{argv[0]};
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        const bool names_mode = has_modes && word == "--mode" && i + 1 < argc;
        const std::string mode = names_mode ? argv[i + 1] : "";
        if (mode == "vmm" || mode == "managed") {
            found.is_managed = mode == "managed";
            ++i;
        } else if (std::find(parts.begin(), parts.end(), word) != parts.end()) {
            found.parts.push_back(word);
        } else {
            rest.push_back(argv[i]);
        }
    }
    for (const char* part : parts) {
        what += (part == *parts.begin() ? "; parts: " : " ") + std::string{part};
    }
    what += has_modes ? "; --mode vmm|managed" : "";
    if (!report::parse(static_cast<int>(rest.size()), rest.data(), what.c_str(), found.options)) {
        std::exit(2);
    }
    return found;
}

// ---- spaces

// A space in the mode that is asked for, whatever XMM_CONF says.
struct moded_space {
    std::unique_ptr<xmm::cuda_managed> driver;  // of the mode managed; outlives the space
    xmm::space space;

    explicit moded_space(bool is_managed)
        : driver{is_managed ? open_managed() : nullptr},
          space{must(is_managed ? xmm::space::create_on(*driver)
                                : xmm::space::create({.devices = xmm::device_kind::cuda}),
                     "space")} {
        const xmm::node_id device = space.devices()[0];
        const auto about = must(space.describe(device), "describe");
        if (about.able.has(xmm::ability::cpu_coherent) != is_managed) {
            std::fprintf(stderr, "the mode is %s: XMM_CONF must not say otherwise\n",
                         is_managed ? "managed" : "vmm");
            std::exit(2);
        }
    }

private:
    static std::unique_ptr<xmm::cuda_managed> open_managed() {
        return must(xmm::detail::make_cuda_driver<xmm::cuda_managed>(xmm::machine_topology()),
                    "managed memory");
    }
};

// ---- the CPU's part

// fn(begin, end) for each thread's share of the bytes, in whole pages of 2 MiB.
template <class Fn>
void in_parallel(std::size_t bytes, Fn&& fn, unsigned threads = 8) {
    const std::size_t share = xmm::align_up((bytes + threads - 1) / threads, 2_MiB);
    std::vector<std::thread> workers;
    for (std::size_t begin = 0; begin < bytes; begin += share) {
        workers.emplace_back(
            [&fn, begin, end = std::min(bytes, begin + share)] { fn(begin, end); });
    }
    for (std::thread& one : workers) {
        one.join();
    }
}

// ---- the device's part

// Any grid covers all elements.
static __global__ void add(std::uint64_t* at, std::size_t count, std::uint64_t what) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x) {
        at[i] += what;
    }
}

struct pinned {
    explicit pinned(std::size_t bytes) { CUDA_BENCH_MUST(cudaMallocHost(&at, bytes)); }
    ~pinned() { cudaFreeHost(at); }
    pinned(const pinned&) = delete;
    pinned& operator=(const pinned&) = delete;
    char* at = nullptr;
};
struct on_device {
    explicit on_device(std::size_t bytes) { CUDA_BENCH_MUST(cudaMalloc(&at, bytes)); }
    ~on_device() { cudaFree(at); }
    on_device(const on_device&) = delete;
    on_device& operator=(const on_device&) = delete;
    char* at = nullptr;
};
struct managed {
    explicit managed(std::size_t bytes) { CUDA_BENCH_MUST(cudaMallocManaged(&at, bytes)); }
    ~managed() { cudaFree(at); }
    managed(const managed&) = delete;
    managed& operator=(const managed&) = delete;
    char* at = nullptr;
};

constexpr cudaMemLocation the_card{cudaMemLocationTypeDevice, 0};
constexpr cudaMemLocation the_host{cudaMemLocationTypeHost, 0};

// Done when it returns.
inline void prefetch(char* at, std::size_t bytes, cudaMemLocation where, cudaStream_t stream) {
    CUDA_BENCH_MUST(cudaMemPrefetchAsync(at, bytes, where, 0, stream));
    CUDA_BENCH_MUST(cudaStreamSynchronize(stream));
}
inline cudaStream_t make_stream() {
    cudaStream_t stream = nullptr;
    CUDA_BENCH_MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

// ---- races

// One way of doing the same thing.
struct contender {
    std::string name;
    std::function<void()> prepare;         // not timed
    std::function<void()> run;             // timed; done when it returns
    std::function<std::size_t()> check{};  // not timed: how many values are wrong
    std::function<double()> seconds{};     // of the last run, where the CPU's clock is not meant
};

inline std::size_t wrong_values = 0;  // of all races of this program
// What main returns.
[[nodiscard]] inline int verdict() {
    if (wrong_values != 0) {
        std::printf("%zu values WRONG\n", wrong_values);
    }
    return wrong_values == 0 ? 0 : 1;
}

// GB/s of each, rounds in turn; the first round is not counted. Prints each, its share of the first one's median, and
// whether its values were right in all rounds.
inline std::vector<report::figure> race(const std::string& title, double bytes, int rounds,
                                        const std::vector<contender>& all) {
    std::vector<std::vector<double>> samples(all.size());
    std::vector<std::size_t> wrong(all.size());
    for (int round = 0; round <= rounds; ++round) {
        for (std::size_t i = 0; i < all.size(); ++i) {
            if (all[i].prepare) {
                all[i].prepare();
            }
            const report::stopwatch watch;
            all[i].run();
            const double seconds = all[i].seconds ? all[i].seconds() : watch.seconds();
            if (round > 0) {
                samples[i].push_back(bytes / seconds / 1e9);
            }
            wrong[i] += all[i].check ? all[i].check() : 0;
        }
    }
    std::vector<report::figure> figures;
    for (std::size_t i = 0; i < all.size(); ++i) {
        figures.push_back(report::summarise(samples[i]));
        char share[96];
        std::snprintf(share, sizeof share, "GB/s  %.3f  %s", figures[i].median / figures[0].median,
                      !all[i].check   ? ""
                      : wrong[i] == 0 ? "right"
                                      : "WRONG");
        report::print(title + ", " + all[i].name, figures[i], share);
        wrong_values += wrong[i];
    }
    std::fflush(stdout);
    return figures;
}

}  // namespace cuda_bench
