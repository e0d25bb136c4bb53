// SPDX-License-Identifier: Apache-2.0
// pmr_vector.cu - pmr_vector.cpp for nvcc: the same sum by a CUDA kernel, or on a software device where there is no
// other. What is said once: memory, ranges, the launch. What is said twice: the kernel.
#include <cstdint>
#include <cstdio>
#include <memory_resource>
#include <span>
#include <vector>

#include <xmm/facade/resource_port.hpp>
#include <xmm/resources/unified_pool.hpp>
#include <xmm/xmm.hpp>

__global__ void add_up(xmm::device_view<const std::int64_t> in,
                       xmm::device_view<std::int64_t> out) {
    std::int64_t part = 0;
    const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
    for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < in.size();
         i += step) {
        part += in[i];
    }
    out.fetch_add(0, part);
}

int main() {
    xmm::space& space = xmm::default_space();
    const xmm::node_id device = space.devices().front();
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
    auto done = xmm::launch(
        *queue, {xmm::reads(numbers), xmm::reads_writes(sum)},
        xmm::overloads{
            [&](xmm::cuda_stream& on) {
                add_up<<<64, 256, 0, on.native()>>>(in, out);
                const cudaError_t launched = cudaGetLastError();
                return launched == cudaSuccess ? xmm::status{}
                                               : xmm::fail(xmm::errc::unsupported,
                                                           "the kernel was not launched", launched);
            },
            [&](xmm::soft::stream& on) {
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
            }});
    const xmm::status outcome = done ? queue->wait(*done) : done.error();
    if (!outcome) {
        std::fprintf(stderr, "the kernel failed: %s (%d)\n", outcome.why, outcome.driver_code);
        return 1;
    }

    std::printf("on %s: sum of %zu numbers: %lld\n", space.describe(device)->name.data(),
                numbers.size(), static_cast<long long>(sum[0]));
    return sum[0] == 500'000'500'000 ? 0 : 1;
}
