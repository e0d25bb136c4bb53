// SPDX-License-Identifier: Apache-2.0
// Unified pointers on a CUDA device against what CUDA offers: copies, prefetch, demotion, and the CPU's own touch.
// Figures are GB/s with their share of the first line of each block, which is the bound: pinned copies.
#include "rig.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

using namespace cuda_bench;

namespace {

__global__ void fill(std::uint64_t* to, std::size_t count, std::uint64_t seed) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x) {
        to[i] = i * 0x9E3779B97F4A7C15u + seed;
    }
}

struct bench {
    report::options chosen;
    std::size_t granule;
    xmm::space space = must(xmm::space::create(), "space");
    xmm::node_id device = space.devices()[0];
    xmm::queue line = must(space.make_queue(device), "queue");
    cudaStream_t stream = nullptr;

    bench(report::options options, std::size_t granule_bytes)
        : chosen{options}, granule{granule_bytes} {
        CUDA_BENCH_MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }
    char* map(std::size_t bytes) {
        return static_cast<char*>(must(space.map(bytes, {.granule_bytes = granule}), "map"));
    }
    void bring(xmm::node_id where, char* at, std::size_t bytes) {
        must(space.advise(where, at, bytes, xmm::advice::will_need), "will_need");
    }
    // Demotes as pressure does: nobody asks for the pages on the host, so the CPU has no mapping of them after.
    void push_out() {
        limit(2_MiB);
        limit(xmm::no_budget);
    }
    void limit(std::size_t bytes) {
        const xmm::status outcome = space.set_budget(device, bytes);
        if (!outcome) {
            const xmm::shortage last = space.last_shortage();
            std::fprintf(stderr,
                         "%zu MiB of the device are left; short of %zu of %zu on node %d: %s\n",
                         space.state().core.find_node(device)->book->used() >> 20, last.bytes,
                         last.limit, last.node.value, last.cause);
        }
        must(outcome, "set_budget");
    }
    // Written by the device: so the host has no valid copy.
    void write_on_device(char* at, std::size_t bytes, std::uint64_t seed) {
        must(xmm::launch(line, {xmm::writes(at, bytes)},
                         [&](xmm::cuda_stream& s) {
                             fill<<<1024, 256, 0, s>>>(reinterpret_cast<std::uint64_t*>(at),
                                                       bytes / 8, seed);
                         }),
             "launch");
        must(line.synchronize(), "synchronize");
    }
    void check(const char* at, std::size_t bytes, std::uint64_t seed) {
        for (std::size_t i = 0; i < bytes / 8; i += 511) {
            std::uint64_t value;
            std::memcpy(&value, at + i * 8, 8);
            if (value != i * 0x9E3779B97F4A7C15u + seed) {
                std::fprintf(stderr, "wrong value at %zu\n", i * 8);
                std::exit(1);
            }
        }
    }
};

struct pinned {
    explicit pinned(std::size_t bytes) { CUDA_BENCH_MUST(cudaMallocHost(&at, bytes)); }
    ~pinned() { cudaFreeHost(at); }
    char* at = nullptr;
};
struct on_device {
    explicit on_device(std::size_t bytes) { CUDA_BENCH_MUST(cudaMalloc(&at, bytes)); }
    ~on_device() { cudaFree(at); }
    char* at = nullptr;
};
struct managed {
    explicit managed(std::size_t bytes) { CUDA_BENCH_MUST(cudaMallocManaged(&at, bytes)); }
    ~managed() { cudaFree(at); }
    char* at = nullptr;
};

void prefetch(char* at, std::size_t bytes, bool to_device, cudaStream_t stream) {
    cudaMemLocation where{};
    where.type = to_device ? cudaMemLocationTypeDevice : cudaMemLocationTypeHost;
    where.id = 0;
    CUDA_BENCH_MUST(cudaMemPrefetchAsync(at, bytes, where, 0, stream));
    CUDA_BENCH_MUST(cudaStreamSynchronize(stream));
}

void copies(bench& b, std::size_t bytes) {
    pinned host{bytes};
    on_device card{bytes};
    std::unique_ptr<char[]> plain{new char[bytes]};
    std::memset(plain.get(), 1, bytes);
    std::memset(host.at, 1, bytes);
    char* near_cpu = b.map(bytes);
    char* near_card = b.map(bytes);
    std::memset(near_cpu, 1, bytes);
    b.write_on_device(near_card, bytes, 1);
    const int rounds = bytes >= 1_GiB ? 5 : b.chosen.rounds;
    const auto wait = [&] { CUDA_BENCH_MUST(cudaStreamSynchronize(b.stream)); };
    for (const bool is_in : {true, false}) {
        const std::string title = (is_in ? "H2D " : "D2H ") + size_name(bytes);
        race(title, static_cast<double>(bytes), rounds,
             {{"pinned cudaMemcpyAsync",
               {},
               [&] {
                   CUDA_BENCH_MUST(cudaMemcpyAsync(
                       is_in ? card.at : host.at, is_in ? host.at : card.at, bytes,
                       is_in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, b.stream));
                   wait();
               }},
              {"pageable cudaMemcpy",
               {},
               [&] {
                   CUDA_BENCH_MUST(
                       cudaMemcpy(is_in ? card.at : plain.get(), is_in ? plain.get() : card.at,
                                  bytes, is_in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost));
               }},
              {"gmemcpy, both resident", {}, [&] {
                   must(b.space.copy(is_in ? near_card : near_cpu, is_in ? near_cpu : near_card,
                                     bytes),
                        "copy");
               }}});
    }
    // The destination has no frame yet, and prefers the device.
    std::vector<char*> fresh;
    race(
        "H2D " + size_name(bytes), static_cast<double>(bytes), rounds,
        {{"pinned cudaMemcpyAsync",
          {},
          [&] {
              CUDA_BENCH_MUST(
                  cudaMemcpyAsync(card.at, host.at, bytes, cudaMemcpyHostToDevice, b.stream));
              wait();
          }},
         {"gmemcpy, destination without frames",
          [&] {
              if (!fresh.empty()) {
                  must(b.space.unmap(fresh.back()), "unmap");
              }
              fresh.push_back(static_cast<char*>(must(
                  b.space.map(bytes, {.granule_bytes = b.granule, .preferred = b.device}), "map")));
          },
          [&] { must(b.space.copy(fresh.back(), near_cpu, bytes), "copy"); }}});
    must(b.space.unmap(fresh.back()), "unmap");
    must(b.space.unmap(near_cpu), "unmap");
    must(b.space.unmap(near_card), "unmap");
}

void moves(bench& b, std::size_t bytes) {
    pinned host{bytes};
    on_device card{bytes};
    managed uvm{bytes};
    std::memset(host.at, 1, bytes);
    std::memset(uvm.at, 1, bytes);
    char* one = b.map(bytes);
    std::memset(one, 1, bytes);
    char* mostly = static_cast<char*>(
        must(b.space.map(bytes, {.granule_bytes = b.granule, .is_read_mostly = true}), "map"));
    std::memset(mostly, 1, bytes);
    const int rounds = bytes >= 1_GiB ? 5 : b.chosen.rounds;
    const auto wait = [&] { CUDA_BENCH_MUST(cudaStreamSynchronize(b.stream)); };
    const auto pinned_in = [&] {
        CUDA_BENCH_MUST(cudaMemcpyAsync(card.at, host.at, bytes, cudaMemcpyHostToDevice, b.stream));
        wait();
    };
    const auto pinned_out = [&] {
        CUDA_BENCH_MUST(cudaMemcpyAsync(host.at, card.at, bytes, cudaMemcpyDeviceToHost, b.stream));
        wait();
    };
    const std::string size = size_name(bytes);
    race("will_need " + size, static_cast<double>(bytes), rounds,
         {{"pinned copy", {}, pinned_in},
          {"UVM prefetch", [&] { prefetch(uvm.at, bytes, false, b.stream); },
           [&] { prefetch(uvm.at, bytes, true, b.stream); }},
          {"xmm, not touched by the CPU since",
           [&] {
               b.bring(b.device, one, bytes);
               b.push_out();
           },
           [&] { b.bring(b.device, one, bytes); }},
          {"xmm, written by the CPU",
           [&] {
               b.bring(xmm::any_host, one, bytes);
               std::memset(one, 2, bytes);
           },
           [&] { b.bring(b.device, one, bytes); }},
          {"xmm, written by the CPU, read-mostly", [&] { std::memset(mostly, 2, bytes); },
           [&] { b.bring(b.device, mostly, bytes); }}});
    must(b.space.unmap(mostly), "unmap");
    race("demotion " + size, static_cast<double>(bytes), rounds,
         {{"pinned copy", {}, pinned_out},
          {"UVM prefetch", [&] { prefetch(uvm.at, bytes, true, b.stream); },
           [&] { prefetch(uvm.at, bytes, false, b.stream); }},
          {"xmm, dirty, by a lowered budget",
           [&] {
               b.bring(b.device, one, bytes);
               b.write_on_device(one, bytes, 3);
           },
           [&] { b.limit(2_MiB); }},
          {"xmm, dirty, will_need of the host",
           [&] {
               b.limit(xmm::no_budget);
               b.bring(b.device, one, bytes);
               b.write_on_device(one, bytes, 3);
           },
           [&] { b.bring(xmm::any_host, one, bytes); }}});
    b.limit(xmm::no_budget);
    b.check(one, bytes, 3);
    must(b.space.unmap(one), "unmap");
}

// Latency of one touch, and a walk over all of it, by the CPU.
void touches(bench& b, std::size_t bytes) {
    char* one = b.map(bytes);
    managed uvm{bytes};
    std::unique_ptr<char[]> plain{new char[bytes]};
    std::memset(plain.get(), 1, bytes);
    volatile std::uint64_t sink = 0;
    const auto walk = [&](const char* at) {
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < bytes; i += 8) {
            std::uint64_t value;
            std::memcpy(&value, at + i, 8);
            sum += value;
        }
        sink = sink + sum;
    };
    std::vector<double> ours;
    std::vector<double> theirs;
    for (int round = 0; round <= b.chosen.rounds; ++round) {
        b.bring(b.device, one, bytes);
        b.write_on_device(one, bytes, 4);
        prefetch(uvm.at, bytes, true, b.stream);
        for (std::size_t at = 0; at < std::min(bytes, 8 * b.granule); at += b.granule) {
            const report::stopwatch watch;
            sink = sink + static_cast<unsigned char>(one[at]);
            const double us = watch.seconds() * 1e6;
            const report::stopwatch uvm_watch;
            sink = sink + static_cast<unsigned char>(uvm.at[at]);
            const double uvm_us = uvm_watch.seconds() * 1e6;
            if (round > 0) {
                ours.push_back(us);
                theirs.push_back(uvm_us);
            }
        }
    }
    report::print("CPU touch of a device page, granule " + size_name(b.granule) + ", xmm",
                  report::summarise(ours), "us");
    report::print("CPU touch of a device page, UVM", report::summarise(theirs), "us");
    race("CPU walk " + size_name(bytes), static_cast<double>(bytes), 3,
         {{"host memory", {}, [&] { walk(plain.get()); }},
          {"xmm, host-resident",
           [&] {
               b.bring(xmm::any_host, one, bytes);
               walk(one);
           },
           [&] { walk(one); }},
          {"xmm, device-resident",
           [&] {
               b.bring(b.device, one, bytes);
               b.write_on_device(one, bytes, 5);
           },
           [&] { walk(one); }},
          {"UVM, device-resident", [&] { prefetch(uvm.at, bytes, true, b.stream); },
           [&] { walk(uvm.at); }}});
    b.check(one, bytes, 5);
    must(b.space.unmap(one), "unmap");
}

}  // namespace

int main(int argc, char** argv) {
    // Parts that are named before the options; all of them if none is.
    const auto is_named = [&](int i, const char* part) { return std::strcmp(argv[i], part) == 0; };
    std::vector<std::string> parts;
    int named = 1;
    while (named < argc &&
           (is_named(named, "copies") || is_named(named, "moves") || is_named(named, "touches"))) {
        parts.emplace_back(argv[named++]);
    }
    const auto has = [&](const char* part) {
        return parts.empty() || std::find(parts.begin(), parts.end(), part) != parts.end();
    };
    argv[named - 1] = argv[0];
    report::options chosen;
    if (!report::parse(argc - named + 1, argv + named - 1,
                       "unified pointers on a CUDA device; parts: copies moves touches", chosen)) {
        return 2;
    }
    using sizes = std::vector<std::size_t>;
    for (const std::size_t granule : {32_MiB, 2_MiB}) {
        bench b{chosen, granule};
        std::printf("\ngranule %s\n", size_name(granule).c_str());
        report::print_head("");
        const bool is_small = granule == 2_MiB;
        sizes copied = is_small ? sizes{256_MiB, 1_GiB}
                                : sizes{64_KiB, 1_MiB, 16_MiB, 64_MiB, 256_MiB, 1_GiB, 4_GiB};
        sizes moved = is_small ? sizes{1_GiB} : sizes{64_MiB, 256_MiB, 1_GiB, 8_GiB};
        if (chosen.is_short) {
            copied = moved = {4_MiB};
        }
        for (const std::size_t bytes : copied) {
            if (has("copies")) {
                copies(b, bytes);
            }
        }
        for (const std::size_t bytes : moved) {
            if (has("moves")) {
                moves(b, bytes);
            }
        }
        if (has("touches")) {
            touches(b, chosen.is_short ? 4_MiB : 1_GiB);
        }
    }
    return 0;
}
