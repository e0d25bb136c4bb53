// SPDX-License-Identifier: Apache-2.0
// page_records.hpp - a record for each page of the addresses where something was mapped.
//
// Model    Two levels for 48 bits of addresses. A record of zeroes is empty. Tables stay until the whole is destroyed.
//          A mapping of several pages has its record on each of them; the first one speaks for all.
// Threads  Any, on distinct ranges. No lock: records are their range's, the table only grows.
// Failure  reserve() says so; nothing else can fail.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include <sys/mman.h>

#include <xmm/core/config.hpp>
#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>

namespace xmm::shared {

inline constexpr unsigned address_bits = 48;

// Record has is_empty(), and how long a mapping is: `pages`, `before` (this page, in the mapping).
template <class Record>
class page_records {
public:
    page_records() : tables_{std::make_unique<roots>()} {}
    ~page_records() {
        for (std::atomic<Record*>& one : *tables_) {
            if (Record* table = one.load(std::memory_order_relaxed); table != nullptr) {
                ::munmap(static_cast<void*>(table), table_bytes);
            }
        }
    }
    page_records(const page_records&) = delete;
    page_records& operator=(const page_records&) = delete;

    // Null where nothing was ever mapped near.
    [[nodiscard]] Record* find(address at) const noexcept {
        if (at >> address_bits != 0) {
            return nullptr;
        }
        // acquire: pairs with the release in reserve; a table is zeroed before it is found.
        Record* table = (*tables_)[root_of(at)].load(std::memory_order_acquire);
        return table == nullptr ? nullptr : table + (at >> page_shift) % table_pages;
    }
    // Makes find() answer in the whole range.
    [[nodiscard]] bool reserve(va_range range) noexcept {
        if (range.end() < range.begin || (range.end() - 1) >> address_bits != 0) {
            return false;
        }
        for (std::size_t i = root_of(range.begin); i <= root_of(range.end() - 1); ++i) {
            std::atomic<Record*>& one = (*tables_)[i];
            if (one.load(std::memory_order_acquire) != nullptr) {
                continue;
            }
            void* fresh = ::mmap(nullptr, table_bytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (fresh == MAP_FAILED) {
                return false;
            }
            Record* none = nullptr;
            // release: pairs with the acquire in find.
            if (!one.compare_exchange_strong(none, static_cast<Record*>(fresh),
                                             std::memory_order_acq_rel)) {
                ::munmap(fresh, table_bytes);
            }
        }
        return true;
    }
    // On each page of a range that was reserved.
    void set(va_range whole, const Record& all) noexcept {
        for (std::size_t i = 0; i < whole.bytes / page_bytes; ++i) {
            Record& page = *find(whole.begin + i * page_bytes);
            page = all;
            page.pages = static_cast<std::uint16_t>(all.is_empty() ? 0 : whole.bytes / page_bytes);
            page.before = static_cast<std::uint16_t>(all.is_empty() ? 0 : i);
        }
    }
    [[nodiscard]] bool has_any(va_range range) const noexcept {
        for (std::size_t at = 0; at < range.bytes; at += page_bytes) {
            const Record* one = find(range.begin + at);
            if (one != nullptr && !one->is_empty()) {
                return true;
            }
        }
        return false;
    }
    // visit(record, range) -> status for each mapping in the range; the first failure ends it.
    template <class Visit>
    [[nodiscard]] status for_each(va_range range, Visit&& visit) const noexcept {
        for (address at = range.begin; at < range.end();) {
            Record* one = find(at);
            if (one == nullptr || one->is_empty()) {
                at += page_bytes;
                continue;
            }
            const va_range whole{at, one->pages * page_bytes};
            XMM_ASSERT(one->before == 0 && whole.end() <= range.end(),
                       "a mapping is cleared as a whole: a frame is never cut");
            if (const status outcome = visit(*one, whole); !outcome) {
                return outcome;
            }
            at = whole.end();
        }
        return {};
    }

private:
    static constexpr std::size_t table_pages = std::size_t{1} << 14;
    static constexpr std::size_t root_count = std::size_t{1} << (address_bits - page_shift - 14);
    static constexpr std::size_t table_bytes = table_pages * sizeof(Record);
    using roots = std::array<std::atomic<Record*>, root_count>;

    [[nodiscard]] static std::size_t root_of(address at) noexcept {
        return (at >> page_shift) / table_pages;
    }

    std::unique_ptr<roots> tables_;
};

}  // namespace xmm::shared
