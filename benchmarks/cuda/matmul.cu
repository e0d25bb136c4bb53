// SPDX-License-Identifier: Apache-2.0
// C = A * B in FP16, A and B written by the CPU: from the first byte that moves to the product on the device.
// After figure 9 of "Generalized OS Memory Management" (arXiv 2310.12554). n = m = 10 240, k = 1 024 ... 20 480.
// cuBLAS is found at run time: CUBLAS_LIBRARY names it, else libcublas.so.13 or .12 of the search path.
#include "rig.hpp"

#include <cuda_fp16.h>
#include <dlfcn.h>

#include <cmath>
#include <cstring>

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

}  // namespace

int main(int argc, char** argv) {
    report::options chosen;
    if (!report::parse(argc, argv, "FP16 matrix product with its inputs on the host", chosen)) {
        return 2;
    }
    cublas blas;
    auto space = must(xmm::space::create(), "space");
    const xmm::node_id device = space.devices()[0];
    xmm::queue line = must(space.make_queue(device), "queue");
    cudaStream_t stream = nullptr;
    CUDA_BENCH_MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const int n = chosen.is_short ? 256 : 10'240;
    const int m = n;
    const int most_k = chosen.is_short ? 256 : 20'480;
    const std::vector<__half> source =
        random_values(std::size_t(n) * most_k + std::size_t(most_k) * m);
    report::print_head("ms, and the share of pinned copies");
    for (const int k : chosen.is_short ? std::vector<int>{256}
                                       : std::vector<int>{1024, 2048, 4096, 8192, 16384, 20480}) {
        const std::size_t a_bytes = std::size_t(n) * k * 2;
        const std::size_t b_bytes = std::size_t(k) * m * 2;
        const std::size_t c_bytes = std::size_t(n) * m * 2;
        // Explicit: pinned host memory, plain device memory.
        __half *pa, *pb, *da, *db, *dc;
        CUDA_BENCH_MUST(cudaMallocHost(&pa, a_bytes));
        CUDA_BENCH_MUST(cudaMallocHost(&pb, b_bytes));
        CUDA_BENCH_MUST(cudaMalloc(&da, a_bytes));
        CUDA_BENCH_MUST(cudaMalloc(&db, b_bytes));
        CUDA_BENCH_MUST(cudaMalloc(&dc, c_bytes));
        __half *ua, *ub, *uc;
        CUDA_BENCH_MUST(cudaMallocManaged(&ua, a_bytes));
        CUDA_BENCH_MUST(cudaMallocManaged(&ub, b_bytes));
        CUDA_BENCH_MUST(cudaMallocManaged(&uc, c_bytes));
        auto* xa = static_cast<__half*>(must(space.map(a_bytes), "map"));
        auto* xb = static_cast<__half*>(must(space.map(b_bytes), "map"));
        auto* ra = static_cast<__half*>(must(space.map(a_bytes, {.is_read_mostly = true}), "map"));
        auto* rb = static_cast<__half*>(must(space.map(b_bytes, {.is_read_mostly = true}), "map"));
        auto* xc = static_cast<__half*>(must(space.map(c_bytes, {.preferred = device}), "map"));
        const auto write = [&](__half* a, __half* b) {
            std::memcpy(a, source.data(), a_bytes);
            std::memcpy(b, source.data() + std::size_t(n) * k, b_bytes);
        };
        const auto at_host = [&](void* at, std::size_t bytes) {
            cudaMemLocation where{cudaMemLocationTypeHost, 0};
            CUDA_BENCH_MUST(cudaMemPrefetchAsync(at, bytes, where, 0, stream));
            CUDA_BENCH_MUST(cudaStreamSynchronize(stream));
        };
        const auto at_device = [&](void* at, std::size_t bytes) {
            cudaMemLocation where{cudaMemLocationTypeDevice, 0};
            CUDA_BENCH_MUST(cudaMemPrefetchAsync(at, bytes, where, 0, stream));
        };
        struct way {
            const char* name;
            std::function<void()> prepare, run;
            std::vector<double> ms;
        };
        std::vector<way> ways;
        ways.push_back(
            {"pinned copies + device memory",
             [&] { write(pa, pb); },
             [&] {
                 CUDA_BENCH_MUST(cudaMemcpyAsync(da, pa, a_bytes, cudaMemcpyHostToDevice, stream));
                 CUDA_BENCH_MUST(cudaMemcpyAsync(db, pb, b_bytes, cudaMemcpyHostToDevice, stream));
                 blas.multiply(stream, da, db, dc, n, m, k);
                 CUDA_BENCH_MUST(cudaStreamSynchronize(stream));
             },
             {}});
        const auto uvm_home = [&] {
            at_host(ua, a_bytes);
            at_host(ub, b_bytes);
            at_host(uc, c_bytes);
            write(ua, ub);
        };
        ways.push_back({"UVM by faults",
                        uvm_home,
                        [&] {
                            blas.multiply(stream, ua, ub, uc, n, m, k);
                            CUDA_BENCH_MUST(cudaStreamSynchronize(stream));
                        },
                        {}});
        ways.push_back({"UVM with prefetch",
                        uvm_home,
                        [&] {
                            at_device(ua, a_bytes);
                            at_device(ub, b_bytes);
                            at_device(uc, c_bytes);
                            blas.multiply(stream, ua, ub, uc, n, m, k);
                            CUDA_BENCH_MUST(cudaStreamSynchronize(stream));
                        },
                        {}});
        const auto multiply = [&](__half* a, __half* b) {
            auto a_comes =
                must(space.advise_async(device, a, a_bytes, xmm::advice::will_need), "will_need");
            auto b_comes =
                must(space.advise_async(device, b, b_bytes, xmm::advice::will_need), "will_need");
            a_comes.wait();
            b_comes.wait();
            must(xmm::launch(
                     line,
                     {xmm::reads(a, a_bytes), xmm::reads(b, b_bytes), xmm::writes(xc, c_bytes)},
                     [&](xmm::cuda_stream& s) { blas.multiply(s, a, b, xc, n, m, k); }),
                 "launch");
            must(line.synchronize(), "synchronize");
        };
        ways.push_back(
            {"xmm",
             [&] {
                 must(space.advise(xmm::any_host, xa, a_bytes, xmm::advice::will_need), "home");
                 must(space.advise(xmm::any_host, xb, b_bytes, xmm::advice::will_need), "home");
                 write(xa, xb);
             },
             [&] { multiply(xa, xb); },
             {}});
        // The CPU's writes drop the device's copies.
        ways.push_back(
            {"xmm, inputs read-mostly", [&] { write(ra, rb); }, [&] { multiply(ra, rb); }, {}});
        const int rounds = std::min(chosen.rounds, 5);
        for (int round = 0; round <= rounds; ++round) {
            for (way& one : ways) {
                one.prepare();
                const report::stopwatch watch;
                one.run();
                if (round > 0) {
                    one.ms.push_back(watch.seconds() * 1e3);
                }
            }
        }
        const double bound = report::summarise(ways[0].ms).median;
        for (const way& one : ways) {
            const report::figure ms = report::summarise(one.ms);
            char share[32];
            std::snprintf(share, sizeof share, "ms  %.3f", ms.median / bound);
            report::print("k = " + std::to_string(k) + ", " + one.name, ms, share);
        }
        std::vector<__half> product(std::size_t(n) * m);
        std::memcpy(product.data(), xc, c_bytes);
        check(product, source, n, m, k);
        for (void* at : {(void*)da, (void*)db, (void*)dc, (void*)ua, (void*)ub, (void*)uc}) {
            CUDA_BENCH_MUST(cudaFree(at));
        }
        CUDA_BENCH_MUST(cudaFreeHost(pa));
        CUDA_BENCH_MUST(cudaFreeHost(pb));
        for (void* at : {(void*)xa, (void*)xb, (void*)xc, (void*)ra, (void*)rb}) {
            must(space.unmap(at), "unmap");
        }
        std::fflush(stdout);
    }
    return 0;
}
