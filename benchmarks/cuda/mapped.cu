// SPDX-License-Identifier: Apache-2.0
// Random reads by a kernel of host-resident unified memory, and of a range of which two thirds lie on the device.
#include "rig.hpp"

#include <cstring>

using namespace cuda_bench;

namespace {

// Each group of lanes reads whole records at random places; a warp holds 32 / lanes groups.
template <class Word, unsigned lanes>
__global__ void read_random(const Word* at, std::size_t records, std::size_t reads_per_group,
                            unsigned long long* to) {
    const std::size_t thread = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
    const std::size_t group = thread / lanes;
    const unsigned lane = thread % lanes;
    std::uint64_t state = group * 0x9E3779B97F4A7C15u + 1;
    unsigned long long mine = 0;
    for (std::size_t i = 0; i < reads_per_group; ++i) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        const std::size_t record = state % records;
        mine += static_cast<unsigned long long>(at[record * lanes + lane]);
    }
    if (mine == 1) {
        atomicAdd(to, mine);
    }
}

struct bench {
    report::options chosen;
    xmm::space space = must(xmm::space::create(), "space");
    xmm::node_id device = space.devices()[0];
    xmm::queue line = must(space.make_queue(device), "queue");

    // GB/s. The pages stay where they are: the range is pinned there.
    template <class Word, unsigned lanes>
    report::figure rate(const char* at, std::size_t bytes) {
        constexpr std::size_t record_bytes = sizeof(Word) * lanes;
        const unsigned blocks = 132 * 8;
        const unsigned threads = 256;
        const std::size_t groups = std::size_t{blocks} * threads / lanes;
        const std::size_t wanted = chosen.is_short ? 1_MiB : 4_GiB;
        const std::size_t reads = std::max<std::size_t>(wanted / record_bytes / groups, 1);
        std::vector<double> samples;
        for (int round = 0; round <= chosen.rounds; ++round) {
            const report::stopwatch watch;
            must(xmm::launch(line, {xmm::reads(at, bytes)},
                             [&](xmm::cuda_stream& s) {
                                 read_random<Word, lanes><<<blocks, threads, 0, s>>>(
                                     reinterpret_cast<const Word*>(at), bytes / record_bytes, reads,
                                     nullptr);
                             }),
                 "launch");
            must(line.synchronize(), "synchronize");
            if (round > 0) {
                samples.push_back(static_cast<double>(groups * reads * record_bytes) /
                                  watch.seconds() / 1e9);
            }
        }
        return report::summarise(samples);
    }
};

}  // namespace

int main(int argc, char** argv) {
    report::options chosen;
    if (!report::parse(argc, argv, "random reads of mapped memory", chosen)) {
        return 2;
    }
    bench b{chosen};
    report::print_head("GB/s");
    for (const std::size_t bytes : chosen.is_short
                                       ? std::vector<std::size_t>{8_MiB}
                                       : std::vector<std::size_t>{1_GiB, 8_GiB, 24_GiB}) {
        char* at = static_cast<char*>(must(b.space.map(bytes), "map"));
        std::memset(at, 1, bytes);
        must(b.space.advise(xmm::any_host, at, bytes, xmm::advice::pin), "pin");
        const std::string size = size_name(bytes);
        report::print("128 B, host-resident, " + size, b.rate<std::uint32_t, 32>(at, bytes));
        report::print("32 B, host-resident, " + size, b.rate<std::uint32_t, 8>(at, bytes));
        must(b.space.advise(xmm::any_host, at, bytes, xmm::advice::unpin), "unpin");
        const std::size_t third = xmm::align_down(bytes / 3, 32_MiB);
        if (third != 0) {
            must(b.space.advise(xmm::any_host, at, third, xmm::advice::pin), "pin");
            must(b.space.advise(b.device, at + third, bytes - third, xmm::advice::pin), "pin");
            report::print("128 B, a third host-resident, " + size,
                          b.rate<std::uint32_t, 32>(at, bytes));
            report::print("32 B, a third host-resident, " + size,
                          b.rate<std::uint32_t, 8>(at, bytes));
            must(b.space.advise(xmm::any_host, at, third, xmm::advice::unpin), "unpin");
            must(b.space.advise(b.device, at + third, bytes - third, xmm::advice::unpin), "unpin");
        }
        must(b.space.unmap(at), "unmap");
        std::fflush(stdout);
    }
    return 0;
}
