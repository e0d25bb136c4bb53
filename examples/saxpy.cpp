// SPDX-License-Identifier: Apache-2.0
// y = a x + y over one and a half times the device's memory: nothing is copied by hand, nothing fails.
#include <xmm/xmm.hpp>

#include <cstdio>

using namespace xmm::literals;

int main() {
    auto made = xmm::space::create_soft({{.bytes = 64_MiB}});
    if (!made) {
        std::fprintf(stderr, "no space: %s\n", made.error().why);
        return 1;
    }
    xmm::space& space = *made;
    const xmm::node_id device = space.devices()[0];
    constexpr std::size_t count = 48_MiB / sizeof(float);
    auto* x = static_cast<float*>(space.map(count * sizeof(float), {.name = "x"}).value());
    auto* y = static_cast<float*>(space.map(count * sizeof(float), {.name = "y"}).value());
    for (std::size_t i = 0; i < count; ++i) {
        x[i] = static_cast<float>(i % 1024);
        y[i] = 1.0f;
    }

    auto queue = space.make_queue(device).value();
    for (int pass = 0; pass < 3; ++pass) {
        auto done = xmm::launch(
            queue,
            {xmm::reads(x, count * sizeof(float)), xmm::reads_writes(y, count * sizeof(float))},
            [&](xmm::soft::stream& stream) {
                return stream.parallel_for(count, [x, y](std::size_t first, std::size_t last) {
                    xmm::zip_spans(
                        [](std::span<const float> xs, std::span<float> ys) {
                            for (std::size_t i = 0; i < xs.size(); ++i) {
                                ys[i] += 0.5f * xs[i];
                            }
                        },
                        xmm::device_view<const float>{x + first, last - first},
                        xmm::device_view<float>{y + first, last - first});
                });
            });
        const xmm::status outcome = done ? queue.synchronize() : done.error();
        if (!outcome) {
            std::fprintf(stderr, "pass %d: %s\n", pass, outcome.why);
            return 1;
        }
    }

    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {
        wrong += y[i] != 1.0f + 1.5f * static_cast<float>(i % 1024) ? 1 : 0;
    }
    for (const xmm::node_statistics& one : space.statistics()) {
        std::printf("node %d: %4zu MiB in, %4zu MiB out, %4zu MiB reclaimed, peak %zu of %zu MiB\n",
                    one.usage.node.value, static_cast<std::size_t>(one.counters.bytes_in >> 20),
                    static_cast<std::size_t>(one.counters.bytes_out >> 20),
                    static_cast<std::size_t>(one.counters.reclaimed_bytes >> 20),
                    one.usage.peak >> 20, one.usage.limit >> 20);
    }
    std::printf("%zu elements, %zu wrong\n", count, wrong);
    return wrong == 0 ? 0 : 1;
}
