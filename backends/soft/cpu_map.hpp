// SPDX-License-Identifier: Apache-2.0
// cpu_map.hpp - the CPU as an accessor: frames of host nodes mapped where programs see them.
//
// Model    A page table remembers what is mapped, so that a change of access is one mprotect and
//          neighbouring runs with neighbouring memory become one mmap. A cleared page is a hole, made
//          by a function that a fault trap may replace. No CPU mapping survives into a forked child.
// Threads  Any, on distinct ranges. No lock. The mmap calls are raw: a sanitizer that took them for
//          writes would report each move under access as a race.
// Failure  The kernel's limit on mappings (vm.max_map_count) shows as no_memory. A clear that finds it closes the
//          page, and fails only in the midst of a mapping that it would have to part.
#pragma once

#include <cerrno>
#include <span>

#include <sys/mman.h>

#include <xmm/core/status.hpp>
#include <xmm/os/host_memory.hpp>
#include <xmm/os/huge_pages.hpp>

#include "memory.hpp"
#include "page_table.hpp"

namespace xmm::soft {

using hole_maker = status (*)(void* context, va_range range) noexcept;

[[nodiscard]] inline status map_raw(va_range range, int protection, int flags, int file,
                                    std::size_t offset) noexcept {
    if (xmm::detail::map_quietly(to_pointer(range.begin), range.bytes, protection,
                                 flags | MAP_FIXED, file, offset) == MAP_FAILED) {
        return errno == ENOMEM
                   ? fail(errc::no_memory, "mmap refused, most likely by vm.max_map_count", errno)
                   : fail(errc::unsupported, "mmap failed", errno);
    }
    return {};
}

[[nodiscard]] inline status make_plain_hole(void*, va_range range) noexcept {
    return map_raw(range, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

class cpu_map {
public:
    cpu_map(hole_maker hole, void* context) noexcept
        : make_hole_{hole != nullptr ? hole : &make_plain_hole}, context_{context} {}

    [[nodiscard]] status make_hole(va_range range) noexcept {
        const status outcome = make_hole_(context_, range);
        ::madvise(to_pointer(range.begin), range.bytes, MADV_DONTFORK);
        return outcome;
    }

    // owner_of(standing) gives the index of a host node and its memory, or nullptr.
    template <class OwnerOf>
    [[nodiscard]] progress enter(std::span<const run> runs, OwnerOf&& owner_of) noexcept {
        std::size_t done = 0;
        while (done < runs.size()) {
            const auto [owner, index] = owner_of(runs[done].backing);
            if (owner == nullptr) {
                return {done, fail(errc::unsupported, "the CPU cannot map device memory")};
            }
            const bool is_there = is_entered(runs[done]);
            run all = runs[done];
            std::size_t last = done + 1;
            while (last < runs.size() && follows(all, runs[last]) &&
                   is_entered(runs[last]) == is_there) {
                all.va.bytes += runs[last++].va.bytes;
            }
            if (!table_.reserve(all.va)) {
                return {done, fail(errc::no_memory, "no room for the CPU's page table")};
            }
            if (const status outcome = is_there ? protect(all) : map(all, *owner); !outcome) {
                return {done, outcome};
            }
            for (std::size_t at = 0; at < all.va.bytes; at += page_bytes) {
                table_.exchange(all.va.begin + at,
                                page_entry{all.backing.standing + at, index, all.who});
            }
            done = last;
        }
        return {done, {}};
    }

    [[nodiscard]] progress clear(std::span<const va_range> ranges) noexcept {
        std::size_t done = 0;
        while (done < ranges.size()) {
            va_range all = ranges[done];
            std::size_t last = done + 1;
            while (last < ranges.size() && ranges[last].begin == all.end()) {
                all.bytes += ranges[last++].bytes;
            }
            if (table_.has_any(all)) {
                if (const status outcome = make_hole(all); !outcome && !shut(all)) {
                    return {done, outcome};
                }
                forget(all);
            }
            done = last;
        }
        return {done, {}};
    }

    // The addresses are gone, or about to be.
    void forget(va_range range) noexcept {
        for (std::size_t at = 0; at < range.bytes; at += page_bytes) {
            table_.exchange(range.begin + at, page_entry{});
        }
    }

    [[nodiscard]] const page_table& table() const noexcept { return table_; }

private:
    // A touch faults a granule in as a whole, which costs a third of its OS pages' own faults. Only a very large
    // one that is fresh comes in by access: its pages have yet to be cleared, and few may be wanted.
    static constexpr std::size_t populated_fresh_bytes = std::size_t{32} << 20;

    [[nodiscard]] static int protection(access who) noexcept {
        const int readable = who == access::none ? PROT_NONE : PROT_READ;
        return has_write(who) ? PROT_READ | PROT_WRITE : readable;
    }
    [[nodiscard]] bool is_entered(const run& one) const noexcept {
        for (std::size_t at = 0; at < one.va.bytes; at += page_bytes) {
            const page_entry entry = table_.find(one.va.begin + at);
            if (!entry || entry.standing() != one.backing.standing + at) {
                return false;
            }
        }
        return true;
    }
    [[nodiscard]] static bool follows(const run& all, const run& next) noexcept {
        return next.va.begin == all.va.end() && next.who == all.who &&
               next.backing.node == all.backing.node &&
               next.backing.standing == all.backing.standing + all.va.bytes;
    }
    [[nodiscard]] static status protect(const run& all) noexcept {
        if (::mprotect(to_pointer(all.va.begin), all.va.bytes, protection(all.who)) != 0) {
            return fail(errc::no_memory, "mprotect refused, most likely by vm.max_map_count",
                        errno);
        }
        return {};
    }
    // A hole takes a mapping more even where it replaces one; where none is left, what is there is closed to all
    // access instead, which takes none unless its neighbours are one mapping with it.
    [[nodiscard]] static bool shut(va_range range) noexcept {
        return ::mprotect(to_pointer(range.begin), range.bytes, PROT_NONE) == 0;
    }
    [[nodiscard]] static status map(const run& all, const node_memory& owner) noexcept {
        const status outcome = map_raw(all.va, protection(all.who), MAP_SHARED, owner.file(),
                                       owner.offset_of(all.backing.standing));
        if (outcome) {
            ::madvise(to_pointer(all.va.begin), all.va.bytes, MADV_DONTFORK);
            ::madvise(to_pointer(all.va.begin), all.va.bytes,
                      MADV_HUGEPAGE);  // where the system has them
            fill(all);
        }
        return outcome;
    }
    static void fill(const run& all) noexcept {
        if (!all.backing.zeroed) {
            // Read faults take 16 OS pages at once where they exist, and are writable in a shared mapping.
            static_cast<void>(xmm::detail::populate(all.va, access::read));
        } else if (all.va.bytes <= populated_fresh_bytes && has_write(all.who)) {
            xmm::detail::populate_huge(all.va);
        } else if (all.va.bytes <= populated_fresh_bytes) {
            static_cast<void>(xmm::detail::populate(all.va, access::read));
        }
    }

    const hole_maker make_hole_;
    void* const context_;
    page_table table_;
};

}  // namespace xmm::soft
