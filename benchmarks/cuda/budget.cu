// SPDX-License-Identifier: Apache-2.0
// More data than the budget: three passes over it by kernels, results checked, the device's memory watched by the
// driver's own figure. Then the same with the CPU in between.
#include "rig.hpp"

#include <atomic>
#include <cstring>
#include <thread>

using namespace cuda_bench;

namespace {

__global__ void sum(const std::uint64_t* at, std::size_t count, unsigned long long* to) {
    std::uint64_t mine = 0;
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x) {
        mine += at[i];
    }
    atomicAdd(to, static_cast<unsigned long long>(mine));
}

}  // namespace

int main(int argc, char** argv) {
    report::options chosen;
    if (!report::parse(argc, argv, "more data than the budget", chosen)) {
        return 2;
    }
    const std::size_t total = chosen.is_short ? 96_MiB : 24_GiB;
    const std::size_t budget = chosen.is_short ? 64_MiB : 16_GiB;
    const std::size_t part = chosen.is_short ? 8_MiB : 1_GiB;
    auto space = must(xmm::space::create(), "space");
    const xmm::node_id device = space.devices()[0];
    must(space.set_budget(device, budget), "set_budget");
    xmm::queue line = must(space.make_queue(device), "queue");
    // What the driver takes for kernels when they first run is no data of ours.
    auto* result = static_cast<unsigned long long*>(must(space.map(2_MiB), "map"));
    must(xmm::launch(line, {xmm::reads_writes(result, 2_MiB)},
                     [&](xmm::cuda_stream& s) {
                         auto* at = reinterpret_cast<std::uint64_t*>(result);
                         add<<<1024, 256, 0, s>>>(at, 1, 0);
                         sum<<<1024, 256, 0, s>>>(at, 1, result);
                     }),
         "launch");
    must(line.synchronize(), "synchronize");
    std::size_t free_before = 0;
    std::size_t all = 0;
    CUDA_BENCH_MUST(cudaMemGetInfo(&free_before, &all));
    std::atomic<std::size_t> least_free{free_before};
    std::atomic<bool> is_over{false};
    std::thread watcher{[&] {
        while (!is_over) {
            std::size_t now = 0;
            std::size_t ignored = 0;
            if (cudaMemGetInfo(&now, &ignored) == cudaSuccess && now < least_free) {
                least_free = now;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
    }};
    char* data = static_cast<char*>(must(space.map(total), "map"));
    for (std::size_t i = 0; i < total; i += 8) {
        const std::uint64_t value = i;
        std::memcpy(data + i, &value, 8);
    }
    report::print_head("GB/s of data passed over");
    std::vector<double> rates;
    const int passes = 4;
    for (int pass = 0; pass < passes; ++pass) {
        const report::stopwatch watch;
        for (std::size_t at = 0; at < total; at += part) {
            must(xmm::launch(line, {xmm::reads_writes(data + at, part)},
                             [&](xmm::cuda_stream& s) {
                                 add<<<1024, 256, 0, s>>>(
                                     reinterpret_cast<std::uint64_t*>(data + at), part / 8, 3);
                             }),
                 "launch");
        }
        must(line.synchronize(), "synchronize");
        rates.push_back(static_cast<double>(total) / watch.seconds() / 1e9);
    }
    report::print("add to " + size_name(total) + " under a budget of " + size_name(budget),
                  report::summarise(rates), "GB/s");
    *result = 0;
    for (std::size_t at = 0; at < total; at += part) {
        must(xmm::launch(line, {xmm::reads(data + at, part), xmm::reads_writes(result, 8)},
                         [&](xmm::cuda_stream& s) {
                             sum<<<1024, 256, 0, s>>>(
                                 reinterpret_cast<const std::uint64_t*>(data + at), part / 8,
                                 result);
                         }),
             "launch");
    }
    must(line.synchronize(), "synchronize");
    std::uint64_t expected = 0;
    for (std::size_t i = 0; i < total; i += 8) {
        expected += i + 3 * passes;
    }
    is_over = true;
    watcher.join();
    const bool is_right = *result == expected;
    const std::size_t most = free_before - least_free;
    std::printf("sum %s; device memory taken at most: %.3f GiB of %.3f GiB budget (%s)\n",
                is_right ? "right" : "WRONG", static_cast<double>(most) / (1 << 30),
                static_cast<double>(budget) / (1 << 30), most <= budget ? "within" : "ABOVE");
    return is_right && most <= budget ? 0 : 1;
}
