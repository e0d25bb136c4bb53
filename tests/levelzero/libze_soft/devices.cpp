// SPDX-License-Identifier: Apache-2.0
// devices.cpp - the environment, the door, drivers, devices, contexts, and what sysman says of memory.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string_view>

#include "driver.hpp"

namespace soft_ze {

namespace {

bool is_set(const char* name) {
    const char* text = std::getenv(name);
    return text != nullptr && *text != 0 && *text != '0';
}
std::size_t read_bytes(const char* text, char** end) {
    std::size_t value = std::strtoull(text, end, 0);
    const std::string_view units = "KMG";
    if (const auto unit = units.find(**end); **end != 0 && unit != units.npos) {
        value <<= 10 * (unit + 1);
        ++*end;
    }
    return value;
}
std::size_t bytes_from(const char* name, std::size_t otherwise) {
    const char* text = std::getenv(name);
    char* end = nullptr;
    return text != nullptr && *text != 0 ? read_bytes(text, &end) : otherwise;
}

settings read_settings() {
    settings set;
    const char* text = std::getenv("SOFT_ZE_MEMORY");
    text = text == nullptr || *text == 0 ? "256M,256M" : text;
    for (char* end = nullptr;; text = end + 1) {
        const std::size_t bytes = read_bytes(text, &end);
        if (end == text) {
            break;
        }
        set.bytes.push_back(bytes);
        if (*end != ',') {
            break;
        }
    }
    set.most_allocation = bytes_from("SOFT_ZE_MOST_ALLOCATION", set.most_allocation);
    set.tiles = static_cast<unsigned>(bytes_from("SOFT_ZE_TILES", 0));
    set.minor = static_cast<unsigned>(bytes_from("SOFT_ZE_MINOR", set.minor));
    set.has_virtual_memory = !is_set("SOFT_ZE_NO_VIRTUAL_MEMORY");
    set.has_peers = !is_set("SOFT_ZE_NO_PEERS");
    set.has_copy_engine = !is_set("SOFT_ZE_NO_COPY_ENGINE");
    set.may_overcommit = is_set("SOFT_ZE_OVERCOMMIT");
    set.is_host_visible = is_set("SOFT_ZE_HOST_VISIBLE");
    set.does_poison = is_set("SOFT_ZE_POISON");
    set.does_reorder = is_set("SOFT_ZE_REORDER");
    set.leaves_holes = is_set("SOFT_ZE_LEAVES_HOLES");
    set.has_huge_pages = is_set("SOFT_ZE_HUGE_PAGES");
    return set;
}

// ---- the door

struct fault {
    unsigned skip = 0;
    unsigned times = 0;
    ze_result_t code = ZE_RESULT_SUCCESS;
};
struct door {
    std::mutex lock;
    std::map<std::string, std::uint64_t, std::less<>> counts;
    std::map<std::string, fault, std::less<>> faults;
    std::vector<const char*> names;
    std::set<void*> objects;
};
door& the_door() {
    static auto* one = new door;
    return *one;
}

void set_fault(const char* name, unsigned skip, unsigned times, std::uint32_t code) {
    std::lock_guard hold{the_door().lock};
    the_door().faults[name] = {skip, times, static_cast<ze_result_t>(code)};
}
// name:skip:times:code,...
void read_faults(const char* text) {
    while (text != nullptr && *text != 0) {
        const char* colon = std::strchr(text, ':');
        if (colon == nullptr) {
            return;
        }
        char* end = nullptr;
        fault one{0, 1, ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY};
        one.skip = static_cast<unsigned>(std::strtoul(colon + 1, &end, 0));
        if (*end == ':') {
            one.times = static_cast<unsigned>(std::strtoul(end + 1, &end, 0));
        }
        if (*end == ':') {
            one.code = static_cast<ze_result_t>(std::strtoul(end + 1, &end, 0));
        }
        set_fault(std::string{text, colon}.c_str(), one.skip, one.times, one.code);
        text = *end == ',' ? end + 1 : end;
    }
}

// ---- controls

std::uint64_t count_calls(const char* name) {
    std::lock_guard hold{the_door().lock};
    const auto found = the_door().counts.find(std::string_view{name});
    return found == the_door().counts.end() ? 0 : found->second;
}
void reset_door() {
    std::lock_guard hold{the_door().lock};
    the_door().faults.clear();
    the_door().counts.clear();
    all().delay_us = 0;
}
void set_delay(unsigned microseconds) { all().delay_us = microseconds; }
void break_device(unsigned number) {
    std::lock_guard hold{all().work_lock};
    all().devices.at(number)->is_lost = true;
    all().work_bell.notify_all();
}
std::size_t bytes_held(unsigned number) {
    std::lock_guard hold{all().memory_lock};
    const device& one = *all().devices.at(number);
    std::size_t bytes = one.used;
    for (const auto& tile : one.tiles) {
        bytes += tile->used;
    }
    return bytes;
}
std::size_t count_alive() { return all().alive.load(); }
std::uint64_t count_misuses() { return all().misuses.load(); }
const char* name_at(std::size_t index) {
    std::lock_guard hold{the_door().lock};
    return index < the_door().names.size() ? the_door().names[index] : nullptr;
}
const controls* find_controls_here() {
    static const controls made{&set_fault,  &count_calls, &reset_door,    &set_delay, &break_device,
                               &bytes_held, &count_alive, &count_misuses, &name_at};
    return &made;
}

}  // namespace

ze_result_t pass_door(const char* name) noexcept {
    try {
        door& here = the_door();
        std::lock_guard hold{here.lock};
        ++here.counts[name];
        const auto found = here.faults.find(std::string_view{name});
        if (found == here.faults.end() || found->second.times == 0) {
            return ZE_RESULT_SUCCESS;
        }
        if (found->second.skip > 0) {
            --found->second.skip;
            return ZE_RESULT_SUCCESS;
        }
        --found->second.times;
        return found->second.code;
    } catch (const std::bad_alloc&) {
        return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
    }
}
void add_name(const char* name) noexcept { the_door().names.push_back(name); }
void keep(void* handle) {
    ++all().alive;
    std::lock_guard hold{the_door().lock};
    the_door().objects.insert(handle);
}
void let_go(void* handle) noexcept {
    --all().alive;
    std::lock_guard hold{the_door().lock};
    the_door().objects.erase(handle);
}
void misuse(const char* what) noexcept {
    ++all().misuses;
    std::fprintf(stderr, "software Level Zero driver: %s\n", what);
}

state::state() : set{read_settings()}, host{std::size_t{64} << 30} {
    read_faults(std::getenv("SOFT_ZE_FAIL"));
    delay_us = static_cast<unsigned>(bytes_from("SOFT_ZE_DELAY_US", 0));
    const auto make = [&](std::size_t bytes) {
        auto one = std::make_unique<device>();
        one->total = bytes;
        one->memory = std::make_unique<store>(round_up(bytes, large_page) * 8);
        return one;
    };
    for (const std::size_t bytes : set.bytes) {
        auto one = make(bytes);
        one->number = static_cast<unsigned>(devices.size());
        for (unsigned i = 0; i < set.tiles; ++i) {
            one->tiles.push_back(make(bytes / set.tiles));
            one->tiles.back()->number = i;
            one->tiles.back()->root = one.get();
        }
        devices.push_back(std::move(one));
    }
}
state& all() {
    static auto* one = new state;
    return *one;
}

namespace {

// ---- driver

char driver_tag;

ze_result_t init(ze_init_flags_t flags) {
    if ((flags & ~3u) != 0) {
        return ZE_RESULT_ERROR_INVALID_ENUMERATION;
    }
    return flags == ZE_INIT_FLAG_VPU_ONLY ? ZE_RESULT_ERROR_UNINITIALIZED : ZE_RESULT_SUCCESS;
}
ze_result_t driver_get(std::uint32_t* count, ze_driver_handle_t* drivers) {
    if (drivers != nullptr && *count > 0) {
        *drivers = handle_of<ze_driver_handle_t>(&driver_tag);
    }
    *count = 1;
    return ZE_RESULT_SUCCESS;
}
ze_result_t driver_version(ze_driver_handle_t, ze_api_version_t* version) {
    *version = static_cast<ze_api_version_t>(ZE_MAKE_VERSION(1, all().set.minor));
    return ZE_RESULT_SUCCESS;
}
ze_result_t driver_properties(ze_driver_handle_t, ze_driver_properties_t* about) {
    std::memcpy(about->uuid.id, "soft-ze-driver-0", 16);
    about->driverVersion = 1;
    return ZE_RESULT_SUCCESS;
}
ze_result_t driver_ipc_properties(ze_driver_handle_t, ze_driver_ipc_properties_t* about) {
    about->flags = ZE_IPC_PROPERTY_FLAG_MEMORY;
    return ZE_RESULT_SUCCESS;
}
ze_result_t driver_extensions(ze_driver_handle_t, std::uint32_t* count,
                              ze_driver_extension_properties_t* list) {
    if (list != nullptr && *count > 0) {
        std::snprintf(list->name, sizeof list->name, "%s", ZE_RELAXED_ALLOCATION_LIMITS_EXP_NAME);
        list->version = ZE_RELAXED_ALLOCATION_LIMITS_EXP_VERSION_CURRENT;
    }
    *count = 1;
    return ZE_RESULT_SUCCESS;
}
ze_result_t driver_extension_function(ze_driver_handle_t, const char* name, void** found) {
    if (std::strcmp(name, "softZeControls") != 0) {
        return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
    }
    *found = reinterpret_cast<void*>(&find_controls_here);
    return ZE_RESULT_SUCCESS;
}

// ---- device

ze_result_t list_devices(const std::vector<std::unique_ptr<device>>& from, std::uint32_t* count,
                         ze_device_handle_t* list) {
    const auto have = static_cast<std::uint32_t>(from.size());
    *count = *count == 0 || *count > have ? have : *count;
    for (std::uint32_t i = 0; list != nullptr && i < *count; ++i) {
        list[i] = handle_of<ze_device_handle_t>(from[i].get());
    }
    return ZE_RESULT_SUCCESS;
}
ze_result_t device_get(ze_driver_handle_t, std::uint32_t* count, ze_device_handle_t* list) {
    return list_devices(all().devices, count, list);
}
ze_result_t device_tiles(ze_device_handle_t root, std::uint32_t* count, ze_device_handle_t* list) {
    return list_devices(of(root)->tiles, count, list);
}
ze_result_t device_properties(ze_device_handle_t handle, ze_device_properties_t* about) {
    if (about->stype != ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES) {
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    }
    const device& one = *of(handle);
    void* next = about->pNext;
    *about = {};
    about->stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES;
    about->pNext = next;
    about->type = ZE_DEVICE_TYPE_GPU;
    about->vendorId = 0x8086;
    about->deviceId = 0x5151;
    if (one.root != nullptr) {
        about->flags = ZE_DEVICE_PROPERTY_FLAG_SUBDEVICE;
        about->subdeviceId = one.number;
    }
    about->maxMemAllocSize = std::min(all().set.most_allocation, one.total);
    about->maxCommandQueuePriority = 1;
    about->numThreadsPerEU = about->numEUsPerSubslice = about->numSubslicesPerSlice =
        about->numSlices = 1;
    about->physicalEUSimdWidth = 8;
    about->timerResolution = 1;
    std::memcpy(about->uuid.id, "soft-ze-device--", 16);
    const device& root = one.root != nullptr ? *one.root : one;
    about->uuid.id[14] = static_cast<std::uint8_t>('0' + root.number);
    about->uuid.id[15] = static_cast<std::uint8_t>(one.root != nullptr ? '0' + one.number : '-');
    if (one.root != nullptr) {
        std::snprintf(about->name, sizeof about->name, "software Level Zero device %u.%u",
                      root.number, one.number);
    } else {
        std::snprintf(about->name, sizeof about->name, "software Level Zero device %u", one.number);
    }
    return ZE_RESULT_SUCCESS;
}
ze_result_t device_groups(ze_device_handle_t, std::uint32_t* count,
                          ze_command_queue_group_properties_t* list) {
    const std::uint32_t have = all().set.has_copy_engine ? 2 : 1;
    *count = *count == 0 || *count > have ? have : *count;
    for (std::uint32_t i = 0; list != nullptr && i < *count; ++i) {
        list[i].flags = ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY;
        if (i == 0) {
            list[i].flags |= ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE;
        }
        list[i].maxMemoryFillPatternSize = i == 0 ? SIZE_MAX : 1;
        list[i].numQueues = i == 0 ? 4 : 1;
    }
    return ZE_RESULT_SUCCESS;
}
ze_result_t device_memories(ze_device_handle_t handle, std::uint32_t* count,
                            ze_device_memory_properties_t* list) {
    if (list != nullptr && *count > 0) {
        list->flags = 0;
        list->maxClockRate = 1000;
        list->maxBusWidth = 64;
        list->totalSize = of(handle)->total;
        std::snprintf(list->name, sizeof list->name, "memory file");
    }
    *count = 1;
    return ZE_RESULT_SUCCESS;
}
ze_result_t device_memory_access(ze_device_handle_t, ze_device_memory_access_properties_t* about) {
    constexpr auto usual = ZE_MEMORY_ACCESS_CAP_FLAG_RW | ZE_MEMORY_ACCESS_CAP_FLAG_ATOMIC;
    about->hostAllocCapabilities = about->deviceAllocCapabilities =
        about->sharedSingleDeviceAllocCapabilities = usual;
    about->sharedCrossDeviceAllocCapabilities = all().set.has_peers ? usual : 0u;
    about->sharedSystemAllocCapabilities = 0;
    return ZE_RESULT_SUCCESS;
}
ze_result_t device_pci(ze_device_handle_t handle, ze_pci_ext_properties_t* about) {
    const device& one = *of(handle);
    about->address = {0xffff, (one.root != nullptr ? one.root : &one)->number, 0, 0};
    about->maxSpeed = {4, 16, 31'500'000'000};
    return ZE_RESULT_SUCCESS;
}
ze_result_t device_can_access(ze_device_handle_t one, ze_device_handle_t other, ze_bool_t* can) {
    *can = one == other || all().set.has_peers;
    return ZE_RESULT_SUCCESS;
}
ze_result_t device_status(ze_device_handle_t handle) {
    return of(handle)->is_lost ? ZE_RESULT_ERROR_DEVICE_LOST : ZE_RESULT_SUCCESS;
}

// ---- context

ze_result_t context_create(ze_driver_handle_t, const ze_context_desc_t*,
                           ze_context_handle_t* made) {
    *made = handle_of<ze_context_handle_t>(new char);
    keep(*made);
    return ZE_RESULT_SUCCESS;
}
ze_result_t context_create_for(ze_driver_handle_t on, const ze_context_desc_t* about, std::uint32_t,
                               ze_device_handle_t*, ze_context_handle_t* made) {
    return context_create(on, about, made);
}
ze_result_t context_destroy(ze_context_handle_t gone) {
    let_go(gone);
    delete reinterpret_cast<char*>(gone);
    return ZE_RESULT_SUCCESS;
}
ze_result_t context_status(ze_context_handle_t) {
    const bool is_lost = std::any_of(all().devices.begin(), all().devices.end(),
                                     [](const auto& one) { return one->is_lost.load(); });
    return is_lost ? ZE_RESULT_ERROR_DEVICE_LOST : ZE_RESULT_SUCCESS;
}
ze_result_t context_resident(ze_context_handle_t, ze_device_handle_t, void* at, std::size_t) {
    std::lock_guard hold{all().memory_lock};
    return find_block(at) != nullptr ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_INVALID_ARGUMENT;
}

// ---- sysman: its handles are the device's; only where ZES_ENABLE_SYSMAN was set, as with a real driver

ze_result_t sysman_memories(zes_device_handle_t handle, std::uint32_t* count,
                            zes_mem_handle_t* list) {
    if (!is_set("ZES_ENABLE_SYSMAN")) {
        return ZE_RESULT_ERROR_UNINITIALIZED;
    }
    if (list != nullptr && *count > 0) {
        *list = reinterpret_cast<zes_mem_handle_t>(handle);
    }
    *count = 1;
    return ZE_RESULT_SUCCESS;
}
ze_result_t sysman_state(zes_mem_handle_t handle, zes_mem_state_t* about) {
    std::lock_guard hold{all().memory_lock};
    const device& one = *reinterpret_cast<device*>(handle);
    about->health = ZES_MEM_HEALTH_OK;
    about->size = one.total;
    about->free = one.total;  // as much as ever: a real driver often says no better
    return ZE_RESULT_SUCCESS;
}

}  // namespace

void fill(ze_global_dditable_t& t) { t.pfnInit = &entry<"zeInit", &init>::call; }
void fill(ze_driver_dditable_t& t) {
    t.pfnGet = &entry<"zeDriverGet", &driver_get>::call;
    t.pfnGetApiVersion = &entry<"zeDriverGetApiVersion", &driver_version>::call;
    t.pfnGetProperties = &entry<"zeDriverGetProperties", &driver_properties>::call;
    t.pfnGetIpcProperties = &entry<"zeDriverGetIpcProperties", &driver_ipc_properties>::call;
    t.pfnGetExtensionProperties =
        &entry<"zeDriverGetExtensionProperties", &driver_extensions>::call;
    t.pfnGetExtensionFunctionAddress =
        &entry<"zeDriverGetExtensionFunctionAddress", &driver_extension_function>::call;
}
void fill(ze_device_dditable_t& t) {
    t.pfnGet = &entry<"zeDeviceGet", &device_get>::call;
    t.pfnGetSubDevices = &entry<"zeDeviceGetSubDevices", &device_tiles>::call;
    t.pfnGetProperties = &entry<"zeDeviceGetProperties", &device_properties>::call;
    t.pfnGetCommandQueueGroupProperties =
        &entry<"zeDeviceGetCommandQueueGroupProperties", &device_groups>::call;
    t.pfnGetMemoryProperties = &entry<"zeDeviceGetMemoryProperties", &device_memories>::call;
    t.pfnGetMemoryAccessProperties =
        &entry<"zeDeviceGetMemoryAccessProperties", &device_memory_access>::call;
    t.pfnPciGetPropertiesExt = &entry<"zeDevicePciGetPropertiesExt", &device_pci>::call;
    t.pfnCanAccessPeer = &entry<"zeDeviceCanAccessPeer", &device_can_access>::call;
    t.pfnGetStatus = &entry<"zeDeviceGetStatus", &device_status>::call;
}
void fill(ze_context_dditable_t& t) {
    t.pfnCreate = &entry<"zeContextCreate", &context_create>::call;
    t.pfnCreateEx = &entry<"zeContextCreateEx", &context_create_for>::call;
    t.pfnDestroy = &entry<"zeContextDestroy", &context_destroy>::call;
    t.pfnGetStatus = &entry<"zeContextGetStatus", &context_status>::call;
    t.pfnMakeMemoryResident = &entry<"zeContextMakeMemoryResident", &context_resident>::call;
    t.pfnEvictMemory = &entry<"zeContextEvictMemory", &context_resident>::call;
}
void fill(zes_device_dditable_t& t) {
    t.pfnEnumMemoryModules = &entry<"zesDeviceEnumMemoryModules", &sysman_memories>::call;
}
void fill(zes_memory_dditable_t& t) {
    t.pfnGetState = &entry<"zesMemoryGetState", &sysman_state>::call;
}

}  // namespace soft_ze
