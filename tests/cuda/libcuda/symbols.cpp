// SPDX-License-Identifier: Apache-2.0
// symbols.cpp - entry points by name and version, as cuGetProcAddress hands them out.
//
// Model    A base name stands for one function per interface that the driver ever had under it; the one that a
//          program gets is the newest that is no newer than the version it asks for. What came after the
//          version that the driver says it has is not there at all.
#include <dlfcn.h>

#include <string_view>

#include "driver.hpp"

namespace soft_cuda {

namespace {

entry_point proc_point{"cuGetProcAddress"};

struct symbol {
    std::string_view base;
    int since;
    const char* exported;
};
constexpr symbol symbols[] = {
    {"cuCtxDisablePeerAccess", 4000, "cuCtxDisablePeerAccess"},
    {"cuCtxEnablePeerAccess", 4000, "cuCtxEnablePeerAccess"},
    {"cuCtxGetCurrent", 4000, "cuCtxGetCurrent"},
    {"cuCtxGetDevice", 2000, "cuCtxGetDevice"},
    {"cuCtxGetDevice", 13000, "cuCtxGetDevice_v2"},
    {"cuCtxGetStreamPriorityRange", 5050, "cuCtxGetStreamPriorityRange"},
    {"cuCtxPopCurrent", 4000, "cuCtxPopCurrent_v2"},
    {"cuCtxPushCurrent", 4000, "cuCtxPushCurrent_v2"},
    {"cuCtxSetCurrent", 4000, "cuCtxSetCurrent"},
    {"cuCtxSynchronize", 2000, "cuCtxSynchronize"},
    {"cuCtxSynchronize", 13000, "cuCtxSynchronize_v2"},
    {"cuDeviceCanAccessPeer", 4000, "cuDeviceCanAccessPeer"},
    {"cuDeviceGet", 2000, "cuDeviceGet"},
    {"cuDeviceGetAttribute", 2000, "cuDeviceGetAttribute"},
    {"cuDeviceGetCount", 2000, "cuDeviceGetCount"},
    {"cuDeviceGetName", 2000, "cuDeviceGetName"},
    {"cuDeviceGetPCIBusId", 4010, "cuDeviceGetPCIBusId"},
    {"cuDeviceGetUuid", 11040, "cuDeviceGetUuid_v2"},
    {"cuDevicePrimaryCtxGetState", 7000, "cuDevicePrimaryCtxGetState"},
    {"cuDevicePrimaryCtxRelease", 11000, "cuDevicePrimaryCtxRelease_v2"},
    {"cuDevicePrimaryCtxReset", 11000, "cuDevicePrimaryCtxReset_v2"},
    {"cuDevicePrimaryCtxRetain", 7000, "cuDevicePrimaryCtxRetain"},
    {"cuDeviceTotalMem", 3020, "cuDeviceTotalMem_v2"},
    {"cuDriverGetVersion", 2020, "cuDriverGetVersion"},
    {"cuEventCreate", 2000, "cuEventCreate"},
    {"cuEventDestroy", 4000, "cuEventDestroy_v2"},
    {"cuEventElapsedTime", 2000, "cuEventElapsedTime"},
    {"cuEventElapsedTime", 12080, "cuEventElapsedTime_v2"},
    {"cuEventQuery", 2000, "cuEventQuery"},
    {"cuEventRecord", 2000, "cuEventRecord"},
    {"cuEventSynchronize", 2000, "cuEventSynchronize"},
    {"cuGetErrorName", 6000, "cuGetErrorName"},
    {"cuGetErrorString", 6000, "cuGetErrorString"},
    {"cuGetProcAddress", 11030, "cuGetProcAddress"},
    {"cuGetProcAddress", 12000, "cuGetProcAddress_v2"},
    {"cuGraphDestroy", 10000, "cuGraphDestroy"},
    {"cuGraphExecDestroy", 10000, "cuGraphExecDestroy"},
    {"cuGraphGetNodes", 10000, "cuGraphGetNodes"},
    {"cuGraphInstantiateWithFlags", 11040, "cuGraphInstantiateWithFlags"},
    {"cuGraphLaunch", 10000, "cuGraphLaunch"},
    {"cuInit", 2000, "cuInit"},
    {"cuIpcCloseMemHandle", 4010, "cuIpcCloseMemHandle"},
    {"cuIpcGetMemHandle", 4010, "cuIpcGetMemHandle"},
    {"cuIpcOpenMemHandle", 11000, "cuIpcOpenMemHandle_v2"},
    {"cuLaunchHostFunc", 10000, "cuLaunchHostFunc"},
    {"cuLaunchKernel", 4000, "cuLaunchKernel"},
    {"cuMemAddressFree", 10020, "cuMemAddressFree"},
    {"cuMemAddressReserve", 10020, "cuMemAddressReserve"},
    {"cuMemAdvise", 8000, "cuMemAdvise"},
    {"cuMemAdvise", 12020, "cuMemAdvise_v2"},
    {"cuMemAllocAsync", 11020, "cuMemAllocAsync"},
    {"cuMemAllocManaged", 6000, "cuMemAllocManaged"},
    {"cuMemAlloc", 3020, "cuMemAlloc_v2"},
    {"cuMemCreate", 10020, "cuMemCreate"},
    {"cuMemDiscardAndPrefetchBatchAsync", 13000, "cuMemDiscardAndPrefetchBatchAsync"},
    {"cuMemDiscardBatchAsync", 13000, "cuMemDiscardBatchAsync"},
    {"cuMemExportToShareableHandle", 10020, "cuMemExportToShareableHandle"},
    {"cuMemFreeAsync", 11020, "cuMemFreeAsync"},
    {"cuMemFreeHost", 2000, "cuMemFreeHost"},
    {"cuMemFree", 3020, "cuMemFree_v2"},
    {"cuMemGetAccess", 10020, "cuMemGetAccess"},
    {"cuMemGetAddressRange", 3020, "cuMemGetAddressRange_v2"},
    {"cuMemGetAllocationGranularity", 10020, "cuMemGetAllocationGranularity"},
    {"cuMemGetAllocationPropertiesFromHandle", 10020, "cuMemGetAllocationPropertiesFromHandle"},
    {"cuMemGetInfo", 3020, "cuMemGetInfo_v2"},
    {"cuMemHostAlloc", 2020, "cuMemHostAlloc"},
    {"cuMemHostGetDevicePointer", 3020, "cuMemHostGetDevicePointer_v2"},
    {"cuMemHostRegister", 6050, "cuMemHostRegister_v2"},
    {"cuMemHostUnregister", 4000, "cuMemHostUnregister"},
    {"cuMemImportFromShareableHandle", 10020, "cuMemImportFromShareableHandle"},
    {"cuMemMap", 10020, "cuMemMap"},
    {"cuMemPrefetchAsync", 8000, "cuMemPrefetchAsync"},
    {"cuMemPrefetchAsync", 12020, "cuMemPrefetchAsync_v2"},
    {"cuMemPrefetchBatchAsync", 13000, "cuMemPrefetchBatchAsync"},
    {"cuMemRangeGetAttribute", 8000, "cuMemRangeGetAttribute"},
    {"cuMemRangeGetAttributes", 8000, "cuMemRangeGetAttributes"},
    {"cuMemRelease", 10020, "cuMemRelease"},
    {"cuMemRetainAllocationHandle", 11000, "cuMemRetainAllocationHandle"},
    {"cuMemSetAccess", 10020, "cuMemSetAccess"},
    {"cuMemUnmap", 10020, "cuMemUnmap"},
    {"cuMemcpy", 4000, "cuMemcpy"},
    {"cuMemcpyAsync", 4000, "cuMemcpyAsync"},
    {"cuMemcpyDtoDAsync", 3020, "cuMemcpyDtoDAsync_v2"},
    {"cuMemcpyDtoHAsync", 3020, "cuMemcpyDtoHAsync_v2"},
    {"cuMemcpyHtoDAsync", 3020, "cuMemcpyHtoDAsync_v2"},
    {"cuMemsetD32Async", 3020, "cuMemsetD32Async"},
    {"cuMemsetD8Async", 3020, "cuMemsetD8Async"},
    {"cuModuleGetFunction", 2000, "cuModuleGetFunction"},
    {"cuModuleLoadData", 2000, "cuModuleLoadData"},
    {"cuModuleUnload", 2000, "cuModuleUnload"},
    {"cuPointerGetAttribute", 4000, "cuPointerGetAttribute"},
    {"cuPointerGetAttributes", 7000, "cuPointerGetAttributes"},
    {"cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2"},
    {"cuStreamCreate", 2000, "cuStreamCreate"},
    {"cuStreamCreateWithPriority", 5050, "cuStreamCreateWithPriority"},
    {"cuStreamDestroy", 4000, "cuStreamDestroy_v2"},
    {"cuStreamEndCapture", 10000, "cuStreamEndCapture"},
    {"cuStreamGetCtx", 9020, "cuStreamGetCtx"},
    {"cuStreamGetCtx", 12050, "cuStreamGetCtx_v2"},
    {"cuStreamGetFlags", 5050, "cuStreamGetFlags"},
    {"cuStreamGetId", 12000, "cuStreamGetId"},
    {"cuStreamGetPriority", 5050, "cuStreamGetPriority"},
    {"cuStreamIsCapturing", 10000, "cuStreamIsCapturing"},
    {"cuStreamQuery", 2000, "cuStreamQuery"},
    {"cuStreamSynchronize", 2000, "cuStreamSynchronize"},
    {"cuStreamWaitEvent", 3020, "cuStreamWaitEvent"},
    {"cuThreadExchangeStreamCaptureMode", 10010, "cuThreadExchangeStreamCaptureMode"},
};

void* address_of(const char* exported) {
    static void* const self = [] {
        Dl_info found{};
        ::dladdr(reinterpret_cast<const void*>(&symbols), &found);
        return ::dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    }();
    return ::dlsym(self, exported);
}

CUresult find(const char* name, void** function, int version, std::uint64_t flags,
              CUdriverProcAddressQueryResult* status) {
    const int own = the_driver().version;
    if (name == nullptr || function == nullptr || flags > 2 || version > own) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *function = nullptr;
    auto said = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    int newest = 0;
    for (const symbol& one : symbols) {
        if (one.base != name || one.since > own) {
            continue;
        }
        if (one.since > version) {
            if (newest == 0) {
                said = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
            }
        } else if (one.since > newest) {
            newest = one.since;
            *function = address_of(one.exported);
            said = CU_GET_PROC_ADDRESS_SUCCESS;
        }
    }
    if (status != nullptr) {
        *status = said;
    }
    return status != nullptr || *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // namespace

SOFT_CUDA_EXPORT CUresult cuGetProcAddress_v2(const char* name, void** function, int version,
                                              std::uint64_t flags,
                                              CUdriverProcAddressQueryResult* status) {
    return enter(proc_point, nothing, [&] { return find(name, function, version, flags, status); });
}

// As it was before 12.0: no status, the answer says it.
SOFT_CUDA_EXPORT CUresult cuGetProcAddress(const char* name, void** function, int version,
                                           std::uint64_t flags) {
    return enter(proc_point, nothing,
                 [&] { return find(name, function, version, flags, nullptr); });
}

static_assert(is_as_declared<&driver_api::get_proc_address>(cuGetProcAddress_v2));

}  // namespace soft_cuda
