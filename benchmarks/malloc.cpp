// SPDX-License-Identifier: Apache-2.0
// ns a malloc + free pair: the heap of a device against glibc's and jemalloc's malloc on host memory, one thread
// and two on queues of their own. Same run, in turn. `batches`: 32 blocks are taken, then given back. Each thread
// has a core of its own, where there are so many, and all begin at once.
#include <xmm/xmm.hpp>

#include <sched.h>

#include <barrier>
#include <cstdlib>
#include <thread>

#include <xmm/resources/jemalloc_table.hpp>

#include "support/report.hpp"

using namespace xmm::literals;

namespace {

struct host_heap {
    static bool is_there() { return true; }
    static void* allocate(std::size_t bytes, unsigned) { return std::malloc(bytes); }
    static void give_back(void* block, unsigned) { std::free(block); }
};
struct jemalloc_heap {
    static bool is_there() { return xmm::jemalloc_table::find() != nullptr; }
    static void* allocate(std::size_t bytes, unsigned) {
        return xmm::jemalloc_table::find()->mallocx(bytes, 0);
    }
    static void give_back(void* block, unsigned) { xmm::jemalloc_table::find()->dallocx(block, 0); }
};
struct device_heap {
    static inline xmm::xpu_malloc* heap = nullptr;
    static inline xmm::queue_id queues[2];
    static bool is_there() { return true; }
    static void* allocate(std::size_t bytes, unsigned thread) {
        return heap->allocate({.bytes = bytes, .queue = queues[thread]}).value();
    }
    static void give_back(void* block, unsigned thread) {
        if (!heap->deallocate(block, queues[thread])) {
            std::abort();
        }
    }
};

// Two threads that the system puts on one core for a while would seem to wait for each other.
void stay_on_core(unsigned which) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        return;
    }
    for (int core = 0; core < CPU_SETSIZE; ++core) {
        if (CPU_ISSET(core, &allowed) && which-- == 0) {
            cpu_set_t own;
            CPU_ZERO(&own);
            CPU_SET(core, &own);
            (void)sched_setaffinity(0, sizeof own, &own);
            return;
        }
    }
}

template <class Heap>
double ns_per_pair(std::size_t bytes, unsigned threads, std::size_t batch, std::size_t pairs) {
    std::vector<double> seconds(threads);
    std::vector<std::thread> workers;
    std::barrier at_once{static_cast<std::ptrdiff_t>(threads)};
    for (unsigned thread = 0; thread < threads; ++thread) {
        workers.emplace_back([&, thread] {
            stay_on_core(thread);
            std::vector<void*> blocks(batch);
            const auto round = [&] {
                for (void*& one : blocks) {
                    one = Heap::allocate(bytes, thread);
                    // The pair must not be optimised away; nobody touches the memory.
                    asm volatile("" : : "r"(one) : "memory");
                }
                for (void* one : blocks) {
                    Heap::give_back(one, thread);
                }
            };
            for (int i = 0; i < 10; ++i) {
                round();
            }
            at_once.arrive_and_wait();
            const report::stopwatch watch;
            for (std::size_t done = 0; done < pairs; done += batch) {
                round();
            }
            seconds[thread] = watch.seconds();
        });
    }
    for (std::thread& one : workers) {
        one.join();
    }
    return *std::max_element(seconds.begin(), seconds.end()) * 1e9 / static_cast<double>(pairs);
}

template <class Heap>
void measure(std::size_t bytes, unsigned threads, std::size_t batch, int rounds, std::size_t pairs,
             std::vector<double>& samples) {
    samples.clear();
    for (int i = 0; i < rounds && Heap::is_there(); ++i) {
        samples.push_back(ns_per_pair<Heap>(bytes, threads, batch, pairs));
    }
}

std::string size_name(std::size_t bytes) {
    const char* units[] = {"B", "KiB", "MiB", "GiB"};
    unsigned unit = 0;
    for (; bytes >= 1024 && bytes % 1024 == 0; bytes /= 1024) {
        ++unit;
    }
    return std::to_string(bytes) + " " + units[unit];
}

}  // namespace

int main(int argc, char** argv) {
    report::options chosen;
    if (!report::parse(argc, argv, "ns a malloc + free pair", chosen)) {
        return 2;
    }
    // Memory that nobody touches costs nothing here.
    auto made = xmm::space::create_soft({{.bytes = 160_GiB}});
    if (!made) {
        std::fprintf(stderr, "no space: %s\n", made.error().why);
        return 1;
    }
    const xmm::node_id device = made->devices()[0];
    device_heap::heap = made->heap(device).value();
    std::vector<xmm::queue> lines;
    for (xmm::queue_id& queue : device_heap::queues) {
        lines.push_back(made->make_queue(device).value());
        queue = lines.back().id();
    }
    std::vector<std::size_t> sizes{64,      512,   4_KiB,  32_KiB,  64_KiB,
                                   256_KiB, 2_MiB, 20_MiB, 200_MiB, 1_GiB};
    if (chosen.is_short) {
        sizes = {64, 32_KiB, 2_MiB};
    }
    for (const std::size_t batch : {std::size_t{1}, std::size_t{32}}) {
        for (const unsigned threads : {1U, 2U}) {
            std::printf("\n%u thread%s%s\n", threads, threads == 1 ? "" : "s, a queue each",
                        batch == 1 ? "" : ", batches of 32");
            report::print_head("ns a pair");
            for (const std::size_t bytes : sizes) {
                if (batch > 1 && bytes > 200_MiB) {
                    continue;
                }
                const std::size_t pairs =
                    chosen.is_short ? 64 : (bytes <= 32_KiB ? 400'000 : 40'000);
                // The host's heaps map and unmap the largest, without touching them.
                const std::size_t host_pairs =
                    bytes <= 256_KiB ? pairs : std::min<std::size_t>(pairs, 4'000);
                std::vector<double> ours;
                std::vector<double> glibc;
                std::vector<double> jemalloc;
                for (int round = 0; round < chosen.rounds; ++round) {
                    std::vector<double> one;
                    measure<device_heap>(bytes, threads, batch, 1, pairs, one);
                    ours.insert(ours.end(), one.begin(), one.end());
                    measure<host_heap>(bytes, threads, batch, 1, host_pairs, one);
                    glibc.insert(glibc.end(), one.begin(), one.end());
                    measure<jemalloc_heap>(bytes, threads, batch, 1, host_pairs, one);
                    jemalloc.insert(jemalloc.end(), one.begin(), one.end());
                }
                report::expect(report::summarise(ours), 0, 100'000);
                report::print(size_name(bytes) + ", xmm", report::summarise(ours),
                              bytes <= 32_KiB ? "goal <= 1.5 x jemalloc" : "goal <= 200");
                report::print(size_name(bytes) + ", glibc", report::summarise(glibc));
                if (!jemalloc.empty()) {
                    report::print(size_name(bytes) + ", jemalloc on the host",
                                  report::summarise(jemalloc));
                }
            }
        }
    }
    return report::verdict();
}
