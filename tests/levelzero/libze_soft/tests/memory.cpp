// SPDX-License-Identifier: Apache-2.0
// What the software driver does with memory, through the real loader.
#include "rig.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <csetjmp>
#include <csignal>
#include <cstring>

using namespace soft_ze::test;

namespace {

sigjmp_buf on_miss;

// Whether the host reaches that address; tried.
bool can_touch(void* at) {
    struct sigaction catching {};
    struct sigaction before {};
    catching.sa_handler = [](int) { siglongjmp(on_miss, 1); };
    catching.sa_flags = SA_NODEFER;
    ::sigaction(SIGSEGV, &catching, &before);
    volatile bool worked = false;
    if (sigsetjmp(on_miss, 1) == 0) {
        auto* byte = static_cast<volatile char*>(at);
        *byte = *byte;
        worked = true;
    }
    ::sigaction(SIGSEGV, &before, nullptr);
    return worked;
}
bool has_virtual_memory() {
    const char* text = std::getenv("SOFT_ZE_NO_VIRTUAL_MEMORY");
    return text == nullptr || *text == 0;
}

}  // namespace

TEST_CASE("the page size follows the size that is asked for") {
    rig r;
    if (!has_virtual_memory()) {
        std::size_t page = 0;
        CHECK(zeVirtualMemQueryPageSize(r.context, r.devices[0], 2 * MiB, &page) ==
              ZE_RESULT_ERROR_UNSUPPORTED_FEATURE);
        return;
    }
    std::size_t page = 0;
    for (auto [bytes, expected] :
         {std::pair{64 * MiB / 1024, 64 * MiB / 1024}, std::pair{MiB, 64 * MiB / 1024},
          std::pair{2 * MiB, 2 * MiB}, std::pair{512 * MiB, 2 * MiB}}) {
        CHECK(zeVirtualMemQueryPageSize(r.context, r.devices[0], bytes, &page) ==
              ZE_RESULT_SUCCESS);
        CHECK(page == expected);
    }
    ze_physical_mem_handle_t none = nullptr;
    CHECK(r.create(3 * MiB, none) == ZE_RESULT_ERROR_UNSUPPORTED_SIZE);
}

TEST_CASE("a handle of a device has one mapping at a time, and unmap wants all of it") {
    if (!has_virtual_memory()) {
        return;
    }
    rig r;
    char* at = r.reserve(16 * MiB);
    auto handle = r.create(4 * MiB);
    REQUIRE(zeVirtualMemMap(r.context, at, 4 * MiB, handle, 0, read_write) == ZE_RESULT_SUCCESS);
    CHECK(zeVirtualMemMap(r.context, at + 8 * MiB, 4 * MiB, handle, 0, read_write) ==
          ZE_RESULT_ERROR_INVALID_ARGUMENT);
    auto other = r.create(2 * MiB);
    CHECK(zeVirtualMemMap(r.context, at + 2 * MiB, 2 * MiB, other, 0, read_write) ==
          ZE_RESULT_ERROR_INVALID_ARGUMENT);
    CHECK(zeVirtualMemMap(r.context, at + 5 * MiB, 2 * MiB, other, 0, read_write) ==
          ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT);
    // In part: passed over, and a success all the same.
    CHECK(zeVirtualMemUnmap(r.context, at + 2 * MiB, 2 * MiB) == ZE_RESULT_SUCCESS);
    auto list = r.make_list();
    const auto numbers_out = numbers(4 * MiB / 4, 7);
    CHECK(r.copy(list, at, numbers_out.data(), 4 * MiB));
    CHECK(zeVirtualMemUnmap(r.context, at, 4 * MiB) == ZE_RESULT_SUCCESS);
    CHECK(zeVirtualMemMap(r.context, at + 8 * MiB, 4 * MiB, handle, 0, read_write) ==
          ZE_RESULT_SUCCESS);
    std::vector<std::uint32_t> back(numbers_out.size());
    CHECK(r.copy(list, back.data(), at + 8 * MiB, 4 * MiB));
    CHECK(back == numbers_out);
    CHECK_FALSE(can_touch(at + 8 * MiB));  // device memory is no host's
    CHECK(zeVirtualMemUnmap(r.context, at, 16 * MiB) == ZE_RESULT_SUCCESS);
    CHECK(zePhysicalMemDestroy(r.context, handle) == ZE_RESULT_SUCCESS);
    CHECK(zePhysicalMemDestroy(r.context, other) == ZE_RESULT_SUCCESS);
    CHECK(zeCommandListDestroy(list) == ZE_RESULT_SUCCESS);
    CHECK(zeVirtualMemFree(r.context, at, 16 * MiB) == ZE_RESULT_SUCCESS);
    CHECK(r.soft.held(0) == 0);
}

TEST_CASE("host memory may be mapped often, and the host reaches it at each place") {
    if (!has_virtual_memory()) {
        return;
    }
    rig r;
    ze_physical_mem_handle_t handle = nullptr;
    const ze_result_t made = r.create(2 * MiB, handle, 2);
    if (made != ZE_RESULT_SUCCESS) {
        MESSAGE("no physical host memory: the interface is older than 1.11, or a layer refuses it");
        CHECK(made == ZE_RESULT_ERROR_INVALID_ENUMERATION);
        return;
    }
    char* at = r.reserve(8 * MiB);
    for (std::size_t i : {0, 2}) {
        REQUIRE(zeVirtualMemMap(r.context, at + i * 2 * MiB, 2 * MiB, handle, 0, read_write) ==
                ZE_RESULT_SUCCESS);
    }
    std::strcpy(at, "seen at both");
    CHECK(std::strcmp(at + 4 * MiB, "seen at both") == 0);
    CHECK(r.soft.held(0) == 0);  // no device's
    CHECK(zeVirtualMemUnmap(r.context, at, 2 * MiB) == ZE_RESULT_SUCCESS);
    CHECK_FALSE(can_touch(at));
    CHECK(std::strcmp(at + 4 * MiB, "seen at both") == 0);
    CHECK(zeVirtualMemUnmap(r.context, at + 4 * MiB, 2 * MiB) == ZE_RESULT_SUCCESS);
    CHECK(zePhysicalMemDestroy(r.context, handle) == ZE_RESULT_SUCCESS);
    CHECK(zeVirtualMemFree(r.context, at, 8 * MiB) == ZE_RESULT_SUCCESS);
}

TEST_CASE("memory runs out, and what is too large is refused unless limits are relaxed") {
    rig r;
    if (has_virtual_memory()) {
        std::vector<ze_physical_mem_handle_t> all;
        ze_physical_mem_handle_t one = nullptr;
        ze_result_t outcome = ZE_RESULT_SUCCESS;
        while (all.size() < 100 && (outcome = r.create(8 * MiB, one)) == ZE_RESULT_SUCCESS) {
            all.push_back(one);
        }
        CHECK(outcome == ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
        CHECK(r.soft.held(0) == all.size() * 8 * MiB);
        for (ze_physical_mem_handle_t each : all) {
            CHECK(zePhysicalMemDestroy(r.context, each) == ZE_RESULT_SUCCESS);
        }
    }
    ze_device_properties_t about{};
    about.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES;
    REQUIRE(zeDeviceGetProperties(r.devices[0], &about) == ZE_RESULT_SUCCESS);
    ze_relaxed_allocation_limits_exp_desc_t relaxed{
        ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXP_DESC, nullptr,
        ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE};
    ze_device_mem_alloc_desc_t wanted{ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC, nullptr, 0, 0};
    void* at = nullptr;
    CHECK(zeMemAllocDevice(r.context, &wanted, about.maxMemAllocSize + 1, 0, r.devices[0], &at) ==
          ZE_RESULT_ERROR_UNSUPPORTED_SIZE);
    if (about.maxMemAllocSize < 64 * MiB) {
        wanted.pNext = &relaxed;
        REQUIRE(zeMemAllocDevice(r.context, &wanted, about.maxMemAllocSize + MiB, 0, r.devices[0],
                                 &at) == ZE_RESULT_SUCCESS);
        CHECK(zeMemFree(r.context, at) == ZE_RESULT_SUCCESS);
    }
    CHECK(r.soft.held(0) == 0);
}

TEST_CASE("shared memory goes to the device that uses it and comes back when the host touches it") {
    rig r;
    const ze_device_mem_alloc_desc_t on_device{ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC, nullptr, 0,
                                               0};
    const ze_host_mem_alloc_desc_t on_host{ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC, nullptr, 0};
    void* made = nullptr;
    REQUIRE(zeMemAllocShared(r.context, &on_device, &on_host, 2 * MiB, 0, r.devices[0], &made) ==
            ZE_RESULT_SUCCESS);
    auto* words = static_cast<std::uint32_t*>(made);
    words[5] = 5;
    auto list = r.make_list();
    std::uint32_t seen = 0;
    CHECK(r.copy(list, &seen, words + 5, sizeof seen));
    CHECK(seen == 5);
    words[5] = 6;  // by signal
    CHECK(r.copy(list, &seen, words + 5, sizeof seen));
    CHECK(seen == 6);
    CHECK(zeCommandListDestroy(list) == ZE_RESULT_SUCCESS);
    CHECK(zeMemFree(r.context, made) == ZE_RESULT_SUCCESS);
}

TEST_CASE("another process opens a device's memory by its handle") {
    rig r;
    const ze_device_mem_alloc_desc_t wanted{ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC, nullptr, 0, 0};
    void* at = nullptr;
    REQUIRE(zeMemAllocDevice(r.context, &wanted, 2 * MiB, 0, r.devices[0], &at) ==
            ZE_RESULT_SUCCESS);
    auto list = r.make_list();
    const std::uint64_t sent = 0x1234'5678;
    CHECK(r.copy(list, at, &sent, sizeof sent));
    ze_ipc_mem_handle_t handle{};
    REQUIRE(zeMemGetIpcHandle(r.context, at, &handle) == ZE_RESULT_SUCCESS);
    // The other process starts anew: no driver survives a fork.
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
        ::dup2(ends[0], 0);
        ::execl("/proc/self/exe", "other process", "--test-case=the other process",
                "--no-skip=true", nullptr);
        ::_exit(99);
    }
    REQUIRE(::write(ends[1], &handle, sizeof handle) == sizeof handle);
    int outcome = -1;
    ::waitpid(child, &outcome, 0);
    CHECK(WIFEXITED(outcome));
    CHECK(WEXITSTATUS(outcome) == 0);
    ::close(ends[0]);
    ::close(ends[1]);
    std::uint64_t answered = 0;
    CHECK(r.copy(list, &answered, at, sizeof answered));
    CHECK(answered == sent + 1);
    CHECK(zeCommandListDestroy(list) == ZE_RESULT_SUCCESS);
    CHECK(zeMemFree(r.context, at) == ZE_RESULT_SUCCESS);
}

TEST_CASE("the other process" * doctest::skip()) {
    rig r;
    ze_ipc_mem_handle_t handle{};
    REQUIRE(::read(0, &handle, sizeof handle) == sizeof handle);
    void* at = nullptr;
    REQUIRE(zeMemOpenIpcHandle(r.context, r.devices[0], handle, 0, &at) == ZE_RESULT_SUCCESS);
    auto list = r.make_list();
    std::uint64_t seen = 0;
    CHECK(r.copy(list, &seen, at, sizeof seen));
    ++seen;
    CHECK(r.copy(list, at, &seen, sizeof seen));
    CHECK(zeMemCloseIpcHandle(r.context, at) == ZE_RESULT_SUCCESS);
    CHECK(zeCommandListDestroy(list) == ZE_RESULT_SUCCESS);
}
