// SPDX-License-Identifier: Apache-2.0
// saxpy.cu - y = a x + y over one and a half times what the device may hold, by a CUDA kernel, or on a software device
// where there is no other. The arrays go through in blocks: a launch's ranges have to fit, a program's memory has not.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <xmm/xmm.hpp>

using namespace xmm::literals;

__global__ void saxpy(float a, xmm::device_view<const float> x, xmm::device_view<float> y) {
    const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
    for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < y.size();
         i += step) {
        y[i] += a * x[i];
    }
}

namespace {

// Asks the device for y += a x in these blocks. Returns once it is queued, not once it is done.
xmm::status add(xmm::queue& queue, float a, xmm::device_view<const float> x,
                xmm::device_view<float> y) {
    const auto queued = xmm::launch(
        queue,
        {xmm::reads(x.data(), x.size() * sizeof(float)),
         xmm::reads_writes(y.data(), y.size() * sizeof(float))},
        xmm::overloads{
            [&](xmm::cuda_stream& on) {
                saxpy<<<1024, 256, 0, on.native()>>>(a, x, y);
                const cudaError_t launched = cudaGetLastError();
                return launched == cudaSuccess ? xmm::status{}
                                               : xmm::fail(xmm::errc::unsupported,
                                                           "the kernel was not launched", launched);
            },
            [&](xmm::soft::stream& on) {
                return on.parallel_for(y.size(), [=](std::size_t first, std::size_t last) {
                    xmm::zip_spans(
                        [a](std::span<const float> xs, std::span<float> ys) {
                            for (std::size_t i = 0; i < ys.size(); ++i) {
                                ys[i] += a * xs[i];
                            }
                        },
                        xmm::device_view<const float>{x.data() + first, last - first},
                        xmm::device_view<float>{y.data() + first, last - first});
                });
            }});
    return queued ? xmm::status{} : queued.error();
}

}  // namespace

// saxpy [BUDGET IN MiB]: x and y take one and a half times that.
int main(int count, char** words) {
    const std::size_t budget = (count > 1 ? std::strtoull(words[1], nullptr, 10) : 64) * 1_MiB;
    xmm::space& space = xmm::default_space();
    const xmm::node_id device = space.devices().front();
    xmm::status outcome = space.set_budget(device, budget);

    const std::size_t numbers = budget * 3 / 4 / sizeof(float);
    const std::size_t bytes = numbers * sizeof(float);
    const auto x_memory = space.map(bytes, {.granule_bytes = 2_MiB, .name = "x"});
    const auto y_memory = space.map(bytes, {.granule_bytes = 2_MiB, .name = "y"});
    auto queue = space.make_queue(device);
    if (!outcome || !x_memory || !y_memory || !queue) {
        std::fprintf(stderr, "no memory of %zu MiB twice, or no queue\n", bytes >> 20);
        return 1;
    }
    auto* const x = static_cast<float*>(*x_memory);
    auto* const y = static_cast<float*>(*y_memory);
    for (std::size_t i = 0; i < numbers; ++i) {
        x[i] = static_cast<float>(i % 1024);
        y[i] = 1;
    }

    const std::size_t block = std::min<std::size_t>(numbers, budget / 8 / sizeof(float));
    for (int pass = 0; pass < 3 && outcome; ++pass) {
        for (std::size_t first = 0; first < numbers && outcome; first += block) {
            const std::size_t part = std::min(block, numbers - first);
            outcome = add(*queue, 0.5f, {x + first, part}, {y + first, part});
        }
    }
    outcome = outcome ? queue->synchronize() : outcome;
    if (!outcome) {
        std::fprintf(stderr, "the kernel failed: %s (%d)\n", outcome.why, outcome.driver_code);
        return 1;
    }

    std::size_t wrong = 0;
    for (std::size_t i = 0; i < numbers; ++i) {
        wrong += y[i] != 1 + 1.5f * static_cast<float>(i % 1024) ? 1 : 0;
    }
    const auto used = space.usage(device);
    std::printf("on %s: %zu MiB within %zu MiB (peak %zu): %zu elements, %zu wrong\n",
                space.describe(device)->name.data(), 2 * bytes >> 20, budget >> 20,
                used->peak >> 20, numbers, wrong);
    return wrong == 0 && used->peak <= budget ? 0 : 1;
}
