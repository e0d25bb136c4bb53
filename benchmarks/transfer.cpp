// SPDX-License-Identifier: Apache-2.0
// Fault, prefetch, demotion and gmemcpy on the software XPU, as a fraction of its configured link speed.
#include <xmm/xmm.hpp>

#include "support/report.hpp"

using namespace xmm::literals;

namespace {

constexpr std::uint64_t link = 2'000'000'000;  // bytes a second, each way

struct bench {
    report::options chosen;
    std::size_t bytes = chosen.is_short ? 32_MiB : 256_MiB;
    xmm::space space = xmm::space::create_soft({{.bytes = 2 * bytes,
                                                 .link_in_bytes_per_second = link,
                                                 .link_out_bytes_per_second = link,
                                                 .link_latency_ns = 2000}})
                           .value();
    xmm::node_id device = space.devices()[0];
    xmm::queue line = space.make_queue(device).value();

    char* map() { return static_cast<char*>(space.map(bytes).value()); }

    // The bytes' share of what the link could have carried.
    template <class Prepare, class Fn>
    void measure(const char* name, const char* goal, Prepare&& prepare, Fn&& fn) {
        std::vector<double> samples;
        for (int i = 0; i <= chosen.rounds; ++i) {
            prepare();
            const report::stopwatch watch;
            fn();
            if (i > 0) {  // the first round makes the frames
                samples.push_back(static_cast<double>(bytes) / watch.seconds() /
                                  static_cast<double>(link));
            }
        }
        const report::figure share = report::summarise(samples);
        report::print(name, share, goal);
        report::expect(share, 0.3, 2);
    }
    static void must(xmm::status outcome) {
        if (!outcome) {
            std::fprintf(stderr, "%s: %s\n", xmm::name_of(outcome.code), outcome.why);
            std::exit(1);
        }
    }
    // A kernel that reads one word of every OS page.
    void touch(char* at) {
        const xmm::device_view<const std::uint64_t> view{reinterpret_cast<std::uint64_t*>(at),
                                                         bytes / 8};
        auto done = xmm::launch(line, {xmm::reads(at, bytes)}, [&](xmm::soft::stream& s) {
            return s.run([view] {
                std::uint64_t sum = 0;
                for (std::size_t i = 0; i < view.size(); i += 512) {
                    sum += view.load(i);
                }
                if (sum == 1) {
                    std::puts("");
                }
            });
        });
        must(done ? line.synchronize() : done.error());
    }
};

}  // namespace

int main(int argc, char** argv) {
    report::options chosen;
    if (!report::parse(argc, argv, "transfers on the software XPU", chosen)) {
        return 2;
    }
    bench b{chosen};
    char* unified = b.map();
    std::vector<char> plain(b.bytes, 1);
    std::memset(unified, 1, b.bytes);
    const auto to_host = [&] {
        bench::must(b.space.advise(xmm::any_host, unified, b.bytes, xmm::advice::will_need));
    };
    const auto to_device = [&] {
        bench::must(b.space.advise(b.device, unified, b.bytes, xmm::advice::will_need));
    };
    const auto nothing = [] {};

    std::printf("%zu MiB, link 2 GB/s each way, granule %zu MiB\n", b.bytes >> 20,
                b.space.state().core.default_granule() >> 20);
    report::print_head("of the link");
    b.measure("will_need to the device", "goal 0.95", to_host, to_device);
    b.measure(
        "will_need to the device, CPU-written", "",
        [&] {
            to_host();
            std::memset(unified, 2, b.bytes);
        },
        to_device);
    b.measure("will_need to the host", "", to_device, to_host);
    b.measure("device faults (sequential kernel)", "", to_host, [&] { b.touch(unified); });
    b.measure("CPU faults (sequential walk)", "", to_device, [&] {
        volatile char sum = 0;
        for (std::size_t i = 0; i < b.bytes; i += 4096) {
            sum = static_cast<char>(sum + unified[i]);
        }
    });
    to_device();
    b.measure("gmemcpy plain -> device-resident", "", nothing,
              [&] { bench::must(b.space.copy(unified, plain.data(), b.bytes)); });
    b.measure("gmemcpy device-resident -> plain", "", nothing,
              [&] { bench::must(b.space.copy(plain.data(), unified, b.bytes)); });
    char* other = b.map();
    std::memset(other, 3, b.bytes);
    b.measure("gmemcpy host-resident -> device-resident", "", nothing,
              [&] { bench::must(b.space.copy(unified, other, b.bytes)); });
    bench::must(b.space.unmap(other));
    bench::must(b.space.unmap(unified));
    return report::verdict();
}
