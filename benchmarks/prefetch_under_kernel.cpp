// SPDX-License-Identifier: Apache-2.0
// A kernel that runs over a range while the range, or another one, is prefetched: its time and its longest wait for one
// page, against the same kernel that has to fault everything in and has the link to itself.
#include <xmm/xmm.hpp>

#include <random>

#include "support/report.hpp"

using namespace xmm::literals;

namespace {

constexpr std::uint64_t link_rate = 2'000'000'000;

struct run {
    double seconds;
    double longest_wait;
};

// Touches every granule once in the given order and works a little on each.
run kernel_over(xmm::queue& line, char* base, std::size_t bytes,
                const std::vector<std::size_t>& order) {
    run outcome{};
    const xmm::device_view<const char> view{base, bytes};
    const report::stopwatch all;
    auto done = xmm::launch(line, {xmm::reads(base, bytes)}, [&](xmm::soft::stream& s) {
        return s.run([&] {
            for (const std::size_t at : order) {
                const report::stopwatch one;
                static_cast<void>(view.load(at));
                outcome.longest_wait = std::max(outcome.longest_wait, one.seconds());
            }
        });
    });
    if (!done || !line.synchronize()) {
        std::exit(1);
    }
    outcome.seconds = all.seconds();
    return outcome;
}

}  // namespace

int main(int argc, char** argv) {
    report::options chosen;
    if (!report::parse(argc, argv, "a prefetch beside a kernel", chosen)) {
        return 2;
    }
    const std::size_t bytes = chosen.is_short ? 32_MiB : 256_MiB;
    const std::size_t granule = chosen.is_short ? 2_MiB : 8_MiB;
    auto space = xmm::space::create_soft({{.bytes = 4 * bytes,
                                           .link_in_bytes_per_second = link_rate,
                                           .link_out_bytes_per_second = link_rate}})
                     .value();
    const xmm::node_id device = space.devices()[0];
    auto line = space.make_queue(device).value();
    auto* base = static_cast<char*>(space.map(bytes, {.granule_bytes = granule}).value());
    auto* other = static_cast<char*>(space.map(bytes, {.granule_bytes = granule}).value());
    std::memset(base, 1, bytes);
    std::memset(other, 1, bytes);
    std::vector<std::size_t> order;
    for (std::size_t at = 0; at < bytes; at += granule) {
        order.push_back(at);
    }
    std::printf("%zu MiB, granule %zu MiB, link 2 GB/s: one granule takes %.2f ms, all %.0f ms\n",
                bytes >> 20, granule >> 20, 1e3 * static_cast<double>(granule) / link_rate,
                1e3 * static_cast<double>(bytes) / link_rate);
    report::print_head("ms");
    for (const bool is_shuffled : {false, true}) {
        if (is_shuffled) {
            std::shuffle(order.begin(), order.end(), std::mt19937{3});
        }
        for (const auto& [name, prefetched] :
             {std::pair{"faults only", static_cast<char*>(nullptr)},
              std::pair{"prefetch beside it", base},
              std::pair{"prefetch of another range beside it", other}}) {
            std::vector<double> times;
            std::vector<double> waits;
            for (int i = 0; i <= chosen.rounds; ++i) {
                for (char* range : {base, other}) {
                    if (!space.advise(xmm::any_host, range, bytes, xmm::advice::will_need)) {
                        return 1;
                    }
                }
                xmm::completion early;
                if (prefetched != nullptr) {
                    early = std::move(
                        *space.advise_async(device, prefetched, bytes, xmm::advice::will_need));
                }
                const run one = kernel_over(line, base, bytes, order);
                early.wait();
                if (i > 0) {
                    times.push_back(one.seconds * 1e3);
                    waits.push_back(one.longest_wait * 1e3);
                }
            }
            const std::string row =
                std::string{is_shuffled ? "random" : "sequential"} + " kernel, " + name;
            report::print(row + ": time", report::summarise(times));
            report::print(row + ": longest wait for one page", report::summarise(waits));
        }
    }
    return space.unmap(base) && space.unmap(other) ? 0 : 1;
}
