// SPDX-License-Identifier: Apache-2.0
// pattern.hpp - values that the device and the CPU write and check, over a whole range or every second page of it.
//
// Model    A word's value follows from its place in the range and a seed, so that a page that came from elsewhere, or
//          not at all, shows. `every` is 1 for all pages of 2 MiB, 2 for every second one. Kernels take any grid.
// Threads  One at a time, but for the kernels.
#pragma once

#include <atomic>

#include "rig.hpp"

namespace cuda_bench {

constexpr unsigned page_word_bits = 18;  // 2 MiB in words of 8 bytes
constexpr std::size_t page_words = std::size_t{1} << page_word_bits;

// Where the i-th word of the pages that are meant lies.
__host__ __device__ constexpr std::size_t word_at(std::size_t i, unsigned every) {
    return ((i >> page_word_bits) * every << page_word_bits) + (i & (page_words - 1));
}
__host__ __device__ constexpr std::uint64_t word_of(std::size_t at, std::uint64_t seed) {
    return at * 0x9E3779B97F4A7C15u + seed;
}

static __global__ void fill_words(std::uint64_t* to, std::size_t first, std::size_t count,
                                  unsigned every, std::uint64_t seed) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x) {
        const std::size_t at = word_at(first + i, every);
        to[at] = word_of(at, seed);
    }
}
static __global__ void count_wrong_words(const std::uint64_t* at, std::size_t first,
                                         std::size_t count, unsigned every, std::uint64_t seed,
                                         unsigned long long* wrong) {
    unsigned long long mine = 0;
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x) {
        const std::size_t where = word_at(first + i, every);
        mine += at[where] != word_of(where, seed) ? 1 : 0;
    }
    if (mine != 0) {
        atomicAdd(wrong, mine);
    }
}

// The pages of a range that are meant. `bytes` counts them alone, whole pages of 2 MiB.
struct pattern {
    std::size_t bytes;
    unsigned every = 1;

    [[nodiscard]] std::size_t span() const { return bytes * every; }
    [[nodiscard]] std::size_t words() const { return bytes / 8; }
    [[nodiscard]] std::size_t pages() const { return bytes / 2_MiB; }
    // fn(offset, bytes) for each stretch without a gap.
    template <class Fn>
    void for_each_stretch(Fn&& fn) const {
        if (every == 1) {
            fn(std::size_t{0}, bytes);
            return;
        }
        for (std::size_t page = 0; page < pages(); ++page) {
            fn(page * every * 2_MiB, std::size_t{2_MiB});
        }
    }

    void fill_by_cpu(char* at, std::uint64_t seed, unsigned threads = 8) const {
        in_parallel(
            bytes,
            [&](std::size_t begin, std::size_t end) {
                for (std::size_t i = begin / 8; i < end / 8; ++i) {
                    const std::size_t place = word_at(i, every);
                    reinterpret_cast<std::uint64_t*>(at)[place] = word_of(place, seed);
                }
            },
            threads);
    }
    [[nodiscard]] std::size_t wrong_by_cpu(const char* at, std::uint64_t seed) const {
        std::atomic<std::size_t> wrong{0};
        in_parallel(bytes, [&](std::size_t begin, std::size_t end) {
            std::size_t mine = 0;
            for (std::size_t i = begin / 8; i < end / 8; ++i) {
                const std::size_t place = word_at(i, every);
                mine += reinterpret_cast<const std::uint64_t*>(at)[place] != word_of(place, seed);
            }
            wrong.fetch_add(mine, std::memory_order_relaxed);  // relaxed: read after the join
        });
        return wrong;
    }
};

// Runs the kernels on memory that no launch needs to name, and counts what they find.
class examiner {
public:
    examiner() { CUDA_BENCH_MUST(cudaMallocHost(&wrong_, sizeof *wrong_)); }
    ~examiner() { cudaFreeHost(wrong_); }
    examiner(const examiner&) = delete;
    examiner& operator=(const examiner&) = delete;

    static void fill(const pattern& of, char* at, std::uint64_t seed, cudaStream_t stream) {
        fill_words<<<1024, 256, 0, stream>>>(words(at), 0, of.words(), of.every, seed);
        CUDA_BENCH_MUST(cudaStreamSynchronize(stream));
    }
    [[nodiscard]] std::size_t count_wrong(const pattern& of, const char* at, std::uint64_t seed,
                                          cudaStream_t stream) {
        *wrong_ = 0;
        count(of, at, 0, of.words(), seed, stream);
        CUDA_BENCH_MUST(cudaStreamSynchronize(stream));
        return *wrong_;
    }
    // In two steps, for those who launch by themselves: the counter is set to 0 in between by nobody.
    void count(const pattern& of, const char* at, std::size_t first, std::size_t count,
               std::uint64_t seed, cudaStream_t stream) {
        count_wrong_words<<<1024, 256, 0, stream>>>(words(at), first, count, of.every, seed,
                                                    wrong_);
    }
    [[nodiscard]] unsigned long long& counter() { return *wrong_; }

    static std::uint64_t* words(char* at) { return reinterpret_cast<std::uint64_t*>(at); }
    static const std::uint64_t* words(const char* at) {
        return reinterpret_cast<const std::uint64_t*>(at);
    }

private:
    unsigned long long* wrong_ = nullptr;
};

}  // namespace cuda_bench
