// SPDX-License-Identifier: Apache-2.0
// pmap.hpp - the operators pmap_enter and pmap_clear: who sees which frame at which address.
//
// Model    The driver has one mapping for an address, of one handle, and each accessor has its own access to
//          it. So what the floors above enter accessor by accessor is merged here: the first one maps, others
//          are only granted access, and the last one to go unmaps. Two accessors cannot see two frames at one
//          address. Runs that lie in a row and want the same become one call.
//          The CPU's access to a host frame is granted once; from then on it is taken and given back by mprotect
//          on the driver's own mapping, which costs a fraction.
// Threads  Any, on distinct ranges. No lock: records are their range's, the table only grows.
// Failure  As progress says; what a group of runs had got before it failed is taken back.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <memory>
#include <span>

#include <sys/mman.h>

#include <xmm/core/types.hpp>

#include "device.hpp"

namespace xmm::cuda {

// What is mapped at a page; the first page of a mapping speaks for all.
struct mapping {
    CUmemGenericAllocationHandle handle = 0;  // 0: nothing
    std::uint32_t readers = 0;                // devices with access, by index
    std::uint32_t writers = 0;                // those of them that may write
    std::uint16_t pages = 0;                  // on the first page: how long it is
    std::uint16_t before = 0;                 // how many pages before this one belong to it
    access cpu = access::none;                // what the CPU may do now
    access cpu_granted = access::none;        // what the driver's mapping would let it
};

// By page; two levels for 48 bits of addresses. Tables stay until the whole is destroyed.
class mapping_table {
public:
    static constexpr unsigned address_bits = 48;

    mapping_table() : tables_{std::make_unique<roots>()} {}
    ~mapping_table() {
        for (std::atomic<mapping*>& one : *tables_) {
            if (mapping* table = one.load(std::memory_order_relaxed); table != nullptr) {
                ::munmap(static_cast<void*>(table), table_bytes);
            }
        }
    }
    mapping_table(const mapping_table&) = delete;
    mapping_table& operator=(const mapping_table&) = delete;

    // Null where nothing was ever mapped near.
    [[nodiscard]] mapping* find(address at) const noexcept {
        if (at >> address_bits != 0) {
            return nullptr;
        }
        // acquire: pairs with the release in reserve; a table is zeroed before it is found.
        mapping* table = (*tables_)[root_of(at)].load(std::memory_order_acquire);
        return table == nullptr ? nullptr : table + (at >> page_shift) % table_pages;
    }
    // Makes find() answer in the whole range.
    [[nodiscard]] bool reserve(va_range range) noexcept {
        if (range.end() < range.begin || (range.end() - 1) >> address_bits != 0) {
            return false;
        }
        for (std::size_t i = root_of(range.begin); i <= root_of(range.end() - 1); ++i) {
            std::atomic<mapping*>& one = (*tables_)[i];
            if (one.load(std::memory_order_acquire) != nullptr) {
                continue;
            }
            void* fresh = ::mmap(nullptr, table_bytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (fresh == MAP_FAILED) {
                return false;
            }
            mapping* none = nullptr;
            // release: pairs with the acquire in find.
            if (!one.compare_exchange_strong(none, static_cast<mapping*>(fresh),
                                             std::memory_order_acq_rel)) {
                ::munmap(fresh, table_bytes);
            }
        }
        return true;
    }
    [[nodiscard]] bool has_any(va_range range) const noexcept {
        for (std::size_t at = 0; at < range.bytes; at += page_bytes) {
            const mapping* one = find(range.begin + at);
            if (one != nullptr && one->handle != 0) {
                return true;
            }
        }
        return false;
    }

private:
    static constexpr std::size_t table_pages = std::size_t{1} << 14;
    static constexpr std::size_t root_count = std::size_t{1} << (address_bits - page_shift - 14);
    static constexpr std::size_t table_bytes = table_pages * sizeof(mapping);
    using roots = std::array<std::atomic<mapping*>, root_count>;

    [[nodiscard]] static std::size_t root_of(address at) noexcept {
        return (at >> page_shift) / table_pages;
    }

    std::unique_ptr<roots> tables_;
};

class pmap {
public:
    // Who enters: a device by its index, or the CPU.
    struct accessor {
        device* on = nullptr;  // null: the CPU
        unsigned index = 0;

        [[nodiscard]] bool is_cpu() const noexcept { return on == nullptr; }
        [[nodiscard]] std::uint32_t bit() const noexcept { return std::uint32_t{1} << index; }
        [[nodiscard]] CUmemLocation location() const noexcept {
            // For the CPU the driver passes over the number.
            return is_cpu() ? CUmemLocation{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0} : on->location();
        }
    };

    explicit pmap(const driver& on) : driver_{on} {}

    // is_host(const frame&): whether the CPU could see it.
    template <class IsHost>
    [[nodiscard]] progress enter(accessor who, std::span<const run> runs,
                                 IsHost&& is_host) noexcept {
        std::size_t done = 0;
        while (done < runs.size()) {
            const run& first = runs[done];
            if (who.is_cpu() && !is_host(first.backing)) {
                return {done, fail(errc::unsupported, "the CPU cannot map CUDA device memory")};
            }
            if (!table_.reserve(first.va)) {
                return {done, fail(errc::no_memory, "no room for a record of the mapping")};
            }
            step next = look(who, first);
            if (next == step::replace) {
                if (const status gone = unmap(first.va); !gone) {
                    return {done, gone};
                }
                next = step::map;
            }
            if (next == step::refuse) {
                return {done, fail(errc::busy,
                                   "another accessor sees another frame at this address, and CUDA "
                                   "has one mapping for all")};
            }
            // What follows in a row and needs the same goes in the same call.
            std::size_t last = done + 1;
            va_range all = first.va;
            while (next != step::nothing && last < runs.size() &&
                   runs[last].va.begin == all.end() && runs[last].who == first.who &&
                   (!who.is_cpu() || is_host(runs[last].backing)) &&
                   table_.reserve(runs[last].va) && look(who, runs[last]) == next) {
                all.bytes += runs[last++].va.bytes;
            }
            const std::span<const run> group = runs.subspan(done, last - done);
            const progress entered = perform(who, next, group, all);
            done += entered.done;
            if (!entered) {
                return {done, entered.outcome};
            }
        }
        return {done, {}};
    }

    [[nodiscard]] progress clear(accessor who, std::span<const va_range> ranges) noexcept {
        va_range group;
        bool is_last = false;  // of the group: nobody else has access, so it is unmapped
        std::size_t group_range = 0;
        for (std::size_t i = 0; i < ranges.size(); ++i) {
            for (address at = ranges[i].begin; at < ranges[i].end();) {
                mapping* one = table_.find(at);
                if (one == nullptr || one->handle == 0) {
                    at += page_bytes;
                    continue;
                }
                XMM_ASSERT(one->before == 0 && at + one->pages * page_bytes <= ranges[i].end(),
                           "a mapping is cleared as a whole: a driver's handle is never cut");
                const std::size_t bytes = one->pages * page_bytes;
                if (!has_access(who, *one)) {
                    at += bytes;
                    continue;
                }
                const bool others = has_others(who, *one);
                if (group.is_empty() || group.end() != at || is_last == others) {
                    if (const status outcome = clear_group(who, group, is_last); !outcome) {
                        return {group_range, outcome};
                    }
                    group = {at, 0};
                    group_range = i;
                    is_last = !others;
                }
                group.bytes += bytes;
                at += bytes;
            }
        }
        const status outcome = clear_group(who, group, is_last);
        return outcome ? progress{ranges.size(), {}} : progress{group_range, outcome};
    }

    [[nodiscard]] bool has_any(va_range range) const noexcept { return table_.has_any(range); }
    // Whether devices can be held to reading, as far as it was tried: without it they may write, too.
    [[nodiscard]] bool has_read_only_devices() const noexcept {
        return !is_device_read_refused_.load(std::memory_order_relaxed);
    }

private:
    enum class step : std::uint8_t {
        nothing,  // it has that access already
        map,      // nobody is there: map, then grant
        grant,    // mapped for others, or with another access: the driver is asked
        protect,  // the CPU, which was granted before: mprotect
        replace,  // this accessor alone sees another frame there
        refuse,   // others see another frame there
    };

    [[nodiscard]] static bool has_access(accessor who, const mapping& one) noexcept {
        return who.is_cpu() ? one.cpu != access::none : (one.readers & who.bit()) != 0;
    }
    [[nodiscard]] static bool has_others(accessor who, const mapping& one) noexcept {
        return who.is_cpu() ? one.readers != 0
                            : (one.readers & ~who.bit()) != 0 || one.cpu != access::none;
    }
    [[nodiscard]] access access_of(accessor who, const mapping& one) const noexcept {
        if (who.is_cpu()) {
            return one.cpu;
        }
        const access lowest = (one.readers & who.bit()) != 0 ? access::read : access::none;
        return (one.writers & who.bit()) != 0 ? access::read_write : lowest;
    }

    [[nodiscard]] step look(accessor who, const run& wanted) const noexcept {
        const mapping& one = *table_.find(wanted.va.begin);
        if (one.handle == 0) {
            XMM_ASSERT(!table_.has_any(wanted.va), "a run overlaps a mapping in part");
            return step::map;
        }
        XMM_ASSERT(one.before == 0 && one.pages * page_bytes == wanted.va.bytes,
                   "a run overlaps a mapping in part");
        if (one.handle != wanted.backing.handle) {
            return has_others(who, one) ? step::refuse : step::replace;
        }
        if (access_of(who, one) == normal(wanted.who)) {
            return step::nothing;
        }
        return who.is_cpu() && one.cpu_granted != access::none ? step::protect : step::grant;
    }
    // There is no memory that can be written but not read.
    [[nodiscard]] static access normal(access who) noexcept {
        return has_write(who) ? access::read_write : who;
    }

    [[nodiscard]] progress perform(accessor who, step what, std::span<const run> group,
                                   va_range all) noexcept {
        const access wanted = normal(group[0].who);
        if (what == step::nothing) {
            return {group.size(), {}};
        }
        if (what == step::protect) {
            if (const status outcome = protect_cpu(all, wanted); !outcome) {
                return {0, outcome};
            }
            note_access(who, all, wanted, false);
            return {group.size(), {}};
        }
        status outcome;
        std::size_t mapped = group.size();
        if (what == step::map) {
            mapped = 0;
            for (all.bytes = 0; mapped < group.size(); ++mapped) {
                outcome = map(group[mapped]);
                if (!outcome) {
                    break;
                }
                all.bytes += group[mapped].va.bytes;
            }
            if (mapped == 0) {
                return {0, outcome};
            }
        }
        if (const status granted = grant(who, all, wanted); !granted) {
            if (what == step::map) {
                (void)unmap(all);
            }
            return {0, granted};
        }
        note_access(who, all, wanted, true);
        return {mapped, outcome};
    }

    [[nodiscard]] status map(const run& one) noexcept {
        const status outcome =
            driver_.call(&driver_api::mem_map, CUdeviceptr{one.va.begin}, one.va.bytes,
                         std::size_t{0}, CUmemGenericAllocationHandle{one.backing.handle}, 0ull);
        if (outcome) {
            const std::size_t pages = one.va.bytes / page_bytes;
            for (std::size_t i = 0; i < pages; ++i) {
                mapping& fresh = *table_.find(one.va.begin + i * page_bytes);
                fresh = {};
                fresh.handle = one.backing.handle;
                fresh.before = static_cast<std::uint16_t>(i);
            }
            table_.find(one.va.begin)->pages = static_cast<std::uint16_t>(pages);
        }
        return outcome;
    }
    // A whole number of mappings that lie in a row.
    [[nodiscard]] status unmap(va_range all) noexcept {
        const status outcome =
            driver_.call(&driver_api::mem_unmap, CUdeviceptr{all.begin}, all.bytes);
        if (outcome || outcome.code == errc::device_lost) {
            if (!outcome) {
                // The driver gives up with the device. No kernel runs there, so the CPU is who is left to stop.
                (void)::mprotect(to_pointer(all.begin), all.bytes, PROT_NONE);
            }
            for (std::size_t at = 0; at < all.bytes; at += page_bytes) {
                *table_.find(all.begin + at) = {};
            }
            return {};
        }
        return outcome;
    }

    [[nodiscard]] status set_access(accessor who, va_range all, CUmemAccess_flags flags) noexcept {
        const CUmemAccessDesc one{who.location(), flags};
        const status outcome = driver_.call(&driver_api::mem_set_access, CUdeviceptr{all.begin},
                                            all.bytes, &one, std::size_t{1});
        return who.is_cpu() ? outcome : who.on->note(outcome);
    }
    [[nodiscard]] status grant(accessor who, va_range all, access wanted) noexcept {
        if (has_write(wanted)) {
            return set_access(who, all, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        }
        if (who.is_cpu()) {
            // At once for reading only, so that no write slips through before an mprotect.
            return set_access(who, all, CU_MEM_ACCESS_FLAGS_PROT_READ);
        }
        if (has_read_only_devices()) {
            const status outcome = set_access(who, all, CU_MEM_ACCESS_FLAGS_PROT_READ);
            if (outcome.code != errc::unsupported && outcome.code != errc::invalid_argument) {
                return outcome;
            }
            // relaxed: all that is lost is another try.
            is_device_read_refused_.store(true, std::memory_order_relaxed);
        }
        return set_access(who, all, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
    [[nodiscard]] status protect_cpu(va_range all, access wanted) noexcept {
        const int readable = wanted == access::none ? PROT_NONE : PROT_READ;
        const int protection = has_write(wanted) ? PROT_READ | PROT_WRITE : readable;
        if (::mprotect(to_pointer(all.begin), all.bytes, protection) == 0) {
            return {};
        }
        // The driver may have mapped it in a way that the kernel does not widen.
        const accessor cpu;
        if (wanted == access::none) {
            const status outcome = set_access(cpu, all, CU_MEM_ACCESS_FLAGS_PROT_NONE);
            if (outcome) {
                note_granted(all, access::none);
            }
            return outcome;
        }
        const status outcome = grant(cpu, all, wanted);
        if (outcome) {
            note_granted(all, wanted);
        }
        return outcome;
    }

    template <class Change>
    void for_each_mapping(va_range all, Change&& change) noexcept {
        for (address at = all.begin; at < all.end();) {
            mapping& one = *table_.find(at);
            change(one);
            at += one.pages * page_bytes;
        }
    }
    void note_granted(va_range all, access what) noexcept {
        for_each_mapping(all, [&](mapping& one) { one.cpu_granted = what; });
    }
    void note_access(accessor who, va_range all, access what, bool is_granted) noexcept {
        for_each_mapping(all, [&](mapping& one) {
            if (who.is_cpu()) {
                one.cpu = what;
                one.cpu_granted = is_granted ? what : one.cpu_granted;
                return;
            }
            one.readers = what != access::none ? one.readers | who.bit() : one.readers & ~who.bit();
            one.writers = has_write(what) ? one.writers | who.bit() : one.writers & ~who.bit();
        });
    }

    [[nodiscard]] status clear_group(accessor who, va_range group, bool is_last) noexcept {
        if (group.is_empty()) {
            return {};
        }
        if (is_last) {
            return who.is_cpu() ? unmap(group) : who.on->note(unmap(group));
        }
        if (who.is_cpu()) {
            const status outcome = protect_cpu(group, access::none);
            if (outcome) {
                note_access(who, group, access::none, false);
            }
            return outcome;
        }
        status outcome = set_access(who, group, CU_MEM_ACCESS_FLAGS_PROT_NONE);
        if (outcome || outcome.code == errc::device_lost) {
            note_access(who, group, access::none, false);  // a lost device reaches nothing
            outcome = {};
        }
        return outcome;
    }

    const driver& driver_;
    mapping_table table_;
    std::atomic<bool> is_device_read_refused_{false};
};

}  // namespace xmm::cuda
