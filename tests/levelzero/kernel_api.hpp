// SPDX-License-Identifier: Apache-2.0
// kernel_api.hpp - the part of the interface that makes kernels: no backend needs it, the tests' own do.
//
// Model    As the backend's abi.hpp and driver.hpp, on the same loader.
#pragma once

#include "../../backends/levelzero/driver.hpp"

struct _ze_module_handle_t;
struct _ze_module_build_log_handle_t;
struct _ze_kernel_handle_t;

namespace xmm::levelzero {

using ze_module_handle_t = ::_ze_module_handle_t*;
using ze_module_build_log_handle_t = ::_ze_module_build_log_handle_t*;
using ze_kernel_handle_t = ::_ze_kernel_handle_t*;

inline constexpr auto ZE_STRUCTURE_TYPE_MODULE_DESC = static_cast<ze_structure_type_t>(0x1b);
inline constexpr auto ZE_STRUCTURE_TYPE_KERNEL_DESC = static_cast<ze_structure_type_t>(0x1d);
enum ze_module_format_t : unsigned { ZE_MODULE_FORMAT_IL_SPIRV = 0, ZE_MODULE_FORMAT_NATIVE = 1 };

struct ze_module_desc_t {
    ze_structure_type_t stype = ZE_STRUCTURE_TYPE_MODULE_DESC;
    const void* pNext = nullptr;
    ze_module_format_t format = ZE_MODULE_FORMAT_IL_SPIRV;
    std::size_t inputSize = 0;
    const std::uint8_t* pInputModule = nullptr;
    const char* pBuildFlags = nullptr;
    const void* pConstants = nullptr;
};
struct ze_kernel_desc_t {
    ze_structure_type_t stype = ZE_STRUCTURE_TYPE_KERNEL_DESC;
    const void* pNext = nullptr;
    std::uint32_t flags = 0;
    const char* pKernelName = nullptr;
};
struct ze_group_count_t {
    std::uint32_t groupCountX = 1;
    std::uint32_t groupCountY = 1;
    std::uint32_t groupCountZ = 1;
};

struct kernel_api {
    template <class... Args>
    using fn = driver_function<ze_result_t(Args...)>;

    fn<ze_driver_handle_t, const char*, void**> driver_get_extension_function_address{
        "zeDriverGetExtensionFunctionAddress"};
    fn<ze_context_handle_t, ze_device_handle_t, const ze_module_desc_t*, ze_module_handle_t*,
       ze_module_build_log_handle_t*>
        module_create{"zeModuleCreate"};
    fn<ze_module_handle_t> module_destroy{"zeModuleDestroy"};
    fn<ze_module_handle_t, const ze_kernel_desc_t*, ze_kernel_handle_t*> kernel_create{
        "zeKernelCreate"};
    fn<ze_kernel_handle_t> kernel_destroy{"zeKernelDestroy"};
    fn<ze_kernel_handle_t, std::uint32_t, std::size_t, const void*> kernel_set_argument_value{
        "zeKernelSetArgumentValue"};
    fn<ze_command_list_handle_t, ze_kernel_handle_t, const ze_group_count_t*, ze_event_handle_t,
       std::uint32_t, ze_event_handle_t*>
        command_list_append_launch_kernel{"zeCommandListAppendLaunchKernel"};
};

// For whoever has found a driver.
class kernel_functions : public shared::driver_functions<kernel_api> {
public:
    static const kernel_functions& instance() {
        static const kernel_functions all;
        return all;
    }

private:
    kernel_functions() {
        auto loader = dynamic_library::open("libze_loader.so.1");
        const auto find = [&](auto&... each) { (find_one(loader, each), ...); };
        find(api_.driver_get_extension_function_address, api_.module_create, api_.module_destroy,
             api_.kernel_create, api_.kernel_destroy, api_.kernel_set_argument_value,
             api_.command_list_append_launch_kernel);
    }
    template <class Function>
    static void find_one(result<dynamic_library>& loader, Function& one) {
        auto found = loader->find<typename Function::signature>(one.name);
        one.at = found ? *found : nullptr;
    }
};

}  // namespace xmm::levelzero
