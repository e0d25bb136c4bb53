// SPDX-License-Identifier: Apache-2.0
// devices.cpp - start, devices, contexts, peers, and the names of errors.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "memory.hpp"
#include "streams.hpp"

namespace soft_cuda {

namespace {

entry_point init_point{"cuInit"};
entry_point version_point{"cuDriverGetVersion"};
entry_point error_name_point{"cuGetErrorName"};
entry_point error_string_point{"cuGetErrorString"};
entry_point count_point{"cuDeviceGetCount"};
entry_point get_point{"cuDeviceGet"};
entry_point name_point{"cuDeviceGetName"};
entry_point total_point{"cuDeviceTotalMem"};
entry_point attribute_point{"cuDeviceGetAttribute"};
entry_point uuid_point{"cuDeviceGetUuid"};
entry_point pci_point{"cuDeviceGetPCIBusId"};
entry_point can_access_point{"cuDeviceCanAccessPeer"};
entry_point enable_peer_point{"cuCtxEnablePeerAccess"};
entry_point disable_peer_point{"cuCtxDisablePeerAccess"};
entry_point retain_point{"cuDevicePrimaryCtxRetain"};
entry_point release_point{"cuDevicePrimaryCtxRelease"};
entry_point reset_point{"cuDevicePrimaryCtxReset"};
entry_point state_point{"cuDevicePrimaryCtxGetState"};
entry_point push_point{"cuCtxPushCurrent"};
entry_point pop_point{"cuCtxPopCurrent"};
entry_point set_point{"cuCtxSetCurrent"};
entry_point current_point{"cuCtxGetCurrent"};
entry_point ctx_device_point{"cuCtxGetDevice"};
entry_point priorities_point{"cuCtxGetStreamPriorityRange"};
entry_point module_load_point{"cuModuleLoadData"};
entry_point module_unload_point{"cuModuleUnload"};
entry_point module_function_point{"cuModuleGetFunction"};
entry_point kernel_point{"cuLaunchKernel"};

struct error_text {
    unsigned code;
    const char* name;
    const char* text;
};
constexpr error_text errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "a newer driver is required"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "device busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {205, "CUDA_ERROR_MAP_FAILED", "mapping failed"},
    {206, "CUDA_ERROR_UNMAP_FAILED", "unmapping failed"},
    {208, "CUDA_ERROR_ALREADY_MAPPED", "already mapped"},
    {211, "CUDA_ERROR_NOT_MAPPED", "not mapped"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported"},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error"},
    {226, "CUDA_ERROR_CONTAINED", "contained hardware error"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "a call to the operating system failed"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {401, "CUDA_ERROR_ILLEGAL_STATE", "not possible in the current state"},
    {500, "CUDA_ERROR_NOT_FOUND", "symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "illegal memory access"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources for a launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "launch timed out"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is enabled already"},
    {705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access is not enabled"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {710, "CUDA_ERROR_ASSERT", "device-side assert"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "host memory is registered already"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "host memory is not registered"},
    {714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"},
    {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "illegal instruction"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "wrong address space for this access"},
    {718, "CUDA_ERROR_INVALID_PC", "invalid program counter"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {721, "CUDA_ERROR_TENSOR_MEMORY_LEAK", "tensor memory was not given back"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "display driver and CUDA driver do not match"},
    {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility on such a device"},
    {805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "no connection to the MPS server"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not permitted while a stream captures"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "an earlier error has broken the capture"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "two captures would become one"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "the capture did not begin in this stream"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "captured work was not joined to the origin"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "a capture would depend on uncaptured work"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "implicit dependency on the legacy stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "not permitted on an event recorded in a capture"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "the capture was begun by another thread"},
    {911, "CUDA_ERROR_EXTERNAL_DEVICE", "an external device failed"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const error_text* text_of(CUresult code) {
    const auto* const found = std::find_if(std::begin(errors), std::end(errors),
                                           [code](const auto& one) { return one.code == code; });
    return found != std::end(errors) ? found : nullptr;
}

device* device_of(CUdevice ordinal) {
    driver& all = the_driver();
    return all.has_device(ordinal) ? all.devices[static_cast<std::size_t>(ordinal)].get() : nullptr;
}

context* context_of(CUcontext handle) {
    for (const auto& one : the_driver().devices) {
        if (reinterpret_cast<CUcontext>(&one->primary) == handle) {
            return &one->primary;
        }
    }
    return nullptr;
}

void end_context(context& which) {
    end_streams_of(which);
    free_memory_of(which);
    which.is_live.store(false, std::memory_order_release);
    which.lost.store(0, std::memory_order_release);
    which.peers.store(0, std::memory_order_relaxed);
}

constexpr unsigned anywhere = init | lost_too;

}  // namespace

SOFT_CUDA_EXPORT CUresult cuInit(unsigned flags) {
    return enter(init_point, nothing, [&] {
        driver& all = the_driver();
        if (all.is_forked.load(std::memory_order_relaxed)) {
            return CUDA_ERROR_NOT_INITIALIZED;
        }
        if (flags != 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (all.devices.empty()) {
            return CUDA_ERROR_NO_DEVICE;
        }
        // release: pairs with the acquire in admit.
        all.is_initialised.store(true, std::memory_order_release);
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuDriverGetVersion(int* version) {
    return enter(version_point, nothing, [&] {
        if (version == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *version = the_driver().version;
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuGetErrorName(CUresult code, const char** name) {
    return enter(error_name_point, nothing | in_host_functions, [&] {
        if (name == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        const error_text* const found = text_of(code);
        *name = found != nullptr ? found->name : nullptr;
        return found != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    });
}

SOFT_CUDA_EXPORT CUresult cuGetErrorString(CUresult code, const char** text) {
    return enter(error_string_point, nothing | in_host_functions, [&] {
        if (text == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        const error_text* const found = text_of(code);
        *text = found != nullptr ? found->text : nullptr;
        return found != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    });
}

SOFT_CUDA_EXPORT CUresult cuDeviceGetCount(int* count) {
    return enter(count_point, anywhere, [&] {
        if (count == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *count = static_cast<int>(the_driver().devices.size());
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuDeviceGet(CUdevice* one, int ordinal) {
    return enter(get_point, anywhere, [&] {
        if (one == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (device_of(ordinal) == nullptr) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
        *one = ordinal;
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuDeviceGetName(char* name, int room, CUdevice one) {
    return enter(name_point, anywhere, [&] {
        if (name == nullptr || room <= 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (device_of(one) == nullptr) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
        std::snprintf(name, static_cast<std::size_t>(room), "software CUDA device %d", one);
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice one) {
    return enter(total_point, anywhere, [&] {
        if (bytes == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        const device* const of = device_of(one);
        if (of == nullptr) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
        *bytes = of->bytes;
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice one) {
    return enter(attribute_point, anywhere, [&] {
        if (value == nullptr || which == 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        device* const of = device_of(one);
        if (of == nullptr) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
        *value = of->attribute(which);
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice one) {
    return enter(uuid_point, anywhere, [&] {
        if (uuid == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (device_of(one) == nullptr) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
        std::memcpy(uuid->bytes, "software CUDA", 13);
        uuid->bytes[13] = uuid->bytes[14] = 0;
        uuid->bytes[15] = static_cast<char>(one);
        return CUDA_SUCCESS;
    });
}

// In a domain that no machine has: sysfs knows nothing of it.
SOFT_CUDA_EXPORT CUresult cuDeviceGetPCIBusId(char* text, int room, CUdevice one) {
    return enter(pci_point, anywhere, [&] {
        if (text == nullptr || room < 13) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        device* const of = device_of(one);
        if (of == nullptr) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
        std::snprintf(
            text, static_cast<std::size_t>(room), "%04X:%02X:%02X.0",
            static_cast<unsigned>(of->attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)) & 0xFFFF,
            static_cast<unsigned>(of->attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)) & 0xFF,
            static_cast<unsigned>(of->attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)) & 0xFF);
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuDeviceCanAccessPeer(int* can, CUdevice one, CUdevice other) {
    return enter(can_access_point, anywhere, [&] {
        if (can == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (device_of(one) == nullptr || device_of(other) == nullptr) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
        *can = one != other ? 1 : 0;
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    return enter(enable_peer_point, a_context, [&] {
        const context* const other = context_of(peer);
        context& current = *this_thread().current();
        if (flags != 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (other == nullptr || other == &current) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
        const std::uint32_t bit = 1u << other->device;
        return (current.peers.fetch_or(bit, std::memory_order_acq_rel) & bit) != 0
                   ? error_peer_enabled
                   : CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    return enter(disable_peer_point, a_context, [&] {
        const context* const other = context_of(peer);
        if (other == nullptr) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
        const std::uint32_t bit = 1u << other->device;
        const std::uint32_t had =
            this_thread().current()->peers.fetch_and(~bit, std::memory_order_acq_rel);
        bump_epoch();
        return (had & bit) != 0 ? CUDA_SUCCESS : error_peer_not_enabled;
    });
}

SOFT_CUDA_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice one) {
    return enter(retain_point, anywhere, [&] {
        if (handle == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        device* const of = device_of(one);
        if (of == nullptr) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
        const std::scoped_lock hold{work_lock};
        if (of->primary.refs++ == 0) {
            of->primary.is_live.store(true, std::memory_order_release);
        }
        *handle = reinterpret_cast<CUcontext>(&of->primary);
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice one) {
    return enter(release_point, anywhere, [&] {
        device* const of = device_of(one);
        if (of == nullptr) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
        {
            const std::scoped_lock hold{work_lock};
            if (of->primary.refs == 0) {
                return CUDA_ERROR_INVALID_CONTEXT;
            }
            if (--of->primary.refs != 0) {
                return CUDA_SUCCESS;
            }
        }
        end_context(of->primary);
        return CUDA_SUCCESS;
    });
}

// All that the context had is gone; who holds it goes on with a fresh one.
SOFT_CUDA_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice one) {
    return enter(reset_point, anywhere, [&] {
        device* const of = device_of(one);
        if (of == nullptr) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
        end_context(of->primary);
        const std::scoped_lock hold{work_lock};
        of->primary.is_live.store(of->primary.refs != 0, std::memory_order_release);
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice one, unsigned* flags, int* active) {
    return enter(state_point, anywhere, [&] {
        if (flags == nullptr || active == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        const device* const of = device_of(one);
        if (of == nullptr) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
        *flags = 0;
        *active = of->primary.is_live.load(std::memory_order_acquire) ? 1 : 0;
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext handle) {
    return enter(push_point, anywhere, [&] {
        context* const which = context_of(handle);
        if (which == nullptr) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
        if (!which->is_live.load(std::memory_order_acquire)) {
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        }
        this_thread().contexts.push_back(which);
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* handle) {
    return enter(pop_point, anywhere, [&] {
        auto& stack = this_thread().contexts;
        if (stack.empty()) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
        if (handle != nullptr) {
            *handle = reinterpret_cast<CUcontext>(stack.back());
        }
        stack.pop_back();
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuCtxSetCurrent(CUcontext handle) {
    return enter(set_point, anywhere, [&] {
        auto& stack = this_thread().contexts;
        context* const which = context_of(handle);
        if (handle != nullptr && which == nullptr) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
        if (!stack.empty()) {
            stack.pop_back();
        }
        if (which != nullptr) {
            stack.push_back(which);
        }
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuCtxGetCurrent(CUcontext* handle) {
    return enter(current_point, anywhere, [&] {
        if (handle == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *handle = reinterpret_cast<CUcontext>(this_thread().current());
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuCtxGetDevice(CUdevice* one) {
    return enter(ctx_device_point, a_context | lost_too, [&] {
        if (one == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *one = this_thread().current()->device;
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuCtxGetDevice_v2(CUdevice* one, CUcontext handle) {
    return enter(ctx_device_point, anywhere, [&] {
        const context* const which =
            handle != nullptr ? context_of(handle) : this_thread().current();
        if (one == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (which == nullptr) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
        *one = which->device;
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    return enter(priorities_point, a_context, [&] {
        if (least != nullptr) {
            *least = 0;
        }
        if (greatest != nullptr) {
            *greatest = -5;
        }
        return CUDA_SUCCESS;
    });
}

// There is no code that this device could run: xmmSoftCudaLaunch takes functions.
SOFT_CUDA_EXPORT CUresult cuModuleLoadData(CUmodule*, const void*) {
    return enter(module_load_point, a_context | no_capture,
                 [] { return CUDA_ERROR_NOT_SUPPORTED; });
}
SOFT_CUDA_EXPORT CUresult cuModuleUnload(CUmodule) {
    return enter(module_unload_point, a_context, [] { return CUDA_ERROR_INVALID_HANDLE; });
}
SOFT_CUDA_EXPORT CUresult cuModuleGetFunction(CUfunction*, CUmodule, const char*) {
    return enter(module_function_point, a_context, [] { return CUDA_ERROR_INVALID_HANDLE; });
}
SOFT_CUDA_EXPORT CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned,
                                         unsigned, unsigned, unsigned, CUstream, void**, void**) {
    return enter(kernel_point, a_context, [] { return CUDA_ERROR_INVALID_HANDLE; });
}

static_assert(is_as_declared<&driver_api::init>(cuInit));
static_assert(is_as_declared<&driver_api::driver_get_version>(cuDriverGetVersion));
static_assert(is_as_declared<&driver_api::get_error_name>(cuGetErrorName));
static_assert(is_as_declared<&driver_api::get_error_string>(cuGetErrorString));
static_assert(is_as_declared<&driver_api::device_get_count>(cuDeviceGetCount));
static_assert(is_as_declared<&driver_api::device_get>(cuDeviceGet));
static_assert(is_as_declared<&driver_api::device_get_name>(cuDeviceGetName));
static_assert(is_as_declared<&driver_api::device_total_mem>(cuDeviceTotalMem_v2));
static_assert(is_as_declared<&driver_api::device_get_attribute>(cuDeviceGetAttribute));
static_assert(is_as_declared<&driver_api::device_get_uuid>(cuDeviceGetUuid_v2));
static_assert(is_as_declared<&driver_api::device_get_pci_bus_id>(cuDeviceGetPCIBusId));
static_assert(is_as_declared<&driver_api::device_can_access_peer>(cuDeviceCanAccessPeer));
static_assert(is_as_declared<&driver_api::device_primary_ctx_retain>(cuDevicePrimaryCtxRetain));
static_assert(
    is_as_declared<&driver_api::device_primary_ctx_release>(cuDevicePrimaryCtxRelease_v2));
static_assert(is_as_declared<&driver_api::ctx_push_current>(cuCtxPushCurrent_v2));
static_assert(is_as_declared<&driver_api::ctx_pop_current>(cuCtxPopCurrent_v2));
static_assert(is_as_declared<&driver_api::ctx_get_current>(cuCtxGetCurrent));
static_assert(is_as_declared<&driver_api::ctx_get_device>(cuCtxGetDevice));
static_assert(
    is_as_declared<&driver_api::ctx_get_stream_priority_range>(cuCtxGetStreamPriorityRange));
static_assert(is_as_declared<&driver_api::module_load_data>(cuModuleLoadData));
static_assert(is_as_declared<&driver_api::module_unload>(cuModuleUnload));
static_assert(is_as_declared<&driver_api::module_get_function>(cuModuleGetFunction));
static_assert(is_as_declared<&driver_api::launch_kernel>(cuLaunchKernel));

}  // namespace soft_cuda
