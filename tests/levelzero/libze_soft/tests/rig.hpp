// SPDX-License-Identifier: Apache-2.0
// rig.hpp - the software driver as the real loader shows it: devices, a context, lists, events.
//
// Model    ZE_ENABLE_ALT_DRIVERS names the driver before the process starts: the loader looks once.
#pragma once

#include <doctest/doctest.h>

#include <level_zero/ze_api.h>

#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "../soft_ze.hpp"

namespace soft_ze::test {

inline constexpr std::size_t MiB = std::size_t{1} << 20;
inline constexpr auto read_write = ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE;

// The drivers that the loader found.
inline std::vector<ze_driver_handle_t> drivers() {
    static const ze_result_t started = zeInit(0);
    std::uint32_t count = 0;
    if (started != ZE_RESULT_SUCCESS || zeDriverGet(&count, nullptr) != ZE_RESULT_SUCCESS) {
        return {};
    }
    std::vector<ze_driver_handle_t> all(count);
    REQUIRE(zeDriverGet(&count, all.data()) == ZE_RESULT_SUCCESS);
    return all;
}
inline const controls* controls_of(ze_driver_handle_t driver) {
    void* found = nullptr;
    if (zeDriverGetExtensionFunctionAddress(driver, "softZeControls", &found) !=
        ZE_RESULT_SUCCESS) {
        return nullptr;
    }
    return reinterpret_cast<find_controls*>(found)();
}
// A hint for reservations: some versions of the validation layer want one.
inline const void* some_hint() {
    static const char taken = 0;
    return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(&taken) & ~0xfffful);
}

struct rig {
    ze_driver_handle_t driver = drivers().at(0);
    const controls& soft = *controls_of(driver);
    std::vector<ze_device_handle_t> devices;
    ze_context_handle_t context = nullptr;
    ze_event_pool_handle_t pool = nullptr;
    std::vector<ze_event_handle_t> events;
    std::uint64_t misuses = soft.misuses();
    std::size_t alive = soft.alive();

    rig() {
        soft.reset();
        std::uint32_t count = 0;
        REQUIRE(zeDeviceGet(driver, &count, nullptr) == ZE_RESULT_SUCCESS);
        devices.resize(count);
        REQUIRE(zeDeviceGet(driver, &count, devices.data()) == ZE_RESULT_SUCCESS);
        const ze_context_desc_t about{ZE_STRUCTURE_TYPE_CONTEXT_DESC, nullptr, 0};
        REQUIRE(zeContextCreate(driver, &about, &context) == ZE_RESULT_SUCCESS);
        const ze_event_pool_desc_t events_about{ZE_STRUCTURE_TYPE_EVENT_POOL_DESC, nullptr,
                                                ZE_EVENT_POOL_FLAG_HOST_VISIBLE, 8};
        REQUIRE(zeEventPoolCreate(context, &events_about, count, devices.data(), &pool) ==
                ZE_RESULT_SUCCESS);
        for (std::uint32_t i = 0; i < 8; ++i) {
            const ze_event_desc_t one{ZE_STRUCTURE_TYPE_EVENT_DESC, nullptr, i, 0, 0};
            events.emplace_back();
            REQUIRE(zeEventCreate(pool, &one, &events.back()) == ZE_RESULT_SUCCESS);
        }
    }
    ~rig() {
        for (ze_event_handle_t one : events) {
            CHECK(zeEventDestroy(one) == ZE_RESULT_SUCCESS);
        }
        CHECK(zeEventPoolDestroy(pool) == ZE_RESULT_SUCCESS);
        CHECK(zeContextDestroy(context) == ZE_RESULT_SUCCESS);
        CHECK(soft.misuses() == misuses);
        CHECK(soft.alive() == alive);
    }

    char* reserve(std::size_t bytes) {
        void* at = nullptr;
        REQUIRE(zeVirtualMemReserve(context, some_hint(), bytes, &at) == ZE_RESULT_SUCCESS);
        return static_cast<char*>(at);
    }
    ze_result_t create(std::size_t bytes, ze_physical_mem_handle_t& made, std::uint32_t flags = 0,
                       unsigned device = 0) {
        ze_physical_mem_desc_t about{ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC, nullptr, flags, bytes};
        return zePhysicalMemCreate(context, devices.at(device), &about, &made);
    }
    ze_physical_mem_handle_t create(std::size_t bytes) {
        ze_physical_mem_handle_t made = nullptr;
        REQUIRE(create(bytes, made) == ZE_RESULT_SUCCESS);
        return made;
    }
    ze_command_list_handle_t make_list(unsigned group = 0, unsigned device = 0) {
        ze_command_queue_desc_t about{};
        about.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC;
        about.ordinal = group;
        about.mode = ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS;
        ze_command_list_handle_t made = nullptr;
        REQUIRE(zeCommandListCreateImmediate(context, devices.at(device), &about, &made) ==
                ZE_RESULT_SUCCESS);
        return made;
    }
    // All that is in the list is done; false if its device was lost.
    bool finish(ze_command_list_handle_t list, unsigned event = 7) {
        const ze_result_t appended = zeCommandListAppendBarrier(list, events[event], 0, nullptr);
        const bool is_over = appended == ZE_RESULT_SUCCESS &&
                             zeEventHostSynchronize(events[event], UINT64_MAX) == ZE_RESULT_SUCCESS;
        (void)zeEventHostReset(events[event]);
        return is_over;
    }
    bool copy(ze_command_list_handle_t list, void* to, const void* from, std::size_t bytes) {
        return zeCommandListAppendMemoryCopy(list, to, from, bytes, nullptr, 0, nullptr) ==
                   ZE_RESULT_SUCCESS &&
               finish(list);
    }
};

inline std::vector<std::uint32_t> numbers(std::size_t count, std::uint32_t first = 0) {
    std::vector<std::uint32_t> made(count);
    std::iota(made.begin(), made.end(), first);
    return made;
}

}  // namespace soft_ze::test
