// SPDX-License-Identifier: Apache-2.0
// ns a malloc + free pair on device memory: xmm's heap, cudaMallocAsync from a pool that keeps what it has, cudaMalloc.
// Same run, in turn. `batches`: 32 blocks are taken, then given back.
#include "rig.hpp"

#include <algorithm>
#include <thread>

using namespace cuda_bench;

namespace {

template <class Take, class Give>
double ns_per_pair(std::size_t batch, std::size_t pairs, Take&& take, Give&& give) {
    std::vector<void*> blocks(batch);
    const auto round = [&] {
        for (void*& one : blocks) {
            one = take();
        }
        for (void* one : blocks) {
            give(one);
        }
    };
    round();
    round();
    const report::stopwatch watch;
    for (std::size_t done = 0; done < pairs; done += batch) {
        round();
    }
    return watch.seconds() * 1e9 / static_cast<double>(std::max(pairs, batch));
}

}  // namespace

int main(int argc, char** argv) {
    report::options chosen;
    if (!report::parse(argc, argv, "ns a malloc + free pair on device memory", chosen)) {
        return 2;
    }
    auto space = must(xmm::space::create(), "space");
    const xmm::node_id device = space.devices()[0];
    xmm::xpu_malloc& heap = *must(space.heap(device), "heap");
    xmm::queue line = must(space.make_queue(device), "queue");
    cudaStream_t stream = nullptr;
    CUDA_BENCH_MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaMemPool_t pool = nullptr;
    CUDA_BENCH_MUST(cudaDeviceGetDefaultMemPool(&pool, 0));
    std::uint64_t all = UINT64_MAX;
    CUDA_BENCH_MUST(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
    for (const std::size_t batch : {std::size_t{1}, std::size_t{32}}) {
        std::printf("\n%s\n", batch == 1 ? "pairs" : "batches of 32");
        report::print_head("ns a pair");
        for (const std::size_t bytes :
             {std::size_t{64}, 4_KiB, 32_KiB, 256_KiB, 2_MiB, 20_MiB, 200_MiB, 1_GiB}) {
            if (bytes * batch > 8_GiB) {
                continue;
            }
            const std::size_t pairs = chosen.is_short ? 32 : bytes <= 32_KiB ? 100'000 : 20'000;
            std::vector<double> ours;
            std::vector<double> async;
            std::vector<double> plain;
            for (int round = 0; round < chosen.rounds; ++round) {
                ours.push_back(ns_per_pair(
                    batch, pairs,
                    [&] {
                        return must(heap.allocate({.bytes = bytes, .queue = line.id()}), "malloc");
                    },
                    [&](void* one) { must(heap.deallocate(one, line.id()), "free"); }));
                async.push_back(ns_per_pair(
                    batch, std::min<std::size_t>(pairs, 5'000),
                    [&] {
                        void* at = nullptr;
                        CUDA_BENCH_MUST(cudaMallocAsync(&at, bytes, stream));
                        return at;
                    },
                    [&](void* one) { CUDA_BENCH_MUST(cudaFreeAsync(one, stream)); }));
                CUDA_BENCH_MUST(cudaStreamSynchronize(stream));
                plain.push_back(ns_per_pair(
                    batch, batch == 1 ? 20 : 32,
                    [&] {
                        void* at = nullptr;
                        CUDA_BENCH_MUST(cudaMalloc(&at, bytes));
                        return at;
                    },
                    [&](void* one) { CUDA_BENCH_MUST(cudaFree(one)); }));
            }
            report::print(size_name(bytes) + ", xmm", report::summarise(ours));
            report::print(size_name(bytes) + ", cudaMallocAsync", report::summarise(async));
            report::print(size_name(bytes) + ", cudaMalloc", report::summarise(plain));
            std::fflush(stdout);
        }
    }
    return 0;
}
