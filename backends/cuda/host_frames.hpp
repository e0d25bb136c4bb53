// SPDX-License-Identifier: Apache-2.0
// host_frames.hpp - the physical memory of one host node, as shared memory of our own.
//
// Model    One sparse memory file, mapped in two windows of addresses. In the first each frame stands, readable and
//          writable, page-locked for the devices as long as it lives; in the second its twin parks (twin.hpp). A
//          frame is a run of the file, in huge pages where the kernel lets us collapse them; its handle is the
//          address where its twin parks.
//          Dropped frames are unlocked, and then emptied, on the locker's thread.
// Threads  Any. A lock for what was dropped and the window's own, both of rank backend_queue and never together;
//          the kernel and the driver are called without them.
// Failure  create() is all or nothing. open() says what is missing here; the driver's handles do then.
// See      frames.hpp: those handles.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xmm/core/lock.hpp>
#include <xmm/core/types.hpp>
#include <xmm/os/host_memory.hpp>
#include <xmm/os/huge_pages.hpp>

#include "../shared/address_window.hpp"

#include "page_locker.hpp"
#include "twin.hpp"

namespace xmm::cuda {

class host_frames {
public:
    host_frames(const driver& on, page_locker& locker, node_id node, int numa,
                std::size_t bytes) noexcept
        : driver_{on}, locker_{locker}, node_{node}, numa_{numa}, bytes_{bytes} {
        burial_.run = [](void* self) noexcept { static_cast<host_frames*>(self)->bury(); };
        burial_.context = this;
    }
    ~host_frames() {
        locker_.drain();
        if (!windows_.is_empty()) {
            ::munmap(to_pointer(windows_.begin), windows_.bytes);
        }
        if (file_ >= 0) {
            ::close(file_);
        }
    }
    host_frames(const host_frames&) = delete;
    host_frames& operator=(const host_frames&) = delete;

    // Tries all that frames need, on one: `device` is some device. Throws std::bad_alloc.
    [[nodiscard]] status open(const CUmemLocation& device) {
        if (const status mapped = map_windows(); !mapped) {
            return mapped;
        }
        auto made = create(page_bytes);
        if (!made) {
            return made.error();
        }
        const frame tried = made.value();
        const status outcome = probe(tried, device);
        drop(tried);
        locker_.drain();  // nothing is left of the try
        return outcome;
    }
    // Whether the CPU can see a frame where devices see another one.
    [[nodiscard]] bool can_split() const noexcept { return can_split_; }

    [[nodiscard]] bool owns(const frame& f) const noexcept { return contains(f.standing); }
    [[nodiscard]] bool contains(address at) const noexcept { return window_.range().contains(at); }

    // Reads as zero.
    [[nodiscard]] result<frame> create(std::size_t bytes) noexcept {
        const address at = window_.take(bytes);
        if (at == 0) {
            return fail(errc::no_memory, "no addresses are left for another frame of this node");
        }
        const va_range standing{at, bytes};
        status outcome = fill(standing);
        if (outcome) {
            outcome = lay_twin(standing);
        }
        if (outcome) {
            outcome = locker_.lock(standing);
            if (outcome.code == errc::device_lost) {
                outcome = {};  // nobody is left to reach it but the CPU
            }
        }
        if (!outcome) {
            empty(standing);
            window_.give(at, bytes);
            return outcome;
        }
        return frame{parked(at), at, bytes, node_, true};
    }
    // Its memory and addresses are free once the devices' work of the moment is done. What the driver refuses to let
    // go stays as it is, addresses included.
    void drop(const frame& f) noexcept {
        XMM_ASSERT(owns(f), "dropped a frame of another node");
        with(lock_, [&] {
            dropped& one = dropped_[page_of(f.standing)];
            one = {static_cast<std::uint32_t>(f.bytes / page_bytes), newest_dropped_};
            newest_dropped_ = static_cast<std::uint32_t>(page_of(f.standing)) + 1;
        });
        locker_.push(burial_);
    }

    // What the frames that live take of the host's memory; waits until dropped ones are gone.
    [[nodiscard]] std::size_t bytes_in_use() const noexcept {
        locker_.drain();
        struct stat about {};
        return ::fstat(file_, &about) == 0 ? static_cast<std::size_t>(about.st_blocks) * 512 : 0;
    }

private:
    // By page, of the first page of a frame that was dropped and is locked still.
    struct dropped {
        std::uint32_t pages = 0;
        std::uint32_t next = 0;  // the page of another one, and 1; 0: none
    };

    [[nodiscard]] std::size_t page_of(address standing) const noexcept {
        return offset_of(standing) / page_bytes;
    }
    // On the locker's thread.
    void bury() noexcept {
        while (true) {
            const va_range standing = with(lock_, [&]() -> va_range {
                if (newest_dropped_ == 0) {
                    return {};
                }
                const std::uint32_t page = newest_dropped_ - 1;
                newest_dropped_ = dropped_[page].next;
                return {window_.range().begin + page * page_bytes,
                        dropped_[page].pages * page_bytes};
            });
            if (standing.is_empty()) {
                return;
            }
            const status unlocked = locker_.unlock_after_work(standing);
            if (unlocked || unlocked.code == errc::device_lost) {
                empty(standing);
                window_.give(standing.begin, standing.bytes);
            }
        }
    }

    [[nodiscard]] std::size_t window_bytes() const noexcept { return window_.range().bytes; }
    [[nodiscard]] address parked(address standing) const noexcept {
        return standing + window_bytes();
    }
    [[nodiscard]] std::size_t offset_of(address standing) const noexcept {
        return standing - window_.range().begin;
    }

    // Addresses cost nothing, and with four times as many a run is always found; less, down to an eighth of that,
    // where a limit says so.
    [[nodiscard]] status map_windows() {
        file_ = ::memfd_create("xmm host frames", MFD_CLOEXEC);
        if (file_ < 0) {
            return fail(errc::unsupported, "the kernel gives no memory files", errno);
        }
        std::size_t bytes = align_up(std::max(4 * bytes_, 2 * largest_frame_bytes), page_bytes);
        status outcome;
        for (const std::size_t least = bytes / 8; bytes >= least;
             bytes = align_down(bytes / 2, page_bytes)) {
            outcome = map_windows(bytes);
            if (outcome) {
                return {};
            }
        }
        return outcome;
    }
    [[nodiscard]] status map_windows(std::size_t bytes) {
        rlimit most{};
        // Asked for, since a file that grows beyond it costs a signal.
        if (::getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < bytes) {
            return fail(errc::unsupported, "a memory file may not be as long as host frames need");
        }
        if (::ftruncate(file_, static_cast<off_t>(bytes)) != 0) {
            return fail(errc::unsupported, "the kernel refuses a memory file for host frames",
                        errno);
        }
        // calloc: of a large host's, little is ever used.
        dropped_.reset(static_cast<dropped*>(std::calloc(bytes / page_bytes, sizeof(dropped))));
        if (dropped_ == nullptr) {
            return fail(errc::no_memory, "no memory to keep account of host frames");
        }
        // Both windows in one range, begun at a page.
        constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        const std::size_t all = 2 * bytes + page_bytes;
        void* const got = detail::map_quietly(nullptr, all, PROT_NONE, flags, -1, 0);
        if (got == MAP_FAILED) {
            return fail(errc::no_memory, "no addresses for host frames", errno);
        }
        const address begin = align_up(to_address(got), page_bytes);
        trim(to_address(got), begin);
        trim(begin + 2 * bytes, to_address(got) + all);
        status outcome = show({begin, bytes}, 0, PROT_READ | PROT_WRITE);
        if (outcome) {
            outcome = show({begin + bytes, bytes}, 0, PROT_NONE);
        }
        if (!outcome) {
            ::munmap(to_pointer(begin), 2 * bytes);
            return outcome;
        }
        windows_ = {begin, 2 * bytes};
        if (const status assigned = window_.assign({begin, bytes}); !assigned) {
            return assigned;
        }
        bind();
        return {};
    }
    static void trim(address from, address to) noexcept {
        if (from != to) {
            ::munmap(to_pointer(from), to - from);
        }
    }
    // The file from that offset on, at that place.
    [[nodiscard]] status show(va_range at, std::size_t offset, int protection) const noexcept {
        void* const place = to_pointer(at.begin);
        if (detail::map_quietly(place, at.bytes, protection, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
                                file_, offset) == MAP_FAILED) {
            return fail(errc::no_memory, "the kernel does not map host frames", errno);
        }
        (void)::madvise(place, at.bytes, MADV_HUGEPAGE);  // a kernel without them has small ones
        // Devices write there: a child that shared it would see its parent's memory change.
        return ::madvise(place, at.bytes, MADV_DONTFORK) == 0
                   ? status{}
                   : fail(errc::unsupported, "host frames cannot be kept from children", errno);
    }
    // A wish: a host without such nodes has its memory anyway.
    void bind() const noexcept {
        host_node where;
        where.os_index = static_cast<unsigned>(numa_);
        where.can_bind = true;
        (void)bind_memory(window_.range(), where);
    }

    // By system calls rather than stores: memory that is not there is an answer and no signal.
    [[nodiscard]] static status fill(va_range standing) noexcept {
        bool is_refused = false;  // asked for each time: they stay locked, and as they are
        return detail::fill_huge(standing, is_refused);
    }
    // Mapped anew, so that it is one mapping whatever frames were here before; with page tables, which come along.
    [[nodiscard]] status lay_twin(va_range standing) const noexcept {
        const va_range range{parked(standing.begin), standing.bytes};
        if (const status shown = show(range, offset_of(standing.begin), PROT_READ | PROT_WRITE);
            !shown) {
            return shown;
        }
        static_cast<void>(detail::populate(range, access::read));
        return twin::protect(range, access::none);
    }
    void empty(va_range standing) const noexcept {
        (void)::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                          static_cast<off_t>(offset_of(standing.begin)),
                          static_cast<off_t>(standing.bytes));
    }

    // ---- what is tried before it is relied on

    [[nodiscard]] status probe(const frame& f, const CUmemLocation& device) noexcept {
        CUdeviceptr place = 0;
        if (const status reserved = driver_.call(&driver_api::mem_address_reserve, &place, f.bytes,
                                                 page_bytes, CUdeviceptr{0}, 0ull);
            !reserved) {
            return reserved;
        }
        const va_range at{address{place}, f.bytes};
        status outcome = twin::give(at, f.handle, access::read_write);
        if (outcome) {
            outcome = probe_lock(at);
            can_split_ = outcome.is_ok() && probe_split(f, at, device);
            if (const status back = twin::take(at, f.handle, access::read_write); !back) {
                outcome = back;
            }
        }
        (void)driver_.call(&driver_api::mem_address_free, place, f.bytes);
        return outcome;
    }
    // For devices that see it there.
    [[nodiscard]] status probe_lock(va_range at) const noexcept {
        const status locked = locker_.lock(at);
        return locked ? locker_.unlock_now(at) : locked;
    }
    // Whether a device's memory comes to the same addresses, and goes, with the CPU none the wiser.
    [[nodiscard]] bool probe_split(const frame& f, va_range at,
                                   const CUmemLocation& device) const noexcept {
        CUmemAllocationProp about{};
        about.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        about.location = device;
        CUmemGenericAllocationHandle handle = 0;
        if (!driver_.call(&driver_api::mem_create, &handle, f.bytes,
                          static_cast<const CUmemAllocationProp*>(&about), 0ull)) {
            return false;
        }
        bool is_able = driver_
                           .call(&driver_api::mem_map, CUdeviceptr{at.begin}, at.bytes,
                                 std::size_t{0}, handle, 0ull)
                           .is_ok();
        if (is_able) {
            const CUmemAccessDesc one{device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
            is_able = driver_
                          .call(&driver_api::mem_set_access, CUdeviceptr{at.begin}, at.bytes, &one,
                                std::size_t{1})
                          .is_ok() &&
                      shows(f, at, 1);
            const auto unmap = [&] {
                return driver_.call(&driver_api::mem_unmap, CUdeviceptr{at.begin}, at.bytes)
                    .is_ok();
            };
            // Once more, so that nothing is left of the try.
            is_able = (unmap() || (unmap() && false)) && is_able && shows(f, at, 2);
        }
        (void)driver_.call(&driver_api::mem_release, handle);
        return is_able;
    }
    // Asked of a system call, which says what a load would die of.
    [[nodiscard]] bool shows(const frame& f, va_range at, std::uint64_t value) const noexcept {
        *static_cast<volatile std::uint64_t*>(to_pointer(f.standing)) = value;
        auto* const beside = static_cast<volatile std::uint64_t*>(to_pointer(f.standing)) + 1;
        const ssize_t wrote = ::pwrite(file_, to_pointer(at.begin), sizeof value,
                                       static_cast<off_t>(offset_of(f.standing) + sizeof value));
        return wrote == static_cast<ssize_t>(sizeof value) && *beside == value;
    }

    const driver& driver_;
    page_locker& locker_;
    const node_id node_;
    const int numa_;
    const std::size_t bytes_;
    int file_ = -1;     // (C) once open, as are the next two
    va_range windows_;  // both
    bool can_split_ = false;
    shared::address_window window_;
    page_locker::errand burial_;
    ranked_mutex<lock_rank::backend_queue> lock_;
    std::unique_ptr<dropped[], decltype(&std::free)> dropped_{
        nullptr, &std::free};  // under lock_, as is the next
    std::uint32_t newest_dropped_ = 0;
};

}  // namespace xmm::cuda
