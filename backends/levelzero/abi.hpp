// SPDX-License-Identifier: Apache-2.0
// abi.hpp - what we use of Level Zero's binary interface, declared by ourselves.
//
// Model    Types, constants and signatures as version 1.4 has them, under the interface's own names, in a namespace
//          of ours; the handles are the interface's very types, so that one from ze_api.h is one here. driver_api
//          holds each function with its name and the version in which it appeared. Constants that came later
//          are named here, too: whoever passes one asks first what version the driver has.
// See      tests/levelzero/abi.cpp holds every line of it against ze_api.h, where there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

// The interface's opaque objects. These tags belong to the vendor; a declaration is all that is needed.
struct _ze_driver_handle_t;
struct _ze_device_handle_t;
struct _ze_context_handle_t;
struct _ze_command_list_handle_t;
struct _ze_event_pool_handle_t;
struct _ze_event_handle_t;
struct _ze_physical_mem_handle_t;

namespace xmm::levelzero {

using ze_driver_handle_t = ::_ze_driver_handle_t*;
using ze_device_handle_t = ::_ze_device_handle_t*;
using ze_context_handle_t = ::_ze_context_handle_t*;
using ze_command_list_handle_t = ::_ze_command_list_handle_t*;
using ze_event_pool_handle_t = ::_ze_event_pool_handle_t*;
using ze_event_handle_t = ::_ze_event_handle_t*;
using ze_physical_mem_handle_t = ::_ze_physical_mem_handle_t*;

enum ze_result_t : unsigned {
    ZE_RESULT_SUCCESS = 0,
    ZE_RESULT_NOT_READY = 1,
    ZE_RESULT_ERROR_DEVICE_LOST = 0x70000001,
    ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY = 0x70000002,
    ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY = 0x70000003,
    ZE_RESULT_ERROR_DEVICE_REQUIRES_RESET = 0x70000006,
    ZE_RESULT_ERROR_UNINITIALIZED = 0x78000001,
    ZE_RESULT_ERROR_UNSUPPORTED_VERSION = 0x78000002,
    ZE_RESULT_ERROR_UNSUPPORTED_FEATURE = 0x78000003,
    ZE_RESULT_ERROR_INVALID_ARGUMENT = 0x78000004,
    ZE_RESULT_ERROR_INVALID_NULL_HANDLE = 0x78000005,
    ZE_RESULT_ERROR_INVALID_NULL_POINTER = 0x78000007,
    ZE_RESULT_ERROR_INVALID_SIZE = 0x78000008,
    ZE_RESULT_ERROR_UNSUPPORTED_SIZE = 0x78000009,
    ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT = 0x7800000a,
    ZE_RESULT_ERROR_INVALID_ENUMERATION = 0x7800000c,
    ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION = 0x7800000d,
    ZE_RESULT_ERROR_UNKNOWN = 0x7ffffffe,
};

enum ze_structure_type_t : unsigned {
    ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES = 0x3,
    ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES = 0x6,
    ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES = 0x7,
    ZE_STRUCTURE_TYPE_CONTEXT_DESC = 0xd,
    ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC = 0xe,
    ZE_STRUCTURE_TYPE_EVENT_POOL_DESC = 0x10,
    ZE_STRUCTURE_TYPE_EVENT_DESC = 0x11,
    ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC = 0x15,
    ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC = 0x16,
    ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC = 0x20,
    ZE_STRUCTURE_TYPE_PCI_EXT_PROPERTIES = 0x10008,
    ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXP_DESC = 0x20001,
};

enum ze_api_version_t : unsigned {};  // see make_version
enum ze_device_type_t : unsigned { ZE_DEVICE_TYPE_GPU = 1 };
enum ze_command_queue_mode_t : unsigned { ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS = 2 };
enum ze_command_queue_priority_t : unsigned {
    ZE_COMMAND_QUEUE_PRIORITY_NORMAL = 0,
    ZE_COMMAND_QUEUE_PRIORITY_PRIORITY_LOW = 1,
    ZE_COMMAND_QUEUE_PRIORITY_PRIORITY_HIGH = 2,
};
enum ze_memory_access_attribute_t : unsigned {
    ZE_MEMORY_ACCESS_ATTRIBUTE_NONE = 0,
    ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE = 1,
    ZE_MEMORY_ACCESS_ATTRIBUTE_READONLY = 2,
};

inline constexpr std::uint32_t ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE = 1u << 0;
inline constexpr std::uint32_t ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY = 1u << 1;
inline constexpr std::uint32_t ZE_EVENT_POOL_FLAG_HOST_VISIBLE = 1u << 0;
inline constexpr std::uint32_t ZE_EVENT_SCOPE_FLAG_DEVICE = 1u << 1;
inline constexpr std::uint32_t ZE_EVENT_SCOPE_FLAG_HOST = 1u << 2;
inline constexpr std::uint32_t ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE = 1u << 0;
// Since 1.11, by number: 1.4 has another name for the first bit and none for this one.
inline constexpr std::uint32_t ZE_PHYSICAL_MEM_FLAG_ALLOCATE_ON_HOST = 1u << 1;

// As the interface counts versions.
[[nodiscard]] constexpr std::uint32_t make_version(unsigned major, unsigned minor) noexcept {
    return major << 16 | minor;
}
inline constexpr std::uint32_t version_with_host_memory = make_version(1, 11);
inline constexpr std::uint32_t version_with_list_synchronize = make_version(1, 6);

struct ze_device_properties_t {
    ze_structure_type_t stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES;
    void* pNext = nullptr;
    ze_device_type_t type{};
    std::uint32_t vendorId = 0, deviceId = 0, flags = 0, subdeviceId = 0, coreClockRate = 0;
    std::uint64_t maxMemAllocSize = 0;
    std::uint32_t maxHardwareContexts = 0, maxCommandQueuePriority = 0, numThreadsPerEU = 0;
    std::uint32_t physicalEUSimdWidth = 0, numEUsPerSubslice = 0, numSubslicesPerSlice = 0;
    std::uint32_t numSlices = 0;
    std::uint64_t timerResolution = 0;
    std::uint32_t timestampValidBits = 0, kernelTimestampValidBits = 0;
    std::uint8_t uuid[16] = {};
    char name[256] = {};
};
struct ze_device_memory_properties_t {
    ze_structure_type_t stype = ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES;
    void* pNext = nullptr;
    std::uint32_t flags = 0, maxClockRate = 0, maxBusWidth = 0;
    std::uint64_t totalSize = 0;
    char name[256] = {};
};
struct ze_command_queue_group_properties_t {
    ze_structure_type_t stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES;
    void* pNext = nullptr;
    std::uint32_t flags = 0;
    std::size_t maxMemoryFillPatternSize = 0;
    std::uint32_t numQueues = 0;
};
struct ze_pci_address_ext_t {
    std::uint32_t domain = 0, bus = 0, device = 0, function = 0;
};
struct ze_pci_speed_ext_t {
    std::int32_t genVersion = 0;
    std::int32_t width = 0;
    std::int64_t maxBandwidth = 0;
};
struct ze_pci_ext_properties_t {
    ze_structure_type_t stype = ZE_STRUCTURE_TYPE_PCI_EXT_PROPERTIES;
    void* pNext = nullptr;
    ze_pci_address_ext_t address;
    ze_pci_speed_ext_t maxSpeed;
};
struct ze_context_desc_t {
    ze_structure_type_t stype = ZE_STRUCTURE_TYPE_CONTEXT_DESC;
    const void* pNext = nullptr;
    std::uint32_t flags = 0;
};
struct ze_physical_mem_desc_t {
    ze_structure_type_t stype = ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC;
    const void* pNext = nullptr;
    std::uint32_t flags = 0;
    std::size_t size = 0;
};
struct ze_relaxed_allocation_limits_exp_desc_t {
    ze_structure_type_t stype = ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXP_DESC;
    const void* pNext = nullptr;
    std::uint32_t flags = ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE;
};
struct ze_device_mem_alloc_desc_t {
    ze_structure_type_t stype = ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC;
    const void* pNext = nullptr;
    std::uint32_t flags = 0, ordinal = 0;
};
struct ze_host_mem_alloc_desc_t {
    ze_structure_type_t stype = ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC;
    const void* pNext = nullptr;
    std::uint32_t flags = 0;
};
struct ze_command_queue_desc_t {
    ze_structure_type_t stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC;
    const void* pNext = nullptr;
    std::uint32_t ordinal = 0, index = 0, flags = 0;
    ze_command_queue_mode_t mode = ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS;
    ze_command_queue_priority_t priority = ZE_COMMAND_QUEUE_PRIORITY_NORMAL;
};
struct ze_event_pool_desc_t {
    ze_structure_type_t stype = ZE_STRUCTURE_TYPE_EVENT_POOL_DESC;
    const void* pNext = nullptr;
    std::uint32_t flags = ZE_EVENT_POOL_FLAG_HOST_VISIBLE, count = 0;
};
struct ze_event_desc_t {
    ze_structure_type_t stype = ZE_STRUCTURE_TYPE_EVENT_DESC;
    const void* pNext = nullptr;
    std::uint32_t index = 0;
    std::uint32_t signal = ZE_EVENT_SCOPE_FLAG_HOST;
    std::uint32_t wait = ZE_EVENT_SCOPE_FLAG_HOST;
};

// One function: its name, the version that has it, and where it was found.
template <class Signature>
struct driver_function {
    using signature = Signature;

    const char* name;
    bool is_optional = false;
    Signature* at = nullptr;

    template <class... Args>
    ze_result_t operator()(Args... args) const noexcept {
        return at(args...);
    }
    [[nodiscard]] constexpr explicit operator bool() const noexcept { return at != nullptr; }
};

struct driver_api {
    template <class... Args>
    using fn = driver_function<ze_result_t(Args...)>;
    using handles = ze_event_handle_t*;

    static constexpr bool optional = true;

    // Start, drivers, devices
    fn<std::uint32_t> init{"zeInit"};
    fn<std::uint32_t*, ze_driver_handle_t*> driver_get{"zeDriverGet"};
    fn<ze_driver_handle_t, ze_api_version_t*> driver_get_api_version{"zeDriverGetApiVersion"};
    fn<ze_driver_handle_t, std::uint32_t*, ze_device_handle_t*> device_get{"zeDeviceGet"};
    fn<ze_device_handle_t, std::uint32_t*, ze_device_handle_t*> device_get_sub_devices{
        "zeDeviceGetSubDevices"};
    fn<ze_device_handle_t, ze_device_properties_t*> device_get_properties{"zeDeviceGetProperties"};
    fn<ze_device_handle_t, std::uint32_t*, ze_device_memory_properties_t*>
        device_get_memory_properties{"zeDeviceGetMemoryProperties"};
    fn<ze_device_handle_t, std::uint32_t*, ze_command_queue_group_properties_t*>
        device_get_command_queue_group_properties{"zeDeviceGetCommandQueueGroupProperties"};
    fn<ze_device_handle_t, ze_pci_ext_properties_t*> device_pci_get_properties_ext{
        "zeDevicePciGetPropertiesExt", optional};
    fn<ze_device_handle_t> device_get_status{"zeDeviceGetStatus"};
    fn<ze_driver_handle_t, const ze_context_desc_t*, ze_context_handle_t*> context_create{
        "zeContextCreate"};
    fn<ze_context_handle_t> context_destroy{"zeContextDestroy"};

    // Memory
    fn<ze_context_handle_t, const void*, std::size_t, void**> virtual_mem_reserve{
        "zeVirtualMemReserve"};
    fn<ze_context_handle_t, const void*, std::size_t> virtual_mem_free{"zeVirtualMemFree"};
    fn<ze_context_handle_t, ze_device_handle_t, std::size_t, std::size_t*>
        virtual_mem_query_page_size{"zeVirtualMemQueryPageSize"};
    fn<ze_context_handle_t, const void*, std::size_t, ze_physical_mem_handle_t, std::size_t,
       ze_memory_access_attribute_t>
        virtual_mem_map{"zeVirtualMemMap"};
    fn<ze_context_handle_t, const void*, std::size_t> virtual_mem_unmap{"zeVirtualMemUnmap"};
    fn<ze_context_handle_t, ze_device_handle_t, ze_physical_mem_desc_t*, ze_physical_mem_handle_t*>
        physical_mem_create{"zePhysicalMemCreate"};
    fn<ze_context_handle_t, ze_physical_mem_handle_t> physical_mem_destroy{"zePhysicalMemDestroy"};
    fn<ze_context_handle_t, const ze_device_mem_alloc_desc_t*, std::size_t, std::size_t,
       ze_device_handle_t, void**>
        mem_alloc_device{"zeMemAllocDevice"};
    fn<ze_context_handle_t, const ze_host_mem_alloc_desc_t*, std::size_t, std::size_t, void**>
        mem_alloc_host{"zeMemAllocHost"};
    fn<ze_context_handle_t, void*> mem_free{"zeMemFree"};

    // Work
    fn<ze_context_handle_t, ze_device_handle_t, const ze_command_queue_desc_t*,
       ze_command_list_handle_t*>
        command_list_create_immediate{"zeCommandListCreateImmediate"};
    fn<ze_command_list_handle_t> command_list_destroy{"zeCommandListDestroy"};
    fn<ze_command_list_handle_t, std::uint64_t> command_list_host_synchronize{
        "zeCommandListHostSynchronize", optional};  // since 1.6
    fn<ze_command_list_handle_t, void*, const void*, std::size_t, ze_event_handle_t, std::uint32_t,
       handles>
        command_list_append_memory_copy{"zeCommandListAppendMemoryCopy"};
    fn<ze_command_list_handle_t, void*, const void*, std::size_t, std::size_t, ze_event_handle_t,
       std::uint32_t, handles>
        command_list_append_memory_fill{"zeCommandListAppendMemoryFill"};
    fn<ze_command_list_handle_t, ze_event_handle_t, std::uint32_t, handles>
        command_list_append_barrier{"zeCommandListAppendBarrier"};
    fn<ze_command_list_handle_t, std::uint32_t, handles> command_list_append_wait_on_events{
        "zeCommandListAppendWaitOnEvents"};
    fn<ze_context_handle_t, const ze_event_pool_desc_t*, std::uint32_t, ze_device_handle_t*,
       ze_event_pool_handle_t*>
        event_pool_create{"zeEventPoolCreate"};
    fn<ze_event_pool_handle_t> event_pool_destroy{"zeEventPoolDestroy"};
    fn<ze_event_pool_handle_t, const ze_event_desc_t*, ze_event_handle_t*> event_create{
        "zeEventCreate"};
    fn<ze_event_handle_t> event_destroy{"zeEventDestroy"};
    fn<ze_event_handle_t> event_host_signal{"zeEventHostSignal"};
    fn<ze_event_handle_t, std::uint64_t> event_host_synchronize{"zeEventHostSynchronize"};
    fn<ze_event_handle_t> event_query_status{"zeEventQueryStatus"};
    fn<ze_event_handle_t> event_host_reset{"zeEventHostReset"};
};

// visit(function) for each of them.
template <class Api, class Visit>
constexpr void for_each_function(Api& api, Visit&& visit) {
    const auto all = [&](auto&... each) {
        static_assert(sizeof...(each) * sizeof(driver_function<void()>) == sizeof(driver_api),
                      "a function is missing from the list below");
        (visit(each), ...);
    };
    all(api.init, api.driver_get, api.driver_get_api_version, api.device_get,
        api.device_get_sub_devices, api.device_get_properties, api.device_get_memory_properties,
        api.device_get_command_queue_group_properties, api.device_pci_get_properties_ext,
        api.device_get_status, api.context_create, api.context_destroy, api.virtual_mem_reserve,
        api.virtual_mem_free, api.virtual_mem_query_page_size, api.virtual_mem_map,
        api.virtual_mem_unmap, api.physical_mem_create, api.physical_mem_destroy,
        api.mem_alloc_device, api.mem_alloc_host, api.mem_free, api.command_list_create_immediate,
        api.command_list_destroy, api.command_list_host_synchronize,
        api.command_list_append_memory_copy, api.command_list_append_memory_fill,
        api.command_list_append_barrier, api.command_list_append_wait_on_events,
        api.event_pool_create, api.event_pool_destroy, api.event_create, api.event_destroy,
        api.event_host_signal, api.event_host_synchronize, api.event_query_status,
        api.event_host_reset);
}

}  // namespace xmm::levelzero
