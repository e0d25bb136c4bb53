// SPDX-License-Identifier: Apache-2.0
// More data than the card holds, over device and host together: mode vmm, no managed memory anywhere. A kernel first
// touches all of it, 1 GiB a launch, then two passes compute on each element; each is checked by a kernel, sums of each
// GiB by a closed form, some elements by the CPU. The card's memory is watched by the driver's own figure.
//
// 160 GiB of data where host and card have room for it; 48 GiB of the host are left alone, and a budget of the host's
// keeps xmm from more than that. In a program that sweeps over data in a circle the coldest page is the one that is
// needed next: each pass moves all of it in and out, which is the worst case for any order by last use.
#include "rig.hpp"

#include <atomic>
#include <fstream>
#include <utility>

using namespace cuda_bench;

namespace {

// The i-th element is i * factor + offset, in 64 bits, at all times.
struct line_of_values {
    std::uint64_t factor = 0x9E3779B97F4A7C15u;
    std::uint64_t offset = 7;

    __host__ __device__ std::uint64_t at(std::uint64_t i) const { return i * factor + offset; }
    // What pass() makes of it: value * 5 + i.
    void pass() {
        factor = factor * 5 + 1;
        offset *= 5;
    }
    // Of elements [first, first + count).
    [[nodiscard]] std::uint64_t sum(std::uint64_t first, std::uint64_t count) const {
        const auto of_places = static_cast<unsigned __int128>(count) * (2 * first + count - 1) / 2;
        return static_cast<std::uint64_t>(of_places) * factor + count * offset;
    }
};

__global__ void begin(std::uint64_t* at, std::uint64_t first, std::size_t count,
                      line_of_values values) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x) {
        at[i] = values.at(first + i);
    }
}
__global__ void pass(std::uint64_t* at, std::uint64_t first, std::size_t count) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x) {
        at[i] = at[i] * 5 + first + i;
    }
}
__global__ void examine(const std::uint64_t* at, std::uint64_t first, std::size_t count,
                        line_of_values values, unsigned long long* sum, unsigned long long* wrong) {
    unsigned long long mine = 0;
    unsigned long long mine_wrong = 0;
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x) {
        mine += at[i];
        mine_wrong += at[i] != values.at(first + i) ? 1 : 0;
    }
    atomicAdd(sum, mine);
    if (mine_wrong != 0) {
        atomicAdd(wrong, mine_wrong);
    }
}

// What the kernel says is available without swapping.
std::size_t available_on_host() {
    std::ifstream all{"/proc/meminfo"};
    std::string word;
    while (all >> word) {
        std::size_t kib = 0;
        if (word == "MemAvailable:" && all >> kib) {
            return kib << 10;
        }
    }
    return 0;
}

// The driver's free memory of the card at its least, and the host's, looked at every 5 ms.
class watcher {
public:
    watcher() : looks_{[this] { look(); }} {}
    ~watcher() { end(); }
    watcher(const watcher&) = delete;
    watcher& operator=(const watcher&) = delete;
    void end() {
        is_over_ = true;
        if (looks_.joinable()) {
            looks_.join();
        }
    }
    std::size_t least_on_card = SIZE_MAX;  // read once it has ended
    std::size_t least_on_host = SIZE_MAX;
    std::size_t card_bytes = 0;

private:
    void look() {
        while (!is_over_) {
            std::size_t now = 0;
            if (cudaMemGetInfo(&now, &card_bytes) == cudaSuccess) {
                least_on_card = std::min(least_on_card, now);
            }
            least_on_host = std::min(least_on_host, available_on_host());
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    }
    std::atomic<bool> is_over_{false};
    std::thread looks_;
};

// GB/s of both directions together: pinned copies of 1 GiB each way, at once.
double both_ways(std::size_t bytes) {
    pinned in{bytes}, out{bytes};
    on_device to{bytes}, from{bytes};
    const cudaStream_t inward = make_stream();
    const cudaStream_t outward = make_stream();
    std::vector<double> rates;
    for (int round = 0; round < 4; ++round) {
        const report::stopwatch watch;
        CUDA_BENCH_MUST(cudaMemcpyAsync(to.at, in.at, bytes, cudaMemcpyHostToDevice, inward));
        CUDA_BENCH_MUST(cudaMemcpyAsync(out.at, from.at, bytes, cudaMemcpyDeviceToHost, outward));
        CUDA_BENCH_MUST(cudaStreamSynchronize(inward));
        CUDA_BENCH_MUST(cudaStreamSynchronize(outward));
        if (round > 0) {
            rates.push_back(2 * static_cast<double>(bytes) / watch.seconds() / 1e9);
        }
    }
    CUDA_BENCH_MUST(cudaStreamDestroy(inward));
    CUDA_BENCH_MUST(cudaStreamDestroy(outward));
    const report::figure figure = report::summarise(rates);
    report::print("pinned copies of " + size_name(bytes) + ", both ways at once", figure, "GB/s");
    return figure.median;
}

}  // namespace

int main(int argc, char** argv) {
    const request asked = read_arguments(argc, argv, "more data than the card holds", {});
    const bool is_short = asked.options.is_short;
    const std::size_t part = is_short ? 8_MiB : 1_GiB;
    const std::size_t left_alone = is_short ? 0 : 48_GiB;
    report::print_head("GB/s");
    const double link = both_ways(part);
    moded_space held{false};
    xmm::space& space = held.space;
    const xmm::node_id device = space.devices()[0];
    xmm::queue line = must(space.make_queue(device), "queue");
    unsigned long long* found = nullptr;  // a sum, and how many are wrong
    CUDA_BENCH_MUST(cudaMallocHost(&found, 2 * sizeof *found));
    const std::size_t limit = must(space.usage(device), "usage").limit;
    // Beside the data: pages on their way, and what the driver takes for page-locked memory.
    const std::size_t slack = is_short ? 64_MiB : 8_GiB;
    const std::size_t available = available_on_host();
    const std::size_t spare = available > left_alone + slack ? available - left_alone - slack : 0;
    const std::size_t wanted = is_short ? limit + 64_MiB : 160_GiB;
    const std::size_t total = xmm::align_down(std::min(wanted, limit + spare), part);
    if (total <= limit) {
        std::printf("skipped: the host has no room for more than the card holds (%.1f GiB free)\n",
                    gib(available));
        return 77;
    }
    // What the card does not hold, and the slack.
    const std::size_t on_hosts = total - limit + slack;
    for (const xmm::node_id host : space.hosts()) {
        if (!is_short) {
            must(space.set_budget(host, on_hosts), "set_budget");
        }
    }
    std::printf("data %.2f GiB, limit of the device %.2f GiB, budget of the host %.2f GiB\n",
                gib(total), gib(limit), gib(on_hosts));
    std::fflush(stdout);
    char* data = static_cast<char*>(must(space.map(total, {.preferred = device}), "map"));
    const auto over_all = [&](xmm::access who, auto&& fn) {
        for (std::size_t at = 0; at < total; at += part) {
            const xmm::use one{{xmm::to_address(data) + at, part}, who};
            must(xmm::launch(line, {one},
                             [&](xmm::cuda_stream& s) {
                                 fn(s, reinterpret_cast<std::uint64_t*>(data + at), at / 8);
                             }),
                 "launch");
        }
        must(line.synchronize(), "synchronize");
    };
    struct moved {
        std::uint64_t in, out;
    };
    const auto moved_now = [&] {
        moved now{};
        for (const auto& node : space.statistics()) {
            if (node.usage.node == device) {
                now = {node.counters.bytes_in, node.counters.bytes_out};
            }
        }
        return now;
    };
    line_of_values values;
    watcher watch;
    const std::size_t words = part / 8;
    const auto timed = [&](const std::string& name, auto&& fn) {
        const moved before = moved_now();
        const report::stopwatch clock;
        fn();
        const double seconds = clock.seconds();
        const moved now = moved_now();
        const std::size_t both = now.in - before.in + now.out - before.out;
        const double rate = static_cast<double>(total) / seconds / 1e9;
        const double moved_rate = static_cast<double>(both) / seconds / 1e9;
        std::printf(
            "%-34s %7.2f s  %8.2f GB/s of data; moved in %7.2f GiB, out %7.2f GiB, "
            "%6.2f GB/s both, %.3f of pinned copies\n",
            name.c_str(), seconds, rate, gib(now.in - before.in), gib(now.out - before.out),
            moved_rate, moved_rate / link);
        std::fflush(stdout);
        return rate;
    };
    timed("first touch by the device", [&] {
        over_all(xmm::access::write, [&](cudaStream_t s, std::uint64_t* at, std::uint64_t first) {
            begin<<<1024, 256, 0, s>>>(at, first, words, values);
        });
    });
    std::vector<double> rates;
    for (int round = 1; round <= 2; ++round) {
        rates.push_back(timed("pass " + std::to_string(round), [&] {
            over_all(xmm::access::read_write,
                     [&](cudaStream_t s, std::uint64_t* at, std::uint64_t first) {
                         pass<<<1024, 256, 0, s>>>(at, first, words);
                     });
        }));
        values.pass();
    }
    std::size_t wrong_sums = 0;
    timed("check by kernels", [&] {
        for (std::size_t at = 0; at < total; at += part) {
            found[0] = 0;
            must(xmm::launch(line, {xmm::reads(data + at, part)},
                             [&](xmm::cuda_stream& s) {
                                 examine<<<1024, 256, 0, s>>>(
                                     reinterpret_cast<const std::uint64_t*>(data + at), at / 8,
                                     words, values, found, found + 1);
                             }),
                 "launch");
            must(line.synchronize(), "synchronize");
            wrong_sums += found[0] != values.sum(at / 8, words) ? 1 : 0;
            wrong_values += std::exchange(found[1], 0);
        }
    });
    // Some of each part, wherever it lies.
    std::size_t looked_at = 0;
    for (std::size_t at = 0; at < total; at += part) {
        for (std::size_t i = 0; i < 4096 / 8; i += 3, ++looked_at) {
            std::uint64_t value = 0;
            std::memcpy(&value, data + at + i * 8, 8);
            wrong_values += value != values.at(at / 8 + i) ? 1 : 0;
        }
    }
    watch.end();
    report::print("passes over " + size_name(total), report::summarise(rates),
                  "GB/s of data passed over");
    std::printf(
        "device memory taken at most: %.3f of %.3f GiB, least free %.3f GiB; least "
        "available on the host %.1f GiB\n",
        gib(watch.card_bytes - watch.least_on_card), gib(watch.card_bytes),
        gib(watch.least_on_card), gib(watch.least_on_host));
    std::printf(
        "sums of %zu parts: %zu wrong; elements: %zu checked by kernels, %zu by the CPU, "
        "%zu wrong\n",
        total / part, wrong_sums, total / 8, looked_at, wrong_values);
    wrong_values += wrong_sums;
    must(space.unmap(data), "unmap");
    CUDA_BENCH_MUST(cudaFreeHost(found));
    return verdict();
}
