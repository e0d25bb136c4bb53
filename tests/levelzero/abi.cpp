// SPDX-License-Identifier: Apache-2.0
// Our declarations of the interface against ze_api.h: sizes, offsets, values, signatures.
#include "../../backends/levelzero/abi.hpp"

#include "kernel_api.hpp"

#include <doctest/doctest.h>

#if __has_include(<level_zero/ze_api.h>)

#include <level_zero/ze_api.h>

#include <string_view>
#include <type_traits>

namespace {

namespace ours = xmm::levelzero;

// ---- types: what the header calls each of ours

template <class T>
struct theirs {
    using type = T;
};
template <class T>
struct theirs<T*> {
    using type = typename theirs<T>::type*;
};
template <class T>
struct theirs<const T> {
    using type = const typename theirs<T>::type;
};
template <class R, class... Args>
struct theirs<R(Args...)> {
    using type = typename theirs<R>::type(typename theirs<Args>::type...);
};

#define XMM_SAME_TYPE(name)                              \
    template <>                                          \
    struct theirs<ours::name> {                          \
        using type = ::name;                             \
    };                                                   \
    static_assert(sizeof(ours::name) == sizeof(::name)); \
    static_assert(alignof(ours::name) == alignof(::name));

XMM_SAME_TYPE(ze_result_t)
XMM_SAME_TYPE(ze_structure_type_t)
XMM_SAME_TYPE(ze_api_version_t)
XMM_SAME_TYPE(ze_device_type_t)
XMM_SAME_TYPE(ze_command_queue_mode_t)
XMM_SAME_TYPE(ze_command_queue_priority_t)
XMM_SAME_TYPE(ze_memory_access_attribute_t)
XMM_SAME_TYPE(ze_module_format_t)
XMM_SAME_TYPE(ze_device_properties_t)
XMM_SAME_TYPE(ze_device_memory_properties_t)
XMM_SAME_TYPE(ze_command_queue_group_properties_t)
XMM_SAME_TYPE(ze_pci_address_ext_t)
XMM_SAME_TYPE(ze_pci_speed_ext_t)
XMM_SAME_TYPE(ze_pci_ext_properties_t)
XMM_SAME_TYPE(ze_context_desc_t)
XMM_SAME_TYPE(ze_physical_mem_desc_t)
XMM_SAME_TYPE(ze_relaxed_allocation_limits_exp_desc_t)
XMM_SAME_TYPE(ze_device_mem_alloc_desc_t)
XMM_SAME_TYPE(ze_host_mem_alloc_desc_t)
XMM_SAME_TYPE(ze_command_queue_desc_t)
XMM_SAME_TYPE(ze_event_pool_desc_t)
XMM_SAME_TYPE(ze_event_desc_t)
XMM_SAME_TYPE(ze_module_desc_t)
XMM_SAME_TYPE(ze_kernel_desc_t)
XMM_SAME_TYPE(ze_group_count_t)

// ---- members

#define XMM_SAME_PLACE(type, member)                                         \
    static_assert(offsetof(ours::type, member) == offsetof(::type, member)); \
    static_assert(sizeof(ours::type::member) == sizeof(::type::member));

XMM_SAME_PLACE(ze_device_properties_t, stype)
XMM_SAME_PLACE(ze_device_properties_t, pNext)
XMM_SAME_PLACE(ze_device_properties_t, type)
XMM_SAME_PLACE(ze_device_properties_t, flags)
XMM_SAME_PLACE(ze_device_properties_t, maxMemAllocSize)
XMM_SAME_PLACE(ze_device_properties_t, maxCommandQueuePriority)
XMM_SAME_PLACE(ze_device_properties_t, timerResolution)
XMM_SAME_PLACE(ze_device_properties_t, uuid)
XMM_SAME_PLACE(ze_device_properties_t, name)
XMM_SAME_PLACE(ze_device_memory_properties_t, totalSize)
XMM_SAME_PLACE(ze_device_memory_properties_t, name)
XMM_SAME_PLACE(ze_command_queue_group_properties_t, flags)
XMM_SAME_PLACE(ze_command_queue_group_properties_t, maxMemoryFillPatternSize)
XMM_SAME_PLACE(ze_command_queue_group_properties_t, numQueues)
XMM_SAME_PLACE(ze_pci_ext_properties_t, address)
XMM_SAME_PLACE(ze_pci_ext_properties_t, maxSpeed)
XMM_SAME_PLACE(ze_pci_address_ext_t, bus)
XMM_SAME_PLACE(ze_pci_address_ext_t, device)
XMM_SAME_PLACE(ze_pci_address_ext_t, function)
XMM_SAME_PLACE(ze_pci_speed_ext_t, width)
XMM_SAME_PLACE(ze_pci_speed_ext_t, maxBandwidth)
XMM_SAME_PLACE(ze_context_desc_t, flags)
XMM_SAME_PLACE(ze_physical_mem_desc_t, flags)
XMM_SAME_PLACE(ze_physical_mem_desc_t, size)
XMM_SAME_PLACE(ze_relaxed_allocation_limits_exp_desc_t, flags)
XMM_SAME_PLACE(ze_device_mem_alloc_desc_t, flags)
XMM_SAME_PLACE(ze_device_mem_alloc_desc_t, ordinal)
XMM_SAME_PLACE(ze_host_mem_alloc_desc_t, flags)
XMM_SAME_PLACE(ze_command_queue_desc_t, ordinal)
XMM_SAME_PLACE(ze_command_queue_desc_t, index)
XMM_SAME_PLACE(ze_command_queue_desc_t, flags)
XMM_SAME_PLACE(ze_command_queue_desc_t, mode)
XMM_SAME_PLACE(ze_command_queue_desc_t, priority)
XMM_SAME_PLACE(ze_event_pool_desc_t, flags)
XMM_SAME_PLACE(ze_event_pool_desc_t, count)
XMM_SAME_PLACE(ze_event_desc_t, index)
XMM_SAME_PLACE(ze_event_desc_t, signal)
XMM_SAME_PLACE(ze_event_desc_t, wait)
XMM_SAME_PLACE(ze_module_desc_t, format)
XMM_SAME_PLACE(ze_module_desc_t, inputSize)
XMM_SAME_PLACE(ze_module_desc_t, pInputModule)
XMM_SAME_PLACE(ze_module_desc_t, pBuildFlags)
XMM_SAME_PLACE(ze_module_desc_t, pConstants)
XMM_SAME_PLACE(ze_kernel_desc_t, pKernelName)
XMM_SAME_PLACE(ze_group_count_t, groupCountZ)

// ---- values

#define XMM_SAME_VALUE(name) \
    static_assert(static_cast<unsigned>(ours::name) == static_cast<unsigned>(::name));

XMM_SAME_VALUE(ZE_RESULT_SUCCESS)
XMM_SAME_VALUE(ZE_RESULT_NOT_READY)
XMM_SAME_VALUE(ZE_RESULT_ERROR_DEVICE_LOST)
XMM_SAME_VALUE(ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY)
XMM_SAME_VALUE(ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)
XMM_SAME_VALUE(ZE_RESULT_ERROR_DEVICE_REQUIRES_RESET)
XMM_SAME_VALUE(ZE_RESULT_ERROR_UNINITIALIZED)
XMM_SAME_VALUE(ZE_RESULT_ERROR_UNSUPPORTED_VERSION)
XMM_SAME_VALUE(ZE_RESULT_ERROR_UNSUPPORTED_FEATURE)
XMM_SAME_VALUE(ZE_RESULT_ERROR_INVALID_ARGUMENT)
XMM_SAME_VALUE(ZE_RESULT_ERROR_INVALID_NULL_HANDLE)
XMM_SAME_VALUE(ZE_RESULT_ERROR_INVALID_NULL_POINTER)
XMM_SAME_VALUE(ZE_RESULT_ERROR_INVALID_SIZE)
XMM_SAME_VALUE(ZE_RESULT_ERROR_UNSUPPORTED_SIZE)
XMM_SAME_VALUE(ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT)
XMM_SAME_VALUE(ZE_RESULT_ERROR_INVALID_ENUMERATION)
XMM_SAME_VALUE(ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION)
XMM_SAME_VALUE(ZE_RESULT_ERROR_UNKNOWN)
XMM_SAME_VALUE(ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES)
XMM_SAME_VALUE(ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES)
XMM_SAME_VALUE(ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES)
XMM_SAME_VALUE(ZE_STRUCTURE_TYPE_CONTEXT_DESC)
XMM_SAME_VALUE(ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC)
XMM_SAME_VALUE(ZE_STRUCTURE_TYPE_EVENT_POOL_DESC)
XMM_SAME_VALUE(ZE_STRUCTURE_TYPE_EVENT_DESC)
XMM_SAME_VALUE(ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC)
XMM_SAME_VALUE(ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC)
XMM_SAME_VALUE(ZE_STRUCTURE_TYPE_MODULE_DESC)
XMM_SAME_VALUE(ZE_STRUCTURE_TYPE_KERNEL_DESC)
XMM_SAME_VALUE(ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC)
XMM_SAME_VALUE(ZE_STRUCTURE_TYPE_PCI_EXT_PROPERTIES)
XMM_SAME_VALUE(ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXP_DESC)
XMM_SAME_VALUE(ZE_DEVICE_TYPE_GPU)
XMM_SAME_VALUE(ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS)
XMM_SAME_VALUE(ZE_COMMAND_QUEUE_PRIORITY_NORMAL)
XMM_SAME_VALUE(ZE_COMMAND_QUEUE_PRIORITY_PRIORITY_LOW)
XMM_SAME_VALUE(ZE_COMMAND_QUEUE_PRIORITY_PRIORITY_HIGH)
XMM_SAME_VALUE(ZE_MEMORY_ACCESS_ATTRIBUTE_NONE)
XMM_SAME_VALUE(ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE)
XMM_SAME_VALUE(ZE_MEMORY_ACCESS_ATTRIBUTE_READONLY)
XMM_SAME_VALUE(ZE_MODULE_FORMAT_IL_SPIRV)
XMM_SAME_VALUE(ZE_MODULE_FORMAT_NATIVE)
XMM_SAME_VALUE(ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE)
XMM_SAME_VALUE(ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY)
XMM_SAME_VALUE(ZE_EVENT_POOL_FLAG_HOST_VISIBLE)
XMM_SAME_VALUE(ZE_EVENT_SCOPE_FLAG_DEVICE)
XMM_SAME_VALUE(ZE_EVENT_SCOPE_FLAG_HOST)
XMM_SAME_VALUE(ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE)

static_assert(ours::make_version(1, 4) == ZE_MAKE_VERSION(1, 4));

// ---- functions

// By type alone: nothing here is linked with the loader.
template <class Theirs, class Function>
constexpr bool is_same(const Function& one, const char* name) {
    static_assert(std::is_same_v<Theirs, typename theirs<typename Function::signature>::type>);
    return std::string_view{one.name} == name;
}

#define XMM_SAME_FUNCTION(member, function) \
    CHECK(is_same<decltype(::function)>(api.member, #function));

}  // namespace

TEST_CASE("the functions that we look up have the header's signatures") {
    const ours::driver_api api;
    XMM_SAME_FUNCTION(init, zeInit)
    XMM_SAME_FUNCTION(driver_get, zeDriverGet)
    XMM_SAME_FUNCTION(driver_get_api_version, zeDriverGetApiVersion)
    XMM_SAME_FUNCTION(device_get, zeDeviceGet)
    XMM_SAME_FUNCTION(device_get_sub_devices, zeDeviceGetSubDevices)
    XMM_SAME_FUNCTION(device_get_properties, zeDeviceGetProperties)
    XMM_SAME_FUNCTION(device_get_memory_properties, zeDeviceGetMemoryProperties)
    XMM_SAME_FUNCTION(device_get_command_queue_group_properties,
                      zeDeviceGetCommandQueueGroupProperties)
    XMM_SAME_FUNCTION(device_pci_get_properties_ext, zeDevicePciGetPropertiesExt)
    XMM_SAME_FUNCTION(device_get_status, zeDeviceGetStatus)
    XMM_SAME_FUNCTION(context_create, zeContextCreate)
    XMM_SAME_FUNCTION(context_destroy, zeContextDestroy)
    XMM_SAME_FUNCTION(virtual_mem_reserve, zeVirtualMemReserve)
    XMM_SAME_FUNCTION(virtual_mem_free, zeVirtualMemFree)
    XMM_SAME_FUNCTION(virtual_mem_query_page_size, zeVirtualMemQueryPageSize)
    XMM_SAME_FUNCTION(virtual_mem_map, zeVirtualMemMap)
    XMM_SAME_FUNCTION(virtual_mem_unmap, zeVirtualMemUnmap)
    XMM_SAME_FUNCTION(physical_mem_create, zePhysicalMemCreate)
    XMM_SAME_FUNCTION(physical_mem_destroy, zePhysicalMemDestroy)
    XMM_SAME_FUNCTION(mem_alloc_device, zeMemAllocDevice)
    XMM_SAME_FUNCTION(mem_alloc_host, zeMemAllocHost)
    XMM_SAME_FUNCTION(mem_free, zeMemFree)
    XMM_SAME_FUNCTION(command_list_create_immediate, zeCommandListCreateImmediate)
    XMM_SAME_FUNCTION(command_list_destroy, zeCommandListDestroy)
    XMM_SAME_FUNCTION(command_list_append_memory_copy, zeCommandListAppendMemoryCopy)
    XMM_SAME_FUNCTION(command_list_append_memory_fill, zeCommandListAppendMemoryFill)
    XMM_SAME_FUNCTION(command_list_append_barrier, zeCommandListAppendBarrier)
    XMM_SAME_FUNCTION(command_list_append_wait_on_events, zeCommandListAppendWaitOnEvents)
    XMM_SAME_FUNCTION(event_pool_create, zeEventPoolCreate)
    XMM_SAME_FUNCTION(event_pool_destroy, zeEventPoolDestroy)
    XMM_SAME_FUNCTION(event_create, zeEventCreate)
    XMM_SAME_FUNCTION(event_destroy, zeEventDestroy)
    XMM_SAME_FUNCTION(event_host_signal, zeEventHostSignal)
    XMM_SAME_FUNCTION(event_host_synchronize, zeEventHostSynchronize)
    XMM_SAME_FUNCTION(event_query_status, zeEventQueryStatus)
    XMM_SAME_FUNCTION(event_host_reset, zeEventHostReset)
    // All but what came later than the oldest header that we build beside.
    unsigned count = 0;
    ours::for_each_function(api, [&](const auto&) { ++count; });
    CHECK(count == 36 + 1);
}

TEST_CASE("the functions that make our kernels have the header's signatures") {
    const ours::kernel_api api;
    XMM_SAME_FUNCTION(driver_get_extension_function_address, zeDriverGetExtensionFunctionAddress)
    XMM_SAME_FUNCTION(module_create, zeModuleCreate)
    XMM_SAME_FUNCTION(module_destroy, zeModuleDestroy)
    XMM_SAME_FUNCTION(kernel_create, zeKernelCreate)
    XMM_SAME_FUNCTION(kernel_destroy, zeKernelDestroy)
    XMM_SAME_FUNCTION(kernel_set_argument_value, zeKernelSetArgumentValue)
    XMM_SAME_FUNCTION(command_list_append_launch_kernel, zeCommandListAppendLaunchKernel)
}

#else

TEST_CASE("the functions that we look up have the header's signatures") {
    MESSAGE("skipped: no ze_api.h here");
}

#endif
