// SPDX-License-Identifier: Apache-2.0
// tables.cpp - what the library exports: a function for each table of entry points that the loader asks for.
//
// Model    The loader wants 46 tables and does not start without one of them; an entry that is null answers
//          UNSUPPORTED_FEATURE to the program. Tables have the size that these headers give them, and nothing
//          behind it is written, whatever newer version the loader asks for.
#include "driver.hpp"

namespace {

template <class Table>
ze_result_t give(ze_api_version_t version, Table* table) {
    if (table == nullptr) {
        return ZE_RESULT_ERROR_INVALID_NULL_POINTER;
    }
    if (ZE_MAJOR_VERSION(version) != 1) {
        return ZE_RESULT_ERROR_UNSUPPORTED_VERSION;
    }
    *table = Table{};
    if constexpr (requires { soft_ze::fill(*table); }) {
        soft_ze::fill(*table);
    }
    return ZE_RESULT_SUCCESS;
}

}  // namespace

#define SOFT_ZE_TABLE(function, table)                                      \
    extern "C" __attribute__((visibility("default"))) ze_result_t function( \
        ze_api_version_t version, table* one) {                             \
        return give(version, one);                                          \
    }

SOFT_ZE_TABLE(zeGetGlobalProcAddrTable, ze_global_dditable_t)
SOFT_ZE_TABLE(zeGetDriverProcAddrTable, ze_driver_dditable_t)
SOFT_ZE_TABLE(zeGetDeviceProcAddrTable, ze_device_dditable_t)
SOFT_ZE_TABLE(zeGetContextProcAddrTable, ze_context_dditable_t)
SOFT_ZE_TABLE(zeGetCommandQueueProcAddrTable, ze_command_queue_dditable_t)
SOFT_ZE_TABLE(zeGetCommandListProcAddrTable, ze_command_list_dditable_t)
SOFT_ZE_TABLE(zeGetEventProcAddrTable, ze_event_dditable_t)
SOFT_ZE_TABLE(zeGetEventPoolProcAddrTable, ze_event_pool_dditable_t)
SOFT_ZE_TABLE(zeGetFenceProcAddrTable, ze_fence_dditable_t)
SOFT_ZE_TABLE(zeGetImageProcAddrTable, ze_image_dditable_t)
SOFT_ZE_TABLE(zeGetKernelProcAddrTable, ze_kernel_dditable_t)
SOFT_ZE_TABLE(zeGetMemProcAddrTable, ze_mem_dditable_t)
SOFT_ZE_TABLE(zeGetModuleProcAddrTable, ze_module_dditable_t)
SOFT_ZE_TABLE(zeGetModuleBuildLogProcAddrTable, ze_module_build_log_dditable_t)
SOFT_ZE_TABLE(zeGetPhysicalMemProcAddrTable, ze_physical_mem_dditable_t)
SOFT_ZE_TABLE(zeGetSamplerProcAddrTable, ze_sampler_dditable_t)
SOFT_ZE_TABLE(zeGetVirtualMemProcAddrTable, ze_virtual_mem_dditable_t)

SOFT_ZE_TABLE(zetGetDeviceProcAddrTable, zet_device_dditable_t)
SOFT_ZE_TABLE(zetGetContextProcAddrTable, zet_context_dditable_t)
SOFT_ZE_TABLE(zetGetCommandListProcAddrTable, zet_command_list_dditable_t)
SOFT_ZE_TABLE(zetGetKernelProcAddrTable, zet_kernel_dditable_t)
SOFT_ZE_TABLE(zetGetModuleProcAddrTable, zet_module_dditable_t)
SOFT_ZE_TABLE(zetGetDebugProcAddrTable, zet_debug_dditable_t)
SOFT_ZE_TABLE(zetGetMetricProcAddrTable, zet_metric_dditable_t)
SOFT_ZE_TABLE(zetGetMetricGroupProcAddrTable, zet_metric_group_dditable_t)
SOFT_ZE_TABLE(zetGetMetricQueryProcAddrTable, zet_metric_query_dditable_t)
SOFT_ZE_TABLE(zetGetMetricQueryPoolProcAddrTable, zet_metric_query_pool_dditable_t)
SOFT_ZE_TABLE(zetGetMetricStreamerProcAddrTable, zet_metric_streamer_dditable_t)
SOFT_ZE_TABLE(zetGetTracerExpProcAddrTable, zet_tracer_exp_dditable_t)

SOFT_ZE_TABLE(zesGetDeviceProcAddrTable, zes_device_dditable_t)
SOFT_ZE_TABLE(zesGetDriverProcAddrTable, zes_driver_dditable_t)
SOFT_ZE_TABLE(zesGetDiagnosticsProcAddrTable, zes_diagnostics_dditable_t)
SOFT_ZE_TABLE(zesGetEngineProcAddrTable, zes_engine_dditable_t)
SOFT_ZE_TABLE(zesGetFabricPortProcAddrTable, zes_fabric_port_dditable_t)
SOFT_ZE_TABLE(zesGetFanProcAddrTable, zes_fan_dditable_t)
SOFT_ZE_TABLE(zesGetFirmwareProcAddrTable, zes_firmware_dditable_t)
SOFT_ZE_TABLE(zesGetFrequencyProcAddrTable, zes_frequency_dditable_t)
SOFT_ZE_TABLE(zesGetLedProcAddrTable, zes_led_dditable_t)
SOFT_ZE_TABLE(zesGetMemoryProcAddrTable, zes_memory_dditable_t)
SOFT_ZE_TABLE(zesGetPerformanceFactorProcAddrTable, zes_performance_factor_dditable_t)
SOFT_ZE_TABLE(zesGetPowerProcAddrTable, zes_power_dditable_t)
SOFT_ZE_TABLE(zesGetPsuProcAddrTable, zes_psu_dditable_t)
SOFT_ZE_TABLE(zesGetRasProcAddrTable, zes_ras_dditable_t)
SOFT_ZE_TABLE(zesGetSchedulerProcAddrTable, zes_scheduler_dditable_t)
SOFT_ZE_TABLE(zesGetStandbyProcAddrTable, zes_standby_dditable_t)
SOFT_ZE_TABLE(zesGetTemperatureProcAddrTable, zes_temperature_dditable_t)
