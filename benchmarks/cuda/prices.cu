// SPDX-License-Identifier: Apache-2.0
// What the driver's calls on physical memory cost: handles of the device and of the host, by size, one thread and four.
// The sums that decide how pages are moved; the replay's simulated device has them as its prices.
#include "rig.hpp"

#include <cuda.h>
#include <sys/mman.h>

#include <atomic>
#include <barrier>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

using namespace cuda_bench;

namespace {

void must_call(CUresult outcome, const char* what) {
    if (outcome != CUDA_SUCCESS) {
        std::fprintf(stderr, "%s: error %d\n", what, static_cast<int>(outcome));
        std::exit(1);
    }
}
#define MUST(call) must_call((call), #call)

// us by step, of all threads and rounds.
class book {
public:
    template <class Fn>
    void time(const std::string& step, Fn&& fn) {
        const report::stopwatch watch;
        fn();
        const double us = watch.seconds() * 1e6;
        std::lock_guard guard{lock_};
        if (samples_.find(step) == samples_.end()) {
            order_.push_back(step);
        }
        samples_[step].push_back(us);
    }
    void print(const std::string& title) {
        for (const std::string& step : order_) {
            report::print(title + ", " + step, report::summarise(samples_[step]), "us");
        }
        std::fflush(stdout);
    }

private:
    std::mutex lock_;
    std::map<std::string, std::vector<double>> samples_;
    std::vector<std::string> order_;
};

CUmemAllocationProp kind_of(bool is_host) {
    CUmemAllocationProp kind{};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = is_host ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
    kind.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return kind;
}
const CUmemAccessDesc for_device{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
const CUmemAccessDesc for_cpu{{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0},
                              CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

void touch(char* at, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; i += 4096) {
        at[i] = 1;
    }
}

void round_of_steps(book& out, bool is_host, std::size_t bytes, CUcontext context, int rounds) {
    MUST(cuCtxSetCurrent(context));
    const CUmemAllocationProp kind = kind_of(is_host);
    CUdeviceptr va = 0;
    CUdeviceptr standing = 0;
    MUST(cuMemAddressReserve(&va, bytes, bytes, 0, 0));
    MUST(cuMemAddressReserve(&standing, bytes, bytes, 0, 0));
    char* at = reinterpret_cast<char*>(va);
    for (int round = 0; round < rounds; ++round) {
        CUmemGenericAllocationHandle handle = 0;
        out.time("create", [&] { MUST(cuMemCreate(&handle, bytes, &kind, 0)); });
        out.time("map", [&] { MUST(cuMemMap(standing, bytes, 0, handle, 0)); });
        out.time("access for the device",
                 [&] { MUST(cuMemSetAccess(standing, bytes, &for_device, 1)); });
        MUST(cuMemMap(va, bytes, 0, handle, 0));
        MUST(cuMemSetAccess(va, bytes, &for_device, 1));
        out.time("unmap, the device's only", [&] { MUST(cuMemUnmap(va, bytes)); });
        if (is_host) {
            MUST(cuMemMap(va, bytes, 0, handle, 0));
            out.time("access for the CPU alone",
                     [&] { MUST(cuMemSetAccess(va, bytes, &for_cpu, 1)); });
            touch(at, bytes);
            out.time("mprotect to read", [&] { ::mprotect(at, bytes, PROT_READ); });
            out.time("mprotect to none", [&] { ::mprotect(at, bytes, PROT_NONE); });
            out.time("mprotect back", [&] { ::mprotect(at, bytes, PROT_READ | PROT_WRITE); });
            out.time("touch after it", [&] { touch(at, bytes); });
            out.time("unmap, the CPU's alone", [&] { MUST(cuMemUnmap(va, bytes)); });
            MUST(cuMemMap(va, bytes, 0, handle, 0));
            MUST(cuMemSetAccess(va, bytes, &for_cpu, 1));
            touch(at, bytes);
            ::mprotect(at, bytes, PROT_NONE);
            out.time("unmap after mprotect to none", [&] { MUST(cuMemUnmap(va, bytes)); });
            MUST(cuMemMap(va, bytes, 0, handle, 0));
            MUST(cuMemSetAccess(va, bytes, &for_cpu, 1));
            touch(at, bytes);
            CUmemAccessDesc none = for_cpu;
            none.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
            out.time("access for the CPU, to none",
                     [&] { MUST(cuMemSetAccess(va, bytes, &none, 1)); });
            out.time("access for the CPU, again",
                     [&] { MUST(cuMemSetAccess(va, bytes, &for_cpu, 1)); });
            touch(at, bytes);
            out.time("access for the device beside",
                     [&] { MUST(cuMemSetAccess(va, bytes, &for_device, 1)); });
            out.time("unmap, both", [&] { MUST(cuMemUnmap(va, bytes)); });
        }
        out.time("unmap, standing", [&] { MUST(cuMemUnmap(standing, bytes)); });
        out.time("release", [&] { MUST(cuMemRelease(handle)); });
    }
    MUST(cuMemAddressFree(va, bytes));
    MUST(cuMemAddressFree(standing, bytes));
}

}  // namespace

int main(int argc, char** argv) {
    report::options chosen;
    if (!report::parse(argc, argv, "what the driver's calls cost", chosen)) {
        return 2;
    }
    MUST(cuInit(0));
    CUcontext context = nullptr;
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    report::print_head("us a call");
    for (const bool is_host : {false, true}) {
        for (const std::size_t bytes : {2_MiB, 32_MiB, 128_MiB}) {
            for (const unsigned threads : {1U, 4U}) {
                book out;
                std::vector<std::thread> workers;
                for (unsigned i = 0; i < threads; ++i) {
                    workers.emplace_back([&] {
                        round_of_steps(out, is_host, bytes, context, chosen.is_short ? 1 : 7);
                    });
                }
                for (std::thread& one : workers) {
                    one.join();
                }
                out.print(std::string{is_host ? "host " : "device "} + size_name(bytes) +
                          (threads == 1 ? "" : ", 4 threads"));
            }
        }
    }
    return 0;
}
