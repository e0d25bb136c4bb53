// SPDX-License-Identifier: Apache-2.0
// Address -> page record against the number of threads. Lock-free: the cost per thread stays flat as far
// as the cores reach.
#include <xmm/mapping/radix_tree.hpp>

#include <random>
#include <thread>

#include "support/report.hpp"

namespace {

struct record {
    xmm::va_range va;
};

double ns_per_lookup(const xmm::radix_tree<record>& tree, const std::vector<xmm::address>& where,
                     unsigned threads, std::size_t rounds) {
    std::vector<std::thread> workers;
    std::vector<double> seconds(threads);
    for (unsigned i = 0; i < threads; ++i) {
        workers.emplace_back([&, i] {
            std::uintptr_t sum = 0;
            const report::stopwatch watch;
            for (std::size_t round = 0; round < rounds; ++round) {
                for (const xmm::address at : where) {
                    sum += reinterpret_cast<std::uintptr_t>(tree.find(at));
                }
            }
            seconds[i] = watch.seconds();
            if (sum == 0) {
                std::puts("nothing found");
            }
        });
    }
    for (auto& one : workers) {
        one.join();
    }
    return *std::max_element(seconds.begin(), seconds.end()) * 1e9 /
           (static_cast<double>(rounds) * static_cast<double>(where.size()));
}

}  // namespace

int main(int argc, char** argv) {
    report::options chosen;
    if (!report::parse(argc, argv, "lookup ns against threads", chosen)) {
        return 2;
    }
    xmm::radix_tree<record> tree;
    const std::size_t pages = chosen.is_short ? 512 : 16384;  // 32 GiB of address
    constexpr xmm::address base = xmm::address{1} << 40;
    std::vector<record> records(pages);
    for (std::size_t i = 0; i < pages; ++i) {
        records[i].va = {base + i * xmm::page_bytes, xmm::page_bytes};
        if (!tree.insert(records[i].va, records[i])) {
            return 1;
        }
    }
    std::vector<xmm::address> where(1 << 14);
    std::mt19937_64 random{1};
    for (xmm::address& at : where) {
        at = base + random() % (pages * xmm::page_bytes);
    }
    const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
    report::print_head("ns per lookup, slowest thread");
    for (unsigned threads = 1; threads <= 2 * cores; threads *= 2) {
        std::vector<double> samples;
        for (int i = 0; i < chosen.rounds; ++i) {
            samples.push_back(ns_per_lookup(tree, where, threads, chosen.is_short ? 2 : 400));
        }
        const report::figure ns = report::summarise(samples);
        report::print("lookup, " + std::to_string(threads) + " threads on " +
                          std::to_string(cores) + " cores",
                      ns);
        report::expect(ns, 0, 200);
    }
    return report::verdict();
}
