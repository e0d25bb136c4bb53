// SPDX-License-Identifier: Apache-2.0
// The software driver: what kernels and copies may reach, and what becomes of those that may not.
#include "rig.hpp"

#include <atomic>
#include <vector>

using namespace libcuda_test;

TEST_CASE("kernels and copies reach what their device may reach") {
    NEEDS_SOFT_CUDA();
    rig r;
    range where{4 * page};
    where.map(CU_MEM_LOCATION_TYPE_DEVICE, 0, 2 * page);
    where.map(CU_MEM_LOCATION_TYPE_HOST_NUMA, 2 * page, 2 * page);
    where.open(0, 4 * page, to_device());
    const CUstream s = r.make_stream();
    OK(cu().memset_d32_async(where.at, 0xabababab, 4 * page / 4, s));
    std::atomic<int> wrong{0};
    kernel_body all = [&](soft_cuda::accessor& memory) {
        for (std::size_t at = 0; at < 4 * page; at += 4096) {
            wrong += memory.load<unsigned>(where.at + at) != 0xabababab ? 1 : 0;
        }
        const std::uint64_t across = 0x1122334455667788;  // over the border of two frames
        memory.store(where.at + 2 * page - 4, across);
        wrong += memory.load<std::uint64_t>(where.at + 2 * page - 4) != across ? 1 : 0;
    };
    OK(launch(s, all));
    OK(cu().stream_synchronize(s));
    CHECK(wrong == 0);
    where.open(2 * page, 2 * page, to_cpu());
    CHECK(*reinterpret_cast<unsigned*>(where.cpu(2 * page)) == 0x11223344);
    CHECK(*reinterpret_cast<unsigned*>(where.cpu(3 * page)) == 0xabababab);

    // Bytes of any number and place, over the border too.
    std::vector<unsigned char> there(3 * MiB + 13), back(there.size());
    for (std::size_t i = 0; i < there.size(); ++i) {
        there[i] = static_cast<unsigned char>(i * 7 + i / 251);
    }
    const CUdeviceptr odd = where.at + 2 * page - 1 * MiB - 3;
    OK(cu().memcpy_async(odd, reinterpret_cast<CUdeviceptr>(there.data()), there.size(), s));
    OK(cu().memcpy_async(reinterpret_cast<CUdeviceptr>(back.data()), odd, back.size(), s));
    CHECK(there == back);  // pageable: over when the call is
    OK(cu().memcpy_async(odd, odd, 0, s));
    CHECK(cu().memcpy_async(0, odd, 1, s) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().memset_d32_async(odd, 1, 1, s) == CUDA_ERROR_INVALID_VALUE);  // misaligned
    CHECK(cu().memset_d8_async(0, 1, 1, s) == CUDA_ERROR_INVALID_VALUE);
    OK(cu().stream_destroy(s));
}

TEST_CASE("an access that is not granted ends the context, for good") {
    NEEDS_SOFT_CUDA();
    rig r;
    range where{4 * page};
    where.map(CU_MEM_LOCATION_TYPE_DEVICE, 0, page);
    where.map(CU_MEM_LOCATION_TYPE_DEVICE, page, page);
    where.open(0, page, to_device());
    const CUstream s = r.make_stream();
    kernel_body touch;
    SUBCASE("a kernel reads what is mapped for nobody") {
        touch = [&](soft_cuda::accessor& memory) { (void)memory.load<int>(where.at + page); };
        OK(launch(s, touch));
    }
    SUBCASE("a kernel runs off the end of what is mapped") {
        touch = [&](soft_cuda::accessor& memory) {
            std::vector<char> all(3 * page);
            CHECK(!memory.read(where.at, all.data(), all.size()));
            CHECK(memory.at<int>(where.at, false) == nullptr);  // nothing works after a miss
        };
        OK(launch(s, touch));
    }
    SUBCASE("a kernel writes where it may only read") {
        where.open(0, page, access(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
        touch = [&](soft_cuda::accessor& memory) {
            CHECK(memory.at<int>(where.at, false) != nullptr);
            CHECK(memory.at<int>(where.at, true) == nullptr);
        };
        OK(launch(s, touch));
    }
    SUBCASE("a kernel reads memory of the CPU") {
        static int of_cpu = 3;
        touch = [&](soft_cuda::accessor& memory) {
            CHECK(memory.at<int>(reinterpret_cast<CUdeviceptr>(&of_cpu), false) == nullptr);
        };
        OK(launch(s, touch));
    }
    SUBCASE("a copy reads a hole") {
        OK(cu().memcpy_async(where.at, where.at + 2 * page, 4096, s));
    }
    SUBCASE("a copy writes what another device may use, but this one not") {
        where.open(page, page, to_device(1));
        OK(cu().memcpy_async(where.at + page, where.at, 4096, s));
    }
    SUBCASE("a fill runs into it") { OK(cu().memset_d8_async(where.at, 0, 2 * page, s)); }

    bool has_run = false;
    auto set = [](void* of) { *static_cast<bool*>(of) = true; };
    // May be refused already, may be taken and passed over: it does not run.
    (void)cu().launch_host_func(s, set, &has_run);
    CHECK(cu().stream_synchronize(s) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cu().stream_query(s) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(!has_run);
    std::size_t free = 0, total = 0;
    CHECK(cu().mem_get_info(&free, &total) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cu().mem_unmap(where.at, page) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CUdeviceptr at = 0;
    CHECK(cu().mem_alloc(&at, 64) == CUDA_ERROR_ILLEGAL_ADDRESS);
    // Another device's context lives, and so do questions.
    int count = 0;
    OK(cu().device_get_count(&count));
    {
        const rig other{1};
        OK(cu().mem_alloc(&at, 64));
        OK(cu().mem_free(at));
        // Without the lost context current, mappings can be taken down.
        OK(cu().mem_unmap(where.at, page));
        where.mapped.erase(where.mapped.begin());
    }
    // The context's end heals it.
    CUcontext popped = nullptr;
    OK(cu().ctx_pop_current(&popped));
    OK(cu().device_primary_ctx_release(0));
    MUST(cu().device_primary_ctx_retain(&r.context, 0));
    MUST(cu().ctx_push_current(r.context));
    OK(cu().mem_get_info(&free, &total));
}

TEST_CASE("memory that is unmapped under a copy is missed by it") {
    NEEDS_SOFT_CUDA();
    rig r;
    OK(soft().link(0, 40'000'000));  // 2 MiB take 50 ms
    range where{page}, host{page};
    where.map(CU_MEM_LOCATION_TYPE_DEVICE, 0, page);
    host.map(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, page);
    where.open(0, page, to_device());
    host.open(0, page, to_device());
    const CUstream s = r.make_stream();
    OK(cu().memcpy_async(where.at, host.at, page, s));
    std::this_thread::sleep_for(5ms);
    OK(cu().mem_unmap(where.at, page));
    where.mapped.clear();
    CHECK(cu().stream_synchronize(s) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CUcontext popped = nullptr;
    OK(cu().ctx_pop_current(&popped));  // else nothing could be taken down
    OK(cu().device_primary_ctx_release(0));
    MUST(cu().device_primary_ctx_retain(&r.context, 0));
    MUST(cu().ctx_push_current(r.context));
}

TEST_CASE("mapping does not wait for a running kernel") {
    NEEDS_SOFT_CUDA();
    rig r;
    range where{2 * page};
    where.map(CU_MEM_LOCATION_TYPE_DEVICE, 0, page);
    where.open(0, page, to_device());
    const CUstream s = r.make_stream();
    gate held;
    OK(launch(s, held.body));
    OK(cu().mem_unmap(where.at, page));
    where.mapped.clear();
    where.map(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, page);
    where.open(0, page, to_device(), to_cpu());
    CHECK(cu().stream_query(s) == CUDA_ERROR_NOT_READY);
    held.is_open = true;
    OK(cu().stream_synchronize(s));
}

TEST_CASE("peers copy freely; kernels need their permission") {
    NEEDS_SOFT_CUDA();
    rig here;
    CUdeviceptr mine = 0, theirs = 0;
    MUST(cu().mem_alloc(&mine, page));
    {
        const rig there{1};
        MUST(cu().mem_alloc(&theirs, page));
        const CUstream s = there.make_stream();
        OK(cu().memset_d32_async(theirs, 42, page / 4, s));
        OK(cu().memcpy_async(mine, theirs, page, s));
        OK(cu().stream_synchronize(s));
        CHECK(soft().count("bytes between devices") == page);
        // VMM memory: as the access says, whichever device it lies on.
        range both{page};
        both.map(CU_MEM_LOCATION_TYPE_DEVICE, 0, page, 0);
        both.open(0, page, to_device(0), to_device(1));
        kernel_body writes = [&](soft_cuda::accessor& memory) { memory.store(both.at, 8); };
        OK(launch(s, writes));
        OK(cu().stream_synchronize(s));
        OK(cu().mem_free(theirs));
    }
    int got = 0;
    OK(cu().memcpy_async(reinterpret_cast<CUdeviceptr>(&got), mine, sizeof got, nullptr));
    CHECK(got == 42);
    OK(cu().mem_free(mine));
}
