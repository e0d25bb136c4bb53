// SPDX-License-Identifier: Apache-2.0
// The software libcuda.so.1 itself: does it answer as a driver would, and fail when it is told to?
#include "libcuda/soft_cuda.hpp"

#include <doctest/doctest.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace {

using namespace xmm::cuda;
using namespace std::chrono_literals;
using clock_type = std::chrono::steady_clock;

constexpr std::size_t MiB = std::size_t{1} << 20;
constexpr std::size_t page = 2 * MiB;

// The library and what it exports beyond our table of the driver's functions.
struct library {
    void* handle = nullptr;
    driver_api api;
    soft_cuda::controls soft;
    std::vector<std::string> missing;

    template <class Signature>
    Signature* symbol(const char* name) const {
        return reinterpret_cast<Signature*>(::dlsym(handle, name));
    }
    template <class Signature>
    Signature* proc(const char* name, int version) const {
        void* found = nullptr;
        (void)api.get_proc_address(name, &found, version, 0, nullptr);
        return reinterpret_cast<Signature*>(found);
    }
};

library open_library() {
    // Small devices, unless a case of ours has asked for something else in this process.
    ::setenv("SOFT_CUDA_DEVICES", "2", 0);
    ::setenv("SOFT_CUDA_BYTES", "64M", 0);
    library opened;
    opened.handle = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (opened.handle == nullptr) {
        return opened;
    }
    opened.soft = soft_cuda::controls_of(opened.handle);
    using find_proc = CUresult(const char*, void**, int, std::uint64_t,
                               CUdriverProcAddressQueryResult*);
    auto* const find = opened.symbol<find_proc>("cuGetProcAddress_v2");
    if (!opened.soft || find == nullptr) {
        return opened;
    }
    for_each_function(opened.api, [&]<class F>(F& one) {
        void* at = nullptr;
        auto said = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        if (find(one.name, &at, one.version, 0, &said) != CUDA_SUCCESS || at == nullptr ||
            said != CU_GET_PROC_ADDRESS_SUCCESS) {
            opened.missing.emplace_back(one.name);
        }
        one.at = reinterpret_cast<typename F::signature*>(at);
    });
    return opened;
}

library& lib() {
    static library only = open_library();
    return only;
}
driver_api& cu() { return lib().api; }
soft_cuda::controls& soft() { return lib().soft; }

bool is_missing() {
    if (!soft()) {
        MESSAGE("skipped: the libcuda.so.1 that is found first is not the software one");
        return true;
    }
    return false;
}
#define NEEDS_SOFT_CUDA() \
    if (is_missing())     \
    return

#define OK(call) CHECK((call) == CUDA_SUCCESS)
#define MUST(call) REQUIRE((call) == CUDA_SUCCESS)

// A device with its context current, and nothing left of earlier cases.
struct rig {
    explicit rig(int ordinal = 0) : device{ordinal} {
        MUST(cu().init(0));
        MUST(cu().device_primary_ctx_retain(&context, device));
        MUST(cu().ctx_push_current(context));
        soft().reset();
    }
    rig(const rig&) = delete;
    ~rig() {
        soft().reset();
        soft().link(device, 0);
        CUcontext popped = nullptr;
        OK(cu().ctx_pop_current(&popped));
        OK(cu().device_primary_ctx_release(device));
        CHECK(soft().held(device) == 0);
    }
    CUstream make_stream() const {
        CUstream made = nullptr;
        MUST(cu().stream_create_with_priority(&made, CU_STREAM_NON_BLOCKING, 0));
        return made;
    }
    CUevent make_event() const {
        CUevent made = nullptr;
        MUST(cu().event_create(&made, CU_EVENT_DISABLE_TIMING));
        return made;
    }

    int device;
    CUcontext context = nullptr;
};

CUmemAllocationProp properties(CUmemLocationType type, int id,
                               CUmemAllocationHandleType shared = CU_MEM_HANDLE_TYPE_NONE) {
    CUmemAllocationProp asked{};
    asked.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    asked.requestedHandleTypes = shared;
    asked.location = {type, id};
    return asked;
}

CUmemAccessDesc access(CUmemLocationType type, int id,
                       CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    return {{type, id}, flags};
}
CUmemAccessDesc to_device(int id = 0) { return access(CU_MEM_LOCATION_TYPE_DEVICE, id); }
CUmemAccessDesc to_cpu(CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    return access(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, flags);
}

// A range of addresses with frames at it, all taken down again.
struct range {
    explicit range(std::size_t bytes_) : bytes{bytes_} {
        MUST(cu().mem_address_reserve(&at, bytes, 0, 0, 0));
    }
    range(const range&) = delete;
    ~range() {
        for (const auto& [where, size] : mapped) {
            OK(cu().mem_unmap(where, size));
        }
        OK(cu().mem_address_free(at, bytes));
    }
    void map(CUmemLocationType type, std::size_t offset, std::size_t size, int id = 0) {
        CUmemGenericAllocationHandle handle = 0;
        const auto asked = properties(type, id);
        MUST(cu().mem_create(&handle, size, &asked, 0));
        MUST(cu().mem_map(at + offset, size, 0, handle, 0));
        MUST(cu().mem_release(handle));  // the mapping keeps it
        mapped.emplace_back(at + offset, size);
    }
    template <class... Who>
    void open(std::size_t offset, std::size_t size, Who... who) {
        const CUmemAccessDesc all[] = {who...};
        MUST(cu().mem_set_access(at + offset, size, all, sizeof...(who)));
    }
    char* cpu(std::size_t offset = 0) const { return reinterpret_cast<char*>(at + offset); }

    CUdeviceptr at = 0;
    std::size_t bytes;
    std::vector<std::pair<CUdeviceptr, std::size_t>> mapped;
};

// Can this process's CPU read there? Asked of the kernel, which answers without a signal.
bool cpu_reads(const void* at) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const bool could = ::write(ends[1], at, 1) == 1;
    ::close(ends[0]);
    ::close(ends[1]);
    return could;
}

std::string protection_of(CUdeviceptr at) {
    std::ifstream maps{"/proc/self/maps"};
    for (std::string line; std::getline(maps, line);) {
        unsigned long long from = 0, to = 0;
        char rights[5] = {};
        if (std::sscanf(line.c_str(), "%llx-%llx %4s", &from, &to, rights) == 3 && at >= from &&
            at < to) {
            return rights;
        }
    }
    return "none";
}

// A function object as a kernel, or as a stream's host function. It outlives its run.
using kernel_body = std::function<void(soft_cuda::accessor&)>;
CUresult launch(CUstream in, kernel_body& body) {
    return soft().launch(
        in,
        [](void* of, soft_cuda::accessor* memory) {
            (*static_cast<kernel_body*>(of))(*memory);
        },
        &body);
}

// A kernel that runs until it is let go.
struct gate {
    std::atomic<bool> is_open{false}, has_begun{false};
    kernel_body body = [this](soft_cuda::accessor&) {
        has_begun = true;
        while (!is_open) {
            std::this_thread::sleep_for(200us);
        }
    };
    ~gate() { is_open = true; }
};

// Runs cases in a process of their own with that in its environment; true in the child itself.
bool is_child(const char* of_cases, std::initializer_list<const char*> environment) {
    if (const char* end = ::getenv("LIBCUDA_TEST_CHILD"); end != nullptr) {
        CHECK(::write(std::atoi(end), "x", 1) == 1);  // so that the parent sees that a case was run
        return true;
    }
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    std::vector<std::string> text;
    for (char** one = environ; *one != nullptr; ++one) {
        const std::string_view said{*one};
        if (said.substr(0, 10) != "SOFT_CUDA_") {
            text.emplace_back(said);
        }
    }
    text.push_back("LIBCUDA_TEST_CHILD=" + std::to_string(ends[1]));
    text.insert(text.end(), environment.begin(), environment.end());
    std::vector<char*> variables;
    for (auto& one : text) {
        variables.push_back(one.data());
    }
    variables.push_back(nullptr);
    std::string filter = std::string{"-tc="} + of_cases, self = "/proc/self/exe";
    char* arguments[] = {self.data(), filter.data(), nullptr};
    pid_t child = 0;
    REQUIRE(::posix_spawn(&child, self.c_str(), nullptr, nullptr, arguments, variables.data()) ==
            0);
    ::close(ends[1]);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    char mark = 0;
    CHECK(::read(ends[0], &mark, 1) == 1);
    ::close(ends[0]);
    return false;
}

}  // namespace

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
    CHECK(cu().mem_get_access(&flags, &device.location, at + 3 * page) ==
          CUDA_ERROR_INVALID_VALUE);
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
        where.open(0, page,
                   access(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
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

TEST_CASE("streams run by themselves, in order each, and wait for events of others") {
    NEEDS_SOFT_CUDA();
    rig r;
    const CUstream one = r.make_stream(), two = r.make_stream();
    const CUevent marked = r.make_event();
    CHECK(cu().event_query(marked) == CUDA_SUCCESS);  // never recorded
    OK(cu().stream_wait_event(two, marked, 0));
    std::vector<int> order;  // the streams take turns
    gate held;
    kernel_body first = [&](soft_cuda::accessor&) { order.push_back(1); };
    kernel_body second = [&](soft_cuda::accessor&) { order.push_back(2); };
    OK(launch(one, held.body));
    OK(launch(one, first));
    OK(cu().event_record(marked, one));
    OK(cu().stream_wait_event(two, marked, 0));
    OK(launch(two, second));
    CHECK(cu().stream_query(one) == CUDA_ERROR_NOT_READY);
    CHECK(cu().stream_query(two) == CUDA_ERROR_NOT_READY);
    CHECK(cu().event_query(marked) == CUDA_ERROR_NOT_READY);
    held.is_open = true;
    OK(cu().event_synchronize(marked));
    OK(cu().stream_synchronize(two));
    OK(cu().event_query(marked));
    CHECK(order == std::vector{1, 2});

    OK(cu().event_destroy(marked));
    CHECK(cu().event_query(marked) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cu().event_record(marked, one) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cu().stream_wait_event(one, marked, 0) == CUDA_ERROR_INVALID_HANDLE);
    OK(cu().stream_destroy(one));
    CHECK(cu().stream_query(one) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cu().stream_destroy(one) == CUDA_ERROR_INVALID_HANDLE);

    // Destroyed with work in it: that still runs.
    gate later;
    std::atomic<bool> has_run{false};
    kernel_body runs = [&](soft_cuda::accessor&) { has_run = true; };
    OK(launch(two, later.body));
    OK(launch(two, runs));
    OK(cu().stream_destroy(two));
    CHECK(!has_run);
    later.is_open = true;
    for (int i = 0; i < 2000 && !has_run; ++i) {
        std::this_thread::sleep_for(1ms);
    }
    CHECK(has_run);
}

TEST_CASE("streams have priorities, contexts and devices") {
    NEEDS_SOFT_CUDA();
    rig r;
    int least = 9, greatest = 9, priority = 9;
    OK(cu().ctx_get_stream_priority_range(&least, &greatest));
    CHECK(least == 0);
    CHECK(greatest == -5);
    CUstream s = nullptr;
    MUST(cu().stream_create_with_priority(&s, CU_STREAM_NON_BLOCKING, -40));
    OK(cu().stream_get_priority(s, &priority));
    CHECK(priority == greatest);
    CUcontext of = nullptr;
    OK(cu().stream_get_ctx(s, &of));
    CHECK(of == r.context);
    CHECK(cu().stream_create_with_priority(&s, 7, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().stream_create_with_priority(nullptr, 0, 0) == CUDA_ERROR_INVALID_VALUE);
    int not_a_stream = 0;
    CHECK(cu().stream_query(reinterpret_cast<CUstream>(&not_a_stream)) ==
          CUDA_ERROR_INVALID_HANDLE);

    const rig other{1};
    // Events and kernels belong to their context; waiting and copying do not.
    const CUevent there = other.make_event();
    CHECK(cu().event_record(there, s) == CUDA_ERROR_INVALID_HANDLE);
    kernel_body nothing = [](soft_cuda::accessor&) {};
    CHECK(launch(s, nothing) == CUDA_ERROR_INVALID_HANDLE);
    OK(cu().event_record(there, nullptr));
    OK(cu().stream_wait_event(s, there, 0));
    OK(cu().stream_synchronize(s));
}

TEST_CASE("host functions run in order and may not call the driver") {
    NEEDS_SOFT_CUDA();
    rig r;
    const CUstream s = r.make_stream();
    struct seen {
        CUresult call = CUDA_SUCCESS, name = CUDA_ERROR_UNKNOWN;
        bool has_run = false;
    } saw;
    gate held;
    OK(launch(s, held.body));
    OK(cu().launch_host_func(
        s,
        [](void* of) {
            auto& mine = *static_cast<seen*>(of);
            int count = 0;
            const char* text = nullptr;
            mine.call = cu().device_get_count(&count);
            mine.name = cu().get_error_name(CUDA_SUCCESS, &text);
            mine.has_run = true;
        },
        &saw));
    CHECK(cu().stream_query(s) == CUDA_ERROR_NOT_READY);
    held.is_open = true;
    OK(cu().stream_synchronize(s));
    CHECK(saw.has_run);
    CHECK(saw.call == CUDA_ERROR_NOT_PERMITTED);
    CHECK(saw.name == CUDA_SUCCESS);
    CHECK(cu().launch_host_func(s, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("the legacy stream waits for blocking streams, they for it, others for neither") {
    NEEDS_SOFT_CUDA();
    rig r;
    CUstream blocking = nullptr;
    MUST(cu().stream_create_with_priority(&blocking, CU_STREAM_DEFAULT, 0));
    const CUstream free_one = r.make_stream();
    std::vector<int> order;
    gate held;
    kernel_body first = [&](soft_cuda::accessor&) { order.push_back(1); };
    kernel_body second = [&](soft_cuda::accessor&) { order.push_back(2); };
    kernel_body third = [&](soft_cuda::accessor&) { order.push_back(3); };
    std::atomic<bool> has_run{false};
    kernel_body aside = [&](soft_cuda::accessor&) { has_run = true; };
    OK(launch(blocking, held.body));
    OK(launch(blocking, first));
    OK(launch(nullptr, second));
    OK(launch(blocking, third));
    OK(launch(free_one, aside));
    OK(cu().stream_synchronize(free_one));
    CHECK(has_run);
    CHECK(cu().stream_query(nullptr) == CUDA_ERROR_NOT_READY);
    held.is_open = true;
    OK(cu().stream_synchronize(blocking));
    CHECK(order == std::vector{1, 2, 3});
    OK(cu().stream_query(nullptr));
}

namespace {

using begin_capture = CUresult(CUstream, CUstreamCaptureMode);
using end_capture = CUresult(CUstream, soft_cuda::CUgraph*);
using graph_nodes = CUresult(soft_cuda::CUgraph, void**, std::size_t*);
using graph_destroy = CUresult(soft_cuda::CUgraph);
using graph_instantiate = CUresult(soft_cuda::CUgraphExec*, soft_cuda::CUgraph, unsigned long long);
using graph_launch = CUresult(soft_cuda::CUgraphExec, CUstream);
using exec_destroy = CUresult(soft_cuda::CUgraphExec);

struct capture_calls {
    begin_capture* begin = lib().proc<begin_capture>("cuStreamBeginCapture", 10010);
    end_capture* end = lib().proc<end_capture>("cuStreamEndCapture", 10000);
    graph_nodes* nodes = lib().proc<graph_nodes>("cuGraphGetNodes", 10000);
    graph_destroy* destroy = lib().proc<graph_destroy>("cuGraphDestroy", 10000);
    graph_instantiate* instantiate =
        lib().proc<graph_instantiate>("cuGraphInstantiateWithFlags", 11040);
    graph_launch* launch = lib().proc<graph_launch>("cuGraphLaunch", 10000);
    exec_destroy* drop = lib().proc<exec_destroy>("cuGraphExecDestroy", 10000);
};

CUstreamCaptureStatus capture_status(CUstream of) {
    auto status = CU_STREAM_CAPTURE_STATUS_NONE;
    MUST(cu().stream_is_capturing(of, &status));
    return status;
}

}  // namespace

TEST_CASE("a capture records work, over streams that it forks into, and runs it when launched") {
    NEEDS_SOFT_CUDA();
    rig r;
    const capture_calls graph;
    const CUstream s = r.make_stream(), side = r.make_stream();
    const CUevent fork = r.make_event(), join = r.make_event();
    int count = 0;
    kernel_body counts = [&](soft_cuda::accessor&) { ++count; };
    MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(graph.begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(capture_status(s) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(launch(s, counts));
    OK(cu().event_record(fork, s));
    OK(cu().stream_wait_event(side, fork, 0));
    CHECK(capture_status(side) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(launch(side, counts));
    soft_cuda::CUgraph made = nullptr;
    SUBCASE("joined") {
        OK(cu().event_record(join, side));
        OK(cu().stream_wait_event(s, join, 0));
        OK(launch(s, counts));
        OK(graph.end(s, &made));
        REQUIRE(made != nullptr);
        std::size_t nodes = 0;
        OK(graph.nodes(made, nullptr, &nodes));
        CHECK(nodes == 3);
        CHECK(count == 0);
        soft_cuda::CUgraphExec exec = nullptr;
        OK(graph.instantiate(&exec, made, 0));
        OK(graph.destroy(made));
        OK(graph.launch(exec, s));
        OK(graph.launch(exec, s));
        OK(cu().stream_synchronize(s));
        CHECK(count == 6);
        OK(graph.drop(exec));
        // The events stay marked as captured, until they are recorded anew.
        CHECK(cu().event_query(join) == CUDA_ERROR_CAPTURED_EVENT);
        OK(cu().event_record(join, s));
        OK(cu().event_synchronize(join));
    }
    SUBCASE("not joined") {
        CHECK(graph.end(s, &made) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
        CHECK(made == nullptr);
        CHECK(count == 0);
    }
    SUBCASE("ended elsewhere") {
        CHECK(graph.end(side, &made) == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        CHECK(graph.end(s, &made) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    SUBCASE("ended by another thread") {
        std::thread{[&] {
            MUST(cu().ctx_push_current(r.context));
            CHECK(graph.end(s, &made) == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }}.join();
        OK(cu().event_record(join, side));
        OK(cu().stream_wait_event(s, join, 0));
        OK(graph.end(s, &made));
        OK(graph.destroy(made));
    }
    CHECK(capture_status(s) == CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK(capture_status(side) == CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK(graph.end(s, &made) == CUDA_ERROR_ILLEGAL_STATE);
}

TEST_CASE("what breaks a capture") {
    NEEDS_SOFT_CUDA();
    rig r;
    const capture_calls graph;
    const CUstream s = r.make_stream(), other = r.make_stream();
    CUstream blocking = nullptr;
    MUST(cu().stream_create_with_priority(&blocking, CU_STREAM_DEFAULT, 0));
    const CUevent before = r.make_event(), inside = r.make_event();
    OK(cu().event_record(before, other));
    CUdeviceptr at = 0;
    CUdeviceptr managed = 0;
    MUST(cu().mem_alloc_managed(&managed, page, CU_MEM_ATTACH_GLOBAL));
    auto mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    CUstream captures = s;

    SUBCASE("a query of the stream") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_RELAXED));
        CHECK(cu().stream_query(s) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    SUBCASE("waiting for the stream") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_RELAXED));
        CHECK(cu().stream_synchronize(s) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    SUBCASE("a query of a captured event") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_RELAXED));
        OK(cu().event_record(inside, s));
        CHECK(cu().event_query(inside) == CUDA_ERROR_CAPTURED_EVENT);
    }
    SUBCASE("an allocation") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        CHECK(cu().mem_alloc(&at, 64) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    SUBCASE("a query of another event") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
        CHECK(cu().event_query(before) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    SUBCASE("another thread's allocation") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
        std::thread{[&] {
            MUST(cu().ctx_push_current(r.context));
            CHECK(cu().mem_alloc(&at, 64) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }}.join();
    }
    SUBCASE("waiting for work that is not captured") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_RELAXED));
        CHECK(cu().stream_wait_event(s, before, 0) == CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    }
    SUBCASE("the legacy stream, beside a blocking one") {
        captures = blocking;
        MUST(graph.begin(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
        auto status = CU_STREAM_CAPTURE_STATUS_NONE;
        CHECK(cu().stream_is_capturing(nullptr, &status) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        CHECK(capture_status(blocking) == CU_STREAM_CAPTURE_STATUS_ACTIVE);  // only asked
        CHECK(cu().memset_d8_async(managed, 0, 1, nullptr) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    SUBCASE("a prefetch") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_RELAXED));
        CHECK(cu().mem_prefetch_async(managed, page, CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                      0, s) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    CHECK(capture_status(captures) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    CHECK(soft().count("captures invalidated") == 1);
    kernel_body nothing = [](soft_cuda::accessor&) {};
    CHECK(launch(captures, nothing) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    soft_cuda::CUgraph made = nullptr;
    CHECK(graph.end(captures, &made) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(made == nullptr);
    OK(launch(captures, nothing));
    OK(cu().stream_synchronize(captures));
    OK(cu().thread_exchange_stream_capture_mode(&mode));
    CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    OK(cu().mem_free(managed));
}

TEST_CASE("what a capture allows") {
    NEEDS_SOFT_CUDA();
    rig r;
    const capture_calls graph;
    const CUstream s = r.make_stream(), other = r.make_stream();
    CUdeviceptr at = 0;
    soft_cuda::CUgraph made = nullptr;
    auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    SUBCASE("anything, from a thread in relaxed mode") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
        OK(cu().thread_exchange_stream_capture_mode(&mode));
        CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
        OK(cu().mem_alloc(&at, 64));
        OK(cu().mem_free(at));
        {
            range where{page};
            where.map(CU_MEM_LOCATION_TYPE_DEVICE, 0, page);
        }
        OK(cu().stream_synchronize(other));
        OK(cu().thread_exchange_stream_capture_mode(&mode));
    }
    SUBCASE("anything, in a relaxed capture") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_RELAXED));
        OK(cu().mem_alloc(&at, 64));
        OK(cu().mem_free(at));
    }
    SUBCASE("another thread's calls, in a capture of its own thread") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        std::thread{[&] {
            MUST(cu().ctx_push_current(r.context));
            OK(cu().mem_alloc(&at, 64));
            OK(cu().mem_free(at));
        }}.join();
    }
    SUBCASE("work in other streams, events made and recorded there") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
        kernel_body nothing = [](soft_cuda::accessor&) {};
        OK(launch(other, nothing));
        OK(cu().event_record(r.make_event(), other));
        std::size_t free = 0, total = 0;
        OK(cu().mem_get_info(&free, &total));
    }
    CHECK(capture_status(s) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(graph.end(s, &made));
    OK(graph.destroy(made));
    CHECK(soft().count("captures invalidated") == 0);
    mode = static_cast<CUstreamCaptureMode>(3);
    CHECK(cu().thread_exchange_stream_capture_mode(&mode) == CUDA_ERROR_INVALID_VALUE);
}

namespace {

struct managed_memory {
    explicit managed_memory(std::size_t bytes_) : bytes{bytes_} {
        MUST(cu().mem_alloc_managed(&at, bytes, CU_MEM_ATTACH_GLOBAL));
    }
    managed_memory(const managed_memory&) = delete;
    ~managed_memory() { OK(cu().mem_free(at)); }
    char* cpu(std::size_t offset = 0) const { return reinterpret_cast<char*>(at + offset); }
    void prefetch(std::size_t offset, std::size_t size, CUmemLocation to, CUstream s) const {
        MUST(cu().mem_prefetch_async(at + offset, size, to, 0, s));
        MUST(cu().stream_synchronize(s));
    }
    int home(std::size_t index) const { return soft().residency(at + index * page); }

    CUdeviceptr at = 0;
    std::size_t bytes;
};
constexpr CUmemLocation host_place{CU_MEM_LOCATION_TYPE_HOST, 0};
constexpr CUmemLocation device_place{CU_MEM_LOCATION_TYPE_DEVICE, 0};

template <class T>
T range_attribute(CUmem_range_attribute which, CUdeviceptr at, std::size_t bytes) {
    T value{};
    MUST(cu().mem_range_get_attribute(&value, sizeof value, which, at, bytes));
    return value;
}

}  // namespace

TEST_CASE("managed memory moves by prefetch, and the CPU always reaches it") {
    NEEDS_SOFT_CUDA();
    rig r;
    const CUstream s = r.make_stream();
    const managed_memory m{8 * page};
    CHECK(m.at % page == 0);
    std::memset(m.cpu(), 7, 4 * page);
    CHECK(m.home(0) == -2);
    m.prefetch(0, 6 * page, device_place, s);
    CHECK(m.home(0) == 0);
    CHECK(m.home(5) == 0);
    CHECK(m.home(6) == -2);
    CHECK(soft().held(0) == 6 * page);
    CHECK(soft().count("managed prefetched") == 6);
    CHECK(soft().count("bytes to device") == 4 * page);  // what nobody wrote does not travel
    CHECK(m.cpu()[page] == 7);
    std::size_t free = 0, total = 0;
    OK(cu().mem_get_info(&free, &total));
    CHECK(total - free == 6 * page);
    m.prefetch(page, 1, host_place, s);  // a byte of it: the whole page
    CHECK(m.home(1) == -1);
    CHECK(soft().held(0) == 5 * page);
    CHECK(range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, m.at, page) == 0);
    CHECK(range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, m.at + page, page) ==
          -1);
    CHECK(range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, m.at, 2 * page) ==
          -2);
    CHECK(range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, m.at, page) ==
          CU_MEM_LOCATION_TYPE_DEVICE);

    CHECK(cu().mem_prefetch_async(m.at, 9 * page, device_place, 0, s) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_prefetch_async(m.at, page, CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, 5}, 0,
                                  s) == CUDA_ERROR_INVALID_DEVICE);
    CUdeviceptr plain = 0;
    MUST(cu().mem_alloc(&plain, page));
    CHECK(cu().mem_prefetch_async(plain, page, device_place, 0, s) == CUDA_ERROR_INVALID_VALUE);
    OK(cu().mem_free(plain));

    // The older interface, as dlsym finds it.
    using old_prefetch = CUresult(CUdeviceptr, std::size_t, CUdevice, CUstream);
    OK(lib().symbol<old_prefetch>("cuMemPrefetchAsync")(m.at, 2 * page, 1, s));
    OK(cu().stream_synchronize(s));
    CHECK(m.home(0) == 1);
    CHECK(m.home(1) == 1);
}

TEST_CASE("kernels move managed memory as the advice says") {
    NEEDS_SOFT_CUDA();
    rig r;
    const CUstream s = r.make_stream();
    const managed_memory m{4 * page};
    kernel_body reads = [&](soft_cuda::accessor& memory) { (void)memory.load<int>(m.at); };
    kernel_body writes = [&](soft_cuda::accessor& memory) { memory.store(m.at, 3); };
    const auto run = [&](kernel_body& body) {
        MUST(launch(s, body));
        MUST(cu().stream_synchronize(s));
    };
    SUBCASE("without advice it comes") {
        run(writes);
        CHECK(m.home(0) == 0);
        CHECK(soft().count("managed faults") == 1);
        run(writes);
        CHECK(soft().count("managed faults") == 1);
        CHECK(*reinterpret_cast<int*>(m.cpu()) == 3);
    }
    SUBCASE("preferred at the host it stays there, a first touch too") {
        OK(cu().mem_advise(m.at, page, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host_place));
        CHECK(range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, m.at, page) == -1);
        run(writes);
        CHECK(m.home(0) == -1);
        CHECK(soft().count("managed remote accesses") == 1);
        // Prefetched it is on the device, and stays.
        m.prefetch(0, page, device_place, s);
        run(writes);
        CHECK(m.home(0) == 0);
        CHECK(soft().count("managed faults") == 0);
        OK(cu().mem_advise(m.at, page, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, host_place));
        CHECK(range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, m.at, page) == -2);
    }
    SUBCASE("read-mostly, there are copies until somebody writes") {
        std::memset(m.cpu(), 1, page);
        m.prefetch(0, page, host_place, s);
        OK(cu().mem_advise(m.at, page, CU_MEM_ADVISE_SET_READ_MOSTLY, device_place));
        CHECK(range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, m.at, page) == 1);
        CHECK(range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, m.at, 2 * page) == 0);
        m.prefetch(0, page, device_place, s);
        CHECK(m.home(0) == -1);
        CHECK(soft().count("managed duplicated") == 1);
        CHECK(soft().held(0) == page);
        const auto sent = soft().count("bytes to host");
        run(reads);
        CHECK(soft().count("managed faults") == 0);
        m.prefetch(0, page, host_place, s);  // drops the copy, moves nothing
        CHECK(soft().count("bytes to host") == sent);
        CHECK(soft().held(0) == 0);
        run(reads);
        CHECK(soft().count("managed duplicated") == 2);
        run(writes);
        CHECK(m.home(0) == 0);
        CHECK(soft().held(0) == page);
    }
    SUBCASE("unset, copies are dropped") {
        m.prefetch(0, page, host_place, s);
        OK(cu().mem_advise(m.at, page, CU_MEM_ADVISE_SET_READ_MOSTLY, device_place));
        m.prefetch(0, page, device_place, s);
        OK(cu().mem_advise(m.at, page, CU_MEM_ADVISE_UNSET_READ_MOSTLY, device_place));
        CHECK(soft().held(0) == 0);
    }
    SUBCASE("accessed by") {
        OK(cu().mem_advise(m.at, page, CU_MEM_ADVISE_SET_ACCESSED_BY, device_place));
        OK(cu().mem_advise(m.at, page, CU_MEM_ADVISE_SET_ACCESSED_BY, host_place));
        int who[3] = {};
        OK(cu().mem_range_get_attribute(who, sizeof who, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, m.at,
                                        page));
        CHECK(who[0] == 0);
        CHECK(who[1] == -1);
        CHECK(who[2] == -2);
        m.prefetch(0, page, host_place, s);
        run(reads);
        CHECK(m.home(0) == -1);
    }
    CHECK(cu().mem_advise(m.at, page, static_cast<CUmem_advise>(77), host_place) ==
          CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_advise(m.at, 5 * page, CU_MEM_ADVISE_SET_READ_MOSTLY, host_place) ==
          CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("managed memory in batches, and what is discarded is gone") {
    NEEDS_SOFT_CUDA();
    rig r;
    const CUstream s = r.make_stream();
    const managed_memory m{6 * page};
    std::memset(m.cpu(), 5, 6 * page);
    CUdeviceptr at[] = {m.at, m.at + 2 * page, m.at + 5 * page};
    std::size_t bytes[] = {page, page, page};
    CUmemLocation places[] = {device_place, {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    std::size_t first_of[] = {0, 2};
    OK(cu().mem_prefetch_batch_async(at, bytes, 3, places, first_of, 2, 0, s));
    OK(cu().stream_synchronize(s));
    CHECK(m.home(0) == 0);
    CHECK(m.home(2) == 0);
    CHECK(m.home(5) == 1);
    CHECK(m.home(1) == -2);
    CHECK(cu().mem_prefetch_batch_async(at, bytes, 3, places, first_of, 2, 0, nullptr) ==
          CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_prefetch_batch_async(at, bytes, 0, places, first_of, 2, 0, s) ==
          CUDA_ERROR_INVALID_VALUE);
    first_of[1] = 3;
    CHECK(cu().mem_prefetch_batch_async(at, bytes, 3, places, first_of, 2, 0, s) ==
          CUDA_ERROR_INVALID_VALUE);

    bytes[0] = 2 * page - 4096;  // a page and a part: only the whole one
    OK(cu().mem_discard_batch_async(at, bytes, 1, 0, s));
    OK(cu().stream_synchronize(s));
    CHECK(soft().count("managed discarded") == 1);
    CHECK(m.cpu()[0] != 5);
    CHECK(m.cpu(page)[0] == 5);
    const auto sent = soft().count("bytes to host");
    m.prefetch(0, page, host_place, s);
    CHECK(soft().count("bytes to host") == sent);
}

TEST_CASE("a full device sends managed memory home, and counts it") {
    NEEDS_SOFT_CUDA();
    rig r;
    const CUstream s = r.make_stream();
    const managed_memory m{40 * page};
    m.prefetch(0, 32 * page, device_place, s);  // all that it has
    CHECK(soft().count("managed evictions") == 0);
    m.prefetch(32 * page, 2 * page, device_place, s);
    CHECK(soft().count("managed evictions") == 2);
    CHECK(m.home(0) == -1);  // the oldest
    CHECK(m.home(33) == 0);
    CUdeviceptr plain = 0;
    MUST(cu().mem_alloc(&plain, 4 * page));
    CHECK(soft().count("managed evictions") == 6);
    OK(soft().take(0, 20 * page));
    CHECK(soft().count("managed evictions") == 26);
    CHECK(soft().take(0, 29 * page) == CUDA_ERROR_OUT_OF_MEMORY);  // what is plain does not yield
    OK(soft().take(0, 0));
    OK(cu().mem_free(plain));
}

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
    CHECK(cu().mem_host_register(own.data(), 4096, 0) ==
          CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
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

    const auto asked = properties(CU_MEM_LOCATION_TYPE_DEVICE, 0,
                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemGenericAllocationHandle handle = 0;
    MUST(cu().mem_create(&handle, page, &asked, 0));
    int fd = -1;
    MUST(cu().mem_export_to_shareable_handle(&fd, handle,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
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

    // Each function that we declare can be made to fail, and then does nothing.
    for_each_function(cu(), [&](auto& one) {
        CAPTURE(one.name);
        OK(soft().fail(one.name, 0, 1, CUDA_ERROR_UNKNOWN));
        if (std::string_view{one.name} != "cuGetProcAddress") {
            OK(soft().fail(one.name, 0, 0, CUDA_SUCCESS));
        }
    });
    void* found = nullptr;
    CHECK(cu().get_proc_address("cuInit", &found, 12020, 0, nullptr) == CUDA_ERROR_UNKNOWN);

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

TEST_CASE("many threads at once") {
    NEEDS_SOFT_CUDA();
    const rig r;
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; ++number) {
        threads.emplace_back([&, number] {
            wrong += cu().ctx_push_current(r.context) == CUDA_SUCCESS ? 0 : 1;
            CUstream s = nullptr;
            CUevent done = nullptr;
            wrong += cu().stream_create_with_priority(&s, number % 2, 0) == CUDA_SUCCESS ? 0 : 1;
            wrong += cu().event_create(&done, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS ? 0 : 1;
            const auto asked = properties(
                number < 2 ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
            const CUmemAccessDesc who = to_device();
            for (int round = 0; round < 20; ++round) {
                CUmemGenericAllocationHandle handle = 0;
                CUdeviceptr at = 0;
                wrong += cu().mem_create(&handle, page, &asked, 0) == CUDA_SUCCESS ? 0 : 1;
                wrong += cu().mem_address_reserve(&at, page, 0, 0, 0) == CUDA_SUCCESS ? 0 : 1;
                wrong += cu().mem_map(at, page, 0, handle, 0) == CUDA_SUCCESS ? 0 : 1;
                wrong += cu().mem_set_access(at, page, &who, 1) == CUDA_SUCCESS ? 0 : 1;
                const auto value = static_cast<unsigned>(number * 1000 + round);
                wrong += cu().memset_d32_async(at, value, 1024, s) == CUDA_SUCCESS ? 0 : 1;
                unsigned got = 0;
                kernel_body reads = [&](soft_cuda::accessor& memory) {
                    got = memory.load<unsigned>(at + 4092);
                };
                wrong += launch(s, reads) == CUDA_SUCCESS ? 0 : 1;
                wrong += cu().event_record(done, s) == CUDA_SUCCESS ? 0 : 1;
                wrong += cu().event_synchronize(done) == CUDA_SUCCESS ? 0 : 1;
                wrong += got == value ? 0 : 1;
                wrong += cu().mem_unmap(at, page) == CUDA_SUCCESS ? 0 : 1;
                wrong += cu().mem_address_free(at, page) == CUDA_SUCCESS ? 0 : 1;
                wrong += cu().mem_release(handle) == CUDA_SUCCESS ? 0 : 1;
            }
            wrong += cu().stream_destroy(s) == CUDA_SUCCESS ? 0 : 1;
            wrong += cu().event_destroy(done) == CUDA_SUCCESS ? 0 : 1;
        });
    }
    for (auto& one : threads) {
        one.join();
    }
    CHECK(wrong == 0);
}
