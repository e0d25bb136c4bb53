// SPDX-License-Identifier: Apache-2.0
// memory.cpp - frames behind memfds, address space, and the table that every access of a device goes through.
#include "memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "soft_cuda.hpp"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace soft_cuda {

std::mutex memory_lock;
std::atomic<std::uint64_t> memory_epoch{1};

memory_table& table() {
    static auto* const only = new memory_table;  // never deleted, as the driver
    return *only;
}

namespace {

constexpr std::string_view file_prefix = "/memfd:software CUDA ";

std::byte* map_shared(int fd, std::size_t bytes) {
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

bool try_charge_frame(device* of, std::size_t bytes) {
    return of == nullptr || charge_with_eviction(*of, bytes);
}

}  // namespace

frame::~frame() {
    if (owns_window && window != nullptr) {
        ::munmap(window, bytes);
    }
    if (fd >= 0) {
        ::close(fd);
    }
    if (is_charged) {
        of->held.fetch_sub(bytes, std::memory_order_relaxed);  // only adds room
    }
    if (owns_window) {
        the_driver().counted.frames.fetch_sub(1, std::memory_order_relaxed);
    }
}

bool charge_with_eviction(device& of, std::size_t amount) {
    if (of.try_charge(of.held, amount)) {
        return true;
    }
    const std::scoped_lock hold{memory_lock};
    return evict_managed(of, amount) && of.try_charge(of.held, amount);
}

std::shared_ptr<frame> make_frame(device* of, int host_node, std::size_t bytes) {
    if (!try_charge_frame(of, bytes)) {
        return nullptr;
    }
    auto made = std::make_shared<frame>();
    the_driver().counted.frames.fetch_add(1, std::memory_order_relaxed);
    made->of = of;
    made->host_node = host_node;
    made->bytes = bytes;
    made->is_charged = of != nullptr;
    char name[64];
    // After the prefix: d or h, and the number; who imports the descriptor reads it there.
    std::snprintf(name, sizeof name, "software CUDA %c%d", of != nullptr ? 'd' : 'h',
                  of != nullptr ? of->ordinal : host_node);
    made->fd = ::memfd_create(name, MFD_CLOEXEC);
    if (made->fd < 0 || ::ftruncate(made->fd, static_cast<off_t>(bytes)) != 0) {
        throw std::system_error{errno, std::generic_category()};
    }
    made->window = map_shared(made->fd, bytes);
    if (made->window == nullptr) {
        throw std::system_error{errno, std::generic_category()};
    }
    if (the_driver().poisons) {
        std::memset(made->window, 0xA5, bytes);
    }
    return made;
}

std::shared_ptr<frame> frame_behind(int fd) {
    struct stat status {};
    char link[32], name[128];
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = ::readlink(link, name, sizeof name - 1);
    if (length <= 0 || ::fstat(fd, &status) != 0) {
        return nullptr;
    }
    const std::string_view said{name, static_cast<std::size_t>(length)};
    if (said.substr(0, file_prefix.size()) != file_prefix) {
        return nullptr;
    }
    name[length] = '\0';
    const char where = name[file_prefix.size()];
    const int number = std::atoi(name + file_prefix.size() + 1);
    driver& all = the_driver();
    if (where == 'd' && !all.has_device(number)) {
        return nullptr;
    }
    auto made = std::make_shared<frame>();
    all.counted.frames.fetch_add(1, std::memory_order_relaxed);
    made->of = where == 'd' ? all.devices[static_cast<std::size_t>(number)].get() : nullptr;
    made->host_node = where == 'd' ? 0 : number;
    made->bytes = static_cast<std::size_t>(status.st_size);  // the other process is charged for it
    made->fd = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    made->window = made->fd >= 0 ? map_shared(made->fd, made->bytes) : nullptr;
    made->made_as.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    made->made_as.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    made->made_as.location = where == 'd' ? CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, number}
                                          : CUmemLocation{CU_MEM_LOCATION_TYPE_HOST_NUMA, number};
    if (made->window == nullptr) {
        throw std::system_error{errno, std::generic_category()};
    }
    return made;
}

std::map<CUdeviceptr, mapping>::iterator memory_table::over(CUdeviceptr at) {
    auto next = mappings.upper_bound(at);
    if (next == mappings.begin() || at >= std::prev(next)->second.end()) {
        return mappings.end();
    }
    return std::prev(next);
}

std::map<CUdeviceptr, std::size_t>::iterator memory_table::reserved_over(CUdeviceptr at) {
    auto next = reservations.upper_bound(at);
    if (next == reservations.begin()) {
        return reservations.end();
    }
    --next;
    return at < next->first + next->second ? next : reservations.end();
}

bool memory_table::is_free(CUdeviceptr at, std::size_t bytes) {
    if (over(at) != mappings.end()) {
        return false;
    }
    const auto next = mappings.lower_bound(at);
    return next == mappings.end() || next->first >= at + bytes;
}

mapping& memory_table::add(CUdeviceptr at, std::size_t bytes, soft_cuda::kind kind,
                           std::shared_ptr<frame> what) {
    mapping& made = mappings[at];
    made.at = at;
    made.bytes = bytes;
    made.kind = kind;
    made.what = std::move(what);
    made.id = next_mapping++;
    made.owner = this_thread().current();
    return made;
}

namespace {

bool may_use(const mapping& in, int device, bool write, access_by by) {
    switch (in.kind) {
        case kind::mapped_handle: {
            const unsigned has = in.access[static_cast<std::size_t>(device)];
            return write ? has == CU_MEM_ACCESS_FLAGS_PROT_READWRITE : has != 0;
        }
        case kind::plain:
        case kind::stream_ordered:
        case kind::ipc:
            // The driver itself copies between devices, with their permission or without.
            return by == access_by::copy || in.owner->device == device ||
                   (the_driver().devices[static_cast<std::size_t>(device)]->primary.peers.load(
                        std::memory_order_relaxed) >>
                        in.owner->device &
                    1) != 0;
        case kind::registered: return !write || (in.flags & host_register_read_only) == 0;
        case kind::managed:
        case kind::page_locked: return true;
    }
    return false;
}

}  // namespace

sight look(int device, CUdeviceptr at, std::size_t bytes, bool write, access_by by) {
    const std::scoped_lock hold{memory_lock};
    memory_table& all = table();
    sight seen;
    const auto found = all.over(at);
    if (found == all.mappings.end()) {
        seen.found = all.reserved_over(at) == all.reservations.end() ? sight::answer::unknown
                                                                     : sight::answer::fault;
        return seen;
    }
    mapping& in = found->second;
    if (!may_use(in, device, write, by)) {
        seen.found = sight::answer::fault;
        return seen;
    }
    const std::size_t offset = at - in.at;
    seen.found = sight::answer::memory;
    seen.hold = in.what;
    seen.window = in.what->window + offset;
    seen.bytes = std::min<std::size_t>(bytes, in.bytes - offset);
    seen.before = offset;
    seen.place = in.what->of != nullptr ? in.what->of->ordinal : -1;
    seen.mapping = in.id;
    if (in.kind == kind::managed) {
        const std::size_t page = offset / page_bytes;
        seen.bytes = std::min(seen.bytes, (page + 1) * page_bytes - offset);
        seen.before = offset % page_bytes;
        seen.place = by == access_by::kernel ? managed_touch(in, page, device, write)
                                             : std::max(in.pages[page].home, -1);
    }
    return seen;
}

bool is_known(CUdeviceptr at) {
    const std::scoped_lock hold{memory_lock};
    memory_table& all = table();
    return all.over(at) != all.mappings.end() || all.reserved_over(at) != all.reservations.end();
}

std::byte* reserve_address(std::size_t bytes, std::size_t alignment, std::uintptr_t hint) {
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (hint != 0 && hint % alignment == 0) {
        void* const wished = reinterpret_cast<void*>(hint);  // an address, never followed
        void* const got = ::mmap(wished, bytes, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
        if (got == wished) {
            return static_cast<std::byte*>(got);
        }
        if (got != MAP_FAILED) {
            ::munmap(got, bytes);  // a kernel that does not know the flag
        }
    }
    const std::size_t slack = alignment > os_page_bytes() ? alignment : 0;
    if (bytes > SIZE_MAX - slack) {
        return nullptr;
    }
    void* const got = ::mmap(nullptr, bytes + slack, PROT_NONE, flags, -1, 0);
    if (got == MAP_FAILED) {
        return nullptr;
    }
    auto* const all = static_cast<std::byte*>(got);
    const std::size_t before =
        slack == 0 ? 0
                   : (alignment - reinterpret_cast<std::uintptr_t>(all) % alignment) % alignment;
    if (before != 0) {
        ::munmap(all, before);
    }
    if (slack != before) {
        ::munmap(all + before + bytes, slack - before);
    }
    return all + before;
}

void close_address(CUdeviceptr at, std::size_t bytes) {
    // A real driver's is seen by no sanitizer, and would count as a write that nobody waits for.
    // The last argument lies on the stack and is read as a whole word there: 0 is not enough.
    (void)::syscall(SYS_mmap, at, bytes, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0L);
}

void release_address(CUdeviceptr at, std::size_t bytes) {
    ::munmap(reinterpret_cast<void*>(at), bytes);
}

}  // namespace soft_cuda

SOFT_CUDA_EXPORT xmm::cuda::CUresult xmmSoftCudaTake(int ordinal, std::size_t bytes) {
    using namespace soft_cuda;
    driver& all = the_driver();
    if (!all.has_device(ordinal)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    device& of = *all.devices[static_cast<std::size_t>(ordinal)];
    const std::size_t had = of.taken.load(std::memory_order_relaxed);
    if (bytes <= had) {
        of.taken.store(bytes, std::memory_order_relaxed);
        return CUDA_SUCCESS;
    }
    if (of.try_charge(of.taken, bytes - had)) {
        return CUDA_SUCCESS;
    }
    const std::scoped_lock hold{memory_lock};
    return evict_managed(of, bytes - had) && of.try_charge(of.taken, bytes - had)
               ? CUDA_SUCCESS
               : CUDA_ERROR_OUT_OF_MEMORY;
}
