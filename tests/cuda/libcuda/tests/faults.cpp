// SPDX-License-Identifier: Apache-2.0
// The software driver: faults, delays, counts, the link.
#include "rig.hpp"

#include <functional>
#include <string>
#include <utility>
#include <vector>

using namespace libcuda_test;

namespace {

// A call with nothing but zeros, for what fails before it looks at them.
template <class... Args>
std::function<CUresult()> call_with_zeros(const driver_function<CUresult(Args...)>& one) {
    return [&one] { return one(Args{}...); };
}

}  // namespace

TEST_CASE("each function that we declare fails when it is told to, once, and does nothing") {
    NEEDS_SOFT_CUDA();
    const rig r;
    std::vector<std::pair<const char*, std::function<CUresult()>>> all;
    for_each_function(cu(),
                      [&](const auto& one) { all.emplace_back(one.name, call_with_zeros(one)); });
    for (const auto& [name, call] : all) {
        CAPTURE(name);
        OK(soft().fail(name, 0, 1, CUDA_ERROR_EXTERNAL_DEVICE));
        CHECK(call() == CUDA_ERROR_EXTERNAL_DEVICE);
        CHECK(soft().calls(name) == 1);
    }
    std::size_t free = 0, total = 0;
    OK(cu().mem_get_info(&free,
                         &total));  // the context is still current, and nothing fails any more
}

TEST_CASE("faults, delays and counts") {
    NEEDS_SOFT_CUDA();
    rig r;
    CUdeviceptr at = 0;
    CHECK(soft().fail("cuNoSuchThing", 0, 1, CUDA_ERROR_UNKNOWN) == CUDA_ERROR_NOT_FOUND);
    OK(soft().fail("cuMemAlloc", 1, 2, CUDA_ERROR_OUT_OF_MEMORY));
    OK(cu().mem_alloc(&at, 64));
    OK(cu().mem_free(at));
    CHECK(cu().mem_alloc(&at, 64) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cu().mem_alloc(&at, 64) == CUDA_ERROR_OUT_OF_MEMORY);
    OK(cu().mem_alloc(&at, 64));
    OK(cu().mem_free(at));
    CHECK(soft().calls("cuMemAlloc") == 4);
    CHECK(soft().calls("cuMemFree_v2") == 2);

    OK(soft().delay("cuMemGetInfo", 30'000));
    const auto began = clock_type::now();
    std::size_t free = 0, total = 0;
    OK(cu().mem_get_info(&free, &total));
    CHECK(clock_type::now() - began >= 30ms);
    soft().reset();
    CHECK(soft().calls("cuMemAlloc") == 0);

    // Another process's memory is not ours to have.
    OK(soft().take(0, 60 * MiB));
    OK(cu().mem_get_info(&free, &total));
    CHECK(free == 4 * MiB);
    CHECK(total == 64 * MiB);
    CHECK(cu().mem_alloc(&at, 5 * MiB) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(soft().take(0, 65 * MiB) == CUDA_ERROR_OUT_OF_MEMORY);
    OK(soft().take(0, 0));

    // Work that fails, fails later, and ends the context; so does a code of that kind from any call.
    const CUstream s = r.make_stream();
    SUBCASE("a copy") {
        MUST(cu().mem_alloc(&at, 8192));
        OK(soft().fail("copy", 1, 1, CUDA_ERROR_ECC_UNCORRECTABLE));
        OK(cu().memcpy_async(at, at + 4096, 64, s));
        OK(cu().stream_synchronize(s));
        OK(cu().memcpy_async(at, at + 4096, 64, s));
        CHECK(cu().stream_synchronize(s) == CUDA_ERROR_ECC_UNCORRECTABLE);
        CHECK(cu().mem_get_info(&free, &total) == CUDA_ERROR_ECC_UNCORRECTABLE);
    }
    SUBCASE("a call") {
        OK(soft().fail("cuStreamQuery", 0, 1, CUDA_ERROR_LAUNCH_FAILED));
        CHECK(cu().stream_query(s) == CUDA_ERROR_LAUNCH_FAILED);
        CHECK(cu().stream_query(s) == CUDA_ERROR_LAUNCH_FAILED);
    }
    SUBCASE("the device") {
        CHECK(soft().break_device(0, CUDA_ERROR_NOT_READY) == CUDA_ERROR_INVALID_VALUE);
        OK(soft().break_device(0, CUDA_ERROR_LAUNCH_TIMEOUT));
        CHECK(cu().stream_query(s) == CUDA_ERROR_LAUNCH_TIMEOUT);
    }
}

TEST_CASE("the link has a speed, each way") {
    NEEDS_SOFT_CUDA();
    rig r;
    const CUstream up = r.make_stream(), down = r.make_stream();
    OK(soft().link(0, 100'000'000));
    CUdeviceptr one = 0, two = 0;
    void *host = nullptr, *other = nullptr;
    constexpr std::size_t bytes = 4'000'000;  // 40 ms
    MUST(cu().mem_alloc(&one, bytes));
    MUST(cu().mem_alloc(&two, bytes));
    MUST(cu().mem_host_alloc(&host, bytes, 0));
    MUST(cu().mem_host_alloc(&other, bytes, 0));
    const auto began = clock_type::now();
    OK(cu().memcpy_async(one, reinterpret_cast<CUdeviceptr>(host), bytes, up));
    OK(cu().memcpy_async(reinterpret_cast<CUdeviceptr>(other), two, bytes, down));
    OK(cu().stream_synchronize(up));
    OK(cu().stream_synchronize(down));
    const auto took = clock_type::now() - began;
    CHECK(took >= 38ms);
    CHECK(soft().count("bytes to device") == bytes);
    CHECK(soft().count("bytes to host") == bytes);
    for (const CUdeviceptr at : {one, two}) {
        OK(cu().mem_free(at));
    }
    OK(cu().mem_free_host(host));
    OK(cu().mem_free_host(other));
}
