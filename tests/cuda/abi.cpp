// SPDX-License-Identifier: Apache-2.0
// Our declarations of the driver's interface against the toolkit's: sizes, offsets, values, signatures.
#include "../../backends/cuda/abi.hpp"

#include <doctest/doctest.h>

#if __has_include(<cuda.h>) && __has_include(<cudaTypedefs.h>)

#include <string_view>
#include <type_traits>

#include <cuda.h>
#include <cudaTypedefs.h>

namespace {

namespace ours = xmm::cuda;

// ---- types: what the toolkit calls each of ours

template <class T>
struct toolkit {
    using type = T;
};
template <class T>
struct toolkit<T*> {
    using type = typename toolkit<T>::type*;
};
template <class T>
struct toolkit<const T> {
    using type = const typename toolkit<T>::type;
};
template <class R, class... Args>
struct toolkit<R(Args...)> {
    using type = typename toolkit<R>::type(typename toolkit<Args>::type...);
};
template <>
struct toolkit<ours::CUresult> {
    using type = ::CUresult;
};
template <>
struct toolkit<ours::CUdevice_attribute> {
    using type = ::CUdevice_attribute;
};
template <>
struct toolkit<ours::CUmemLocationType> {
    using type = ::CUmemLocationType;
};
template <>
struct toolkit<ours::CUmemAllocationType> {
    using type = ::CUmemAllocationType;
};
template <>
struct toolkit<ours::CUmemAllocationHandleType> {
    using type = ::CUmemAllocationHandleType;
};
template <>
struct toolkit<ours::CUmemAccess_flags> {
    using type = ::CUmemAccess_flags;
};
template <>
struct toolkit<ours::CUmemAllocationGranularity_flags> {
    using type = ::CUmemAllocationGranularity_flags;
};
template <>
struct toolkit<ours::CUstreamCaptureStatus> {
    using type = ::CUstreamCaptureStatus;
};
template <>
struct toolkit<ours::CUstreamCaptureMode> {
    using type = ::CUstreamCaptureMode;
};
template <>
struct toolkit<ours::CUmem_advise> {
    using type = ::CUmem_advise;
};
template <>
struct toolkit<ours::CUmem_range_attribute> {
    using type = ::CUmem_range_attribute;
};
template <>
struct toolkit<ours::CUpointer_attribute> {
    using type = ::CUpointer_attribute;
};
template <>
struct toolkit<ours::CUdriverProcAddressQueryResult> {
    using type = ::CUdriverProcAddressQueryResult;
};
template <>
struct toolkit<ours::CUstream_flags> {
    using type = ::CUstream_flags;
};
template <>
struct toolkit<ours::CUevent_flags> {
    using type = ::CUevent_flags;
};
template <>
struct toolkit<ours::CUmemAttach_flags> {
    using type = ::CUmemAttach_flags;
};
template <>
struct toolkit<ours::CUipcMem_flags> {
    using type = ::CUipcMem_flags;
};
template <>
struct toolkit<ours::CUuuid> {
    using type = ::CUuuid;
};
template <>
struct toolkit<ours::CUipcMemHandle> {
    using type = ::CUipcMemHandle;
};
template <>
struct toolkit<ours::CUmemLocation> {
    using type = ::CUmemLocation;
};
template <>
struct toolkit<ours::CUmemAccessDesc> {
    using type = ::CUmemAccessDesc;
};
template <>
struct toolkit<ours::CUmemAllocationProp> {
    using type = ::CUmemAllocationProp;
};

template <class T>
constexpr bool is_alike = sizeof(T) == sizeof(typename toolkit<T>::type) &&
                          alignof(T) == alignof(typename toolkit<T>::type);
static_assert(is_alike<ours::CUuuid>);
static_assert(is_alike<ours::CUipcMemHandle>);
static_assert(is_alike<ours::CUmemLocation>);
static_assert(is_alike<ours::CUmemAccessDesc>);
static_assert(is_alike<ours::CUmemAllocationProp>);

#define XMM_SAME_MEMBER(type, member)                                        \
    static_assert(offsetof(ours::type, member) == offsetof(::type, member)); \
    static_assert(sizeof(ours::type::member) == sizeof(::type::member))
XMM_SAME_MEMBER(CUmemLocation, type);
XMM_SAME_MEMBER(CUmemLocation, id);
XMM_SAME_MEMBER(CUmemAccessDesc, location);
XMM_SAME_MEMBER(CUmemAccessDesc, flags);
XMM_SAME_MEMBER(CUmemAllocationProp, type);
XMM_SAME_MEMBER(CUmemAllocationProp, requestedHandleTypes);
XMM_SAME_MEMBER(CUmemAllocationProp, location);
XMM_SAME_MEMBER(CUmemAllocationProp, win32HandleMetaData);
XMM_SAME_MEMBER(CUmemAllocationProp, allocFlags);
static_assert(offsetof(ours::CUmemAllocationProp, allocFlags.compressionType) ==
              offsetof(::CUmemAllocationProp, allocFlags.compressionType));
static_assert(offsetof(ours::CUmemAllocationProp, allocFlags.gpuDirectRDMACapable) ==
              offsetof(::CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
static_assert(offsetof(ours::CUmemAllocationProp, allocFlags.usage) ==
              offsetof(::CUmemAllocationProp, allocFlags.usage));
static_assert(offsetof(ours::CUmemAllocationProp, allocFlags.reserved) ==
              offsetof(::CUmemAllocationProp, allocFlags.reserved));
XMM_SAME_MEMBER(CUuuid, bytes);
XMM_SAME_MEMBER(CUipcMemHandle, reserved);

static_assert(std::is_same_v<ours::CUdevice, ::CUdevice>);
static_assert(std::is_same_v<ours::CUdeviceptr, ::CUdeviceptr>);
static_assert(std::is_same_v<ours::CUcontext, ::CUcontext>);
static_assert(std::is_same_v<ours::CUstream, ::CUstream>);
static_assert(std::is_same_v<ours::CUevent, ::CUevent>);
static_assert(std::is_same_v<ours::CUmodule, ::CUmodule>);
static_assert(std::is_same_v<ours::CUfunction, ::CUfunction>);
static_assert(std::is_same_v<ours::CUhostFn, ::CUhostFn>);
static_assert(std::is_same_v<ours::CUmemGenericAllocationHandle, ::CUmemGenericAllocationHandle>);

// ---- values

#define XMM_SAME_VALUE(name) static_assert(+ours::name == +::name)
static_assert(is_alike<ours::CUresult>);
XMM_SAME_VALUE(CUDA_SUCCESS);
XMM_SAME_VALUE(CUDA_ERROR_INVALID_VALUE);
XMM_SAME_VALUE(CUDA_ERROR_OUT_OF_MEMORY);
XMM_SAME_VALUE(CUDA_ERROR_NOT_INITIALIZED);
XMM_SAME_VALUE(CUDA_ERROR_DEINITIALIZED);
XMM_SAME_VALUE(CUDA_ERROR_STUB_LIBRARY);
XMM_SAME_VALUE(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER);
XMM_SAME_VALUE(CUDA_ERROR_DEVICE_UNAVAILABLE);
XMM_SAME_VALUE(CUDA_ERROR_NO_DEVICE);
XMM_SAME_VALUE(CUDA_ERROR_INVALID_DEVICE);
XMM_SAME_VALUE(CUDA_ERROR_INVALID_CONTEXT);
XMM_SAME_VALUE(CUDA_ERROR_MAP_FAILED);
XMM_SAME_VALUE(CUDA_ERROR_UNMAP_FAILED);
XMM_SAME_VALUE(CUDA_ERROR_ALREADY_MAPPED);
XMM_SAME_VALUE(CUDA_ERROR_NOT_MAPPED);
XMM_SAME_VALUE(CUDA_ERROR_ECC_UNCORRECTABLE);
XMM_SAME_VALUE(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
XMM_SAME_VALUE(CUDA_ERROR_NVLINK_UNCORRECTABLE);
XMM_SAME_VALUE(CUDA_ERROR_CONTAINED);
XMM_SAME_VALUE(CUDA_ERROR_OPERATING_SYSTEM);
XMM_SAME_VALUE(CUDA_ERROR_INVALID_HANDLE);
XMM_SAME_VALUE(CUDA_ERROR_ILLEGAL_STATE);
XMM_SAME_VALUE(CUDA_ERROR_NOT_FOUND);
XMM_SAME_VALUE(CUDA_ERROR_NOT_READY);
XMM_SAME_VALUE(CUDA_ERROR_ILLEGAL_ADDRESS);
XMM_SAME_VALUE(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
XMM_SAME_VALUE(CUDA_ERROR_LAUNCH_TIMEOUT);
XMM_SAME_VALUE(CUDA_ERROR_CONTEXT_IS_DESTROYED);
XMM_SAME_VALUE(CUDA_ERROR_ASSERT);
XMM_SAME_VALUE(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
XMM_SAME_VALUE(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
XMM_SAME_VALUE(CUDA_ERROR_HARDWARE_STACK_ERROR);
XMM_SAME_VALUE(CUDA_ERROR_ILLEGAL_INSTRUCTION);
XMM_SAME_VALUE(CUDA_ERROR_MISALIGNED_ADDRESS);
XMM_SAME_VALUE(CUDA_ERROR_INVALID_ADDRESS_SPACE);
XMM_SAME_VALUE(CUDA_ERROR_INVALID_PC);
XMM_SAME_VALUE(CUDA_ERROR_LAUNCH_FAILED);
XMM_SAME_VALUE(CUDA_ERROR_TENSOR_MEMORY_LEAK);
XMM_SAME_VALUE(CUDA_ERROR_NOT_PERMITTED);
XMM_SAME_VALUE(CUDA_ERROR_NOT_SUPPORTED);
XMM_SAME_VALUE(CUDA_ERROR_SYSTEM_NOT_READY);
XMM_SAME_VALUE(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
XMM_SAME_VALUE(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE);
XMM_SAME_VALUE(CUDA_ERROR_MPS_CONNECTION_FAILED);
XMM_SAME_VALUE(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
XMM_SAME_VALUE(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
XMM_SAME_VALUE(CUDA_ERROR_STREAM_CAPTURE_MERGE);
XMM_SAME_VALUE(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
XMM_SAME_VALUE(CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
XMM_SAME_VALUE(CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
XMM_SAME_VALUE(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
XMM_SAME_VALUE(CUDA_ERROR_CAPTURED_EVENT);
XMM_SAME_VALUE(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
XMM_SAME_VALUE(CUDA_ERROR_EXTERNAL_DEVICE);
XMM_SAME_VALUE(CUDA_ERROR_UNKNOWN);
static_assert(is_alike<ours::CUdevice_attribute>);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_INTEGRATED);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_NUMA_CONFIG);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_NUMA_ID);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
XMM_SAME_VALUE(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
static_assert(is_alike<ours::CUmemLocationType>);
XMM_SAME_VALUE(CU_MEM_LOCATION_TYPE_INVALID);
XMM_SAME_VALUE(CU_MEM_LOCATION_TYPE_DEVICE);
XMM_SAME_VALUE(CU_MEM_LOCATION_TYPE_HOST);
XMM_SAME_VALUE(CU_MEM_LOCATION_TYPE_HOST_NUMA);
XMM_SAME_VALUE(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT);
static_assert(is_alike<ours::CUmemAllocationType>);
XMM_SAME_VALUE(CU_MEM_ALLOCATION_TYPE_INVALID);
XMM_SAME_VALUE(CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(is_alike<ours::CUmemAllocationHandleType>);
XMM_SAME_VALUE(CU_MEM_HANDLE_TYPE_NONE);
XMM_SAME_VALUE(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
XMM_SAME_VALUE(CU_MEM_HANDLE_TYPE_FABRIC);
static_assert(sizeof(ours::CUmemFabricHandle) == sizeof(::CUmemFabricHandle));
static_assert(is_alike<ours::CUmemAccess_flags>);
XMM_SAME_VALUE(CU_MEM_ACCESS_FLAGS_PROT_NONE);
XMM_SAME_VALUE(CU_MEM_ACCESS_FLAGS_PROT_READ);
XMM_SAME_VALUE(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(is_alike<ours::CUmemAllocationGranularity_flags>);
XMM_SAME_VALUE(CU_MEM_ALLOC_GRANULARITY_MINIMUM);
XMM_SAME_VALUE(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
static_assert(is_alike<ours::CUstreamCaptureStatus>);
XMM_SAME_VALUE(CU_STREAM_CAPTURE_STATUS_NONE);
XMM_SAME_VALUE(CU_STREAM_CAPTURE_STATUS_ACTIVE);
XMM_SAME_VALUE(CU_STREAM_CAPTURE_STATUS_INVALIDATED);
static_assert(is_alike<ours::CUstreamCaptureMode>);
XMM_SAME_VALUE(CU_STREAM_CAPTURE_MODE_GLOBAL);
XMM_SAME_VALUE(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
XMM_SAME_VALUE(CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(is_alike<ours::CUmem_advise>);
XMM_SAME_VALUE(CU_MEM_ADVISE_SET_READ_MOSTLY);
XMM_SAME_VALUE(CU_MEM_ADVISE_UNSET_READ_MOSTLY);
XMM_SAME_VALUE(CU_MEM_ADVISE_SET_PREFERRED_LOCATION);
XMM_SAME_VALUE(CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION);
XMM_SAME_VALUE(CU_MEM_ADVISE_SET_ACCESSED_BY);
XMM_SAME_VALUE(CU_MEM_ADVISE_UNSET_ACCESSED_BY);
static_assert(is_alike<ours::CUmem_range_attribute>);
XMM_SAME_VALUE(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY);
XMM_SAME_VALUE(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION);
XMM_SAME_VALUE(CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY);
XMM_SAME_VALUE(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION);
XMM_SAME_VALUE(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE);
XMM_SAME_VALUE(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID);
XMM_SAME_VALUE(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE);
XMM_SAME_VALUE(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID);
static_assert(is_alike<ours::CUpointer_attribute>);
XMM_SAME_VALUE(CU_POINTER_ATTRIBUTE_CONTEXT);
XMM_SAME_VALUE(CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
XMM_SAME_VALUE(CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
XMM_SAME_VALUE(CU_POINTER_ATTRIBUTE_HOST_POINTER);
XMM_SAME_VALUE(CU_POINTER_ATTRIBUTE_IS_MANAGED);
XMM_SAME_VALUE(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
XMM_SAME_VALUE(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
XMM_SAME_VALUE(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
XMM_SAME_VALUE(CU_POINTER_ATTRIBUTE_RANGE_SIZE);
XMM_SAME_VALUE(CU_POINTER_ATTRIBUTE_MAPPED);
XMM_SAME_VALUE(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
XMM_SAME_VALUE(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE);
XMM_SAME_VALUE(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS);
static_assert(is_alike<ours::CUdriverProcAddressQueryResult>);
XMM_SAME_VALUE(CU_GET_PROC_ADDRESS_SUCCESS);
XMM_SAME_VALUE(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
XMM_SAME_VALUE(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
static_assert(is_alike<ours::CUstream_flags>);
XMM_SAME_VALUE(CU_STREAM_DEFAULT);
XMM_SAME_VALUE(CU_STREAM_NON_BLOCKING);
static_assert(is_alike<ours::CUevent_flags>);
XMM_SAME_VALUE(CU_EVENT_DEFAULT);
XMM_SAME_VALUE(CU_EVENT_BLOCKING_SYNC);
XMM_SAME_VALUE(CU_EVENT_DISABLE_TIMING);
XMM_SAME_VALUE(CU_EVENT_INTERPROCESS);
static_assert(is_alike<ours::CUmemAttach_flags>);
XMM_SAME_VALUE(CU_MEM_ATTACH_GLOBAL);
XMM_SAME_VALUE(CU_MEM_ATTACH_HOST);
static_assert(is_alike<ours::CUipcMem_flags>);
XMM_SAME_VALUE(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);

static_assert(ours::host_alloc_portable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(ours::host_register_portable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(ours::host_register_device_map == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(ours::host_register_read_only == CU_MEMHOSTREGISTER_READ_ONLY);
static_assert(ours::get_proc_address_default == CU_GET_PROC_ADDRESS_DEFAULT);
static_assert(ours::get_proc_address_legacy_stream == CU_GET_PROC_ADDRESS_LEGACY_STREAM);

// ---- functions: the name with that version has that signature

constexpr ours::driver_api api;

#define XMM_SAME_FUNCTION(member, cu_name, cu_version)                            \
    static_assert(std::string_view{api.member.name} == #cu_name);                 \
    static_assert(api.member.version == cu_version);                              \
    static_assert(std::is_same_v<toolkit<decltype(api.member)::signature>::type*, \
                                 PFN_##cu_name##_v##cu_version>)
XMM_SAME_FUNCTION(init, cuInit, 2000);
XMM_SAME_FUNCTION(driver_get_version, cuDriverGetVersion, 2020);
XMM_SAME_FUNCTION(get_proc_address, cuGetProcAddress, 12000);
XMM_SAME_FUNCTION(get_error_name, cuGetErrorName, 6000);
XMM_SAME_FUNCTION(get_error_string, cuGetErrorString, 6000);
XMM_SAME_FUNCTION(device_get_count, cuDeviceGetCount, 2000);
XMM_SAME_FUNCTION(device_get, cuDeviceGet, 2000);
XMM_SAME_FUNCTION(device_get_name, cuDeviceGetName, 2000);
XMM_SAME_FUNCTION(device_total_mem, cuDeviceTotalMem, 3020);
XMM_SAME_FUNCTION(device_get_attribute, cuDeviceGetAttribute, 2000);
XMM_SAME_FUNCTION(device_get_uuid, cuDeviceGetUuid, 11040);
XMM_SAME_FUNCTION(device_get_pci_bus_id, cuDeviceGetPCIBusId, 4010);
XMM_SAME_FUNCTION(device_can_access_peer, cuDeviceCanAccessPeer, 4000);
XMM_SAME_FUNCTION(device_primary_ctx_retain, cuDevicePrimaryCtxRetain, 7000);
XMM_SAME_FUNCTION(device_primary_ctx_release, cuDevicePrimaryCtxRelease, 11000);
XMM_SAME_FUNCTION(ctx_push_current, cuCtxPushCurrent, 4000);
XMM_SAME_FUNCTION(ctx_pop_current, cuCtxPopCurrent, 4000);
XMM_SAME_FUNCTION(ctx_get_current, cuCtxGetCurrent, 4000);
XMM_SAME_FUNCTION(ctx_get_device, cuCtxGetDevice, 2000);
XMM_SAME_FUNCTION(ctx_get_stream_priority_range, cuCtxGetStreamPriorityRange, 5050);
XMM_SAME_FUNCTION(mem_get_info, cuMemGetInfo, 3020);
XMM_SAME_FUNCTION(mem_address_reserve, cuMemAddressReserve, 10020);
XMM_SAME_FUNCTION(mem_address_free, cuMemAddressFree, 10020);
XMM_SAME_FUNCTION(mem_create, cuMemCreate, 10020);
XMM_SAME_FUNCTION(mem_release, cuMemRelease, 10020);
XMM_SAME_FUNCTION(mem_map, cuMemMap, 10020);
XMM_SAME_FUNCTION(mem_unmap, cuMemUnmap, 10020);
XMM_SAME_FUNCTION(mem_set_access, cuMemSetAccess, 10020);
XMM_SAME_FUNCTION(mem_get_access, cuMemGetAccess, 10020);
XMM_SAME_FUNCTION(mem_get_allocation_granularity, cuMemGetAllocationGranularity, 10020);
XMM_SAME_FUNCTION(mem_export_to_shareable_handle, cuMemExportToShareableHandle, 10020);
XMM_SAME_FUNCTION(mem_import_from_shareable_handle, cuMemImportFromShareableHandle, 10020);
XMM_SAME_FUNCTION(mem_alloc, cuMemAlloc, 3020);
XMM_SAME_FUNCTION(mem_free, cuMemFree, 3020);
XMM_SAME_FUNCTION(mem_get_address_range, cuMemGetAddressRange, 3020);
XMM_SAME_FUNCTION(mem_alloc_async, cuMemAllocAsync, 11020);
XMM_SAME_FUNCTION(mem_free_async, cuMemFreeAsync, 11020);
XMM_SAME_FUNCTION(mem_alloc_managed, cuMemAllocManaged, 6000);
XMM_SAME_FUNCTION(mem_prefetch_async, cuMemPrefetchAsync, 12020);
XMM_SAME_FUNCTION(mem_advise, cuMemAdvise, 12020);
XMM_SAME_FUNCTION(mem_range_get_attribute, cuMemRangeGetAttribute, 8000);
XMM_SAME_FUNCTION(mem_range_get_attributes, cuMemRangeGetAttributes, 8000);
XMM_SAME_FUNCTION(mem_prefetch_batch_async, cuMemPrefetchBatchAsync, 13000);
XMM_SAME_FUNCTION(mem_discard_batch_async, cuMemDiscardBatchAsync, 13000);
XMM_SAME_FUNCTION(mem_host_alloc, cuMemHostAlloc, 2020);
XMM_SAME_FUNCTION(mem_free_host, cuMemFreeHost, 2000);
XMM_SAME_FUNCTION(mem_host_register, cuMemHostRegister, 6050);
XMM_SAME_FUNCTION(mem_host_unregister, cuMemHostUnregister, 4000);
XMM_SAME_FUNCTION(pointer_get_attribute, cuPointerGetAttribute, 4000);
XMM_SAME_FUNCTION(pointer_get_attributes, cuPointerGetAttributes, 7000);
XMM_SAME_FUNCTION(ipc_get_mem_handle, cuIpcGetMemHandle, 4010);
XMM_SAME_FUNCTION(ipc_open_mem_handle, cuIpcOpenMemHandle, 11000);
XMM_SAME_FUNCTION(ipc_close_mem_handle, cuIpcCloseMemHandle, 4010);
XMM_SAME_FUNCTION(memcpy_async, cuMemcpyAsync, 4000);
XMM_SAME_FUNCTION(memset_d8_async, cuMemsetD8Async, 3020);
XMM_SAME_FUNCTION(memset_d32_async, cuMemsetD32Async, 3020);
XMM_SAME_FUNCTION(stream_create_with_priority, cuStreamCreateWithPriority, 5050);
XMM_SAME_FUNCTION(stream_destroy, cuStreamDestroy, 4000);
XMM_SAME_FUNCTION(stream_query, cuStreamQuery, 2000);
XMM_SAME_FUNCTION(stream_synchronize, cuStreamSynchronize, 2000);
XMM_SAME_FUNCTION(stream_wait_event, cuStreamWaitEvent, 3020);
XMM_SAME_FUNCTION(stream_is_capturing, cuStreamIsCapturing, 10000);
XMM_SAME_FUNCTION(stream_get_ctx, cuStreamGetCtx, 9020);
XMM_SAME_FUNCTION(stream_get_priority, cuStreamGetPriority, 5050);
XMM_SAME_FUNCTION(thread_exchange_stream_capture_mode, cuThreadExchangeStreamCaptureMode, 10010);
XMM_SAME_FUNCTION(event_create, cuEventCreate, 2000);
XMM_SAME_FUNCTION(event_destroy, cuEventDestroy, 4000);
XMM_SAME_FUNCTION(event_record, cuEventRecord, 2000);
XMM_SAME_FUNCTION(event_query, cuEventQuery, 2000);
XMM_SAME_FUNCTION(event_synchronize, cuEventSynchronize, 2000);
XMM_SAME_FUNCTION(launch_host_func, cuLaunchHostFunc, 10000);
XMM_SAME_FUNCTION(module_load_data, cuModuleLoadData, 2000);
XMM_SAME_FUNCTION(module_unload, cuModuleUnload, 2000);
XMM_SAME_FUNCTION(module_get_function, cuModuleGetFunction, 2000);
XMM_SAME_FUNCTION(launch_kernel, cuLaunchKernel, 4000);

}  // namespace

TEST_CASE("the special streams are the driver's") {
    CHECK(ours::stream_legacy == reinterpret_cast<std::uintptr_t>(CU_STREAM_LEGACY));
    CHECK(ours::stream_per_thread == reinterpret_cast<std::uintptr_t>(CU_STREAM_PER_THREAD));
}

TEST_CASE("every function of ours is held against the toolkit's") {
    int count = 0;
    ours::driver_api all;
    ours::for_each_function(all, [&](const auto&) { ++count; });
    CHECK(count == 75);  // as many as lines above
}

#else

TEST_CASE("our declarations against the toolkit's") { MESSAGE("skipped: no cuda.h here"); }

#endif
