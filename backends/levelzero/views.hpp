// SPDX-License-Identifier: Apache-2.0
// views.hpp - the operators pmap_enter and pmap_clear: who sees which frame at which address.
//
// Model    A record for each page of a program's addresses; the first page of a mapping speaks for all. The driver has
//          one mapping for all devices of its context, so the first who enters maps, and the last who goes unmaps.
//          A device's frame is taken from where it stands and put at the address, for that device alone. A host's frame
//          is mapped once more, for the CPU and for devices; what the CPU may do there is changed by mprotect,
//          what devices may do cannot be. Where a host's frame was, the CPU finds a hole.
// Threads  Any, on distinct ranges. No lock: records are their range's, the table only grows.
// Failure  As progress says. busy: others see another frame there, or a copy uses the frame.
// See      standing.hpp: the frames, and what keeps them from being moved.
#pragma once

#include <cerrno>
#include <span>

#include <sys/mman.h>

#include <xmm/core/types.hpp>

#include "../shared/page_records.hpp"

#include "frames.hpp"

namespace xmm::levelzero {

struct view {
    std::uint64_t handle = 0;   // of the frame; 0: nothing is mapped
    address standing = 0;       // of a device's frame: its name; of a host's: 0
    std::uint32_t devices = 0;  // who see it, by index
    std::uint16_t pages = 0;    // on the first page: how long it is
    std::uint16_t before = 0;   // how many pages before this one belong to it
    access cpu = access::none;  // what the CPU may do

    [[nodiscard]] bool is_empty() const noexcept { return handle == 0; }
    [[nodiscard]] bool is_of_device() const noexcept { return standing != 0; }
};

class views {
public:
    // Who enters: a device by its index, or the CPU.
    struct accessor {
        device* on = nullptr;  // null: the CPU
        unsigned index = 0;
        node_memory* memory = nullptr;  // of the device: the only device's memory that it sees

        [[nodiscard]] bool is_cpu() const noexcept { return on == nullptr; }
        [[nodiscard]] std::uint32_t bit() const noexcept { return std::uint32_t{1} << index; }
    };

    explicit views(const mapper& maps) : maps_{maps} {}

    // memory_of(const frame&) -> node_memory&.
    template <class MemoryOf>
    [[nodiscard]] progress enter(accessor who, std::span<const run> runs,
                                 MemoryOf&& memory_of) noexcept {
        for (std::size_t i = 0; i < runs.size(); ++i) {
            node_memory& memory = memory_of(runs[i].backing);
            status outcome = check(who, memory);
            if (outcome && !table_.reserve(runs[i].va)) {
                outcome = fail(errc::no_memory, "no room for a record of the mapping");
            }
            if (outcome) {
                outcome = enter_one(who, runs[i], memory);
            }
            if (!outcome) {
                return {i, who.is_cpu() ? outcome : who.on->note(outcome)};
            }
        }
        return {runs.size(), {}};
    }
    [[nodiscard]] progress clear(accessor who, std::span<const va_range> ranges) noexcept {
        for (std::size_t i = 0; i < ranges.size(); ++i) {
            const status outcome = table_.for_each(
                ranges[i], [&](view& one, va_range whole) { return clear_one(who, one, whole); });
            if (!outcome) {
                return {i, outcome};
            }
        }
        return {ranges.size(), {}};
    }
    [[nodiscard]] bool has_any(va_range range) const noexcept { return table_.has_any(range); }

private:
    // A copy of the frame at most so long, then who wants to move it asks again.
    static constexpr std::uint64_t longest_wait_ns = 5'000'000;

    [[nodiscard]] static status check(accessor who, const node_memory& memory) noexcept {
        if (memory.is_plain()) {
            return fail(errc::unsupported, "this Level Zero driver maps no memory");
        }
        if (memory.is_host()) {
            return {};
        }
        if (who.is_cpu()) {
            return fail(errc::unsupported, "the CPU cannot map a Level Zero device's memory");
        }
        return who.on->node() == memory.node()
                   ? status{}
                   : fail(errc::unsupported, "a Level Zero device maps no other device's memory");
    }
    [[nodiscard]] static access normal(access who) noexcept {
        return has_write(who) ? access::read_write : (who & access::read);
    }
    [[nodiscard]] static bool is_seen_by(accessor who, const view& one) noexcept {
        return who.is_cpu() ? one.cpu != access::none : (one.devices & who.bit()) != 0;
    }
    [[nodiscard]] static bool has_others(accessor who, const view& one) noexcept {
        return who.is_cpu() ? one.devices != 0
                            : (one.devices & ~who.bit()) != 0 || one.cpu != access::none;
    }

    [[nodiscard]] status enter_one(accessor who, const run& wanted, node_memory& memory) noexcept {
        view& one = *table_.find(wanted.va.begin);
        XMM_ASSERT(one.is_empty() ? !table_.has_any(wanted.va)
                                  : one.before == 0 && one.pages * page_bytes == wanted.va.bytes,
                   "a run overlaps a mapping in part");
        if (!one.is_empty() && one.handle == wanted.backing.handle) {
            return widen(who, one, wanted);
        }
        if (one.is_empty()) {
            return map(who, wanted, memory);
        }
        if (has_others(who, one)) {
            return fail(errc::busy,
                        "another accessor sees another frame at this address, and there is one "
                        "mapping for all");
        }
        const view before = one;
        if (const status gone = clear_one(who, one, wanted.va); !gone) {
            return gone;
        }
        const status mapped = map(who, wanted, memory);
        if (!mapped) {
            restore(who, wanted.va, before);
        }
        return mapped;
    }
    // What this accessor alone saw there.
    void restore(accessor who, va_range whole, const view& before) noexcept {
        const frame was{before.handle, before.standing, whole.bytes, no_node, false};
        if (before.is_of_device()) {
            (void)map_device(who, {whole, was, access::read_write}, *who.memory);
        } else {
            (void)map_host(who, {whole, was, before.cpu});
        }
    }

    // The same frame is there already.
    [[nodiscard]] status widen(accessor who, view& one, const run& wanted) noexcept {
        if (!who.is_cpu()) {
            one.devices |= who.bit();
            return {};
        }
        const access next = normal(wanted.who);
        const status outcome = next == one.cpu ? status{} : protect(wanted.va, next);
        one.cpu = outcome ? next : one.cpu;
        return outcome;
    }
    [[nodiscard]] status map(accessor who, const run& wanted, node_memory& memory) noexcept {
        return memory.is_host() ? map_host(who, wanted) : map_device(who, wanted, memory);
    }
    [[nodiscard]] status map_host(accessor who, const run& wanted) noexcept {
        auto* handle = reinterpret_cast<ze_physical_mem_handle_t>(wanted.backing.handle);
        if (const status mapped = maps_.map(wanted.va, handle); !mapped) {
            return mapped;
        }
        const access cpu = who.is_cpu() ? normal(wanted.who) : access::none;
        if (cpu != access::read_write) {
            if (const status closed = protect(wanted.va, cpu); !closed) {
                (void)maps_.unmap(wanted.va);
                return closed;
            }
        }
        note(who, wanted, 0, cpu);
        return {};
    }
    [[nodiscard]] status map_device(accessor who, const run& wanted, node_memory& memory) noexcept {
        standing& stands = memory.stands();
        standing_frame& one = stands.at(wanted.backing.standing);
        if (const status mine = stands.begin_move(one, longest_wait_ns); !mine) {
            return mine;
        }
        const va_range stood{wanted.backing.standing, one.pages * page_bytes};
        status outcome;
        if (one.place != 0 && one.place != stood.begin) {
            outcome = fail(errc::unsupported,
                           "a frame of a Level Zero device is mapped at one address at a time");
        } else if (one.place != 0) {
            outcome = maps_.unmap(stood);
        }
        if (!outcome) {
            stands.end_move(one, one.place);
            return outcome;
        }
        outcome = maps_.map(wanted.va, one.handle);
        // Should it not go back to where it stood, it is mapped there when it is needed.
        const address place = outcome                        ? wanted.va.begin
                              : maps_.map(stood, one.handle) ? stood.begin
                                                             : 0;
        stands.end_move(one, place);
        if (outcome) {
            note(who, wanted, wanted.backing.standing, access::none);
        }
        return outcome;
    }
    void note(accessor who, const run& wanted, address standing, access cpu) noexcept {
        view all;
        all.handle = wanted.backing.handle;
        all.standing = standing;
        all.devices = who.is_cpu() ? 0 : who.bit();
        all.cpu = cpu;
        table_.set(wanted.va, all);
    }

    [[nodiscard]] status clear_one(accessor who, view& one, va_range whole) noexcept {
        if (!is_seen_by(who, one)) {
            return {};
        }
        if (one.is_of_device()) {
            const status outcome = unmap_device(who, one, whole);
            if (outcome) {
                table_.set(whole, {});
            }
            return outcome;
        }
        // The CPU goes first, so that it finds a hole and never half of one.
        if (who.is_cpu()) {
            if (const status closed = protect(whole, access::none); !closed) {
                return closed;
            }
        }
        if (has_others(who, one)) {
            one.devices &= who.is_cpu() ? one.devices : ~who.bit();
            one.cpu = who.is_cpu() ? access::none : one.cpu;
            return {};
        }
        const status outcome = maps_.unmap(whole);
        if (outcome) {
            table_.set(whole, {});
        } else if (who.is_cpu()) {
            (void)protect(whole, one.cpu);
        }
        return outcome;
    }
    [[nodiscard]] status unmap_device(accessor who, const view& one, va_range whole) noexcept {
        standing& stands = who.memory->stands();
        standing_frame& leaving = stands.at(one.standing);
        if (const status mine = stands.begin_move(leaving, longest_wait_ns); !mine) {
            return mine;
        }
        status outcome = who.on->note(maps_.unmap(whole));
        const bool is_gone = outcome.is_ok();
        if (outcome.code == errc::device_lost) {
            leaving.is_stuck =
                true;  // nobody reaches it any more, and it is never handed out again
            outcome = {};
        }
        stands.end_move(leaving, is_gone ? 0 : leaving.place);
        return outcome;
    }
    [[nodiscard]] static status protect(va_range range, access wanted) noexcept {
        const int readable = wanted == access::none ? PROT_NONE : PROT_READ;
        const int protection = has_write(wanted) ? PROT_READ | PROT_WRITE : readable;
        return ::mprotect(to_pointer(range.begin), range.bytes, protection) == 0
                   ? status{}
                   : fail(errc::no_memory, "the kernel refuses the CPU's access to a host frame",
                          errno);
    }

    const mapper& maps_;
    shared::page_records<view> table_;
};

}  // namespace xmm::levelzero
