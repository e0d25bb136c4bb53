// SPDX-License-Identifier: Apache-2.0
// soft_cuda.hpp - what tests ask of the software driver beside the driver API.
//
// Model    Functions that the software libcuda.so.1 exports and no real driver has. A test finds them by
//          soft_cuda::controls_of(handle of the library); without them the library is a real one.
//          A kernel is a host function that gets an accessor: addresses of the device, checked as its MMU would.
// Threads  Any. An accessor belongs to the kernel that got it.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstring>

#include "backends/cuda/abi.hpp"

struct CUgraph_st;
struct CUgraphExec_st;

namespace soft_cuda {

using CUgraph = ::CUgraph_st*;
using CUgraphExec = ::CUgraphExec_st*;

// The device's view of memory during one kernel. A miss ends the context with 700, and every later answer is null.
struct accessor {
    // Where [at, at + *bytes) lies for this device; lowers *bytes to what follows without a break. What it answers
    // may be used until somebody may unmap it, as an access that is under way on a device.
    void* (*resolve)(accessor* self, xmm::cuda::CUdeviceptr at, std::size_t* bytes,
                     int write) = nullptr;
    int device = 0;

    template <class T>
    T* at(xmm::cuda::CUdeviceptr address, bool write) {
        std::size_t bytes = sizeof(T);
        void* found = resolve(this, address, &bytes, write ? 1 : 0);
        return bytes == sizeof(T) ? static_cast<T*>(found) : nullptr;
    }
    template <class T>
    T load(xmm::cuda::CUdeviceptr address) {
        T value{};
        (void)read(address, &value, sizeof value);
        return value;
    }
    template <class T>
    bool store(xmm::cuda::CUdeviceptr address, const T& value) {
        return write(address, &value, sizeof value);
    }
    bool read(xmm::cuda::CUdeviceptr from, void* to, std::size_t bytes) {
        for (auto* place = static_cast<char*>(to); bytes != 0;) {
            std::size_t here = bytes;
            const void* found = resolve(this, from, &here, 0);
            if (found == nullptr) {
                return false;
            }
            std::memcpy(place, found, here);
            place += here, from += here, bytes -= here;
        }
        return true;
    }
    bool write(xmm::cuda::CUdeviceptr to, const void* from, std::size_t bytes) {
        for (auto* place = static_cast<const char*>(from); bytes != 0;) {
            std::size_t here = bytes;
            void* found = resolve(this, to, &here, 1);
            if (found == nullptr) {
                return false;
            }
            std::memcpy(found, place, here);
            place += here, to += here, bytes -= here;
        }
        return true;
    }
};

using kernel = void (*)(void* context, accessor* memory);

}  // namespace soft_cuda

extern "C" {

// The entry point `name` lets `skip` calls pass, then answers `code` to `times` calls without doing anything. Names
// are those of cuGetProcAddress, and "copy", "memset", "kernel", "prefetch" for work as its stream executes it: that
// fails the context. A code that ends a context when a device says it does so here too. 500: no such name.
xmm::cuda::CUresult xmmSoftCudaFail(const char* name, unsigned skip, unsigned times,
                                    xmm::cuda::CUresult code);
// Each call of `name` takes so much longer; 0 ends it.
xmm::cuda::CUresult xmmSoftCudaDelay(const char* name, unsigned microseconds);
// Calls of `name` so far, those that failed too.
unsigned long long xmmSoftCudaCalls(const char* name);
// No faults, no delays, and all counts from 0.
void xmmSoftCudaReset();

// So much of the device's memory is another process's from now on; 2 where it is not free.
xmm::cuda::CUresult xmmSoftCudaTake(int device, std::size_t bytes);
// Bytes of the device that this process holds.
std::size_t xmmSoftCudaHeld(int device);
// Bytes per second of each direction of the device's link; 0 is as fast as memory is.
xmm::cuda::CUresult xmmSoftCudaLink(int device, unsigned long long bytes_per_second);
// What cuDeviceGetAttribute answers, and what the device then can do.
xmm::cuda::CUresult xmmSoftCudaAttribute(int device, unsigned attribute, int value);
// The device has failed: its context answers `code` from now on.
xmm::cuda::CUresult xmmSoftCudaBreak(int device, xmm::cuda::CUresult code);

// Where the page of managed memory is: a device, -1 the host, -2 nowhere yet, -3 not managed memory.
int xmmSoftCudaResidency(xmm::cuda::CUdeviceptr at);
// "bytes to device", "bytes to host", "bytes between devices", "managed faults", "managed evictions", "managed
// remote accesses", "managed prefetched", "managed duplicated", "managed discarded", "prefetches refused",
// "captures invalidated", "frames": as README.md says. 0 for a name that is none of them.
unsigned long long xmmSoftCudaCount(const char* name);

// Runs fn(context, accessor) in the stream's order, as a kernel of the current context.
xmm::cuda::CUresult xmmSoftCudaLaunch(xmm::cuda::CUstream stream, soft_cuda::kernel fn,
                                      void* context);

}  // extern "C"

namespace soft_cuda {

struct controls {
    decltype(&xmmSoftCudaFail) fail = nullptr;
    decltype(&xmmSoftCudaDelay) delay = nullptr;
    decltype(&xmmSoftCudaCalls) calls = nullptr;
    decltype(&xmmSoftCudaReset) reset = nullptr;
    decltype(&xmmSoftCudaTake) take = nullptr;
    decltype(&xmmSoftCudaHeld) held = nullptr;
    decltype(&xmmSoftCudaLink) link = nullptr;
    decltype(&xmmSoftCudaAttribute) attribute = nullptr;
    decltype(&xmmSoftCudaBreak) break_device = nullptr;
    decltype(&xmmSoftCudaResidency) residency = nullptr;
    decltype(&xmmSoftCudaCount) count = nullptr;
    decltype(&xmmSoftCudaLaunch) launch = nullptr;

    // All of them or none.
    [[nodiscard]] explicit operator bool() const noexcept { return launch != nullptr; }
};

[[nodiscard]] inline controls controls_of(void* library) noexcept {
    controls all;
    const auto find = [library](auto& where, const char* name) {
        where = reinterpret_cast<std::remove_reference_t<decltype(where)>>(::dlsym(library, name));
    };
    find(all.fail, "xmmSoftCudaFail");
    find(all.delay, "xmmSoftCudaDelay");
    find(all.calls, "xmmSoftCudaCalls");
    find(all.reset, "xmmSoftCudaReset");
    find(all.take, "xmmSoftCudaTake");
    find(all.held, "xmmSoftCudaHeld");
    find(all.link, "xmmSoftCudaLink");
    find(all.attribute, "xmmSoftCudaAttribute");
    find(all.break_device, "xmmSoftCudaBreak");
    find(all.residency, "xmmSoftCudaResidency");
    find(all.count, "xmmSoftCudaCount");
    find(all.launch, "xmmSoftCudaLaunch");
    return all;
}

}  // namespace soft_cuda
