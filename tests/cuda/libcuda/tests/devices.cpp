// SPDX-License-Identifier: Apache-2.0
// The software driver: what it exports, its devices and contexts, what the environment makes of them.
#include "rig.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>

using namespace libcuda_test;

TEST_CASE("every function that we declare is found under its name and version") {
    NEEDS_SOFT_CUDA();
    for (const auto& name : lib().missing) {
        FAIL_CHECK(name, " is missing");
    }
    CHECK(lib().missing.empty());

    void* found = nullptr;
    auto said = CU_GET_PROC_ADDRESS_SUCCESS;
    OK(cu().get_proc_address("cuMemPrefetchAsync", &found, 12020, 0, &said));
    CHECK(found == ::dlsym(lib().handle, "cuMemPrefetchAsync_v2"));
    // The plain name is the old interface: who looks there calls with the wrong arguments.
    OK(cu().get_proc_address("cuMemPrefetchAsync", &found, 12010, 0, &said));
    CHECK(found == ::dlsym(lib().handle, "cuMemPrefetchAsync"));
    OK(cu().get_proc_address("cuStreamGetCtx", &found, 9020, 0, &said));
    CHECK(found == ::dlsym(lib().handle, "cuStreamGetCtx"));
    OK(cu().get_proc_address("cuStreamGetCtx", &found, 13000, 0, &said));
    CHECK(found == ::dlsym(lib().handle, "cuStreamGetCtx_v2"));

    OK(cu().get_proc_address("cuNoSuchThing", &found, 12020, 0, &said));
    CHECK(found == nullptr);
    CHECK(said == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    OK(cu().get_proc_address("cuMemCreate", &found, 10000, 0, &said));
    CHECK(found == nullptr);
    CHECK(said == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    CHECK(cu().get_proc_address("cuMemCreate", &found, 99000, 0, &said) ==
          CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().get_proc_address("cuNoSuchThing", &found, 12020, 0, nullptr) ==
          CUDA_ERROR_NOT_FOUND);
}

TEST_CASE("devices say what they are, and errors have names") {
    NEEDS_SOFT_CUDA();
    MUST(cu().init(0));
    CHECK(cu().init(1) == CUDA_ERROR_INVALID_VALUE);
    int count = 0, version = 0, value = -7;
    OK(cu().device_get_count(&count));
    CHECK(count == 2);
    OK(cu().driver_get_version(&version));
    CHECK(version == 13000);
    CUdevice device = -1;
    OK(cu().device_get(&device, 1));
    CHECK(device == 1);
    CHECK(cu().device_get(&device, 2) == CUDA_ERROR_INVALID_DEVICE);
    CHECK(cu().device_get(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
    char name[64] = {}, bus[16] = {};
    OK(cu().device_get_name(name, sizeof name, 1));
    CHECK(std::string{name} == "software CUDA device 1");
    OK(cu().device_get_pci_bus_id(bus, sizeof bus, 1));
    CHECK(std::string{bus} == "FFFF:02:00.0");
    std::size_t bytes = 0;
    OK(cu().device_total_mem(&bytes, 0));
    CHECK(bytes == 64 * MiB);
    OK(cu().device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0));
    CHECK(value == 0);
    OK(cu().device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0));
    CHECK(value == 1);
    CUuuid first{}, second{};
    OK(cu().device_get_uuid(&first, 0));
    OK(cu().device_get_uuid(&second, 1));
    CHECK(std::memcmp(&first, &second, sizeof first) != 0);
    OK(cu().device_can_access_peer(&value, 0, 1));
    CHECK(value == 1);
    OK(cu().device_can_access_peer(&value, 0, 0));
    CHECK(value == 0);

    const char* text = nullptr;
    OK(cu().get_error_name(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
    CHECK(std::string{text} == "CUDA_ERROR_ILLEGAL_ADDRESS");
    OK(cu().get_error_string(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(std::string{text} == "out of memory");
    CHECK(cu().get_error_name(static_cast<CUresult>(12345), &text) == CUDA_ERROR_INVALID_VALUE);
    CHECK(text == nullptr);
}

TEST_CASE("a context is current per thread, and calls without one are refused") {
    NEEDS_SOFT_CUDA();
    MUST(cu().init(0));
    CUcontext first = nullptr, second = nullptr, current = nullptr;
    std::size_t free = 0, total = 0;
    OK(cu().ctx_get_current(&current));
    CHECK(current == nullptr);
    CHECK(cu().mem_get_info(&free, &total) == CUDA_ERROR_INVALID_CONTEXT);
    CUdeviceptr at = 0;
    CHECK(cu().mem_alloc(&at, 64) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cu().ctx_pop_current(&current) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cu().ctx_push_current(nullptr) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cu().device_primary_ctx_release(0) == CUDA_ERROR_INVALID_CONTEXT);

    MUST(cu().device_primary_ctx_retain(&first, 0));
    MUST(cu().device_primary_ctx_retain(&second, 1));
    CHECK(first != second);
    OK(cu().ctx_push_current(first));
    OK(cu().ctx_push_current(second));
    int device = -1;
    OK(cu().ctx_get_device(&device));
    CHECK(device == 1);
    std::thread{[&] {
        CUcontext here = first;
        OK(cu().ctx_get_current(&here));
        CHECK(here == nullptr);
    }}.join();
    OK(cu().ctx_pop_current(&current));
    CHECK(current == second);
    OK(cu().mem_get_info(&free, &total));
    CHECK(free == total);
    OK(cu().device_primary_ctx_release(1));
    CHECK(cu().ctx_push_current(second) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cu().device_primary_ctx_release(0));
    CHECK(cu().mem_get_info(&free, &total) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cu().ctx_pop_current(&current));
}

TEST_CASE("a context's end takes its memory and its streams with it") {
    NEEDS_SOFT_CUDA();
    CUdeviceptr plain = 0, managed = 0;
    void* host = nullptr;
    CUstream stream = nullptr;
    {
        rig r;
        MUST(cu().mem_alloc(&plain, 4 * MiB));
        MUST(cu().mem_alloc_managed(&managed, 4 * MiB, CU_MEM_ATTACH_GLOBAL));
        MUST(cu().mem_host_alloc(&host, 4096, 0));
        stream = r.make_stream();
        CHECK(soft().held(0) == 4 * MiB);
    }  // checks that nothing is held
    CHECK(!cpu_reads(reinterpret_cast<void*>(managed)));
    CHECK(!cpu_reads(host));
    rig r;
    CHECK(cu().stream_query(stream) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cu().mem_free(plain) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("the environment: no device") {
    NEEDS_SOFT_CUDA();
    if (is_child("the environment: no device", {"SOFT_CUDA_DEVICES=0"})) {
        int count = 0;
        CHECK(cu().device_get_count(&count) == CUDA_ERROR_NOT_INITIALIZED);
        CHECK(cu().init(0) == CUDA_ERROR_NO_DEVICE);
    }
}

TEST_CASE("the environment: devices, sizes, attributes, faults") {
    NEEDS_SOFT_CUDA();
    if (is_child("the environment: devices*",
                 {"SOFT_CUDA_DEVICES=3", "SOFT_CUDA_BYTES=1G", "SOFT_CUDA_ATTRIBUTES=89=0,110=0",
                  "SOFT_CUDA_POISON=1", "SOFT_CUDA_DELAY=cuDeviceGetCount:20000",
                  "SOFT_CUDA_FAIL=cuInit:0:1:803,cuDeviceGet:1:1:46"})) {
        CHECK(cu().init(0) == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
        MUST(cu().init(0));
        int count = 0, value = 1;
        const auto began = clock_type::now();
        OK(cu().device_get_count(&count));
        CHECK(clock_type::now() - began >= 20ms);
        CHECK(count == 3);
        OK(cu().device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 2));
        CHECK(value == 0);
        OK(cu().device_get(&value, 1));
        CHECK(cu().device_get(&value, 1) == CUDA_ERROR_DEVICE_UNAVAILABLE);
        std::size_t bytes = 0;
        OK(cu().device_total_mem(&bytes, 2));
        CHECK(bytes == 1024 * MiB);

        const rig r;
        CUmemGenericAllocationHandle handle = 0;
        auto asked = properties(CU_MEM_LOCATION_TYPE_DEVICE, 0);
        asked.allocFlags.gpuDirectRDMACapable = 1;
        CHECK(cu().mem_create(&handle, page, &asked, 0) == CUDA_ERROR_NOT_SUPPORTED);
        CUdeviceptr at = 0;
        MUST(cu().mem_alloc(&at, 4096));
        unsigned char got = 0;
        OK(cu().memcpy_async(reinterpret_cast<CUdeviceptr>(&got), at, 1, nullptr));
        CHECK(got == 0xA5);  // fresh memory is nobody's zeros
        OK(cu().mem_free(at));
    }
}

TEST_CASE("the environment: an older driver") {
    NEEDS_SOFT_CUDA();
    if (is_child("the environment: an older driver", {"SOFT_CUDA_VERSION=11080"})) {
        int version = 0;
        OK(cu().driver_get_version(&version));
        CHECK(version == 11080);
        // What we ask for at 12.2 and later is not there.
        CHECK(!cu().mem_prefetch_async);
        CHECK(!cu().mem_discard_batch_async);
        CHECK(cu().mem_create);
    }
}

TEST_CASE("a forked child has no driver") {
    NEEDS_SOFT_CUDA();
    const rig r;
    const pid_t child = ::fork();
    if (child == 0) {
        int count = 0;
        const bool refused = cu().device_get_count(&count) == CUDA_ERROR_NOT_INITIALIZED &&
                             cu().init(0) == CUDA_ERROR_NOT_INITIALIZED;
        ::_exit(refused ? 0 : 1);
    }
    REQUIRE(child > 0);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
}
