// SPDX-License-Identifier: Apache-2.0
// memory.hpp - the physical memory of one node: a sparse file and its standing mapping.
//
// Model    A frame is a run of pages of the file. The address space of the file is several times the
//          node's size, so that runs are found whatever the order of drops; bytes are what is counted.
//          A dropped frame is punched out: its memory returns to the system and reads zero again.
// Threads  Any. One lock guards the bitmap: rank backend_queue.
// Failure  Construction cannot fail: where the size or the system forbids it, state and create say why.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/os/host_memory.hpp>

#include "page_table.hpp"

namespace xmm::soft {

class node_memory {
public:
    // The file takes twice as many addresses, in one stretch; a process may have fewer.
    static constexpr std::size_t largest_bytes = std::size_t{1} << (address_bits - 1);

    // numa is the number that the OS gives the node of a host, or -1: leave it to the kernel.
    node_memory(node_id node, std::size_t bytes, int numa) : node_{node}, bytes_{bytes} {
        if (bytes > largest_bytes) {
            state_ = fail(errc::invalid_argument,
                          "a node of the software backend has at most 128 TiB of memory");
            return;
        }
        window_ = align_up(bytes, page_bytes) / page_bytes * 2;
        std::size_t reserve = std::clamp(bytes * 8, std::size_t{16} << 30, std::size_t{128} << 30);
        for (reserve = std::max(reserve, 2 * window_ * page_bytes); !map(reserve); reserve /= 2) {
            if (reserve / 2 < window_ * page_bytes) {
                state_ = fail(errc::no_memory, reason_of(errno), errno);
                return;
            }
        }
        if (numa >= 0) {
            binding_ = bind(static_cast<unsigned>(numa));
        }
        used_ = std::make_unique<std::uint64_t[]>((page_count_ + 63) / 64);
    }
    ~node_memory() {
        if (mapping_.bytes != 0) {
            ::munmap(to_pointer(mapping_.begin), mapping_.bytes);
        }
        if (file_ >= 0) {
            ::close(file_);
        }
    }
    node_memory(const node_memory&) = delete;
    node_memory& operator=(const node_memory&) = delete;

    [[nodiscard]] node_id node() const noexcept { return node_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] int file() const noexcept { return file_; }
    [[nodiscard]] bool contains(address standing) const noexcept {
        return standing_.contains(standing);
    }
    [[nodiscard]] std::size_t offset_of(address standing) const noexcept {
        return standing - standing_.begin;
    }
    [[nodiscard]] status binding() const noexcept { return binding_; }
    // Why no frame can ever be made here; ok otherwise.
    [[nodiscard]] status state() const noexcept { return state_; }
    [[nodiscard]] std::size_t frame_bytes() noexcept {
        return with(lock_, [&] { return frame_bytes_; });
    }
    [[nodiscard]] std::size_t free_bytes() noexcept {
        return with(lock_, [&] { return free_bytes_locked(); });
    }
    // As if another process took memory: no more than is free. Answers how much it got.
    std::size_t take_bytes(std::size_t bytes) noexcept {
        return with(lock_, [&] {
            const std::size_t got = std::min(bytes, free_bytes_locked());
            taken_bytes_ += got;
            return got;
        });
    }
    void give_bytes(std::size_t bytes) noexcept {
        with(lock_, [&] {
            XMM_ASSERT(bytes <= taken_bytes_, "more is given back than was taken");
            taken_bytes_ -= bytes;
        });
    }

    // A whole number of pages, at most largest_frame_bytes. Reads as zero.
    [[nodiscard]] result<frame> create(std::size_t bytes) noexcept {
        if (!state_) {
            return state_;
        }
        const std::size_t pages = bytes / page_bytes;
        std::lock_guard hold{lock_};
        if (bytes > free_bytes_locked()) {
            return fail(errc::no_memory, "the node's memory is in use");
        }
        const std::size_t first = find_run(pages);
        if (first == page_count_) {
            return fail(errc::no_memory,
                        "the node's memory is too scattered for a frame of this size");
        }
        mark(first, pages, true);
        cursor_ = first + pages;
        frame_bytes_ += bytes;
        const address standing = standing_.begin + first * page_bytes;
        return frame{standing, standing, bytes, node_, true};
    }

    void drop(frame f) noexcept {
        punch(f);  // before the pages can be found again, and outside the lock: it may take a while
        const std::size_t first = offset_of(f.standing) / page_bytes;
        std::lock_guard hold{lock_};
        XMM_ASSERT(f.handle == f.standing && is_used(first), "dropped a frame that does not exist");
        mark(first, f.bytes / page_bytes, false);
        frame_bytes_ -= f.bytes;
    }

private:
    static const char* reason_of(int error) noexcept {
        switch (error) {
            case EFBIG:
                return "the node's memory is a file, longer than the limit on this process's files "
                       "(ulimit -f) allows";
            case EMFILE:
                return "the node's memory is a file, and this process has no file descriptor left "
                       "(ulimit -n)";
            case ENFILE:
                return "the node's memory is a file, and the system has no file descriptor left";
            default:
                return "no address space for the node's memory: it takes twice its size, in one "
                       "stretch";
        }
    }
    [[nodiscard]] bool map(std::size_t reserve) noexcept {
        if (file_ < 0) {
            file_ = ::memfd_create("xmm-soft", MFD_CLOEXEC);
            if (file_ < 0) {
                return false;
            }
        }
        rlimit largest{};  // a longer file would be a signal rather than an error
        if (::getrlimit(RLIMIT_FSIZE, &largest) == 0 && largest.rlim_cur < reserve) {
            errno = EFBIG;
            return false;
        }
        if (::ftruncate(file_, static_cast<off_t>(reserve)) != 0) {
            return false;
        }
        // Aligned by hand: page tables name a frame by the upper bits of its standing address.
        void* at = ::mmap(nullptr, reserve + page_bytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) {
            return false;
        }
        mapping_ = {to_address(at), reserve + page_bytes};
        standing_ = {align_up(mapping_.begin, page_bytes), reserve};
        void* whole = to_pointer(standing_.begin);
        if (::mmap(whole, reserve, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
                   file_, 0) == MAP_FAILED) {
            ::munmap(at, mapping_.bytes);
            mapping_ = standing_ = {};
            return false;
        }
        ::madvise(whole, reserve, MADV_DONTFORK);
        ::madvise(whole, reserve, MADV_HUGEPAGE);
        page_count_ = reserve / page_bytes;
        return true;
    }

    // Prefers the node rather than insisting on it: a full node spills over, the process lives on.
    // For a shared file the policy belongs to the file, so CPU mappings follow it too.
    [[nodiscard]] status bind(unsigned numa) const noexcept {
        xmm::detail::node_mask mask;
        if (!mask.add(numa)) {
            return fail(errc::unsupported, "a NUMA node beyond 1023");
        }
        if (!mask.apply(standing_, MPOL_PREFERRED)) {
            return fail(errc::unsupported,
                        "the kernel refuses mbind: host memory lies where it likes", errno);
        }
        return {};
    }

    void punch(frame f) const noexcept {
        const auto offset = static_cast<off_t>(offset_of(f.standing));
        if (::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset,
                        static_cast<off_t>(f.bytes)) != 0) {
            std::memset(to_pointer(f.standing), 0, f.bytes);  // at least it reads as zero
        }
    }

    // Next fit within a window of twice the node's size: frames that are created in a row lie in a
    // row, yet the kernel's tables for the standing mapping stay small. Beyond it only in need.
    [[nodiscard]] std::size_t find_run(std::size_t pages) const noexcept {
        for (auto [from, to] : {std::pair{cursor_, window_},
                                {std::size_t{0}, window_},
                                {std::size_t{0}, page_count_}}) {
            for (std::size_t at = from, run = 0; at < to; ++at) {
                run = is_used(at) ? 0 : run + 1;
                if (run == pages) {
                    return at + 1 - pages;
                }
            }
        }
        return page_count_;
    }
    [[nodiscard]] std::size_t free_bytes_locked() const noexcept {
        const std::size_t held = frame_bytes_ + taken_bytes_;
        return held < bytes_ ? bytes_ - held : 0;
    }
    [[nodiscard]] bool is_used(std::size_t page) const noexcept {
        return (used_[page / 64] >> (page % 64)) & 1;
    }
    void mark(std::size_t first, std::size_t pages, bool used) noexcept {
        for (std::size_t page = first; page < first + pages; ++page) {
            XMM_ASSERT(is_used(page) != used, "a page of a frame has two owners or none");
            used_[page / 64] ^= std::uint64_t{1} << (page % 64);
        }
    }

    const node_id node_;
    const std::size_t bytes_;
    int file_ = -1;
    va_range mapping_;   // (C) what was reserved
    va_range standing_;  // (C) the aligned part: the file
    std::size_t window_ = 0;
    std::size_t page_count_ = 0;
    status state_;
    status binding_;
    ranked_mutex<lock_rank::backend_queue> lock_;
    std::unique_ptr<std::uint64_t[]> used_;  // under lock_, one bit a page, as are the next three
    std::size_t cursor_ = 0;
    std::size_t frame_bytes_ = 0;
    std::size_t taken_bytes_ = 0;  // by others
};

}  // namespace xmm::soft
