// SPDX-License-Identifier: Apache-2.0
// matmul.cu - C = A B in FP16 on tensor cores, A and B written by the CPU, C read by it, and no copy in the program; on
// a software device by a host function. The product of figure 9 of "Generalized OS Memory Management" (arXiv
// 2310.12554); how fast it gets there is in benchmarks/cuda/matmul.cu.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include <cuda_fp16.h>
#include <mma.h>

#include <xmm/xmm.hpp>

namespace {

constexpr unsigned tile = 16;  // of a tensor core: 16 x 16 x 16

// Row-major: A has m x k elements, B k x n, C m x n. All are multiples of a tile.
struct product {
    xmm::device_view<const __half> a, b;
    xmm::device_view<float> c;
    unsigned m, n, k;
};

}  // namespace

// A warp a tile of C.
__global__ void multiply(product p) {
    const unsigned row = (blockIdx.y * blockDim.y + threadIdx.y) * tile;
    const unsigned column = (blockIdx.x * blockDim.x + threadIdx.x) / warpSize * tile;
    if (row >= p.m || column >= p.n) {
        return;
    }
    namespace wmma = nvcuda::wmma;
    wmma::fragment<wmma::matrix_a, tile, tile, tile, __half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, tile, tile, tile, __half, wmma::row_major> b;
    wmma::fragment<wmma::accumulator, tile, tile, tile, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (unsigned at = 0; at < p.k; at += tile) {
        wmma::load_matrix_sync(a, p.a.data() + std::size_t{row} * p.k + at, p.k);
        wmma::load_matrix_sync(b, p.b.data() + std::size_t{at} * p.n + column, p.n);
        wmma::mma_sync(sum, a, b, sum);
    }
    wmma::store_matrix_sync(p.c.data() + std::size_t{row} * p.n + column, sum, p.n,
                            wmma::mem_row_major);
}

namespace {

// Some rows of C, through the device's page table.
void multiply_rows(const product& p, std::size_t first, std::size_t last) {
    for (std::size_t row = first; row < last; ++row) {
        for (std::size_t column = 0; column < p.n; ++column) {
            float sum = 0;
            for (std::size_t i = 0; i < p.k; ++i) {
                sum += __half2float(p.a.load(row * p.k + i)) *
                       __half2float(p.b.load(i * p.n + column));
            }
            p.c.store(row * p.n + column, sum);
        }
    }
}

// Whole numbers that FP16 holds, so that the product is exact.
float a_at(std::size_t row, std::size_t i) { return static_cast<float>((row + i) % 5) - 2; }
float b_at(std::size_t i, std::size_t column) {
    return static_cast<float>((3 * i + column) % 7) - 3;
}

template <class T>
T* map_matrix(xmm::space& in, std::size_t elements, const char* name) {
    return static_cast<T*>(in.map(elements * sizeof(T), {.name = name}).value_or(nullptr));
}

}  // namespace

// matmul [SIZE]: of square matrices, a multiple of 64.
int main(int count, char** words) {
    const auto size = static_cast<unsigned>(count > 1 ? std::strtoul(words[1], nullptr, 10) : 128);
    if (size == 0 || size % 64 != 0) {
        std::fprintf(stderr, "usage: %s [SIZE]: a multiple of 64\n", words[0]);
        return 2;
    }
    xmm::space& space = xmm::default_space();
    const xmm::node_id device = space.devices().front();
    const std::size_t elements = std::size_t{size} * size;
    auto* const a = map_matrix<__half>(space, elements, "A");
    auto* const b = map_matrix<__half>(space, elements, "B");
    auto* const c = map_matrix<float>(space, elements, "C");
    auto queue = space.make_queue(device);
    if (a == nullptr || b == nullptr || c == nullptr || !queue) {
        std::fprintf(stderr, "no memory for three matrices, or no queue\n");
        return 1;
    }
    for (std::size_t row = 0; row < size; ++row) {
        for (std::size_t column = 0; column < size; ++column) {
            a[row * size + column] = __float2half(a_at(row, column));
            b[row * size + column] = __float2half(b_at(row, column));
        }
    }

    const product p{{a, elements}, {b, elements}, {c, elements}, size, size, size};
    const auto queued = xmm::launch(
        *queue,
        {xmm::reads(a, elements * sizeof(__half)), xmm::reads(b, elements * sizeof(__half)),
         xmm::writes(c, elements * sizeof(float))},
        xmm::overloads{[&](xmm::cuda_stream& on) {
                           const dim3 warps{4 * 32, 4};  // a block makes 64 x 64 elements
                           multiply<<<dim3{size / 64, size / 64}, warps, 0, on.native()>>>(p);
                           const cudaError_t launched = cudaGetLastError();
                           return launched == cudaSuccess
                                      ? xmm::status{}
                                      : xmm::fail(xmm::errc::unsupported,
                                                  "the kernel was not launched", launched);
                       },
                       [&](xmm::soft::stream& on) {
                           return on.parallel_for(size, [p](std::size_t first, std::size_t last) {
                               multiply_rows(p, first, last);
                           });
                       }});
    const xmm::status outcome = queued ? queue->wait(*queued) : queued.error();
    if (!outcome) {
        std::fprintf(stderr, "the product failed: %s (%d)\n", outcome.why, outcome.driver_code);
        return 1;
    }

    // All of a small product, some elements of a large one.
    std::size_t wrong = 0, looked_at = 0;
    for (std::size_t at = 0; at < elements; at += elements / 16384 + 1, ++looked_at) {
        float sum = 0;
        for (std::size_t i = 0; i < size; ++i) {
            sum += a_at(at / size, i) * b_at(i, at % size);
        }
        wrong += c[at] != sum ? 1 : 0;
    }
    std::printf("on %s: %u x %u x %u in FP16: %zu elements looked at, %zu wrong\n",
                space.describe(device)->name.data(), size, size, size, looked_at, wrong);
    return wrong == 0 ? 0 : 1;
}
