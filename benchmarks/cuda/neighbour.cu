// SPDX-License-Identifier: Apache-2.0
// Another process takes 20 GiB of a card that we fill, in steps, trying again when it gets nothing. We give way: none
// of our launches fails, the results are right, and what the other one left is used again.
#include "rig.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

using namespace cuda_bench;

namespace {

__global__ void count_wrong(const std::uint64_t* at, std::size_t count, std::uint64_t expected,
                            unsigned long long* to) {
    unsigned long long mine = 0;
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x) {
        mine += at[i] != expected ? 1 : 0;
    }
    if (mine != 0) {
        atomicAdd(to, mine);
    }
}

// The other process: waits for a byte, takes its memory, says so, holds it for a while. 0: it got everything.
int neighbour(int start, int done, std::size_t wanted, std::size_t step) {
    char byte = 0;
    if (::read(start, &byte, 1) != 1) {
        return 2;
    }
    const report::stopwatch watch;
    std::vector<void*> held;
    unsigned refusals = 0;
    while (held.size() * step < wanted && watch.seconds() < 60) {
        void* at = nullptr;
        if (cudaMalloc(&at, step) == cudaSuccess) {
            CUDA_BENCH_MUST(cudaMemset(at, 1, step));
            held.push_back(at);
        } else {
            static_cast<void>(cudaGetLastError());
            ++refusals;
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
    }
    std::printf("the other process: %s of %s after %.2f s, refused %u times\n",
                size_name(held.size() * step).c_str(), size_name(wanted).c_str(), watch.seconds(),
                refusals);
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::seconds(2));
    for (void* at : held) {
        CUDA_BENCH_MUST(cudaFree(at));
    }
    byte = held.size() * step >= wanted ? 1 : 0;
    return ::write(done, &byte, 1) == 1 && byte == 1 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    report::options chosen;
    if (!report::parse(argc, argv, "another process takes memory", chosen)) {
        return 2;
    }
    const std::size_t wanted = chosen.is_short ? 32_MiB : 20_GiB;
    const std::size_t step = chosen.is_short ? 4_MiB : 256_MiB;
    const std::size_t part = chosen.is_short ? 8_MiB : 1_GiB;
    int start[2];
    int done[2];
    if (::pipe(start) != 0 || ::pipe(done) != 0) {
        return 2;
    }
    const pid_t other = ::fork();  // before this process has touched CUDA
    if (other == 0) {
        std::_Exit(neighbour(start[0], done[1], wanted, step));
    }
    auto space = must(xmm::space::create(), "space");
    const xmm::node_id device = space.devices()[0];
    xmm::queue line = must(space.make_queue(device), "queue");
    const std::size_t limit = must(space.usage(device), "usage").limit;
    const std::size_t total = xmm::align_down(limit - limit / 64, part);
    std::printf("limit %.2f GiB, data %.2f GiB\n", static_cast<double>(limit) / (1 << 30),
                static_cast<double>(total) / (1 << 30));
    char* data = static_cast<char*>(must(space.map(total, {.preferred = device}), "map"));
    auto* wrong = static_cast<unsigned long long*>(must(space.map(2_MiB), "map"));
    const auto pass = [&] {
        for (std::size_t at = 0; at < total; at += part) {
            must(xmm::launch(line, {xmm::reads_writes(data + at, part)},
                             [&](xmm::cuda_stream& s) {
                                 add<<<1024, 256, 0, s>>>(
                                     reinterpret_cast<std::uint64_t*>(data + at), part / 8, 1);
                             }),
                 "launch");
        }
        must(line.synchronize(), "synchronize");
    };
    std::uint64_t passes = 0;
    std::vector<double> before;
    for (; passes < 4; ++passes) {
        const report::stopwatch watch;
        pass();
        before.push_back(static_cast<double>(total) / watch.seconds() / 1e9);
    }
    char byte = 1;
    if (::write(start[1], &byte, 1) != 1) {
        return 2;
    }
    std::atomic<std::size_t> least{limit};
    std::atomic<bool> is_over{false};
    std::thread watcher{[&] {
        while (!is_over) {
            least = std::min(least.load(), must(space.usage(device), "usage").limit);
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
    }};
    std::vector<double> during;
    int status = 0;
    while (::waitpid(other, &status, WNOHANG) == 0) {
        const report::stopwatch watch;
        pass();
        ++passes;
        during.push_back(static_cast<double>(total) / watch.seconds() / 1e9);
    }
    is_over = true;
    watcher.join();
    std::vector<double> after;
    for (int i = 0; i < 4; ++i, ++passes) {
        const report::stopwatch watch;
        pass();
        after.push_back(static_cast<double>(total) / watch.seconds() / 1e9);
    }
    *wrong = 0;
    for (std::size_t at = 0; at < total; at += part) {
        must(xmm::launch(line, {xmm::reads(data + at, part), xmm::reads_writes(wrong, 8)},
                         [&](xmm::cuda_stream& s) {
                             count_wrong<<<1024, 256, 0, s>>>(
                                 reinterpret_cast<const std::uint64_t*>(data + at), part / 8,
                                 passes, wrong);
                         }),
             "launch");
    }
    must(line.synchronize(), "synchronize");
    report::print_head("GB/s of data passed over");
    report::print("alone", report::summarise(before));
    if (!during.empty()) {
        report::print("while the other one takes and holds its memory", report::summarise(during));
    }
    report::print("after it left", report::summarise(after));
    const bool is_right = *wrong == 0;
    std::printf(
        "limit at its lowest %.2f GiB; %llu passes, %llu values wrong; the other process %s\n",
        static_cast<double>(least.load()) / (1 << 30), static_cast<unsigned long long>(passes),
        *wrong, WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "got all" : "FAILED");
    return is_right && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}
