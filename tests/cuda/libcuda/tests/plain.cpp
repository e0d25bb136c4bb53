// SPDX-License-Identifier: Apache-2.0
// The software driver: memory beside frames, what a pointer is, memory of other processes.
#include "rig.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

using namespace libcuda_test;

TEST_CASE("plain, stream-ordered, page-locked and registered memory") {
    NEEDS_SOFT_CUDA();
    rig r;
    const CUstream s = r.make_stream();
    CUdeviceptr at = 0, base = 0;
    std::size_t bytes = 0;
    CHECK(cu().mem_alloc(&at, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_alloc(nullptr, 64) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_alloc(&at, 65 * MiB) == CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cu().mem_alloc(&at, 3 * MiB));
    CHECK(at % 512 == 0);
    CHECK(!cpu_reads(reinterpret_cast<void*>(at)));
    OK(cu().mem_get_address_range(&base, &bytes, at + MiB));
    CHECK(base == at);
    CHECK(bytes == 3 * MiB);
    CHECK(cu().mem_free(at + 512) == CUDA_ERROR_INVALID_VALUE);

    // Freeing waits for what is under way.
    gate held;
    OK(launch(s, held.body));
    std::thread opens{[&] {
        std::this_thread::sleep_for(20ms);
        held.is_open = true;
    }};
    OK(cu().mem_free(at));
    CHECK(held.is_open);
    opens.join();
    CHECK(cu().mem_free(at) == CUDA_ERROR_INVALID_VALUE);
    OK(cu().mem_free(0));

    MUST(cu().mem_alloc_async(&at, page, s));
    kernel_body writes = [&](soft_cuda::accessor& memory) { memory.store(at, 1); };
    OK(launch(s, writes));
    gate later;
    OK(launch(s, later.body));
    OK(cu().mem_free_async(at, s));
    CHECK(cu().mem_free_async(at, s) == CUDA_ERROR_INVALID_VALUE);
    CHECK(soft().held(0) == page);  // not before the stream comes to it
    later.is_open = true;
    OK(cu().stream_synchronize(s));
    CHECK(soft().held(0) == 0);

    void* locked = nullptr;
    MUST(cu().mem_host_alloc(&locked, 8192, host_alloc_portable));
    static_cast<int*>(locked)[3] = 12;
    int got = 0;
    kernel_body reads = [&](soft_cuda::accessor& memory) {
        got = memory.load<int>(reinterpret_cast<CUdeviceptr>(locked) + 12);
    };
    OK(launch(s, reads));
    OK(cu().stream_synchronize(s));
    CHECK(got == 12);
    CHECK(cu().mem_host_register(locked, 4096, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    OK(cu().mem_free_host(locked));
    CHECK(cu().mem_free_host(locked) == CUDA_ERROR_INVALID_VALUE);

    std::vector<int> own(1024, 9);
    CHECK(cu().mem_host_register(nullptr, 4096, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_host_register(own.data(), 0, 0) == CUDA_ERROR_INVALID_VALUE);
    MUST(cu().mem_host_register(own.data(), 4096, host_register_portable));
    CHECK(cu().mem_host_register(own.data(), 4096, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    kernel_body adds = [&](soft_cuda::accessor& memory) {
        for (std::size_t i = 0; i < own.size(); ++i) {
            const CUdeviceptr one = reinterpret_cast<CUdeviceptr>(own.data() + i);
            memory.store(one, memory.load<int>(one) + 1);
        }
    };
    OK(launch(s, adds));
    OK(cu().stream_synchronize(s));
    CHECK(std::all_of(own.begin(), own.end(), [](int each) { return each == 10; }));
    OK(cu().mem_host_unregister(own.data()));
    CHECK(cu().mem_host_unregister(own.data()) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    void* hole = ::mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(cu().mem_host_register(hole, 8192, 0) == CUDA_ERROR_INVALID_VALUE);
    ::munmap(hole, 8192);
}

TEST_CASE("shared memory that is page-locked: a device keeps it, whatever the CPU's mapping is") {
    NEEDS_SOFT_CUDA();
    rig r;
    CUstream s = r.make_stream();
    range where{4 * page};
    const int file = ::memfd_create("shared", MFD_CLOEXEC);
    REQUIRE(file >= 0);
    REQUIRE(::ftruncate(file, 2 * page) == 0);
    const auto map = [&](void* at, int flags) {
        void* got = ::mmap(at, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED | flags, file, 0);
        REQUIRE(got != MAP_FAILED);
        return static_cast<char*>(got);
    };
    char* standing = map(nullptr, 0);
    char* here = map(where.cpu(), MAP_FIXED);  // over addresses that are reserved
    constexpr unsigned flags = host_register_portable | host_register_device_map;
    soft().attribute(0, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 0);
    CHECK(cu().mem_host_register(here, page, flags) == CUDA_ERROR_NOT_SUPPORTED);
    soft().attribute(0, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1);
    MUST(cu().mem_host_register(here, page, flags));
    MUST(cu().mem_host_register(here + page, page, flags));
    REQUIRE(::mprotect(here, 2 * page, PROT_NONE) == 0);
    standing[5] = 3;
    kernel_body adds = [&](soft_cuda::accessor& memory) {
        memory.store(where.at + 5, static_cast<char>(memory.load<char>(where.at + 5) + 1));
    };
    OK(launch(s, adds));
    OK(cu().stream_synchronize(s));
    CHECK(standing[5] == 4);
    CHECK(!cpu_reads(here));

    // One call stays within one piece.
    CUdeviceptr device_at = 0;
    MUST(cu().mem_alloc(&device_at, 2 * page));
    OK(cu().memcpy_async(device_at, where.at, page, s));
    OK(cu().memcpy_async(device_at, where.at + page, page, s));
    CHECK(cu().memcpy_async(device_at, where.at, page + 1, s) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().memcpy_async(where.at + 8, device_at, page, s) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().memset_d8_async(where.at, 1, page + 1, s) == CUDA_ERROR_INVALID_VALUE);
    OK(cu().memset_d8_async(where.at, 9, page, s));
    OK(cu().stream_synchronize(s));
    CHECK(standing[page - 1] == 9);
    CHECK(standing[page] == 0);

    // A device's memory beside the CPU's at one address: neither touches the other's.
    OK(cu().mem_host_unregister(here));
    REQUIRE(::mprotect(here, page, PROT_READ) == 0);
    where.map(CU_MEM_LOCATION_TYPE_DEVICE, 0, page);
    where.open(0, page, to_device());
    OK(cu().memset_d8_async(where.at, 7, page, s));
    OK(cu().stream_synchronize(s));
    CHECK(here[5] == 9);
    OK(cu().mem_unmap(where.at, page));
    where.mapped.clear();
    CHECK(here[5] == 9);

    // The end of a registration waits for what is under way.
    gate held;
    OK(launch(s, held.body));
    std::thread opens{[&] {
        std::this_thread::sleep_for(20ms);
        held.is_open = true;
    }};
    OK(cu().mem_host_unregister(here + page));
    CHECK(held.is_open);
    opens.join();
    OK(cu().mem_free(device_at));
    OK(cu().stream_destroy(s));
    ::munmap(standing, 2 * page);
    ::close(file);
}

TEST_CASE("what a pointer is") {
    NEEDS_SOFT_CUDA();
    rig r;
    CUdeviceptr plain = 0, managed = 0;
    MUST(cu().mem_alloc(&plain, page));
    MUST(cu().mem_alloc_managed(&managed, page, CU_MEM_ATTACH_GLOBAL));
    range where{4 * page};
    where.map(CU_MEM_LOCATION_TYPE_DEVICE, 0, 2 * page, 1);
    where.map(CU_MEM_LOCATION_TYPE_HOST_NUMA, 2 * page, page);
    const auto ask = [](CUdeviceptr at, CUpointer_attribute which) {
        unsigned value = 77;
        return cu().pointer_get_attribute(&value, which, at) == CUDA_SUCCESS
                   ? static_cast<int>(value)
                   : -77;
    };
    CHECK(ask(plain + 5, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == 2);
    CHECK(ask(where.at, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == 2);
    CHECK(ask(where.at + 2 * page, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == 1);
    CHECK(ask(plain, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) == 0);
    CHECK(ask(where.at, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) == 1);
    CHECK(ask(managed, CU_POINTER_ATTRIBUTE_IS_MANAGED) == 1);
    CHECK(ask(plain, CU_POINTER_ATTRIBUTE_IS_MANAGED) == 0);
    CHECK(ask(plain, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) == 1);
    CHECK(ask(where.at, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) == 0);
    CHECK(ask(where.at, CU_POINTER_ATTRIBUTE_MAPPED) == 1);
    CHECK(ask(where.at + 3 * page, CU_POINTER_ATTRIBUTE_MAPPED) == 0);
    CHECK(ask(0x10, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == -77);
    CUdeviceptr start = 0;
    OK(cu().pointer_get_attribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                  where.at + page + 3));
    CHECK(start == where.at);
    std::size_t bytes = 0;
    OK(cu().mem_get_address_range(&start, &bytes, where.at + 2 * page + 1));
    CHECK(start == where.at + 2 * page);  // the one mapping
    CHECK(bytes == page);
    CHECK(cu().mem_get_address_range(&start, &bytes, 0x10) == CUDA_ERROR_NOT_FOUND);

    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    unsigned type = 7;
    int ordinal = 7, local = 0;
    void* data[] = {&type, &ordinal};
    OK(cu().pointer_get_attributes(2, which, data, plain));
    CHECK(type == 2);
    CHECK(ordinal == 0);
    OK(cu().pointer_get_attributes(2, which, data, reinterpret_cast<CUdeviceptr>(&local)));
    CHECK(type == 0);
    CHECK(ordinal == -2);
    OK(cu().mem_free(plain));
    OK(cu().mem_free(managed));
}

TEST_CASE("a frame travels as a descriptor, within the process") {
    NEEDS_SOFT_CUDA();
    rig r;
    auto asked = properties(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_NONE);
    CUmemGenericAllocationHandle handle = 0, same = 0;
    int fd = -1;
    constexpr auto posix = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    MUST(cu().mem_create(&handle, page, &asked, 0));
    CHECK(cu().mem_export_to_shareable_handle(&fd, handle, posix, 0) == CUDA_ERROR_INVALID_VALUE);
    OK(cu().mem_release(handle));
    asked.requestedHandleTypes = posix;
    MUST(cu().mem_create(&handle, page, &asked, 0));
    CHECK(cu().mem_export_to_shareable_handle(nullptr, handle, posix, 0) ==
          CUDA_ERROR_INVALID_VALUE);
    MUST(cu().mem_export_to_shareable_handle(&fd, handle, posix, 0));
    void* const as_pointer = reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd));
    MUST(cu().mem_import_from_shareable_handle(&same, as_pointer, posix));
    CHECK(soft().held(0) == page);  // once, not twice
    CHECK(cu().mem_import_from_shareable_handle(&same, reinterpret_cast<void*>(0), posix) ==
          CUDA_ERROR_INVALID_VALUE);  // no frame's descriptor
    CUdeviceptr at = 0;
    MUST(cu().mem_address_reserve(&at, 2 * page, 0, 0, 0));
    OK(cu().mem_map(at, page, 0, handle, 0));
    OK(cu().mem_map(at + page, page, 0, same, 0));
    const auto device = to_device();
    OK(cu().mem_set_access(at, 2 * page, &device, 1));
    OK(cu().memset_d32_async(at, 77, 4, nullptr));
    int got = 0;
    OK(cu().memcpy_async(reinterpret_cast<CUdeviceptr>(&got), at + page, 4, nullptr));
    CHECK(got == 77);
    CUipcMemHandle legacy{};
    CHECK(cu().ipc_get_mem_handle(&legacy, at) == CUDA_ERROR_INVALID_VALUE);
    ::close(fd);
    OK(cu().mem_release(handle));
    OK(cu().mem_release(same));
    OK(cu().mem_unmap(at, 2 * page));
    OK(cu().mem_address_free(at, 2 * page));
}

TEST_CASE("memory of another process, by descriptor and by legacy handle") {
    NEEDS_SOFT_CUDA();
    // The parent makes both and leaves the descriptor open for the child; what identifies them is in the environment.
    if (const char* said = ::getenv("LIBCUDA_TEST_IPC"); said != nullptr) {
        REQUIRE(is_child("", {}));
        const rig r;
        CUipcMemHandle legacy{};
        REQUIRE(std::strlen(said) == 2 * sizeof legacy.reserved);
        for (std::size_t i = 0; i < sizeof legacy.reserved; ++i) {
            unsigned byte = 0;
            std::sscanf(said + 2 * i, "%2x", &byte);
            legacy.reserved[i] = static_cast<char>(byte);
        }
        CUdeviceptr at = 0;
        CHECK(cu().ipc_open_mem_handle(&at, legacy, 0u) == CUDA_ERROR_INVALID_VALUE);
        MUST(cu().ipc_open_mem_handle(&at, legacy, unsigned{CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS}));
        int got = 0;
        OK(cu().memcpy_async(reinterpret_cast<CUdeviceptr>(&got), at, 4, nullptr));
        CHECK(got == 1234);
        OK(cu().ipc_close_mem_handle(at));
        CHECK(cu().ipc_close_mem_handle(at) == CUDA_ERROR_INVALID_VALUE);

        const auto fd = static_cast<std::uintptr_t>(std::atoi(::getenv("LIBCUDA_TEST_FD")));
        CUmemGenericAllocationHandle handle = 0;
        MUST(cu().mem_import_from_shareable_handle(&handle, reinterpret_cast<void*>(fd),
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        range where{page};
        MUST(cu().mem_map(where.at, page, 0, handle, 0));
        where.mapped.emplace_back(where.at, page);
        OK(cu().mem_release(handle));
        where.open(0, page, to_device());
        OK(cu().memset_d32_async(where.at, 4321, 1, nullptr));
        OK(cu().stream_synchronize(nullptr));
        return;
    }
    const rig r;
    CUdeviceptr plain = 0;
    MUST(cu().mem_alloc(&plain, page));
    OK(cu().memset_d32_async(plain, 1234, 1, nullptr));
    OK(cu().stream_synchronize(nullptr));
    CUipcMemHandle legacy{};
    MUST(cu().ipc_get_mem_handle(&legacy, plain));
    CUdeviceptr again = 0;
    CHECK(cu().ipc_open_mem_handle(&again, legacy, unsigned{CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS}) ==
          CUDA_ERROR_INVALID_CONTEXT);  // it is this process's own

    const auto asked =
        properties(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemGenericAllocationHandle handle = 0;
    MUST(cu().mem_create(&handle, page, &asked, 0));
    int fd = -1;
    MUST(cu().mem_export_to_shareable_handle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                             0));
    const int inherited = ::dup(fd);  // without close-on-exec
    ::close(fd);
    std::string text = "LIBCUDA_TEST_IPC=";
    for (const char byte : legacy.reserved) {
        char two[3];
        std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(byte));
        text += two;
    }
    const std::string number = "LIBCUDA_TEST_FD=" + std::to_string(inherited);
    (void)is_child("memory of another process*", {text.c_str(), number.c_str()});
    ::close(inherited);

    range where{page};
    MUST(cu().mem_map(where.at, page, 0, handle, 0));
    where.mapped.emplace_back(where.at, page);
    OK(cu().mem_release(handle));
    where.open(0, page, to_device());
    int got = 0;
    OK(cu().memcpy_async(reinterpret_cast<CUdeviceptr>(&got), where.at, 4, nullptr));
    CHECK(got == 4321);  // as the other process wrote it
    OK(cu().mem_free(plain));
}
