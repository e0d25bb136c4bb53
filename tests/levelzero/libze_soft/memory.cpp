// SPDX-License-Identifier: Apache-2.0
// memory.cpp - virtual and physical memory, allocations, handles for other processes.
//
// Model    As Intel's driver does: page sizes by the size asked for, one mapping a handle of device memory, unmap
//          passes over what lies in the range only in part, access attributes of whole mappings. The program's
//          address of device memory is a hole for the host. Shared memory that a device used is one, too, until the
//          host touches it: a signal handler moves it back, all of it.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver.hpp"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace soft_ze {

namespace {

constexpr int hole_flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

// A hole of the program's, aligned.
char* reserve(const void* hint, std::size_t bytes, std::size_t alignment) {
    void* found = ::mmap(const_cast<void*>(hint), bytes + alignment, PROT_NONE, hole_flags, -1, 0);
    if (found == MAP_FAILED) {
        return nullptr;
    }
    char* begin = static_cast<char*>(found);
    char* aligned = begin + (round_up(reinterpret_cast<std::uintptr_t>(begin), alignment) -
                             reinterpret_cast<std::uintptr_t>(begin));
    if (aligned != begin) {
        ::munmap(begin, static_cast<std::size_t>(aligned - begin));
    }
    if (char* end = begin + bytes + alignment; aligned + bytes != end) {
        ::munmap(aligned + bytes, static_cast<std::size_t>(end - aligned) - bytes);
    }
    return aligned;
}
void make_hole(void* at, std::size_t bytes) {
    (void)::mmap(at, bytes, PROT_NONE, hole_flags | MAP_FIXED, -1, 0);
}
int protection_of(ze_memory_access_attribute_t access) {
    switch (access) {
        case ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE: return PROT_READ | PROT_WRITE;
        case ZE_MEMORY_ACCESS_ATTRIBUTE_READONLY: return PROT_READ;
        default: return PROT_NONE;
    }
}
bool charge(device& on, std::size_t bytes) {
    if (!all().set.may_overcommit && on.used + bytes > on.total) {
        return false;
    }
    on.used += bytes;
    return true;
}
std::uintptr_t key_of(const void* at) { return reinterpret_cast<std::uintptr_t>(at); }

// The reservation that the range lies in; end() if none.
auto find_reservation(const void* at, std::size_t bytes) {
    auto& table = all().reservations;
    auto found = table.upper_bound(key_of(at));
    if (found == table.begin()) {
        return table.end();
    }
    --found;
    return key_of(at) + bytes <= found->first + found->second ? found : table.end();
}
bool has_block(const void* at, std::size_t bytes) {
    const auto next = all().blocks.lower_bound(key_of(at));
    return find_block(at) != nullptr ||
           (next != all().blocks.end() && next->first < key_of(at) + bytes);
}

// ---- shared memory comes home by signal

struct sigaction handler_before;

void on_touch(int signal, siginfo_t* about, void* where) {
    bool is_ours = false;
    if (all().memory_lock.try_lock()) {
        if (block* one = find_block(about->si_addr);
            one != nullptr && one->what == kind::shared && one->is_on_device) {
            one->is_on_device = false;
            is_ours = ::mprotect(one->base, one->bytes, PROT_READ | PROT_WRITE) == 0;
        }
        all().memory_lock.unlock();
    } else {
        is_ours = true;  // once more, when the lock is free
    }
    if (is_ours) {
        return;
    }
    if ((handler_before.sa_flags & SA_SIGINFO) != 0) {
        handler_before.sa_sigaction(signal, about, where);
    } else if (handler_before.sa_handler == SIG_DFL || handler_before.sa_handler == SIG_IGN) {
        ::signal(signal, SIG_DFL);
    } else {
        handler_before.sa_handler(signal);
    }
}
void catch_touches() {
    static const bool once = [] {
        struct sigaction mine {};
        mine.sa_sigaction = &on_touch;
        mine.sa_flags = SA_SIGINFO | SA_NODEFER;
        return ::sigaction(SIGSEGV, &mine, &handler_before) == 0;
    }();
    (void)once;
}

}  // namespace

store::store(std::size_t bytes) {
    file_ = ::memfd_create("soft-ze", MFD_CLOEXEC);
    if (file_ < 0 || ::ftruncate(file_, static_cast<off_t>(bytes)) != 0) {
        std::fprintf(stderr, "software Level Zero driver: no memory file\n");
        std::abort();
    }
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
    if (at == MAP_FAILED) {
        std::fprintf(stderr, "software Level Zero driver: no addresses for a memory file\n");
        std::abort();
    }
    window_ = static_cast<char*>(at);
    free_[0] = bytes;
}
std::size_t store::take(std::size_t bytes) {
    const std::size_t unit = bytes >= large_page ? large_page : small_page;
    bytes = round_up(bytes, small_page);
    for (auto one = free_.begin(); one != free_.end(); ++one) {
        const std::size_t at = round_up(one->first, unit);
        const std::size_t end = one->first + one->second;
        if (at + bytes > end) {
            continue;
        }
        const std::size_t begin = one->first;
        free_.erase(one);
        if (at != begin) {
            free_[begin] = at - begin;
        }
        if (at + bytes != end) {
            free_[at + bytes] = end - at - bytes;
        }
        if (all().set.does_poison) {
            std::memset(window_ + at, 0xA5, bytes);
        }
        return at;
    }
    return npos;
}
void store::give(std::size_t offset, std::size_t bytes) {
    bytes = round_up(bytes, small_page);
    ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                static_cast<off_t>(bytes));
    auto made = free_.emplace(offset, bytes).first;
    if (auto next = std::next(made); next != free_.end() && offset + bytes == next->first) {
        made->second += next->second;
        free_.erase(next);
    }
    if (made != free_.begin()) {
        auto before = std::prev(made);
        if (before->first + before->second == made->first) {
            before->second += made->second;
            free_.erase(made);
        }
    }
}

store& physical::in() const { return on != nullptr ? *on->memory : all().host; }

std::size_t page_for(std::size_t bytes) {
    constexpr std::size_t huge = std::size_t{8} << 30;
    if (all().set.has_huge_pages && bytes >= huge && std::has_single_bit(bytes)) {
        return bytes;
    }
    return bytes >= large_page ? large_page : small_page;
}
block* find_block(const void* at) {
    auto& table = all().blocks;
    auto found = table.upper_bound(key_of(at));
    if (found == table.begin()) {
        return nullptr;
    }
    --found;
    return key_of(at) < found->first + found->second.bytes ? &found->second : nullptr;
}
stretch resolve(const void* at, std::size_t bytes, bool does_write) {
    std::lock_guard hold{all().memory_lock};
    auto* begin = static_cast<char*>(const_cast<void*>(at));
    if (block* one = find_block(at)) {
        if (one->access == ZE_MEMORY_ACCESS_ATTRIBUTE_NONE ||
            (does_write && one->access == ZE_MEMORY_ACCESS_ATTRIBUTE_READONLY)) {
            return {};
        }
        if (one->what == kind::shared && !one->is_on_device) {
            one->is_on_device = true;
            ::mprotect(one->base, one->bytes, PROT_NONE);
        }
        const auto offset = static_cast<std::size_t>(begin - one->base);
        return {one->alias + offset, std::min(bytes, one->bytes - offset)};
    }
    if (find_reservation(at, 1) != all().reservations.end()) {
        return {};
    }
    const auto next = all().blocks.lower_bound(key_of(at));
    const std::size_t room = next == all().blocks.end() ? bytes : next->first - key_of(at);
    return {begin, std::min(bytes, room)};  // the program's own memory: copies may use it
}

namespace {

// ---- virtual memory

ze_result_t virtual_reserve(ze_context_handle_t, const void* hint, std::size_t bytes,
                            void** found) {
    if (!all().set.has_virtual_memory) {
        return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
    }
    if (bytes == 0 || bytes % 4096 != 0) {
        return ZE_RESULT_ERROR_UNSUPPORTED_SIZE;
    }
    if (bytes >> 47 != 0) {
        return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
    }
    char* at = nullptr;
    if (hint != nullptr) {  // taken where it is free, as mmap does
        void* wanted = ::mmap(const_cast<void*>(hint), bytes, PROT_NONE,
                              hole_flags | MAP_FIXED_NOREPLACE, -1, 0);
        at = wanted == MAP_FAILED ? nullptr : static_cast<char*>(wanted);
    }
    at = at == nullptr ? reserve(nullptr, bytes, large_page) : at;
    if (at == nullptr) {
        return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
    }
    std::lock_guard hold{all().memory_lock};
    all().reservations[key_of(at)] = bytes;
    ++all().alive;
    *found = at;
    return ZE_RESULT_SUCCESS;
}
ze_result_t virtual_free(ze_context_handle_t, const void* at, std::size_t bytes) {
    std::lock_guard hold{all().memory_lock};
    const auto found = all().reservations.find(key_of(at));
    if (found == all().reservations.end() || found->second != bytes) {
        misuse("a reservation is freed in part, or twice");
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    }
    if (has_block(at, bytes)) {
        misuse("a reservation is freed while something is mapped there");
        return ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE;
    }
    ::munmap(const_cast<void*>(at), bytes);
    all().reservations.erase(found);
    --all().alive;
    return ZE_RESULT_SUCCESS;
}
ze_result_t virtual_page_size(ze_context_handle_t, ze_device_handle_t, std::size_t bytes,
                              std::size_t* page) {
    if (!all().set.has_virtual_memory) {
        return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
    }
    *page = page_for(bytes);
    return ZE_RESULT_SUCCESS;
}
ze_result_t check_pages(const void* at, std::size_t bytes) {
    const std::size_t page = page_for(bytes);
    if (bytes == 0 || bytes % page != 0) {
        return ZE_RESULT_ERROR_UNSUPPORTED_SIZE;
    }
    return key_of(at) % page != 0 ? ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT : ZE_RESULT_SUCCESS;
}
ze_result_t virtual_map(ze_context_handle_t, const void* at, std::size_t bytes,
                        ze_physical_mem_handle_t handle, std::size_t offset,
                        ze_memory_access_attribute_t access) {
    physical& from = *reinterpret_cast<physical*>(handle);
    if (const ze_result_t checked = check_pages(at, bytes); checked != ZE_RESULT_SUCCESS) {
        return checked;
    }
    if (offset != 0 && offset % page_for(offset) != 0) {
        return ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT;
    }
    if (offset > from.bytes || from.bytes - offset < bytes) {
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    }
    if (static_cast<unsigned>(access) > ZE_MEMORY_ACCESS_ATTRIBUTE_READONLY) {
        return ZE_RESULT_ERROR_INVALID_ENUMERATION;
    }
    std::lock_guard hold{all().memory_lock};
    if (from.mapped != 0 && from.on != nullptr) {
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;  // device memory: one mapping a handle
    }
    if (find_reservation(at, bytes) == all().reservations.end() || has_block(at, bytes)) {
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    }
    const std::size_t in_file = from.offset + offset;
    if ((from.on == nullptr || all().set.is_host_visible) &&
        ::mmap(const_cast<void*>(at), bytes, protection_of(access), MAP_SHARED | MAP_FIXED,
               from.in().file(), static_cast<off_t>(in_file)) == MAP_FAILED) {
        return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
    }
    block one;
    one.what = kind::mapping;
    one.base = static_cast<char*>(const_cast<void*>(at));
    one.bytes = bytes;
    one.on = from.on;
    one.file = from.in().file();
    one.offset = in_file;
    one.alias = from.in().at(in_file);
    one.number = all().next_number++;
    one.from = &from;
    one.access = access;
    all().blocks[key_of(at)] = one;
    ++from.mapped;
    ++all().alive;
    return ZE_RESULT_SUCCESS;
}
ze_result_t virtual_unmap(ze_context_handle_t, const void* at, std::size_t bytes) {
    if (const ze_result_t checked = check_pages(at, bytes); checked != ZE_RESULT_SUCCESS) {
        return checked;
    }
    std::lock_guard hold{all().memory_lock};
    for (auto one = all().blocks.lower_bound(key_of(at));
         one != all().blocks.end() && one->first < key_of(at) + bytes;) {
        block& gone = one->second;
        if (gone.from == nullptr || one->first + gone.bytes > key_of(at) + bytes) {
            ++one;
            continue;
        }
        if (gone.from->on == nullptr && all().set.leaves_holes) {
            ::munmap(gone.base, gone.bytes);
        } else {
            make_hole(gone.base, gone.bytes);
        }
        --gone.from->mapped;
        --all().alive;
        one = all().blocks.erase(one);
    }
    return ZE_RESULT_SUCCESS;
}
ze_result_t virtual_set_access(ze_context_handle_t, const void* at, std::size_t bytes,
                               ze_memory_access_attribute_t access) {
    std::lock_guard hold{all().memory_lock};
    if (static_cast<unsigned>(access) > ZE_MEMORY_ACCESS_ATTRIBUTE_READONLY) {
        return ZE_RESULT_ERROR_INVALID_ENUMERATION;
    }
    if (find_reservation(at, bytes) == all().reservations.end()) {
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    }
    // Only what begins at that address, and all of it, from the start of its handle.
    if (const auto found = all().blocks.find(key_of(at)); found != all().blocks.end()) {
        block& one = found->second;
        one.access = access;
        one.offset = one.from->offset;
        one.alias = one.from->in().at(one.offset);
        if (one.from->on == nullptr || all().set.is_host_visible) {
            ::mprotect(one.base, one.bytes, protection_of(access));
        }
    }
    return ZE_RESULT_SUCCESS;
}
ze_result_t virtual_get_access(ze_context_handle_t, const void* at, std::size_t bytes,
                               ze_memory_access_attribute_t* access, std::size_t* answered) {
    std::lock_guard hold{all().memory_lock};
    const auto found = find_reservation(at, bytes);
    if (found == all().reservations.end()) {
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    }
    const block* one = find_block(at);
    *access = one != nullptr ? one->access : ZE_MEMORY_ACCESS_ATTRIBUTE_NONE;
    *answered = found->second;
    return ZE_RESULT_SUCCESS;
}

// ---- physical memory

ze_result_t physical_create(ze_context_handle_t, ze_device_handle_t handle,
                            ze_physical_mem_desc_t* about, ze_physical_mem_handle_t* made) {
    if (!all().set.has_virtual_memory) {
        return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
    }
    if (about->pNext != nullptr) {
        const auto first = static_cast<const ze_base_desc_t*>(about->pNext)->stype;
        if (first != ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_DESC &&
            first != ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_FD) {
            return ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION;
        }
    }
    constexpr ze_physical_mem_flags_t on_host = 2;  // since 1.11
    if ((about->flags & ~3u) != 0 || ((about->flags & on_host) != 0 && all().set.minor < 11)) {
        return ZE_RESULT_ERROR_INVALID_ENUMERATION;
    }
    const bool is_host = (about->flags & on_host) != 0;
    if (about->size == 0 || about->size % (is_host ? 4096 : page_for(about->size)) != 0) {
        return ZE_RESULT_ERROR_UNSUPPORTED_SIZE;
    }
    auto one = std::make_unique<physical>();
    one->on = is_host ? nullptr : of(handle);
    one->bytes = about->size;
    std::lock_guard hold{all().memory_lock};
    if (!is_host && !charge(*one->on, one->bytes)) {
        return ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
    }
    one->offset = one->in().take(one->bytes);
    if (one->offset == store::npos) {
        if (!is_host) {
            one->on->used -= one->bytes;
        }
        return is_host ? ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY : ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
    }
    *made = handle_of<ze_physical_mem_handle_t>(one.release());
    keep(*made);
    return ZE_RESULT_SUCCESS;
}
ze_result_t physical_destroy(ze_context_handle_t, ze_physical_mem_handle_t handle) {
    auto* gone = reinterpret_cast<physical*>(handle);
    std::lock_guard hold{all().memory_lock};
    if (gone->mapped != 0) {
        misuse("a physical handle is destroyed while it is mapped");
        return ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE;
    }
    gone->in().give(gone->offset, gone->bytes);
    if (gone->on != nullptr) {
        gone->on->used -= gone->bytes;
    }
    let_go(handle);
    delete gone;
    return ZE_RESULT_SUCCESS;
}

// ---- allocations

struct request {
    kind what = kind::device;
    device* on = nullptr;
    std::size_t bytes = 0;
    std::size_t alignment = 0;
    const void* next = nullptr;
    int imported = -1;  // a file to map instead
    std::size_t offset = 0;
};

ze_result_t check_request(const request& wanted) {
    if (wanted.bytes == 0) {
        return ZE_RESULT_ERROR_UNSUPPORTED_SIZE;
    }
    if ((wanted.alignment & (wanted.alignment - 1)) != 0) {
        return ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT;
    }
    const auto* relaxed = in_chain<ze_relaxed_allocation_limits_exp_desc_t>(
        wanted.next, ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXP_DESC);
    const bool is_relaxed = relaxed != nullptr &&
                            (relaxed->flags & ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE) != 0;
    const std::size_t physical_limit = wanted.on != nullptr ? wanted.on->total : SIZE_MAX;
    const std::size_t limit =
        is_relaxed ? physical_limit : std::min(all().set.most_allocation, physical_limit);
    return wanted.bytes > limit ? ZE_RESULT_ERROR_UNSUPPORTED_SIZE : ZE_RESULT_SUCCESS;
}
ze_result_t allocate(request wanted, void** made) {
    *made = nullptr;
    if (const ze_result_t checked = check_request(wanted); checked != ZE_RESULT_SUCCESS) {
        return checked;
    }
    const bool is_device = wanted.what == kind::device;
    const std::size_t page = wanted.what == kind::host ? small_page : page_for(wanted.bytes);
    const std::size_t bytes = round_up(wanted.bytes, page);
    std::lock_guard hold{all().memory_lock};
    const bool is_charged = wanted.what != kind::host && wanted.imported < 0;
    if (is_charged && !charge(*wanted.on, bytes)) {
        return ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
    }
    block one;
    one.what = wanted.what;
    one.on = wanted.on;
    one.bytes = bytes;
    one.is_imported = wanted.imported >= 0;
    one.number = all().next_number++;
    bool is_made = false;
    if (one.is_imported) {
        one.file = ::dup(wanted.imported);
        one.offset = wanted.offset;
        void* alias = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, one.file,
                             static_cast<off_t>(one.offset));
        one.alias = alias == MAP_FAILED ? nullptr : static_cast<char*>(alias);
        is_made = one.alias != nullptr;
    } else {
        store& in = is_device ? *wanted.on->memory : all().host;
        one.offset = in.take(bytes);
        is_made = one.offset != store::npos;
        one.file = in.file();
        one.alias = is_made ? in.at(one.offset) : nullptr;
    }
    one.base = is_made ? reserve(nullptr, bytes, std::max(page, wanted.alignment)) : nullptr;
    const bool is_open = !is_device || all().set.is_host_visible;
    is_made = is_made && one.base != nullptr &&
              (!is_open || ::mmap(one.base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                                  one.file, static_cast<off_t>(one.offset)) != MAP_FAILED);
    if (!is_made) {
        if (is_charged) {
            wanted.on->used -= bytes;
        }
        return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
    }
    all().blocks[key_of(one.base)] = one;
    ++all().alive;
    *made = one.base;
    return ZE_RESULT_SUCCESS;
}
ze_result_t allocate_device(ze_context_handle_t, const ze_device_mem_alloc_desc_t* about,
                            std::size_t bytes, std::size_t alignment, ze_device_handle_t on,
                            void** made) {
    const auto* import = in_chain<ze_external_memory_import_fd_t>(
        about->pNext, ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_FD);
    return allocate({.what = kind::device,
                     .on = of(on),
                     .bytes = bytes,
                     .alignment = alignment,
                     .next = about->pNext,
                     .imported = import != nullptr ? import->fd : -1},
                    made);
}
ze_result_t allocate_host(ze_context_handle_t, const ze_host_mem_alloc_desc_t* about,
                          std::size_t bytes, std::size_t alignment, void** made) {
    return allocate(
        {.what = kind::host, .bytes = bytes, .alignment = alignment, .next = about->pNext}, made);
}
ze_result_t allocate_shared(ze_context_handle_t, const ze_device_mem_alloc_desc_t* about,
                            const ze_host_mem_alloc_desc_t*, std::size_t bytes,
                            std::size_t alignment, ze_device_handle_t on, void** made) {
    catch_touches();
    return allocate({.what = kind::shared,
                     .on = on != nullptr ? of(on) : all().devices[0].get(),
                     .bytes = bytes,
                     .alignment = alignment,
                     .next = about->pNext},
                    made);
}
ze_result_t free_block(ze_context_handle_t, void* at) {
    std::lock_guard hold{all().memory_lock};
    const auto found = all().blocks.find(key_of(at));
    if (found == all().blocks.end() || found->second.from != nullptr) {
        misuse("something is freed that was never allocated");
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    }
    block& gone = found->second;
    ::munmap(gone.base, gone.bytes);
    if (gone.is_imported) {
        ::munmap(gone.alias, gone.bytes);
        ::close(gone.file);
    } else {
        (gone.what == kind::device ? *gone.on->memory : all().host).give(gone.offset, gone.bytes);
        if (gone.what != kind::host) {
            gone.on->used -= gone.bytes;
        }
    }
    all().blocks.erase(found);
    --all().alive;
    return ZE_RESULT_SUCCESS;
}
ze_result_t free_block_ext(ze_context_handle_t context, const ze_memory_free_ext_desc_t*,
                           void* at) {
    return free_block(context, at);
}
ze_result_t block_properties(ze_context_handle_t, const void* at,
                             ze_memory_allocation_properties_t* about, ze_device_handle_t* on) {
    std::lock_guard hold{all().memory_lock};
    const block* one = find_block(at);
    if (on != nullptr) {
        *on = one != nullptr ? handle_of<ze_device_handle_t>(one->on) : nullptr;
    }
    about->type = ZE_MEMORY_TYPE_UNKNOWN;
    if (one == nullptr) {
        return ZE_RESULT_SUCCESS;
    }
    const bool is_host =
        one->what == kind::host || (one->what == kind::mapping && one->on == nullptr);
    about->type = is_host                     ? ZE_MEMORY_TYPE_HOST
                  : one->what == kind::shared ? ZE_MEMORY_TYPE_SHARED
                                              : ZE_MEMORY_TYPE_DEVICE;
    about->id = one->number;
    about->pageSize = page_for(one->bytes);
    return ZE_RESULT_SUCCESS;
}
ze_result_t block_range(ze_context_handle_t, const void* at, void** begin, std::size_t* bytes) {
    std::lock_guard hold{all().memory_lock};
    const block* one = find_block(at);
    if (one == nullptr) {
        return ZE_RESULT_ERROR_UNKNOWN;  // later versions have a code of its own
    }
    if (begin != nullptr) {
        *begin = one->base;
    }
    if (bytes != nullptr) {
        *bytes = one->bytes;
    }
    return ZE_RESULT_SUCCESS;
}

// ---- other processes

struct passage {
    int process;
    int file;
    std::size_t offset;
    std::size_t bytes;
};
static_assert(sizeof(passage) <= sizeof(ze_ipc_mem_handle_t));

ze_result_t ipc_get(ze_context_handle_t, const void* at, ze_ipc_mem_handle_t* made) {
    std::lock_guard hold{all().memory_lock};
    const block* one = find_block(at);
    if (one == nullptr || one->what == kind::shared) {
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    }
    const passage way{::getpid(), one->file, one->offset, one->bytes};
    *made = {};
    std::memcpy(made, &way, sizeof way);
    return ZE_RESULT_SUCCESS;
}
ze_result_t ipc_open(ze_context_handle_t, ze_device_handle_t on, ze_ipc_mem_handle_t handle,
                     ze_ipc_memory_flags_t, void** made) {
    passage way;
    std::memcpy(&way, &handle, sizeof way);
    const std::string path =
        "/proc/" + std::to_string(way.process) + "/fd/" + std::to_string(way.file);
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) {
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    }
    const ze_result_t outcome = allocate({.what = kind::device,
                                          .on = of(on),
                                          .bytes = way.bytes,
                                          .imported = file,
                                          .offset = way.offset},
                                         made);
    ::close(file);
    return outcome;
}
ze_result_t ipc_close(ze_context_handle_t context, const void* at) {
    return free_block(context, const_cast<void*>(at));
}

}  // namespace

void fill(ze_virtual_mem_dditable_t& t) {
    t.pfnReserve = &entry<"zeVirtualMemReserve", &virtual_reserve>::call;
    t.pfnFree = &entry<"zeVirtualMemFree", &virtual_free>::call;
    t.pfnQueryPageSize = &entry<"zeVirtualMemQueryPageSize", &virtual_page_size>::call;
    t.pfnMap = &entry<"zeVirtualMemMap", &virtual_map>::call;
    t.pfnUnmap = &entry<"zeVirtualMemUnmap", &virtual_unmap>::call;
    t.pfnSetAccessAttribute = &entry<"zeVirtualMemSetAccessAttribute", &virtual_set_access>::call;
    t.pfnGetAccessAttribute = &entry<"zeVirtualMemGetAccessAttribute", &virtual_get_access>::call;
}
void fill(ze_physical_mem_dditable_t& t) {
    t.pfnCreate = &entry<"zePhysicalMemCreate", &physical_create>::call;
    t.pfnDestroy = &entry<"zePhysicalMemDestroy", &physical_destroy>::call;
}
void fill(ze_mem_dditable_t& t) {
    t.pfnAllocShared = &entry<"zeMemAllocShared", &allocate_shared>::call;
    t.pfnAllocDevice = &entry<"zeMemAllocDevice", &allocate_device>::call;
    t.pfnAllocHost = &entry<"zeMemAllocHost", &allocate_host>::call;
    t.pfnFree = &entry<"zeMemFree", &free_block>::call;
    t.pfnFreeExt = &entry<"zeMemFreeExt", &free_block_ext>::call;
    t.pfnGetAllocProperties = &entry<"zeMemGetAllocProperties", &block_properties>::call;
    t.pfnGetAddressRange = &entry<"zeMemGetAddressRange", &block_range>::call;
    t.pfnGetIpcHandle = &entry<"zeMemGetIpcHandle", &ipc_get>::call;
    t.pfnOpenIpcHandle = &entry<"zeMemOpenIpcHandle", &ipc_open>::call;
    t.pfnCloseIpcHandle = &entry<"zeMemCloseIpcHandle", &ipc_close>::call;
}

}  // namespace soft_ze
