// SPDX-License-Identifier: Apache-2.0
// C = A * B in FP16, A and B written by the CPU: from the first byte that moves to the product on the device.
// After figure 9 of "Generalized OS Memory Management" (arXiv 2310.12554). n = m = 10 240, k = 1 024 ... 20 480.
// Ours in both modes. Of the first way's product some elements are computed again by the CPU; the others' are compared
// with it, all elements.
// cuBLAS is found at run time: CUBLAS_LIBRARY names it, else libcublas.so.13 or .12 of the search path.
#include "rig.hpp"

#include <cuda_fp16.h>
#include <dlfcn.h>

#include <cmath>
#include <cstring>
#include <utility>

using namespace cuda_bench;

namespace {

// The three functions of cuBLAS that are used, by their C interface.
class cublas {
public:
    cublas() {
        const char* named = std::getenv("CUBLAS_LIBRARY");
        for (const char* name : {named, "libcublas.so.13", "libcublas.so.12"}) {
            if (name != nullptr && library_ == nullptr) {
                library_ = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
            }
        }
        if (library_ == nullptr) {
            std::printf("skipped: no cuBLAS: %s\n", ::dlerror());
            std::exit(77);
        }
        get("cublasCreate_v2", create_);
        get("cublasSetStream_v2", set_stream_);
        get("cublasGemmEx", gemm_);
        if (create_(&handle_) != 0) {
            std::fprintf(stderr, "cublasCreate failed\n");
            std::exit(1);
        }
    }
    // Column-major: C (n x m) = A (n x k) * B (k x m), accumulated in FP32.
    void multiply(cudaStream_t stream, const __half* a, const __half* b, __half* c, int n, int m,
                  int k) {
        const float one = 1;
        const float zero = 0;
        constexpr int half_type = 2;   // CUDA_R_16F
        constexpr int compute32 = 68;  // CUBLAS_COMPUTE_32F
        if (set_stream_(handle_, stream) != 0 ||
            gemm_(handle_, 0, 0, n, m, k, &one, a, half_type, n, b, half_type, k, &zero, c,
                  half_type, n, compute32, -1) != 0) {
            std::fprintf(stderr, "cublasGemmEx failed\n");
            std::exit(1);
        }
    }

private:
    template <class Fn>
    void get(const char* name, Fn& to) {
        to = reinterpret_cast<Fn>(::dlsym(library_, name));
        if (to == nullptr) {
            std::fprintf(stderr, "%s is missing\n", name);
            std::exit(1);
        }
    }
    void* library_ = nullptr;
    void* handle_ = nullptr;
    int (*create_)(void**) = nullptr;
    int (*set_stream_)(void*, cudaStream_t) = nullptr;
    int (*gemm_)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*,
                 int, int, const void*, void*, int, int, int, int) = nullptr;
};

std::uint32_t next(std::uint32_t& state) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}
// Small random values, made once: what is written into A and B.
std::vector<__half> random_values(std::size_t count) {
    std::vector<__half> values(count);
    std::uint32_t state = 2463534242u;
    for (__half& one : values) {
        one = __float2half(static_cast<float>(next(state) % 2001) / 1000.0F - 1.0F);
    }
    return values;
}
// A few elements against double precision.
void check(const std::vector<__half>& c, const std::vector<__half>& source, int n, int m, int k) {
    std::uint32_t state = 12345;
    const std::size_t b_at = std::size_t(n) * k;
    for (int i = 0; i < 20; ++i) {
        const int row = static_cast<int>(next(state) % n);
        const int column = static_cast<int>(next(state) % m);
        double exact = 0;
        double scale = 0;
        for (int j = 0; j < k; ++j) {
            const double part = double(__half2float(source[row + std::size_t(j) * n])) *
                                double(__half2float(source[b_at + j + std::size_t(column) * k]));
            exact += part;
            scale += part * part;
        }
        const double got = __half2float(c[row + std::size_t(column) * n]);
        if (!(std::abs(got - exact) <= 5e-3 * (std::sqrt(scale) + std::abs(exact)) + 1e-2)) {
            std::fprintf(stderr, "wrong product at %d, %d: %f, not %f\n", row, column, got, exact);
            std::exit(1);
        }
    }
}

// How many elements differ from what was found right by more than the roundings of FP16 and of sums in another order.
__global__ void count_far(const __half* c, const __half* right, std::size_t count, float slack,
                          unsigned long long* far) {
    unsigned long long mine = 0;
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x) {
        const float is = __half2float(c[i]);
        const float should = __half2float(right[i]);
        mine += !(fabsf(is - should) <= slack + 2e-3F * fabsf(should)) ? 1 : 0;
    }
    if (mine != 0) {
        atomicAdd(far, mine);
    }
}

struct extents {
    int n, m, k;
    [[nodiscard]] std::size_t a() const { return std::size_t(n) * k * 2; }
    [[nodiscard]] std::size_t b() const { return std::size_t(k) * m * 2; }
    [[nodiscard]] std::size_t c() const { return std::size_t(n) * m * 2; }
};

// xmm in one mode: a space, and for each k its matrices.
class ours {
public:
    ours(cublas& blas, bool is_managed) : blas_{blas}, held_{is_managed} {}

    void map(const extents& of) {
        of_ = of;
        a_ = map_one(of.a(), {});
        b_ = map_one(of.b(), {});
        mostly_a_ = map_one(of.a(), {.is_read_mostly = true});
        mostly_b_ = map_one(of.b(), {.is_read_mostly = true});
        c_ = map_one(of.c(), {.preferred = device_});
    }
    void unmap() {
        for (__half* one : {a_, b_, mostly_a_, mostly_b_, c_}) {
            must(held_.space.unmap(one), "unmap");
        }
    }
    // On the host, as after the CPU's own work.
    template <class Write>
    void write(Write&& values) {
        must(held_.space.advise(xmm::any_host, a_, of_.a(), xmm::advice::will_need), "home");
        must(held_.space.advise(xmm::any_host, b_, of_.b(), xmm::advice::will_need), "home");
        values(a_, b_);
    }
    // The CPU's writes drop the device's copies.
    template <class Write>
    void write_mostly(Write&& values) {
        values(mostly_a_, mostly_b_);
    }
    void multiply() { multiply(a_, b_); }
    void multiply_mostly() { multiply(mostly_a_, mostly_b_); }
    std::size_t count_wrong(const __half* right, float slack, unsigned long long* far) {
        *far = 0;
        must(xmm::launch(line_, {xmm::reads(c_, of_.c())},
                         [&](xmm::cuda_stream& s) {
                             count_far<<<1024, 256, 0, s>>>(c_, right, of_.c() / 2, slack, far);
                         }),
             "launch");
        must(line_.synchronize(), "synchronize");
        return *far;
    }

private:
    __half* map_one(std::size_t bytes, xmm::map_options how) {
        return static_cast<__half*>(must(held_.space.map(bytes, how), "map"));
    }
    void multiply(__half* a, __half* b) {
        const auto come = [&](__half* at, std::size_t bytes) {
            return must(held_.space.advise_async(device_, at, bytes, xmm::advice::will_need),
                        "will_need");
        };
        auto a_comes = come(a, of_.a());
        auto b_comes = come(b, of_.b());
        a_comes.wait();
        b_comes.wait();
        must(xmm::launch(
                 line_, {xmm::reads(a, of_.a()), xmm::reads(b, of_.b()), xmm::writes(c_, of_.c())},
                 [&](xmm::cuda_stream& s) { blas_.multiply(s, a, b, c_, of_.n, of_.m, of_.k); }),
             "launch");
        must(line_.synchronize(), "synchronize");
    }

    cublas& blas_;
    moded_space held_;
    xmm::node_id device_ = held_.space.devices()[0];
    xmm::queue line_ = must(held_.space.make_queue(device_), "queue");
    extents of_{};
    __half *a_ = nullptr, *b_ = nullptr, *mostly_a_ = nullptr, *mostly_b_ = nullptr, *c_ = nullptr;
};

struct way {
    std::string name;
    std::function<void()> prepare, run;
    std::function<std::size_t()> check;  // how many elements are wrong
    std::vector<double> ms{};
    std::size_t wrong = 0;
};

}  // namespace

int main(int argc, char** argv) {
    const request asked =
        read_arguments(argc, argv, "FP16 matrix product with its inputs on the host", {});
    const report::options& chosen = asked.options;
    cublas blas;
    ours vmm{blas, false};
    ours steered{blas, true};
    cudaStream_t stream = make_stream();
    const int n = chosen.is_short ? 256 : 10'240;
    const int m = n;
    const int most_k = chosen.is_short ? 256 : 20'480;
    const std::vector<__half> source =
        random_values(std::size_t(n) * most_k + std::size_t(most_k) * m);
    unsigned long long* far = nullptr;
    CUDA_BENCH_MUST(cudaMallocHost(&far, sizeof *far));
    report::print_head("ms, and the share of pinned copies");
    for (const int k : chosen.is_short ? std::vector<int>{256}
                                       : std::vector<int>{1024, 2048, 4096, 8192, 16384, 20480}) {
        const extents of{n, m, k};
        const float slack = 2e-3F * std::sqrt(static_cast<float>(k));
        // Explicit: pinned host memory, plain device memory.
        pinned pinned_a{of.a()}, pinned_b{of.b()};
        on_device device_a{of.a()}, device_b{of.b()}, device_c{of.c()};
        managed uvm_a{of.a()}, uvm_b{of.b()}, uvm_c{of.c()};
        const auto half = [](char* at) { return reinterpret_cast<__half*>(at); };
        vmm.map(of);
        steered.map(of);
        const auto write = [&](__half* a, __half* b) {
            std::memcpy(static_cast<void*>(a), source.data(), of.a());
            std::memcpy(static_cast<void*>(b), source.data() + std::size_t(n) * k, of.b());
        };
        const auto far_from_first = [&](const char* c) {
            *far = 0;
            count_far<<<1024, 256, 0, stream>>>(reinterpret_cast<const __half*>(c),
                                                half(device_c.at), of.c() / 2, slack, far);
            CUDA_BENCH_MUST(cudaStreamSynchronize(stream));
            return static_cast<std::size_t>(*far);
        };
        std::vector<way> ways;
        bool is_known = false;  // whether some elements of the first way's product were found right
        ways.push_back({"pinned copies + device memory",
                        [&] { write(half(pinned_a.at), half(pinned_b.at)); },
                        [&] {
                            CUDA_BENCH_MUST(cudaMemcpyAsync(device_a.at, pinned_a.at, of.a(),
                                                            cudaMemcpyHostToDevice, stream));
                            CUDA_BENCH_MUST(cudaMemcpyAsync(device_b.at, pinned_b.at, of.b(),
                                                            cudaMemcpyHostToDevice, stream));
                            blas.multiply(stream, half(device_a.at), half(device_b.at),
                                          half(device_c.at), n, m, k);
                            CUDA_BENCH_MUST(cudaStreamSynchronize(stream));
                        },
                        [&] {
                            if (!std::exchange(is_known, true)) {
                                std::vector<__half> product(std::size_t(n) * m);
                                CUDA_BENCH_MUST(cudaMemcpy(product.data(), device_c.at, of.c(),
                                                           cudaMemcpyDeviceToHost));
                                check(product, source, n, m, k);
                            }
                            return std::size_t{0};
                        }});
        const auto uvm_home = [&] {
            prefetch(uvm_a.at, of.a(), the_host, stream);
            prefetch(uvm_b.at, of.b(), the_host, stream);
            prefetch(uvm_c.at, of.c(), the_host, stream);
            write(half(uvm_a.at), half(uvm_b.at));
        };
        const auto uvm_multiply = [&] {
            blas.multiply(stream, half(uvm_a.at), half(uvm_b.at), half(uvm_c.at), n, m, k);
            CUDA_BENCH_MUST(cudaStreamSynchronize(stream));
        };
        const auto uvm_wrong = [&] { return far_from_first(uvm_c.at); };
        ways.push_back({"UVM by faults", uvm_home, uvm_multiply, uvm_wrong});
        ways.push_back({"UVM with prefetch", uvm_home,
                        [&] {
                            for (const managed* one : {&uvm_a, &uvm_b, &uvm_c}) {
                                const std::size_t bytes = one == &uvm_a   ? of.a()
                                                          : one == &uvm_b ? of.b()
                                                                          : of.c();
                                CUDA_BENCH_MUST(
                                    cudaMemPrefetchAsync(one->at, bytes, the_card, 0, stream));
                            }
                            uvm_multiply();
                        },
                        uvm_wrong});
        for (ours* one : {&vmm, &steered}) {
            const std::string name = one == &vmm ? "xmm" : "xmm, managed";
            const auto wrong = [&, one] { return one->count_wrong(half(device_c.at), slack, far); };
            ways.push_back(
                {name, [&, one] { one->write(write); }, [one] { one->multiply(); }, wrong});
            ways.push_back({name + ", inputs read-mostly", [&, one] { one->write_mostly(write); },
                            [one] { one->multiply_mostly(); }, wrong});
        }
        const int rounds = std::min(chosen.rounds, 5);
        for (int round = 0; round <= rounds; ++round) {
            for (way& one : ways) {
                one.prepare();
                const report::stopwatch watch;
                one.run();
                if (round > 0) {
                    one.ms.push_back(watch.seconds() * 1e3);
                }
                one.wrong += one.check();
            }
        }
        const double bound = report::summarise(ways[0].ms).median;
        for (const way& one : ways) {
            const report::figure ms = report::summarise(one.ms);
            char share[48];
            std::snprintf(share, sizeof share, "ms  %.3f  %s", ms.median / bound,
                          one.wrong == 0 ? "right" : "WRONG");
            report::print("k = " + std::to_string(k) + ", " + one.name, ms, share);
            wrong_values += one.wrong;
        }
        vmm.unmap();
        steered.unmap();
        std::fflush(stdout);
    }
    CUDA_BENCH_MUST(cudaFreeHost(far));
    return verdict();
}
