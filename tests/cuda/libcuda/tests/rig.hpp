// SPDX-License-Identifier: Apache-2.0
// rig.hpp - what the tests of the software driver share: the library as found, a context, ranges, kernels, children.
//
// Model    Everything goes through dlopen and cuGetProcAddress, as it does from the backend.
// Failure  A libcuda.so.1 that is not the software one is a skip, said by each case.
#pragma once

#include "../soft_cuda.hpp"

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

namespace libcuda_test {

using namespace xmm::cuda;
using namespace std::chrono_literals;
using clock_type = std::chrono::steady_clock;

inline constexpr std::size_t MiB = std::size_t{1} << 20;
inline constexpr std::size_t page = 2 * MiB;

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

inline library open_library() {
    if (::getenv("LIBCUDA_TEST_CHILD") == nullptr) {  // a child was given its own
        ::setenv("SOFT_CUDA_DEVICES", "2", 1);
        ::setenv("SOFT_CUDA_BYTES", "64M", 1);
    }
    library opened;
    opened.handle = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (opened.handle == nullptr) {
        return opened;
    }
    opened.soft = soft_cuda::controls_of(opened.handle);
    using find_proc =
        CUresult(const char*, void**, int, std::uint64_t, CUdriverProcAddressQueryResult*);
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

inline library& lib() {
    static library only = open_library();
    return only;
}
inline driver_api& cu() { return lib().api; }
inline soft_cuda::controls& soft() { return lib().soft; }

inline bool is_missing() {
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

inline CUmemAllocationProp properties(CUmemLocationType type, int id,
                                      CUmemAllocationHandleType shared = CU_MEM_HANDLE_TYPE_NONE) {
    CUmemAllocationProp asked{};
    asked.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    asked.requestedHandleTypes = shared;
    asked.location = {type, id};
    return asked;
}

inline CUmemAccessDesc access(CUmemLocationType type, int id,
                              CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    return {{type, id}, flags};
}
inline CUmemAccessDesc to_device(int id = 0) { return access(CU_MEM_LOCATION_TYPE_DEVICE, id); }
inline CUmemAccessDesc to_cpu(CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
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
inline bool cpu_reads(const void* at) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const bool could = ::write(ends[1], at, 1) == 1;
    ::close(ends[0]);
    ::close(ends[1]);
    return could;
}

inline std::string protection_of(CUdeviceptr at) {
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
inline CUresult launch(CUstream in, kernel_body& body) {
    return soft().launch(
        in,
        [](void* of, soft_cuda::accessor* memory) { (*static_cast<kernel_body*>(of))(*memory); },
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
inline bool is_child(const char* of_cases, std::initializer_list<const char*> environment) {
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

}  // namespace libcuda_test
