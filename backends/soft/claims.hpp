// SPDX-License-Identifier: Apache-2.0
// claims.hpp - which address ranges are the driver's: reserved here, or claimed where another reserved them.
//
// Model    No two claims overlap. What was reserved here returns to the system with its claim.
// Threads  Any. One lock, rank backend_queue; what it calls back takes none.
// Failure  A range that cannot be had is declined: busy or unsupported; no_memory without addresses.
#pragma once

#include <algorithm>
#include <cerrno>
#include <new>
#include <vector>

#include <sys/mman.h>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>

#include "page_table.hpp"

namespace xmm::soft {

class claim_table {
public:
    claim_table() = default;
    claim_table(const claim_table&) = delete;
    claim_table& operator=(const claim_table&) = delete;
    ~claim_table() {
        for (const claim& one : claims_) {
            unmap(one);
        }
    }

    // A range from elsewhere. is_mapped(va_range): whether anything is mapped there by this driver.
    template <class IsMapped>
    [[nodiscard]] result<va_range> add(va_range range, std::size_t alignment,
                                       IsMapped&& is_mapped) noexcept {
        if (range.begin % alignment != 0) {
            return fail(errc::unsupported, "the range is not aligned as asked");
        }
        if (range.end() < range.begin || (range.end() - 1) >> address_bits != 0) {
            return fail(errc::unsupported, "the range lies beyond 48 bits");
        }
        if (const status outcome = note({range, {}}, is_mapped); !outcome) {
            return outcome;
        }
        ::madvise(to_pointer(range.begin), range.bytes, MADV_DONTFORK);
        return range;
    }
    // Fresh addresses. make_hole(va_range) -> status prepares them.
    template <class IsMapped, class MakeHole>
    [[nodiscard]] result<va_range> propose(std::size_t bytes, std::size_t alignment,
                                           IsMapped&& is_mapped, MakeHole&& make_hole) noexcept {
        if (bytes > (std::size_t{1} << address_bits) ||
            alignment > (std::size_t{1} << address_bits)) {
            return fail(errc::no_memory, "more than 48 bits of addresses");
        }
        void* at = ::mmap(nullptr, bytes + alignment, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) {
            return fail(errc::no_memory, "no address space", errno);
        }
        const va_range all{to_address(at), bytes + alignment};
        const va_range range{align_up(all.begin, alignment), bytes};
        if (range.begin != all.begin) {
            ::munmap(at, range.begin - all.begin);
        }
        if (range.end() != all.end()) {
            ::munmap(to_pointer(range.end()), all.end() - range.end());
        }
        status outcome = make_hole(range);
        outcome = outcome ? note({range, range}, is_mapped) : outcome;
        if (!outcome) {
            ::munmap(to_pointer(range.begin), range.bytes);
            return outcome;
        }
        ::madvise(to_pointer(range.begin), range.bytes, MADV_DONTFORK);
        return range;
    }
    void remove(va_range range) noexcept {
        claim found{};
        with(lock_, [&] {
            const auto at = std::ranges::find(claims_, range, &claim::range);
            XMM_ASSERT(at != claims_.end(), "released a range that is not claimed");
            found = *at;
            *at = claims_.back();
            claims_.pop_back();
        });
        unmap(found);
    }

private:
    struct claim {
        va_range range;
        va_range reserved;  // empty: somebody else's reservation
    };

    template <class IsMapped>
    [[nodiscard]] status note(claim one, IsMapped&& is_mapped) noexcept {
        std::lock_guard guard{lock_};
        for (const claim& other : claims_) {
            if (other.range.overlaps(one.range)) {
                return fail(errc::busy, "the range overlaps one that is claimed");
            }
        }
        if (is_mapped(one.range)) {
            return fail(errc::busy, "the range has mappings");
        }
        try {
            claims_.push_back(one);
        } catch (const std::bad_alloc&) {
            return fail(errc::no_memory, "no memory for a claim");
        }
        return {};
    }
    static void unmap(const claim& one) noexcept {
        if (!one.reserved.is_empty()) {
            ::munmap(to_pointer(one.reserved.begin), one.reserved.bytes);
        }
    }

    ranked_mutex<lock_rank::backend_queue> lock_;
    std::vector<claim> claims_;  // under lock_
};

}  // namespace xmm::soft
