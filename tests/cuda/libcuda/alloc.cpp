// SPDX-License-Identifier: Apache-2.0
// alloc.cpp - plain, stream-ordered and page-locked memory, what a pointer is, memory shared by legacy IPC.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "memory.hpp"
#include "streams.hpp"

namespace soft_cuda {

namespace {

entry_point info_point{"cuMemGetInfo"};
entry_point alloc_point{"cuMemAlloc"};
entry_point free_point{"cuMemFree"};
entry_point alloc_async_point{"cuMemAllocAsync"};
entry_point free_async_point{"cuMemFreeAsync"};
entry_point range_point{"cuMemGetAddressRange"};
entry_point host_alloc_point{"cuMemHostAlloc"};
entry_point free_host_point{"cuMemFreeHost"};
entry_point register_point{"cuMemHostRegister"};
entry_point unregister_point{"cuMemHostUnregister"};
entry_point device_pointer_point{"cuMemHostGetDevicePointer"};
entry_point attribute_point{"cuPointerGetAttribute"};
entry_point attributes_point{"cuPointerGetAttributes"};
entry_point ipc_get_point{"cuIpcGetMemHandle"};
entry_point ipc_open_point{"cuIpcOpenMemHandle"};
entry_point ipc_close_point{"cuIpcCloseMemHandle"};

constexpr std::size_t plain_alignment = 512;

// Memory of a device at an address that the CPU cannot touch.
CUresult allocate(CUdeviceptr* at, std::size_t bytes, kind which) {
    context& current = *this_thread().current();
    device& of = the_driver().of(current);
    if (bytes > of.bytes) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    auto what = make_frame(&of, 0, round_up(bytes, plain_alignment));
    if (what == nullptr) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const std::scoped_lock hold{memory_lock};
    auto* const place = reserve_address(round_up(bytes, os_page_bytes()),
                                        bytes >= page_bytes ? page_bytes : os_page_bytes(), 0);
    if (place == nullptr) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *at = reinterpret_cast<CUdeviceptr>(place);
    table().add(*at, bytes, which, std::move(what));
    return CUDA_SUCCESS;
}

// Takes a mapping that has its address for itself out of the table, address included. (memory_lock)
std::shared_ptr<frame> take_out(std::map<CUdeviceptr, mapping>::iterator which) {
    mapping& gone = which->second;
    auto what = std::move(gone.what);
    if (gone.kind == kind::managed) {
        managed_drop(gone);
    }
    if (gone.kind == kind::page_locked) {
        what->owns_window = true;  // the window is the program's address: it goes with the frame
    } else if (gone.kind != kind::registered) {
        release_address(gone.at, round_up(gone.bytes, os_page_bytes()));
    }
    table().mappings.erase(which);
    bump_epoch();
    return what;
}

struct ipc_ticket {
    char mark[16];
    int process;
    int fd;
    int device;
    std::uint64_t bytes;
};
static_assert(sizeof(ipc_ticket) <= sizeof(CUipcMemHandle));
constexpr char ipc_mark[16] = "software CUDA 1";

enum memory_type : unsigned { type_host = 1, type_device = 2 };

// One attribute of what lies at `at`; `found` is nullptr for memory that is none of ours. (memory_lock)
CUresult attribute(void* data, CUpointer_attribute which, CUdeviceptr at, const mapping* found) {
    const auto answer = [data](auto value) {
        std::memcpy(data, &value, sizeof value);
        return CUDA_SUCCESS;
    };
    if (found == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool on_device = found->what->of != nullptr;
    const bool by_handle = found->kind == kind::mapped_handle;
    switch (which) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            return answer(by_handle ? std::uintptr_t{0}
                                    : reinterpret_cast<std::uintptr_t>(found->owner));
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            return answer(on_device || found->kind == kind::managed ? type_device : type_host);
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return answer(at);
        case CU_POINTER_ATTRIBUTE_HOST_POINTER: {
            const bool reachable = !on_device && (!by_handle || found->cpu_access != 0);
            return reachable ? answer(at) : CUDA_ERROR_INVALID_VALUE;
        }
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: return answer(found->kind == kind::managed ? 1u : 0u);
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: {
            const int of_owner = found->owner != nullptr ? found->owner->device : 0;
            return answer(on_device ? found->what->of->ordinal : by_handle ? -1 : of_owner);
        }
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
            return answer(found->kind == kind::plain ? 1u : 0u);
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return answer(found->at);
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return answer(found->bytes);
        case CU_POINTER_ATTRIBUTE_MAPPED: return answer(1u);
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
            return answer(
                by_handle ? static_cast<unsigned>(found->what->made_as.requestedHandleTypes) : 0u);
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
            return answer(by_handle ? unsigned{found->what->made_as.allocFlags.gpuDirectRDMACapable}
                                    : unsigned{found->kind == kind::plain});
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: {
            const auto device = static_cast<std::size_t>(this_thread().current()->device);
            return answer(by_handle ? unsigned{found->access[device]}
                                    : unsigned{CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

std::size_t bytes_of(CUpointer_attribute which) {
    switch (which) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return 8;
        default: return 4;
    }
}

// Is all of it memory of the program's, and there? Touches it, as page-locking does.
bool populate(void* at, std::size_t bytes, bool write) {
#ifndef MADV_POPULATE_READ
    constexpr int MADV_POPULATE_READ = 22, MADV_POPULATE_WRITE = 23;
#endif
    const auto first = reinterpret_cast<std::uintptr_t>(at) / os_page_bytes() * os_page_bytes();
    const std::size_t all =
        round_up(reinterpret_cast<std::uintptr_t>(at) + bytes, os_page_bytes()) - first;
    auto* const begin = reinterpret_cast<std::byte*>(first);
    if (::madvise(begin, all, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0) {
        return true;
    }
    // EINVAL means that one may not do it there, or that the kernel, before 5.14, cannot: nothing at all tells which.
    if (::madvise(begin, 0, MADV_POPULATE_READ) == 0) {
        return false;
    }
    std::vector<unsigned char> resident(all / os_page_bytes());
    return ::mincore(begin, all, resident.data()) == 0;
}

// The program's memory as devices see it. What is shared gets a window of the library's own: a device keeps the pages
// that it was given, whatever the program then does to its mapping.
std::shared_ptr<frame> page_locked(void* at, std::size_t bytes) {
    auto what = std::make_shared<frame>();
    what->owns_window = false;
    what->bytes = bytes;
    what->window = static_cast<std::byte*>(at);
    if (reinterpret_cast<std::uintptr_t>(at) % os_page_bytes() != 0) {
        return what;
    }
    // From nothing to all of it: for a shared mapping that is one more, for a private one it is refused.
    void* const window = ::mremap(at, 0, bytes, MREMAP_MAYMOVE);
    if (window != MAP_FAILED) {
        what->window = static_cast<std::byte*>(window);
        what->owns_window = true;
        the_driver().counted.frames.fetch_add(1, std::memory_order_relaxed);
    }
    return what;
}

}  // namespace

void free_memory_of(context& owner) {
    std::vector<std::shared_ptr<frame>> last;
    const std::scoped_lock hold{memory_lock};
    auto& all = table().mappings;
    for (auto it = all.begin(); it != all.end();) {
        const auto here = it++;
        if (here->second.owner == &owner && here->second.kind != kind::mapped_handle) {
            last.push_back(take_out(here));
        }
    }
}

SOFT_CUDA_EXPORT CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
    return enter(info_point, a_context, [&] {
        if (free == nullptr || total == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        device& of = the_driver().of(*this_thread().current());
        *free = of.free_bytes();
        *total = of.bytes;
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* at, std::size_t bytes) {
    return enter(alloc_point, a_context | no_capture, [&] {
        return at == nullptr || bytes == 0 ? CUDA_ERROR_INVALID_VALUE
                                           : allocate(at, bytes, kind::plain);
    });
}

SOFT_CUDA_EXPORT CUresult cuMemFree_v2(CUdeviceptr at) {
    return enter(free_point, a_context | no_capture, [&] {
        if (at == 0) {
            return CUDA_SUCCESS;
        }
        context* owner = nullptr;
        {
            const std::scoped_lock hold{memory_lock};
            const auto found = table().mappings.find(at);
            if (found == table().mappings.end()) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            const kind which = found->second.kind;
            if ((which != kind::plain && which != kind::managed && which != kind::stream_ordered) ||
                found->second.is_freed) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            found->second.is_freed = true;  // a second free is refused from now on
            owner = found->second.owner;
        }
        drain(*owner);  // it waits for all that may still use the memory
        std::shared_ptr<frame> last;
        const std::scoped_lock hold{memory_lock};
        if (const auto found = table().mappings.find(at); found != table().mappings.end()) {
            last = take_out(found);
        }
        return owner->state();
    });
}

SOFT_CUDA_EXPORT CUresult cuMemAllocAsync(CUdeviceptr* at, std::size_t bytes, CUstream in) {
    return enter(alloc_async_point, a_context, [&] {
        if (at == nullptr || bytes == 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        context& current = *this_thread().current();
        if (the_driver().of(current).attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) == 0) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        {
            const std::scoped_lock hold{work_lock};
            const auto to = stream_of(in);
            if (to == nullptr) {
                return CUDA_ERROR_INVALID_HANDLE;
            }
            if (const CUresult refused = check_legacy_locked(*to); refused != CUDA_SUCCESS) {
                return refused;
            }
            if (to->captured_by != nullptr) {  // memory of a graph is more than a test needs
                invalidate_locked(*to->captured_by);
                return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
            }
        }
        return allocate(at, bytes, kind::stream_ordered);
    });
}

SOFT_CUDA_EXPORT CUresult cuMemFreeAsync(CUdeviceptr at, CUstream in) {
    return enter(free_async_point, a_context, [&] {
        {
            const std::scoped_lock hold{memory_lock};
            const auto found = table().mappings.find(at);
            if (found == table().mappings.end() || found->second.kind != kind::stream_ordered ||
                found->second.is_freed) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            found->second.is_freed = true;
        }
        const CUresult refused = submit(in, {{},
                                             [at] {
                                                 std::shared_ptr<frame> last;
                                                 const std::scoped_lock hold{memory_lock};
                                                 const auto found = table().mappings.find(at);
                                                 if (found != table().mappings.end()) {
                                                     last = take_out(found);
                                                 }
                                                 return CUDA_SUCCESS;
                                             },
                                             true});
        if (refused != CUDA_SUCCESS) {
            const std::scoped_lock hold{memory_lock};
            if (const auto found = table().mappings.find(at); found != table().mappings.end()) {
                found->second.is_freed = false;
            }
        }
        return refused;
    });
}

// Of memory that is mapped by handles: the one mapping, not the range that it is a part of.
SOFT_CUDA_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* bytes,
                                                  CUdeviceptr at) {
    return enter(range_point, a_context, [&] {
        const std::scoped_lock hold{memory_lock};
        const auto found = table().over(at);
        if (found == table().mappings.end()) {
            return CUDA_ERROR_NOT_FOUND;
        }
        if (base != nullptr) {
            *base = found->second.at;
        }
        if (bytes != nullptr) {
            *bytes = found->second.bytes;
        }
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuMemHostAlloc(void** at, std::size_t bytes, unsigned flags) {
    return enter(host_alloc_point, a_context | no_capture, [&] {
        if (at == nullptr || bytes == 0 || flags > 7) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        const std::size_t rounded = round_up(bytes, os_page_bytes());
        void* const place =
            ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (place == MAP_FAILED) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        auto what = std::make_shared<frame>();
        what->owns_window = false;
        what->bytes = rounded;
        what->window = static_cast<std::byte*>(place);
        const std::scoped_lock hold{memory_lock};
        table()
            .add(reinterpret_cast<CUdeviceptr>(place), bytes, kind::page_locked, std::move(what))
            .flags = flags;
        the_driver().counted.frames.fetch_add(1, std::memory_order_relaxed);
        *at = place;
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuMemFreeHost(void* at) {
    return enter(free_host_point, a_context | no_capture, [&] {
        const auto address = reinterpret_cast<CUdeviceptr>(at);
        context* owner = nullptr;
        {
            const std::scoped_lock hold{memory_lock};
            const auto found = table().mappings.find(address);
            if (found == table().mappings.end() || found->second.kind != kind::page_locked ||
                found->second.is_freed) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            found->second.is_freed = true;
            owner = found->second.owner;
        }
        drain(*owner);
        std::shared_ptr<frame> last;
        const std::scoped_lock hold{memory_lock};
        if (const auto found = table().mappings.find(address); found != table().mappings.end()) {
            last = take_out(found);
        }
        return owner->state();
    });
}

SOFT_CUDA_EXPORT CUresult cuMemHostRegister_v2(void* at, std::size_t bytes, unsigned flags) {
    return enter(register_point, a_context | no_capture, [&] {
        const auto address = reinterpret_cast<CUdeviceptr>(at);
        if (at == nullptr || bytes == 0 || flags > 15 || address > UINTPTR_MAX - bytes) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        device& current = the_driver().of(*this_thread().current());
        if (current.attribute(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED) == 0) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        const bool read_only = (flags & host_register_read_only) != 0;
        {
            const std::scoped_lock hold{memory_lock};
            memory_table& all = table();
            auto next = all.mappings.lower_bound(address);
            const auto over = all.over(address);
            const mapping* const other =
                over != all.mappings.end()                                    ? &over->second
                : next != all.mappings.end() && next->first < address + bytes ? &next->second
                                                                              : nullptr;
            if (other != nullptr) {
                return other->kind == kind::registered || other->kind == kind::page_locked
                           ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
                           : CUDA_ERROR_INVALID_VALUE;
            }
        }
        if (!populate(at, bytes, !read_only)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        auto what = page_locked(at, bytes);
        const std::scoped_lock hold{memory_lock};
        if (!table().is_free(address, bytes)) {
            return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;  // by another thread, just now
        }
        table().add(address, bytes, kind::registered, std::move(what)).flags = flags;
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuMemHostUnregister(void* at) {
    return enter(unregister_point, a_context | no_capture, [&] {
        if (at == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        const auto address = reinterpret_cast<CUdeviceptr>(at);
        const auto find = [address] {
            const auto found = table().mappings.find(address);
            const bool is_there =
                found != table().mappings.end() && found->second.kind == kind::registered;
            return is_there ? found : table().mappings.end();
        };
        {
            const std::scoped_lock hold{memory_lock};
            if (find() == table().mappings.end()) {
                return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
            }
        }
        drain(*this_thread().current());  // it waits for all that may still use the memory
        std::shared_ptr<frame> last;
        const std::scoped_lock hold{memory_lock};
        const auto found = find();
        if (found == table().mappings.end()) {
            return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
        }
        last = take_out(found);
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device_at, void* at,
                                                       unsigned flags) {
    return enter(device_pointer_point, a_context, [&] {
        const std::scoped_lock hold{memory_lock};
        const auto found = table().over(reinterpret_cast<CUdeviceptr>(at));
        if (device_at == nullptr || flags != 0 || found == table().mappings.end() ||
            (found->second.kind != kind::page_locked && found->second.kind != kind::registered)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *device_at = reinterpret_cast<CUdeviceptr>(at);
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuPointerGetAttribute(void* data, CUpointer_attribute which,
                                                CUdeviceptr at) {
    return enter(attribute_point, a_context, [&] {
        if (data == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        const std::scoped_lock hold{memory_lock};
        memory_table& all = table();
        const auto found = all.over(at);
        if (found != all.mappings.end()) {
            return attribute(data, which, at, &found->second);
        }
        // Of a reserved address that nothing is mapped to, this much is known.
        const auto reserved = all.reserved_over(at);
        if (reserved != all.reservations.end() && which == CU_POINTER_ATTRIBUTE_MAPPED) {
            std::memset(data, 0, 4);
            return CUDA_SUCCESS;
        }
        return CUDA_ERROR_INVALID_VALUE;
    });
}

SOFT_CUDA_EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* which,
                                                 void** data, CUdeviceptr at) {
    return enter(attributes_point, a_context, [&] {
        if (count == 0 || which == nullptr || data == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        const std::scoped_lock hold{memory_lock};
        const auto found = table().over(at);
        const mapping* const one = found != table().mappings.end() ? &found->second : nullptr;
        for (unsigned i = 0; i < count; ++i) {
            if (attribute(data[i], which[i], at, one) != CUDA_SUCCESS) {
                std::memset(data[i], 0, bytes_of(which[i]));  // unknown memory is no error here
                if (which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
                    std::memset(data[i], 0xFF, 4);  // -2: no device
                    *static_cast<int*>(data[i]) = -2;
                }
            }
        }
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr at) {
    return enter(ipc_get_point, a_context, [&] {
        const std::scoped_lock hold{memory_lock};
        const auto found = table().over(at);
        if (handle == nullptr || found == table().mappings.end() ||
            found->second.kind != kind::plain) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        ipc_ticket ticket{};
        std::memcpy(ticket.mark, ipc_mark, sizeof ipc_mark);
        ticket.process = ::getpid();
        ticket.fd = found->second.what->fd;
        ticket.device = found->second.what->of->ordinal;
        ticket.bytes = found->second.bytes;
        *handle = {};
        std::memcpy(handle->reserved, &ticket, sizeof ticket);
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* at, CUipcMemHandle handle,
                                                unsigned flags) {
    return enter(ipc_open_point, a_context | no_capture, [&] {
        ipc_ticket ticket{};
        std::memcpy(&ticket, handle.reserved, sizeof ticket);
        if (at == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
            std::memcmp(ticket.mark, ipc_mark, sizeof ipc_mark) != 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (ticket.process == ::getpid()) {
            return CUDA_ERROR_INVALID_CONTEXT;  // it is for other processes
        }
        char path[64];
        std::snprintf(path, sizeof path, "/proc/%d/fd/%d", ticket.process, ticket.fd);
        const int fd = ::open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0) {
            return CUDA_ERROR_MAP_FAILED;
        }
        auto what = frame_behind(fd);
        ::close(fd);
        if (what == nullptr || what->of == nullptr || what->bytes < ticket.bytes) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        const std::scoped_lock hold{memory_lock};
        auto* const place = reserve_address(round_up(ticket.bytes, os_page_bytes()), page_bytes, 0);
        if (place == nullptr) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        *at = reinterpret_cast<CUdeviceptr>(place);
        table().add(*at, ticket.bytes, kind::ipc, std::move(what));
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr at) {
    return enter(ipc_close_point, a_context | no_capture, [&] {
        std::shared_ptr<frame> last;
        const std::scoped_lock hold{memory_lock};
        const auto found = table().mappings.find(at);
        if (found == table().mappings.end() || found->second.kind != kind::ipc) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        last = take_out(found);
        return CUDA_SUCCESS;
    });
}

static_assert(is_as_declared<&driver_api::mem_get_info>(cuMemGetInfo_v2));
static_assert(is_as_declared<&driver_api::mem_alloc>(cuMemAlloc_v2));
static_assert(is_as_declared<&driver_api::mem_free>(cuMemFree_v2));
static_assert(is_as_declared<&driver_api::mem_get_address_range>(cuMemGetAddressRange_v2));
static_assert(is_as_declared<&driver_api::mem_alloc_async>(cuMemAllocAsync));
static_assert(is_as_declared<&driver_api::mem_free_async>(cuMemFreeAsync));
static_assert(is_as_declared<&driver_api::mem_host_alloc>(cuMemHostAlloc));
static_assert(is_as_declared<&driver_api::mem_free_host>(cuMemFreeHost));
static_assert(is_as_declared<&driver_api::mem_host_register>(cuMemHostRegister_v2));
static_assert(is_as_declared<&driver_api::mem_host_unregister>(cuMemHostUnregister));
static_assert(is_as_declared<&driver_api::pointer_get_attribute>(cuPointerGetAttribute));
static_assert(is_as_declared<&driver_api::pointer_get_attributes>(cuPointerGetAttributes));
static_assert(is_as_declared<&driver_api::ipc_get_mem_handle>(cuIpcGetMemHandle));
static_assert(is_as_declared<&driver_api::ipc_open_mem_handle>(cuIpcOpenMemHandle_v2));
static_assert(is_as_declared<&driver_api::ipc_close_mem_handle>(cuIpcCloseMemHandle));

}  // namespace soft_cuda
