// SPDX-License-Identifier: Apache-2.0
// abi.hpp - what we use of the CUDA driver's binary interface, declared by ourselves.
//
// Model    Types, constants and signatures as the driver has them since CUDA 13.0, under the driver's own
//          names, in a namespace of ours; the handles are the driver's very types, so that a cudaStream_t
//          is a CUstream here. driver_api holds each function with its name and the CUDA version in which
//          this signature appeared: with both, cuGetProcAddress finds the right one of several.
// See      tests/cuda/abi.cpp holds every line of it against the toolkit's cuda.h, where there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

// The driver's opaque objects. These tags belong to the vendor; a declaration is all that is needed.
struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;

namespace xmm::cuda {

using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUmemGenericAllocationHandle = unsigned long long;
using CUcontext = ::CUctx_st*;
using CUstream = ::CUstream_st*;
using CUevent = ::CUevent_st*;
using CUmodule = ::CUmod_st*;
using CUfunction = ::CUfunc_st*;
using CUhostFn = void (*)(void* context);

enum CUresult : unsigned {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_STUB_LIBRARY = 34,
    CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER = 36,
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_MAP_FAILED = 205,
    CUDA_ERROR_UNMAP_FAILED = 206,
    CUDA_ERROR_ALREADY_MAPPED = 208,
    CUDA_ERROR_NOT_MAPPED = 211,
    CUDA_ERROR_ECC_UNCORRECTABLE = 214,
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
    CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
    CUDA_ERROR_CONTAINED = 226,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
    CUDA_ERROR_LAUNCH_TIMEOUT = 702,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_ASSERT = 710,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
    CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
    CUDA_ERROR_MISALIGNED_ADDRESS = 716,
    CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
    CUDA_ERROR_INVALID_PC = 718,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_TENSOR_MEMORY_LEAK = 721,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_SYSTEM_NOT_READY = 802,
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
    CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804,
    CUDA_ERROR_MPS_CONNECTION_FAILED = 805,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
    CUDA_ERROR_EXTERNAL_DEVICE = 911,
    CUDA_ERROR_UNKNOWN = 999,
};

enum CUdevice_attribute : unsigned {
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_INTEGRATED = 18,
    CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20,
    CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
    CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
    CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40,
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED = 78,
    CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83,
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88,
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89,
    CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
    CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99,
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES = 100,
    CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST = 101,
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128,
    CU_DEVICE_ATTRIBUTE_NUMA_CONFIG = 130,
    CU_DEVICE_ATTRIBUTE_NUMA_ID = 131,
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID = 134,
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 141,
};

enum CUmemLocationType : unsigned {
    CU_MEM_LOCATION_TYPE_INVALID = 0,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,             // id: the device
    CU_MEM_LOCATION_TYPE_HOST = 2,               // id is ignored
    CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,          // id: the OS's number of the node
    CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4,  // id is ignored
};

enum CUmemAllocationType : unsigned {
    CU_MEM_ALLOCATION_TYPE_INVALID = 0,
    CU_MEM_ALLOCATION_TYPE_PINNED = 1,
};

enum CUmemAllocationHandleType : unsigned {
    CU_MEM_HANDLE_TYPE_NONE = 0,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
    CU_MEM_HANDLE_TYPE_FABRIC = 8,
};
[[nodiscard]] constexpr CUmemAllocationHandleType operator|(CUmemAllocationHandleType a,
                                                            CUmemAllocationHandleType b) noexcept {
    return static_cast<CUmemAllocationHandleType>(static_cast<unsigned>(a) |
                                                  static_cast<unsigned>(b));
}

enum CUmemAccess_flags : unsigned {
    CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
    CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
};

enum CUmemAllocationGranularity_flags : unsigned {
    CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
};

enum CUstreamCaptureStatus : unsigned {
    CU_STREAM_CAPTURE_STATUS_NONE = 0,
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
    CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
};

enum CUstreamCaptureMode : unsigned {
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

enum CUmem_advise : unsigned {
    CU_MEM_ADVISE_SET_READ_MOSTLY = 1,
    CU_MEM_ADVISE_UNSET_READ_MOSTLY = 2,
    CU_MEM_ADVISE_SET_PREFERRED_LOCATION = 3,
    CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION = 4,
    CU_MEM_ADVISE_SET_ACCESSED_BY = 5,
    CU_MEM_ADVISE_UNSET_ACCESSED_BY = 6,
};

enum CUmem_range_attribute : unsigned {
    CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY = 1,
    CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION = 2,
    CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY = 3,
    CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION = 4,
    CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE = 5,
    CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID = 6,
    CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE = 7,
    CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID = 8,
};

enum CUpointer_attribute : unsigned {
    CU_POINTER_ATTRIBUTE_CONTEXT = 1,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
    CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
    CU_POINTER_ATTRIBUTE_MAPPED = 13,
    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
    CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15,
    CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16,
};

enum CUdriverProcAddressQueryResult : unsigned {
    CU_GET_PROC_ADDRESS_SUCCESS = 0,
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
    CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
};

// Flags, under names of ours where the driver's are macros.
enum CUstream_flags : unsigned { CU_STREAM_DEFAULT = 0, CU_STREAM_NON_BLOCKING = 1 };
enum CUevent_flags : unsigned {
    CU_EVENT_DEFAULT = 0,
    CU_EVENT_BLOCKING_SYNC = 1,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_EVENT_INTERPROCESS = 4,
};
enum CUmemAttach_flags : unsigned { CU_MEM_ATTACH_GLOBAL = 1, CU_MEM_ATTACH_HOST = 2 };
enum CUipcMem_flags : unsigned { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1 };
inline constexpr unsigned host_alloc_portable = 1;       // CU_MEMHOSTALLOC_PORTABLE
inline constexpr unsigned host_register_portable = 1;    // CU_MEMHOSTREGISTER_PORTABLE
inline constexpr unsigned host_register_device_map = 2;  // CU_MEMHOSTREGISTER_DEVICEMAP
inline constexpr unsigned host_register_read_only = 8;   // CU_MEMHOSTREGISTER_READ_ONLY
inline constexpr std::uint64_t get_proc_address_default = 0;
inline constexpr std::uint64_t get_proc_address_legacy_stream = 1;
inline constexpr std::uintptr_t stream_legacy = 1;      // CU_STREAM_LEGACY, as a number
inline constexpr std::uintptr_t stream_per_thread = 2;  // CU_STREAM_PER_THREAD

struct CUuuid {
    char bytes[16];
};
struct CUipcMemHandle {
    char reserved[64];
};
struct CUmemFabricHandle {
    unsigned char data[64];
};
struct CUmemLocation {
    CUmemLocationType type;
    int id;
};
struct CUmemAccessDesc {
    CUmemLocation location;
    CUmemAccess_flags flags;
};
struct CUmemAllocationProp {
    CUmemAllocationType type;
    CUmemAllocationHandleType requestedHandleTypes;
    CUmemLocation location;
    void* win32HandleMetaData;
    struct {
        unsigned char compressionType;
        unsigned char gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
};

// The oldest driver that has all that is required below.
inline constexpr int required_version = 12020;

// One function: its name and version as cuGetProcAddress takes them, and where it was found.
template <class Signature>
struct driver_function {
    using signature = Signature;

    const char* name;
    int version;
    bool is_optional = false;
    Signature* at = nullptr;

    template <class... Args>
    CUresult operator()(Args... args) const noexcept {
        return at(args...);
    }
    [[nodiscard]] constexpr explicit operator bool() const noexcept { return at != nullptr; }
};

struct driver_api {
    template <class... Args>
    using fn = driver_function<CUresult(Args...)>;

    static constexpr bool optional = true;

    // Start, errors
    fn<unsigned> init{"cuInit", 2000};
    fn<int*> driver_get_version{"cuDriverGetVersion", 2020};
    fn<const char*, void**, int, std::uint64_t, CUdriverProcAddressQueryResult*> get_proc_address{
        "cuGetProcAddress", 12000};
    fn<CUresult, const char**> get_error_name{"cuGetErrorName", 6000};
    fn<CUresult, const char**> get_error_string{"cuGetErrorString", 6000};

    // Devices and contexts
    fn<int*> device_get_count{"cuDeviceGetCount", 2000};
    fn<CUdevice*, int> device_get{"cuDeviceGet", 2000};
    fn<char*, int, CUdevice> device_get_name{"cuDeviceGetName", 2000};
    fn<std::size_t*, CUdevice> device_total_mem{"cuDeviceTotalMem", 3020};
    fn<int*, CUdevice_attribute, CUdevice> device_get_attribute{"cuDeviceGetAttribute", 2000};
    fn<CUuuid*, CUdevice> device_get_uuid{"cuDeviceGetUuid", 11040};
    fn<char*, int, CUdevice> device_get_pci_bus_id{"cuDeviceGetPCIBusId", 4010};
    fn<int*, CUdevice, CUdevice> device_can_access_peer{"cuDeviceCanAccessPeer", 4000};
    fn<CUcontext*, CUdevice> device_primary_ctx_retain{"cuDevicePrimaryCtxRetain", 7000};
    fn<CUdevice> device_primary_ctx_release{"cuDevicePrimaryCtxRelease", 11000};
    fn<CUcontext> ctx_push_current{"cuCtxPushCurrent", 4000};
    fn<CUcontext*> ctx_pop_current{"cuCtxPopCurrent", 4000};
    fn<CUcontext*> ctx_get_current{"cuCtxGetCurrent", 4000};
    fn<CUdevice*> ctx_get_device{"cuCtxGetDevice", 2000};
    fn<int*, int*> ctx_get_stream_priority_range{"cuCtxGetStreamPriorityRange", 5050};
    fn<std::size_t*, std::size_t*> mem_get_info{"cuMemGetInfo", 3020};

    // Physical memory and mappings
    fn<CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr, unsigned long long> mem_address_reserve{
        "cuMemAddressReserve", 10020};
    fn<CUdeviceptr, std::size_t> mem_address_free{"cuMemAddressFree", 10020};
    fn<CUmemGenericAllocationHandle*, std::size_t, const CUmemAllocationProp*, unsigned long long>
        mem_create{"cuMemCreate", 10020};
    fn<CUmemGenericAllocationHandle> mem_release{"cuMemRelease", 10020};
    fn<CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle, unsigned long long>
        mem_map{"cuMemMap", 10020};
    fn<CUdeviceptr, std::size_t> mem_unmap{"cuMemUnmap", 10020};
    fn<CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t> mem_set_access{
        "cuMemSetAccess", 10020};
    fn<unsigned long long*, const CUmemLocation*, CUdeviceptr> mem_get_access{"cuMemGetAccess",
                                                                              10020};
    fn<std::size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags>
        mem_get_allocation_granularity{"cuMemGetAllocationGranularity", 10020};
    fn<void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long>
        mem_export_to_shareable_handle{"cuMemExportToShareableHandle", 10020};
    fn<CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType>
        mem_import_from_shareable_handle{"cuMemImportFromShareableHandle", 10020};

    // Plain, managed and page-locked memory
    fn<CUdeviceptr*, std::size_t> mem_alloc{"cuMemAlloc", 3020};
    fn<CUdeviceptr> mem_free{"cuMemFree", 3020};
    fn<CUdeviceptr*, std::size_t*, CUdeviceptr> mem_get_address_range{"cuMemGetAddressRange", 3020};
    fn<CUdeviceptr*, std::size_t, CUstream> mem_alloc_async{"cuMemAllocAsync", 11020};
    fn<CUdeviceptr, CUstream> mem_free_async{"cuMemFreeAsync", 11020};
    fn<CUdeviceptr*, std::size_t, unsigned> mem_alloc_managed{"cuMemAllocManaged", 6000};
    fn<CUdeviceptr, std::size_t, CUmemLocation, unsigned, CUstream> mem_prefetch_async{
        "cuMemPrefetchAsync", 12020};
    fn<CUdeviceptr, std::size_t, CUmem_advise, CUmemLocation> mem_advise{"cuMemAdvise", 12020};
    fn<void*, std::size_t, CUmem_range_attribute, CUdeviceptr, std::size_t> mem_range_get_attribute{
        "cuMemRangeGetAttribute", 8000};
    fn<void**, std::size_t*, CUmem_range_attribute*, std::size_t, CUdeviceptr, std::size_t>
        mem_range_get_attributes{"cuMemRangeGetAttributes", 8000};
    fn<CUdeviceptr*, std::size_t*, std::size_t, CUmemLocation*, std::size_t*, std::size_t,
       unsigned long long, CUstream>
        mem_prefetch_batch_async{"cuMemPrefetchBatchAsync", 13000, optional};
    fn<CUdeviceptr*, std::size_t*, std::size_t, unsigned long long, CUstream>
        mem_discard_batch_async{"cuMemDiscardBatchAsync", 13000, optional};
    fn<void**, std::size_t, unsigned> mem_host_alloc{"cuMemHostAlloc", 2020};
    fn<void*> mem_free_host{"cuMemFreeHost", 2000};
    fn<void*, std::size_t, unsigned> mem_host_register{"cuMemHostRegister", 6050};
    fn<void*> mem_host_unregister{"cuMemHostUnregister", 4000};
    fn<void*, CUpointer_attribute, CUdeviceptr> pointer_get_attribute{"cuPointerGetAttribute",
                                                                      4000};
    fn<unsigned, CUpointer_attribute*, void**, CUdeviceptr> pointer_get_attributes{
        "cuPointerGetAttributes", 7000};
    fn<CUipcMemHandle*, CUdeviceptr> ipc_get_mem_handle{"cuIpcGetMemHandle", 4010};
    fn<CUdeviceptr*, CUipcMemHandle, unsigned> ipc_open_mem_handle{"cuIpcOpenMemHandle", 11000};
    fn<CUdeviceptr> ipc_close_mem_handle{"cuIpcCloseMemHandle", 4010};

    // Work
    fn<CUdeviceptr, CUdeviceptr, std::size_t, CUstream> memcpy_async{"cuMemcpyAsync", 4000};
    fn<CUdeviceptr, unsigned char, std::size_t, CUstream> memset_d8_async{"cuMemsetD8Async", 3020};
    fn<CUdeviceptr, unsigned, std::size_t, CUstream> memset_d32_async{"cuMemsetD32Async", 3020};
    fn<CUstream*, unsigned, int> stream_create_with_priority{"cuStreamCreateWithPriority", 5050};
    fn<CUstream> stream_destroy{"cuStreamDestroy", 4000};
    fn<CUstream> stream_query{"cuStreamQuery", 2000};
    fn<CUstream> stream_synchronize{"cuStreamSynchronize", 2000};
    fn<CUstream, CUevent, unsigned> stream_wait_event{"cuStreamWaitEvent", 3020};
    fn<CUstream, CUstreamCaptureStatus*> stream_is_capturing{"cuStreamIsCapturing", 10000};
    fn<CUstream, CUcontext*> stream_get_ctx{"cuStreamGetCtx", 9020};
    fn<CUstream, int*> stream_get_priority{"cuStreamGetPriority", 5050};
    fn<CUstreamCaptureMode*> thread_exchange_stream_capture_mode{
        "cuThreadExchangeStreamCaptureMode", 10010};
    fn<CUevent*, unsigned> event_create{"cuEventCreate", 2000};
    fn<CUevent> event_destroy{"cuEventDestroy", 4000};
    fn<CUevent, CUstream> event_record{"cuEventRecord", 2000};
    fn<CUevent> event_query{"cuEventQuery", 2000};
    fn<CUevent> event_synchronize{"cuEventSynchronize", 2000};
    fn<CUstream, CUhostFn, void*> launch_host_func{"cuLaunchHostFunc", 10000};

    // Kernels: no backend's business, but at hand for whoever has one as text
    fn<CUmodule*, const void*> module_load_data{"cuModuleLoadData", 2000, optional};
    fn<CUmodule> module_unload{"cuModuleUnload", 2000, optional};
    fn<CUfunction*, CUmodule, const char*> module_get_function{"cuModuleGetFunction", 2000,
                                                               optional};
    fn<CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
       void**, void**>
        launch_kernel{"cuLaunchKernel", 4000, optional};
};

// visit(function) for each of them.
template <class Api, class Visit>
constexpr void for_each_function(Api& api, Visit&& visit) {
    const auto all = [&](auto&... each) {
        static_assert(sizeof...(each) * sizeof(driver_function<void()>) == sizeof(driver_api),
                      "a function is missing from the list below");
        (visit(each), ...);
    };
    all(api.init, api.driver_get_version, api.get_proc_address, api.get_error_name,
        api.get_error_string, api.device_get_count, api.device_get, api.device_get_name,
        api.device_total_mem, api.device_get_attribute, api.device_get_uuid,
        api.device_get_pci_bus_id, api.device_can_access_peer, api.device_primary_ctx_retain,
        api.device_primary_ctx_release, api.ctx_push_current, api.ctx_pop_current,
        api.ctx_get_current, api.ctx_get_device, api.ctx_get_stream_priority_range,
        api.mem_get_info, api.mem_address_reserve, api.mem_address_free, api.mem_create,
        api.mem_release, api.mem_map, api.mem_unmap, api.mem_set_access, api.mem_get_access,
        api.mem_get_allocation_granularity, api.mem_export_to_shareable_handle,
        api.mem_import_from_shareable_handle, api.mem_alloc, api.mem_free,
        api.mem_get_address_range, api.mem_alloc_async, api.mem_free_async, api.mem_alloc_managed,
        api.mem_prefetch_async, api.mem_advise, api.mem_range_get_attribute,
        api.mem_range_get_attributes, api.mem_prefetch_batch_async, api.mem_discard_batch_async,
        api.mem_host_alloc, api.mem_free_host, api.mem_host_register, api.mem_host_unregister,
        api.pointer_get_attribute, api.pointer_get_attributes, api.ipc_get_mem_handle,
        api.ipc_open_mem_handle, api.ipc_close_mem_handle, api.memcpy_async, api.memset_d8_async,
        api.memset_d32_async, api.stream_create_with_priority, api.stream_destroy, api.stream_query,
        api.stream_synchronize, api.stream_wait_event, api.stream_is_capturing, api.stream_get_ctx,
        api.stream_get_priority, api.thread_exchange_stream_capture_mode, api.event_create,
        api.event_destroy, api.event_record, api.event_query, api.event_synchronize,
        api.launch_host_func, api.module_load_data, api.module_unload, api.module_get_function,
        api.launch_kernel);
}

}  // namespace xmm::cuda
