// SPDX-License-Identifier: Apache-2.0
// vmm.cpp - reservations, handles, and mappings of whole handles.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "memory.hpp"

namespace soft_cuda {

namespace {

entry_point reserve_point{"cuMemAddressReserve"};
entry_point free_point{"cuMemAddressFree"};
entry_point create_point{"cuMemCreate"};
entry_point release_point{"cuMemRelease"};
entry_point retain_point{"cuMemRetainAllocationHandle"};
entry_point properties_point{"cuMemGetAllocationPropertiesFromHandle"};
entry_point map_point{"cuMemMap"};
entry_point unmap_point{"cuMemUnmap"};
entry_point set_access_point{"cuMemSetAccess"};
entry_point get_access_point{"cuMemGetAccess"};
entry_point granularity_point{"cuMemGetAllocationGranularity"};
entry_point export_point{"cuMemExportToShareableHandle"};
entry_point import_point{"cuMemImportFromShareableHandle"};

// What may be unsafe under a capture is not written down for these; the stricter answer is the useful one in a test.
constexpr unsigned changes_memory = init | no_capture;

constexpr bool is_host(CUmemLocationType type) {
    return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
           type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

// The attribute is advertised, as on an H200; whether handles are really made is another matter.
bool has_fabric() {
    const char* said = std::getenv("SOFT_CUDA_IMEX");
    return said != nullptr && std::strcmp(said, "1") == 0;
}
// What is in a handle of the fabric: whose file it is.
struct fabric_name {
    int process;
    int fd;
};

int open_file_of(const fabric_name& name) {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", name.process, name.fd);
    return ::open(path, O_RDWR | O_CLOEXEC);
}
struct opened_file {
    int fd = -1;
    ~opened_file() {
        if (fd >= 0) {
            ::close(fd);
        }
    }
};

CUresult check_location(const CUmemLocation& where) {
    if (where.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        return the_driver().has_device(where.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    }
    if (where.type == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
        return driver::has_host(where.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    }
    return is_host(where.type) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult check_properties(const CUmemAllocationProp& asked) {
    if (asked.type != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult wrong = check_location(asked.location); wrong != CUDA_SUCCESS) {
        return wrong;
    }
    constexpr unsigned known = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC;
    if ((asked.requestedHandleTypes & ~known) != 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    driver& all = the_driver();
    const int judge = asked.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? asked.location.id : 0;
    device& of = *all.devices[static_cast<std::size_t>(judge)];
    if (of.attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (is_host(asked.location.type) &&
        of.attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if ((asked.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0 &&
        of.attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) == 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (asked.allocFlags.gpuDirectRDMACapable != 0 &&
        of.attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) == 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

// The mappings that make up [at, at + bytes) exactly, whole and without a gap; empty: they do not.
std::vector<mapping*> whole_mappings(CUdeviceptr at, std::size_t bytes) {
    std::vector<mapping*> found;
    if (bytes == 0 || at > UINTPTR_MAX - bytes) {
        return found;
    }
    memory_table& all = table();
    CUdeviceptr next = at;
    for (auto it = all.mappings.find(at);
         it != all.mappings.end() && it->first == next && it->second.kind == kind::mapped_handle &&
         it->second.end() <= at + bytes;
         ++it) {
        found.push_back(&it->second);
        next = it->second.end();
    }
    if (next != at + bytes) {
        found.clear();
    }
    return found;
}

// What the CPU sees at a mapping's address.
CUresult show_to_cpu(mapping& in, unsigned char access) {
    if (access == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        if (in.cpu_access != 0) {
            close_address(in.at, in.bytes);
        }
    } else {
        const int allowed =
            access == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : PROT_READ | PROT_WRITE;
        // Anew each time: this also undoes what the program's mprotect did, as the driver's does.
        // Raw, as in close_address.
        if (::syscall(SYS_mmap, in.at, in.bytes, allowed, MAP_SHARED | MAP_FIXED, in.what->fd,
                      0L) == -1) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    in.cpu_access = access;
    return CUDA_SUCCESS;
}

}  // namespace

SOFT_CUDA_EXPORT CUresult cuMemAddressReserve(CUdeviceptr* at, std::size_t bytes,
                                              std::size_t alignment, CUdeviceptr wished,
                                              unsigned long long flags) {
    return enter(reserve_point, changes_memory, [&] {
        if (at == nullptr || bytes == 0 || bytes % page_bytes != 0 || flags != 0 ||
            (alignment & (alignment - 1)) != 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        const std::scoped_lock hold{memory_lock};
        auto* const got = reserve_address(bytes, std::max(alignment, page_bytes), wished);
        if (got == nullptr) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        *at = reinterpret_cast<CUdeviceptr>(got);
        table().reservations[*at] = bytes;
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuMemAddressFree(CUdeviceptr at, std::size_t bytes) {
    return enter(free_point, changes_memory, [&] {
        const std::scoped_lock hold{memory_lock};
        memory_table& all = table();
        const auto found = all.reservations.find(at);
        if (found == all.reservations.end() || found->second != bytes || !all.is_free(at, bytes)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        all.reservations.erase(found);
        release_address(at, bytes);
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                                      const CUmemAllocationProp* asked, unsigned long long flags) {
    return enter(create_point, changes_memory, [&] {
        if (handle == nullptr || asked == nullptr || flags != 0 || bytes == 0 ||
            bytes % page_bytes != 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (const CUresult wrong = check_properties(*asked); wrong != CUDA_SUCCESS) {
            return wrong;
        }
        if ((asked->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0 && !has_fabric()) {
            return CUDA_ERROR_NOT_PERMITTED;
        }
        device* const of =
            is_host(asked->location.type)
                ? nullptr
                : the_driver().devices[static_cast<std::size_t>(asked->location.id)].get();
        const bool names_node = asked->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
        auto made = make_frame(of, names_node ? asked->location.id : 0, bytes);
        if (made == nullptr) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        made->made_as = *asked;
        const std::scoped_lock hold{memory_lock};
        memory_table& all = table();
        *handle = all.next_handle++;
        all.handles[*handle].what = std::move(made);
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    return enter(release_point, changes_memory, [&] {
        std::shared_ptr<frame> last;  // goes after the lock
        const std::scoped_lock hold{memory_lock};
        memory_table& all = table();
        const auto found = all.handles.find(handle);
        if (found == all.handles.end()) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (--found->second.refs == 0) {
            last = std::move(found->second.what);
            all.handles.erase(found);
        }
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle,
                                                      void* address) {
    return enter(retain_point, init, [&] {
        if (handle == nullptr || address == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        const std::scoped_lock hold{memory_lock};
        memory_table& all = table();
        const auto found = all.over(reinterpret_cast<CUdeviceptr>(address));
        if (found == all.mappings.end() || found->second.kind != kind::mapped_handle) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        // Released already: it comes to life again under its old number.
        handle_record& record = all.handles[found->second.handle];
        if (record.what == nullptr) {
            record.what = found->second.what;
        } else {
            ++record.refs;
        }
        *handle = found->second.handle;
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(
    CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
    return enter(properties_point, init, [&] {
        const std::scoped_lock hold{memory_lock};
        memory_table& all = table();
        const auto found = all.handles.find(handle);
        if (properties == nullptr || found == all.handles.end()) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *properties = found->second.what->made_as;
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuMemMap(CUdeviceptr at, std::size_t bytes, std::size_t offset,
                                   CUmemGenericAllocationHandle handle, unsigned long long flags) {
    return enter(map_point, changes_memory, [&] {
        if (at == 0 || at % page_bytes != 0 || bytes == 0 || offset != 0 || flags != 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        const std::scoped_lock hold{memory_lock};
        memory_table& all = table();
        const auto found = all.handles.find(handle);
        const auto reserved = all.reserved_over(at);
        if (found == all.handles.end() || found->second.what->bytes != bytes ||
            reserved == all.reservations.end() || bytes > reserved->first + reserved->second - at ||
            !all.is_free(at, bytes)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        mapping& made = all.add(at, bytes, kind::mapped_handle, found->second.what);
        made.handle = handle;
        made.access.assign(the_driver().devices.size(), 0);
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuMemUnmap(CUdeviceptr at, std::size_t bytes) {
    return enter(unmap_point, changes_memory, [&] {
        std::vector<std::shared_ptr<frame>> last;  // go after the lock
        const std::scoped_lock hold{memory_lock};
        const auto all_of_it = whole_mappings(at, bytes);
        if (all_of_it.empty()) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        for (mapping* one : all_of_it) {
            if (one->cpu_access != 0) {  // else what is there for the CPU is not ours
                close_address(one->at, one->bytes);
            }
            last.push_back(std::move(one->what));
        }
        bump_epoch();
        memory_table& all = table();
        all.mappings.erase(all.mappings.find(at), all.mappings.lower_bound(at + bytes));
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuMemSetAccess(CUdeviceptr at, std::size_t bytes,
                                         const CUmemAccessDesc* asked, std::size_t count) {
    return enter(set_access_point, changes_memory, [&] {
        if (asked == nullptr || count == 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        const std::scoped_lock hold{memory_lock};
        const auto all_of_it = whole_mappings(at, bytes);
        if (all_of_it.empty()) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        for (std::size_t i = 0; i < count; ++i) {
            const unsigned flags = asked[i].flags;
            if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
                flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            if (const CUresult wrong = check_location(asked[i].location); wrong != CUDA_SUCCESS) {
                return wrong;
            }
            const bool on_device = std::any_of(all_of_it.begin(), all_of_it.end(),
                                               [](mapping* m) { return m->what->of != nullptr; });
            if (is_host(asked[i].location.type) && on_device) {
                return CUDA_ERROR_NOT_SUPPORTED;  // the CPU never reaches a device's memory
            }
        }
        for (mapping* one : all_of_it) {
            for (std::size_t i = 0; i < count; ++i) {
                const auto flags = static_cast<unsigned char>(asked[i].flags);
                if (is_host(asked[i].location.type)) {
                    if (const CUresult failed = show_to_cpu(*one, flags); failed != CUDA_SUCCESS) {
                        return failed;
                    }
                } else {
                    one->access[static_cast<std::size_t>(asked[i].location.id)] = flags;
                }
            }
        }
        bump_epoch();
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* where,
                                         CUdeviceptr at) {
    return enter(get_access_point, init, [&] {
        if (flags == nullptr || where == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (const CUresult wrong = check_location(*where); wrong != CUDA_SUCCESS) {
            return wrong;
        }
        const std::scoped_lock hold{memory_lock};
        memory_table& all = table();
        const auto found = all.over(at);
        if (found == all.mappings.end() || found->second.kind != kind::mapped_handle) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *flags = is_host(where->type) ? found->second.cpu_access
                                      : found->second.access[static_cast<std::size_t>(where->id)];
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuMemGetAllocationGranularity(std::size_t* bytes,
                                                        const CUmemAllocationProp* asked,
                                                        CUmemAllocationGranularity_flags which) {
    return enter(granularity_point, init, [&] {
        if (bytes == nullptr || asked == nullptr || which > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (const CUresult wrong = check_properties(*asked); wrong != CUDA_SUCCESS) {
            return wrong;
        }
        *bytes = page_bytes;
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuMemExportToShareableHandle(void* shared,
                                                       CUmemGenericAllocationHandle handle,
                                                       CUmemAllocationHandleType type,
                                                       unsigned long long flags) {
    return enter(export_point, init, [&] {
        const std::scoped_lock hold{memory_lock};
        memory_table& all = table();
        const auto found = all.handles.find(handle);
        if (shared == nullptr || flags != 0 || found == all.handles.end() ||
            (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
             type != CU_MEM_HANDLE_TYPE_FABRIC) ||
            (found->second.what->made_as.requestedHandleTypes & type) == 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
            const fabric_name name{::getpid(), found->second.what->fd};
            std::memset(shared, 0, sizeof(CUmemFabricHandle));
            std::memcpy(shared, &name, sizeof name);
            return CUDA_SUCCESS;
        }
        const int fd = ::fcntl(found->second.what->fd, F_DUPFD_CLOEXEC, 0);
        if (fd < 0) {
            return CUDA_ERROR_OPERATING_SYSTEM;
        }
        *static_cast<int*>(shared) = fd;
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                                         void* shared,
                                                         CUmemAllocationHandleType type) {
    return enter(import_point, init, [&] {
        if (handle == nullptr || (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
                                  type != CU_MEM_HANDLE_TYPE_FABRIC)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        // As the driver has it: a descriptor travels in the pointer's bits.
        int fd = static_cast<int>(reinterpret_cast<std::uintptr_t>(shared));
        opened_file opened;
        if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
            fabric_name name;
            std::memcpy(&name, shared, sizeof name);
            fd = opened.fd = open_file_of(name);
        }
        struct stat asked {};
        if (::fstat(fd, &asked) != 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        std::shared_ptr<frame> what;
        const std::scoped_lock hold{memory_lock};
        memory_table& all = table();
        const auto is_it = [&asked](const frame& one) {
            struct stat status {};
            return one.fd >= 0 && ::fstat(one.fd, &status) == 0 && status.st_ino == asked.st_ino &&
                   status.st_dev == asked.st_dev;
        };
        for (auto& [number, record] : all.handles) {
            if (is_it(*record.what)) {
                what = record.what;  // of this very process: the same memory under another handle
            }
        }
        for (auto& [at, one] : all.mappings) {
            if (what == nullptr && one.kind == kind::mapped_handle && is_it(*one.what)) {
                what = one.what;
            }
        }
        if (what == nullptr) {
            what = frame_behind(fd);
        }
        if (what == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *handle = all.next_handle++;
        all.handles[*handle].what = std::move(what);
        return CUDA_SUCCESS;
    });
}

static_assert(is_as_declared<&driver_api::mem_address_reserve>(cuMemAddressReserve));
static_assert(is_as_declared<&driver_api::mem_address_free>(cuMemAddressFree));
static_assert(is_as_declared<&driver_api::mem_create>(cuMemCreate));
static_assert(is_as_declared<&driver_api::mem_release>(cuMemRelease));
static_assert(is_as_declared<&driver_api::mem_map>(cuMemMap));
static_assert(is_as_declared<&driver_api::mem_unmap>(cuMemUnmap));
static_assert(is_as_declared<&driver_api::mem_set_access>(cuMemSetAccess));
static_assert(is_as_declared<&driver_api::mem_get_access>(cuMemGetAccess));
static_assert(
    is_as_declared<&driver_api::mem_get_allocation_granularity>(cuMemGetAllocationGranularity));
static_assert(
    is_as_declared<&driver_api::mem_export_to_shareable_handle>(cuMemExportToShareableHandle));
static_assert(
    is_as_declared<&driver_api::mem_import_from_shareable_handle>(cuMemImportFromShareableHandle));

}  // namespace soft_cuda
