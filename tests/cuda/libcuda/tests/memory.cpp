// SPDX-License-Identifier: Apache-2.0
// The software driver: addresses, frames, mappings, and what the CPU sees of them.
#include "rig.hpp"

#include <sys/mman.h>

using namespace libcuda_test;

TEST_CASE("addresses are reserved for real, and a taken one comes back elsewhere") {
    NEEDS_SOFT_CUDA();
    rig r;
    CUdeviceptr at = 0, other = 0;
    CHECK(cu().mem_address_reserve(nullptr, page, 0, 0, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_address_reserve(&at, 0, 0, 0, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_address_reserve(&at, page + 4096, 0, 0, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_address_reserve(&at, page, 3, 0, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_address_reserve(&at, page, 0, 0, 1) == CUDA_ERROR_INVALID_VALUE);
    MUST(cu().mem_address_reserve(&at, 64 * MiB, 32 * MiB, 0, 0));
    CHECK(at % (32 * MiB) == 0);
    CHECK(protection_of(at) == "---p");
    CHECK(protection_of(at + 64 * MiB - 1) == "---p");

    OK(cu().mem_address_reserve(&other, page, 0, at + page, 0));
    CHECK(other != at + page);
    CHECK(cu().mem_address_free(other, 2 * page) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_address_free(other + page, page) == CUDA_ERROR_INVALID_VALUE);
    OK(cu().mem_address_free(other, page));
    CHECK(cu().mem_address_free(other, page) == CUDA_ERROR_INVALID_VALUE);

    void* refused = ::mmap(reinterpret_cast<void*>(at), 4096, PROT_READ,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(refused == MAP_FAILED);
    OK(cu().mem_address_free(at, 64 * MiB));
    CHECK(protection_of(at) != "---p");
    OK(cu().mem_address_reserve(&other, page, 0, at, 0));
    CHECK(other == at);  // free again, so it is had
    OK(cu().mem_address_free(other, page));
}

TEST_CASE("frames: granularity, places, and no more than there is") {
    NEEDS_SOFT_CUDA();
    rig r;
    CUmemGenericAllocationHandle handle = 0;
    auto asked = properties(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    std::size_t granularity = 0;
    OK(cu().mem_get_allocation_granularity(&granularity, &asked, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK(granularity == page);
    CHECK(cu().mem_create(&handle, page + 4096, &asked, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_create(&handle, 0, &asked, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_create(&handle, page, &asked, 1) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_create(nullptr, page, &asked, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_create(&handle, page, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
    asked.location.id = 2;
    CHECK(cu().mem_create(&handle, page, &asked, 0) == CUDA_ERROR_INVALID_DEVICE);
    asked = properties(CU_MEM_LOCATION_TYPE_HOST_NUMA, 4000);
    CHECK(cu().mem_create(&handle, page, &asked, 0) == CUDA_ERROR_INVALID_DEVICE);
    asked = properties(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_FABRIC);
    CHECK(cu().mem_create(&handle, page, &asked, 0) == CUDA_ERROR_NOT_PERMITTED);
    CHECK(cu().mem_release(999) == CUDA_ERROR_INVALID_VALUE);

    asked = properties(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    CHECK(cu().mem_create(&handle, 66 * MiB, &asked, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cu().mem_create(&handle, 62 * MiB, &asked, 0));
    std::size_t free = 0, total = 0;
    OK(cu().mem_get_info(&free, &total));
    CHECK(free == page);
    CUmemGenericAllocationHandle other = 0;
    CHECK(cu().mem_create(&other, 4 * MiB, &asked, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    OK(cu().mem_release(handle));
    CHECK(cu().mem_release(handle) == CUDA_ERROR_INVALID_VALUE);
    OK(cu().mem_get_info(&free, &total));
    CHECK(free == total);

    // What the device can do is what frames may ask for.
    OK(soft().attribute(0, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0));
    asked = properties(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CHECK(cu().mem_create(&handle, page, &asked, 0) == CUDA_ERROR_NOT_SUPPORTED);
    OK(soft().attribute(0, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1));

    // A host's memory is not the device's.
    asked = properties(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
    MUST(cu().mem_create(&handle, 128 * MiB, &asked, 0));
    OK(cu().mem_get_info(&free, &total));
    CHECK(free == total);
    OK(cu().mem_release(handle));
}

TEST_CASE("mappings are of whole handles, at reserved addresses that are free") {
    NEEDS_SOFT_CUDA();
    rig r;
    const auto asked = properties(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    CUmemGenericAllocationHandle handle = 0;
    MUST(cu().mem_create(&handle, 2 * page, &asked, 0));
    CUdeviceptr at = 0;
    MUST(cu().mem_address_reserve(&at, 8 * page, 0, 0, 0));
    CHECK(cu().mem_map(at, page, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);  // half of it
    CHECK(cu().mem_map(at, page, page, handle, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_map(at + 4096, 2 * page, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_map(at + 7 * page, 2 * page, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_map(0x1000000, 2 * page, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_map(at, 2 * page, 0, 999, 0) == CUDA_ERROR_INVALID_VALUE);
    OK(cu().mem_map(at, 2 * page, 0, handle, 0));
    CHECK(cu().mem_map(at, 2 * page, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_map(at + page, 2 * page, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
    OK(cu().mem_map(at + 4 * page, 2 * page, 0, handle, 0));  // one handle at two addresses
    CHECK(cu().mem_address_free(at, 8 * page) == CUDA_ERROR_INVALID_VALUE);

    const CUmemAccessDesc device = to_device();
    CHECK(cu().mem_set_access(at, page, &device, 1) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_set_access(at, 6 * page, &device, 1) == CUDA_ERROR_INVALID_VALUE);  // a hole
    CHECK(cu().mem_set_access(at, 2 * page, nullptr, 1) == CUDA_ERROR_INVALID_VALUE);
    const CUmemAccessDesc nobody = to_device(2);
    CHECK(cu().mem_set_access(at, 2 * page, &nobody, 1) == CUDA_ERROR_INVALID_DEVICE);
    // The CPU never gets a device's memory, and then nobody gets anything.
    const CUmemAccessDesc both[] = {to_device(), to_cpu()};
    CHECK(cu().mem_set_access(at, 2 * page, both, 2) == CUDA_ERROR_NOT_SUPPORTED);
    unsigned long long flags = 99;
    OK(cu().mem_get_access(&flags, &device.location, at));
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    OK(cu().mem_set_access(at, 2 * page, &device, 1));
    OK(cu().mem_get_access(&flags, &device.location, at + page));
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK(cu().mem_get_access(&flags, &device.location, at + 3 * page) == CUDA_ERROR_INVALID_VALUE);
    CHECK(!cpu_reads(reinterpret_cast<void*>(at)));

    // Released while mapped: the memory is there until it is unmapped everywhere.
    OK(cu().mem_release(handle));
    CHECK(soft().held(0) == 2 * page);
    CHECK(cu().mem_unmap(at, page) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_unmap(at + page, page) == CUDA_ERROR_INVALID_VALUE);
    OK(cu().mem_unmap(at, 2 * page));
    CHECK(cu().mem_unmap(at, 2 * page) == CUDA_ERROR_INVALID_VALUE);
    CHECK(soft().held(0) == 2 * page);
    OK(cu().mem_unmap(at + 4 * page, 2 * page));
    CHECK(soft().held(0) == 0);
    OK(cu().mem_address_free(at, 8 * page));
}

TEST_CASE("the CPU sees host frames where it was let, and only there") {
    NEEDS_SOFT_CUDA();
    rig r;
    range where{4 * page};
    where.map(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, 2 * page);
    where.map(CU_MEM_LOCATION_TYPE_HOST, 2 * page, page);
    where.open(0, 3 * page, to_device());
    CHECK(!cpu_reads(where.cpu()));
    CHECK(protection_of(where.at) == "---p");
    where.open(0, 3 * page, to_cpu());
    CHECK(protection_of(where.at) == "rw-s");
    where.cpu()[5] = 'x';
    where.cpu(2 * page)[0] = 'y';
    where.open(0, 2 * page, to_cpu(CU_MEM_ACCESS_FLAGS_PROT_READ));
    CHECK(protection_of(where.at) == "r--s");
    CHECK(protection_of(where.at + 2 * page) == "rw-s");
    where.open(0, 2 * page, to_cpu(CU_MEM_ACCESS_FLAGS_PROT_NONE));
    CHECK(!cpu_reads(where.cpu()));
    CHECK(protection_of(where.at) == "---p");
    where.open(0, 2 * page, to_cpu());
    CHECK(where.cpu()[5] == 'x');

    // The program's own mprotect works on it, and the device does not mind.
    REQUIRE(::mprotect(where.cpu(), page, PROT_NONE) == 0);
    CHECK(!cpu_reads(where.cpu()));
    char got = 0;
    OK(cu().memcpy_async(reinterpret_cast<CUdeviceptr>(&got), where.at + 5, 1, nullptr));
    CHECK(got == 'x');
    REQUIRE(::mprotect(where.cpu(), page, PROT_READ | PROT_WRITE) == 0);
    CHECK(where.cpu()[5] == 'x');

    // Unmapped: gone for the CPU, and the address still the driver's.
    OK(cu().mem_unmap(where.at, 2 * page));
    where.mapped.erase(where.mapped.begin());
    CHECK(protection_of(where.at) == "---p");
    CHECK(where.cpu(2 * page)[0] == 'y');
}
