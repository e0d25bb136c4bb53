// SPDX-License-Identifier: Apache-2.0
// pmr_vector.cpp - a std::pmr::vector in unified memory: filled by the CPU, summed by a kernel.
#include <cstdint>
#include <cstdio>
#include <memory_resource>
#include <span>
#include <vector>

#include <xmm/facade/resource_port.hpp>
#include <xmm/resources/unified_pool.hpp>
#include <xmm/xmm.hpp>

int main() {
    // A space with software devices, whatever else is here: the kernel below is a C++ function.
    xmm::space space = xmm::space::create({.devices = xmm::device_kind::soft}).value();
    const xmm::node_id device = space.devices().front();

    // Memory for any pmr container: one pointer for CPU and device, at home on the device.
    xmm::unified_pool memory{xmm::port_of(space), device};

    std::pmr::vector<std::int64_t> numbers{&memory};
    for (std::int64_t i = 1; i <= 1'000'000; ++i) {
        numbers.push_back(i);
    }
    std::pmr::vector<std::int64_t> sum(1, &memory);

    auto queue = space.make_queue(device);
    if (!queue) {
        std::fprintf(stderr, "no queue: %s\n", queue.error().why);
        return 1;
    }
    const xmm::device_view<const std::int64_t> in{numbers.data(), numbers.size()};
    const xmm::device_view<std::int64_t> out{sum.data(), sum.size()};
    const auto done =
        xmm::launch(*queue, {xmm::reads(numbers), xmm::writes(sum)}, [&](xmm::soft::stream& on) {
            return on.parallel_for(in.size(), [in, out](std::size_t first, std::size_t last) {
                std::int64_t part = 0;
                in.for_each_span(first, last - first,
                                 [&](std::span<const std::int64_t> few, std::size_t) {
                                     for (const std::int64_t number : few) {
                                         part += number;
                                     }
                                 });
                out.fetch_add(0, part);
            });
        });
    if (!done || !queue->synchronize()) {
        std::fprintf(stderr, "the kernel failed\n");
        return 1;
    }

    // The CPU reads what the kernel wrote, through the vector.
    std::printf("sum of %zu numbers: %lld\n", numbers.size(), static_cast<long long>(sum[0]));
    return sum[0] == 500'000'500'000 ? 0 : 1;
}
