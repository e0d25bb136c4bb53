// SPDX-License-Identifier: Apache-2.0
// rig.hpp - what the benchmarks on a CUDA device share: a space, checks, rates of both sides in turn.
//
// Model    Every figure stands beside its peer's from the same run: rounds of ours and theirs alternate. With --short
//          sizes are small, so that the software driver of the tests can run it; figures mean nothing then.
#pragma once

#include <xmm/cuda.hpp>
#include <xmm/xmm.hpp>

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
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
    for (; bytes >= 1024 && bytes % 1024 == 0; bytes /= 1024) {
        ++unit;
    }
    return std::to_string(bytes) + " " + units[unit];
}

// Any grid covers all elements.
static __global__ void add(std::uint64_t* at, std::size_t count, std::uint64_t what) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x) {
        at[i] += what;
    }
}

// One way of doing the same thing.
struct contender {
    std::string name;
    std::function<void()> prepare;  // not timed
    std::function<void()> run;      // timed; done when it returns
};

// GB/s of each, rounds in turn; the first round is not counted. Prints each, and its share of the first one's median.
inline std::vector<report::figure> race(const std::string& title, double bytes, int rounds,
                                        const std::vector<contender>& all) {
    std::vector<std::vector<double>> samples(all.size());
    for (int round = 0; round <= rounds; ++round) {
        for (std::size_t i = 0; i < all.size(); ++i) {
            if (all[i].prepare) {
                all[i].prepare();
            }
            const report::stopwatch watch;
            all[i].run();
            const double seconds = watch.seconds();
            if (round > 0) {
                samples[i].push_back(bytes / seconds / 1e9);
            }
        }
    }
    std::vector<report::figure> figures;
    for (std::size_t i = 0; i < all.size(); ++i) {
        figures.push_back(report::summarise(samples[i]));
        char share[32];
        std::snprintf(share, sizeof share, "GB/s  %.3f", figures[i].median / figures[0].median);
        report::print(title + ", " + all[i].name, figures[i], share);
    }
    std::fflush(stdout);
    return figures;
}

}  // namespace cuda_bench
