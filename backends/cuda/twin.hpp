// SPDX-License-Identifier: Apache-2.0
// twin.hpp - the second mapping of a host frame of our own: where it is, and what the CPU may do there.
//
// Model    A frame of shared memory is mapped twice: once for good, at its standing address, and once as its twin,
//          which parks without any access until it is moved to an address of the program's. Moving takes the page
//          tables along, so that it costs microseconds and no faults. What a twin leaves behind is an empty mapping
//          of the same memory, so no address is ever free for others, and a second twin can leave from there.
// Threads  Any, on distinct targets. A touch meanwhile finds the hole or all of the twin.
// Failure  no_memory: the kernel refuses, most likely for vm.max_map_count. All as it was.
#pragma once

#include <cerrno>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/os/host_memory.hpp>

namespace xmm::cuda::twin {

[[nodiscard]] inline status protect(va_range range, access wanted) noexcept {
    const int readable = wanted == access::none ? PROT_NONE : PROT_READ;
    const int protection = has_write(wanted) ? PROT_READ | PROT_WRITE : readable;
    return ::mprotect(to_pointer(range.begin), range.bytes, protection) == 0
               ? status{}
               : fail(errc::no_memory, "the kernel refuses the CPU's access to a host frame",
                      errno);
}

// The source lies within one mapping. Both ends are mapped before and after.
[[nodiscard]] inline status move(va_range from, address to) noexcept {
    constexpr int leaves_a_mapping = 4;  // MREMAP_DONTUNMAP, which older C libraries do not name
    // By its number, since the sanitizers take the library's for a write to all of it.
    const long moved = ::syscall(SYS_mremap, from.begin, from.bytes, from.bytes,
                                 MREMAP_MAYMOVE | MREMAP_FIXED | leaves_a_mapping, to);
    if (moved != -1) {
        return {};
    }
    const int why = errno;
    // The target is the first thing to go, should the kernel run out of memory half way: no hole may stay there.
    constexpr int only_if_free = 0x100000;  // MAP_FIXED_NOREPLACE
    (void)detail::map_quietly(to_pointer(to), from.bytes, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | only_if_free, -1, 0);
    return fail(errc::no_memory, "the kernel does not move a host frame's mapping", why);
}

[[nodiscard]] inline status give(va_range to, address parked, access wanted) noexcept {
    // Access comes last: nobody has it while page tables are under way, and what parks never has any.
    if (const status moved = move({parked, to.bytes}, to.begin); !moved) {
        return moved;
    }
    const status outcome = wanted == access::none ? status{} : protect(to, wanted);
    if (!outcome) {
        (void)move(to, parked);
    }
    return outcome;
}

// `had` is what it goes back to on failure.
[[nodiscard]] inline status take(va_range from, address parked, access had) noexcept {
    if (had != access::none) {
        if (const status closed = protect(from, access::none); !closed) {
            return closed;
        }
    }
    const status moved = move(from, parked);
    if (!moved && had != access::none) {
        (void)protect(from, had);
    }
    return moved;
}

}  // namespace xmm::cuda::twin
