// SPDX-License-Identifier: Apache-2.0
// pmap.hpp - the operators pmap_enter and pmap_clear: who sees which frame at which address.
//
// Model    A page has two sides. Devices see a handle that the driver has mapped there, one for all of them, each
//          with its own access; so what the floors above enter device by device is merged here: the first one
//          maps, others are only granted access, the last one to go unmaps. Runs that lie in a row and want the
//          same become one call. The CPU sees the twin of a host frame of our own, which is moved there, and gets
//          and loses access by mprotect; devices may see a handle at the same time. For devices that are to see
//          such a frame, too, the twin is page-locked where it is, for all of them and for writing: to lock it
//          anew for less or more would mean a gap, in which a launch that is on its way would lose the device.
//          The lock ends with the last device that leaves, and that takes until the devices' work of the moment is
//          done. Where it does not end soon, the CPU goes on as if it had, and devices have to wait for the place:
//          they get busy, and ask again.
//          While it is being locked the CPU has access: what it does there then is done to the frame.
//          A host frame that is the driver's handle is mapped as a device's are, and then nobody can see another
//          one there. The CPU's access to it is granted once; from then on mprotect takes and gives it, too.
// Threads  Any, on distinct ranges. No lock: records are their range's, the table only grows.
// Failure  As progress says; what a group of runs had got before it failed is taken back.
// See      twin.hpp, host_frames.hpp.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <span>

#include <sys/mman.h>

#include <xmm/core/types.hpp>

#include "../shared/page_records.hpp"

#include "device.hpp"
#include "page_locker.hpp"
#include "twin.hpp"

namespace xmm::cuda {

// What is mapped at a page; the first page of a mapping speaks for all. Both sides are equally long.
struct mapping {
    CUmemGenericAllocationHandle handle = 0;  // the driver's mapping is of that one; 0: of none
    address twin = 0;                         // a twin is here that parks there; 0: none
    std::uint32_t readers = 0;                // devices with access, by index
    std::uint32_t writers = 0;                // those of them that may write
    std::uint16_t pages = 0;                  // on the first page: how long it is
    std::uint16_t before = 0;                 // how many pages before this one belong to it
    access cpu = access::none;          // what the CPU may do now: to the twin, else to the handle
    access cpu_granted = access::none;  // what the driver's mapping would let it
    bool is_locked = false;             // the twin, for devices: it is what they see, and no handle
    bool is_leaving = false;            // a twin was locked here, and the end of that is under way

    [[nodiscard]] bool is_empty() const noexcept { return handle == 0 && twin == 0 && !is_leaving; }
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

    // What a frame is: a device's handle, a host's, or a run of our own memory.
    enum class kind : std::uint8_t { device, host, ours };

    pmap(const driver& on, page_locker& locker) : driver_{on}, locker_{locker} {}

    // Before any other call: whether a device's handle and a twin can be at one address.
    void set_split(bool can) noexcept { can_split_ = can; }

    // kind_of(const frame&).
    template <class KindOf>
    [[nodiscard]] progress enter(accessor who, std::span<const run> runs,
                                 KindOf&& kind_of) noexcept {
        std::size_t done = 0;
        while (done < runs.size()) {
            const run& first = runs[done];
            const kind what = kind_of(first.backing);
            if (who.is_cpu() && what == kind::device) {
                return {done, fail(errc::unsupported, "the CPU cannot map CUDA device memory")};
            }
            if (!table_.reserve(first.va)) {
                return {done, fail(errc::no_memory, "no room for a record of the mapping")};
            }
            if (what == kind::ours) {
                const status entered =
                    who.is_cpu() ? enter_twin(first) : enter_locked_twin(who, first);
                if (!entered) {
                    return {done, entered};
                }
                ++done;
                continue;
            }
            if (!who.is_cpu()) {
                if (const status left = await_leaving(first.va); !left) {
                    return {done, left};
                }
            }
            step next = look(who, first);
            const mapping before = *table_.find(first.va.begin);
            if (next == step::replace) {
                if (const status gone = give_way(first.va); !gone) {
                    return {done, gone};
                }
                next = step::map;
            }
            if (next == step::refuse) {
                return {done, refusal()};
            }
            // What follows in a row and needs the same goes in the same call.
            std::size_t last = done + 1;
            va_range all = first.va;
            while (next != step::nothing && last < runs.size() &&
                   runs[last].va.begin == all.end() && runs[last].who == first.who &&
                   can_share_a_call(who, kind_of(runs[last].backing)) &&
                   table_.reserve(runs[last].va) && !find_whole(runs[last].va).is_leaving &&
                   look(who, runs[last]) == next) {
                all.bytes += runs[last++].va.bytes;
            }
            const std::span<const run> group = runs.subspan(done, last - done);
            const progress entered = perform(who, next, group, all);
            done += entered.done;
            if (!entered) {
                if (entered.done == 0) {
                    restore(who, first.va, before);
                }
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
                if (one == nullptr || one->is_empty()) {
                    at += page_bytes;
                    continue;
                }
                XMM_ASSERT(one->before == 0 && at + one->pages * page_bytes <= ranges[i].end(),
                           "a mapping is cleared as a whole: a frame is never cut");
                const std::size_t bytes = one->pages * page_bytes;
                if (sees_twin(who, *one)) {
                    const va_range whole{at, bytes};
                    const status outcome = who.is_cpu() ? clear_twin(*one, whole)
                                                        : clear_locked_twin(who, *one, whole);
                    if (!outcome) {
                        const status rest = clear_group(who, group, is_last);
                        return {rest ? i : group_range, rest ? outcome : rest};
                    }
                    at += bytes;
                    continue;
                }
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
    // Sends home what nobody sees any more, before the addresses go. False: some of it is leaving still.
    [[nodiscard]] bool settle(va_range range) noexcept {
        bool is_over = true;
        for (std::size_t at = 0; at < range.bytes; at += page_bytes) {
            mapping* one = table_.find(range.begin + at);
            if (one == nullptr || one->pages == 0) {
                continue;
            }
            const va_range whole{range.begin + at, one->pages * page_bytes};
            if (is_idle(*one)) {
                // Should the kernel not move it: its frame's next twin leaves from the mapping that is there.
                (void)twin::take(whole, one->twin, access::none);
                note_twin(whole, 0);
            }
            is_over = (!one->is_leaving || (is_over && await_leaving(whole))) && is_over;
        }
        return is_over;
    }
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

    [[nodiscard]] static bool can_share_a_call(accessor who, kind what) noexcept {
        return what != kind::ours && (!who.is_cpu() || what == kind::host);
    }
    [[nodiscard]] static status refusal() noexcept {
        return fail(errc::busy,
                    "another accessor sees another frame at this address, and there is one mapping "
                    "for all devices");
    }

    // ---- the driver's handles

    // Of a page where the accessor does not see a twin.
    [[nodiscard]] static bool has_access(accessor who, const mapping& one) noexcept {
        return who.is_cpu() ? one.twin == 0 && one.cpu != access::none
                            : (one.readers & who.bit()) != 0;
    }
    [[nodiscard]] static bool has_others(accessor who, const mapping& one) noexcept {
        return who.is_cpu()
                   ? one.readers != 0
                   : (one.readers & ~who.bit()) != 0 || (one.twin == 0 && one.cpu != access::none);
    }
    [[nodiscard]] access access_of(accessor who, const mapping& one) const noexcept {
        if (who.is_cpu()) {
            return one.cpu;
        }
        const access lowest = (one.readers & who.bit()) != 0 ? access::read : access::none;
        return (one.writers & who.bit()) != 0 ? access::read_write : lowest;
    }

    [[nodiscard]] step look(accessor who, const run& wanted) const noexcept {
        const mapping& one = find_whole(wanted.va);
        if (one.handle == 0 && one.twin == 0) {
            return step::map;
        }
        if (one.handle == 0) {
            XMM_ASSERT(!who.is_cpu(), "host frames are of one kind");
            if (one.is_locked) {
                const bool would_clash = !can_split_ && one.cpu != access::none;
                return has_others_locked(who, one) || would_clash ? step::refuse : step::replace;
            }
            return can_split_ ? step::map : is_idle(one) ? step::replace : step::refuse;
        }
        if (one.handle != wanted.backing.handle) {
            return has_others(who, one) ? step::refuse : step::replace;
        }
        if (access_of(who, one) == normal(wanted.who)) {
            return step::nothing;
        }
        return who.is_cpu() && one.cpu_granted != access::none ? step::protect : step::grant;
    }
    // The record of a run: of a mapping that is as long, or of none.
    [[nodiscard]] mapping& find_whole(va_range va) const noexcept {
        mapping& one = *table_.find(va.begin);
        XMM_ASSERT(one.is_empty() ? !table_.has_any(va)
                                  : one.before == 0 && one.pages * page_bytes == va.bytes,
                   "a run overlaps a mapping in part");
        return one;
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
            note_handle(one.va, one.backing.handle);
        }
        return outcome;
    }
    void note_handle(va_range whole, CUmemGenericAllocationHandle handle) noexcept {
        mapping& first = *table_.find(whole.begin);
        first.readers = first.writers = 0;
        first.cpu_granted = access::none;
        note_side(whole, [=](mapping& page) { page.handle = handle; });
    }
    void note_twin(va_range whole, address parked) noexcept {
        mapping& first = *table_.find(whole.begin);
        first.cpu = access::none;
        first.is_locked = false;
        note_side(whole, [=](mapping& page) { page.twin = parked; });
    }
    // A page with nothing on either side has an empty record.
    template <class Set>
    void note_side(va_range whole, Set&& set) noexcept {
        const std::size_t pages = whole.bytes / page_bytes;
        for (std::size_t i = 0; i < pages; ++i) {
            mapping& page = *table_.find(whole.begin + i * page_bytes);
            set(page);
            page.before = static_cast<std::uint16_t>(i);
            page.pages = static_cast<std::uint16_t>(i == 0 ? pages : 0);
            if (page.is_empty()) {
                page = {};
            }
        }
    }
    // A whole number of mappings that lie in a row.
    [[nodiscard]] status unmap(va_range all) noexcept {
        const status outcome =
            driver_.call(&driver_api::mem_unmap, CUdeviceptr{all.begin}, all.bytes);
        if (outcome || outcome.code == errc::device_lost) {
            if (!outcome) {
                // The driver gives up with the device. No kernel runs there, so the CPU is who is left to stop.
                for_each_mapping(all, [&](mapping& one, va_range whole) {
                    if (one.twin == 0) {
                        (void)twin::protect(whole, access::none);
                    }
                });
            }
            for_each_mapping(all, [&](mapping& one, va_range whole) {
                one.cpu = one.twin == 0 ? access::none : one.cpu;
                note_handle(whole, 0);
            });
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
        if (twin::protect(all, wanted)) {
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
            const va_range whole{at, one.pages * page_bytes};
            change(one, whole);
            at = whole.end();
        }
    }
    void note_granted(va_range all, access what) noexcept {
        for_each_mapping(all, [&](mapping& one, va_range) { one.cpu_granted = what; });
    }
    void note_access(accessor who, va_range all, access what, bool is_granted) noexcept {
        for_each_mapping(all, [&](mapping& one, va_range) {
            if (who.is_cpu()) {
                one.cpu = what;
                one.cpu_granted = is_granted ? what : one.cpu_granted;
                return;
            }
            note_device(who, one, what);
        });
    }
    static void note_device(accessor who, mapping& one, access what) noexcept {
        one.readers = what != access::none ? one.readers | who.bit() : one.readers & ~who.bit();
        one.writers = has_write(what) ? one.writers | who.bit() : one.writers & ~who.bit();
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

    // What this accessor alone sees makes room for another frame.
    [[nodiscard]] status give_way(va_range whole) noexcept {
        mapping& one = *table_.find(whole.begin);
        if (one.handle != 0) {
            return unmap(whole);
        }
        if (one.is_locked) {
            // To be asked again would not do: this device has what it has until it gets the other frame.
            if (const status outcome = note_unlocked(one, locker_.unlock_now(whole)); !outcome) {
                return outcome;
            }
        }
        send_home_if_idle(one, whole);
        return one.twin == 0 || can_split_
                   ? status{}
                   : fail(errc::no_memory, "a host frame's mapping cannot be moved away");
    }
    // What it was before it made room: as far as that can be had again.
    void restore(accessor who, va_range whole, const mapping& before) noexcept {
        const mapping& now = *table_.find(whole.begin);
        const access had = access_of(who, before);
        if (now.handle == before.handle && now.is_locked == before.is_locked) {
            return;
        }
        if (before.handle != 0) {
            const run again{whole, {before.handle, 0, whole.bytes, no_node, false}, had};
            (void)perform(who, step::map, {&again, 1}, whole);
        } else if ((now.twin == 0 || now.twin == before.twin) &&
                   show_to_devices(whole, before.twin)) {
            note_device(who, *table_.find(whole.begin), had);
        }
    }

    // ---- twins

    [[nodiscard]] static bool sees_twin(accessor who, const mapping& one) noexcept {
        if (who.is_cpu()) {
            return one.twin != 0 && (one.cpu != access::none || is_idle(one));
        }
        return one.is_locked && (one.readers & who.bit()) != 0;
    }
    [[nodiscard]] static bool has_others_locked(accessor who, const mapping& one) noexcept {
        return (one.readers & ~who.bit()) != 0;
    }
    // Nobody sees it; it is only not at home.
    [[nodiscard]] static bool is_idle(const mapping& one) noexcept {
        return one.twin != 0 && one.cpu == access::none && !one.is_locked;
    }
    void send_home_if_idle(mapping& one, va_range whole) noexcept {
        if (is_idle(one) && twin::take(whole, one.twin, access::none)) {
            note_twin(whole, 0);
        }
    }

    // For the CPU.
    [[nodiscard]] status enter_twin(const run& wanted) noexcept {
        mapping& one = find_whole(wanted.va);
        const address parked = wanted.backing.handle;
        const access who = normal(wanted.who);
        if (one.twin == parked) {
            if (one.cpu == who) {
                return {};
            }
            const status outcome = twin::protect(wanted.va, who);
            one.cpu = outcome ? who : one.cpu;
            return outcome;
        }
        XMM_ASSERT(one.twin != 0 || one.cpu == access::none, "host frames are of one kind");
        if (one.is_locked || (one.handle != 0 && !can_split_)) {
            return refusal();
        }
        const address other = one.twin;
        const access had = one.cpu;
        if (other != 0) {
            if (const status gone = twin::take(wanted.va, other, had); !gone) {
                return gone;
            }
            note_twin(wanted.va, 0);
        }
        const status given = twin::give(wanted.va, parked, who);
        if (given) {
            note_twin(wanted.va, parked);
            one.cpu = who;
        } else if (other != 0 && twin::give(wanted.va, other, had)) {
            note_twin(wanted.va, other);
            one.cpu = had;
        }
        return given;
    }
    [[nodiscard]] status clear_twin(mapping& one, va_range whole) noexcept {
        if (one.is_locked) {
            const status outcome = twin::protect(whole, access::none);
            one.cpu = outcome ? access::none : one.cpu;
            return outcome;
        }
        const status outcome = twin::take(whole, one.twin, one.cpu);
        if (outcome) {
            note_twin(whole, 0);
        }
        return outcome;
    }

    [[nodiscard]] status enter_locked_twin(accessor who, const run& wanted) noexcept {
        mapping& one = find_whole(wanted.va);
        const address parked = wanted.backing.handle;
        if (const status left = await_leaving(wanted.va); !left) {
            return left;
        }
        const bool is_other = one.twin != 0 && one.twin != parked;
        const bool is_in_the_way = one.handle != 0 || is_other;
        if ((is_in_the_way && has_others_locked(who, one)) ||
            (is_other && one.cpu != access::none) || (one.twin == 0 && one.cpu != access::none)) {
            return refusal();
        }
        const mapping before = one;
        if (is_in_the_way) {
            if (const status gone = give_way(wanted.va); !gone) {
                return gone;
            }
            send_home_if_idle(one, wanted.va);  // beside a handle there may have been one
        }
        const bool is_home = one.twin == 0 || one.twin == parked;
        const status shown =
            is_home ? show_to_devices(wanted.va, parked)
                    : fail(errc::no_memory, "a host frame's mapping cannot be moved away");
        if (!shown) {
            restore(who, wanted.va, before);
            return who.on->note(shown);
        }
        note_device(who, one, normal(wanted.who));
        return {};
    }
    // The twin comes, if it is not there, and is page-locked; what the CPU may do there stays.
    [[nodiscard]] status show_to_devices(va_range whole, address parked) noexcept {
        mapping& one = *table_.find(whole.begin);
        if (one.is_locked) {
            return {};
        }
        const bool was_here = one.twin != 0;
        const access cpu = was_here ? one.cpu : access::none;
        status outcome = was_here ? twin::protect(whole, access::read_write)
                                  : twin::give(whole, parked, access::read_write);
        if (!outcome) {
            return outcome;
        }
        if (!was_here) {
            note_twin(whole, parked);
        }
        outcome = locker_.lock(whole);
        one.is_locked = outcome.is_ok();
        if (const status closed = twin::protect(whole, cpu); !closed && outcome) {
            (void)leave(whole);
            outcome = closed;
        }
        if (!outcome && !was_here && twin::take(whole, parked, access::none)) {
            note_twin(whole, 0);
        }
        return outcome;
    }
    // Devices see it no more, though the driver may not be done with that.
    [[nodiscard]] status leave(va_range whole) noexcept {
        mapping& one = *table_.find(whole.begin);
        const status outcome = locker_.unlock(whole);
        if (outcome.code != errc::busy) {
            return note_unlocked(one, outcome);
        }
        one.is_leaving = true;
        return note_unlocked(one, {});
    }
    // Before devices see anything else there.
    [[nodiscard]] status await_leaving(va_range whole) noexcept {
        mapping& one = *table_.find(whole.begin);
        if (!one.is_leaving) {
            return {};
        }
        const status outcome = locker_.unlock(whole);
        if (outcome || outcome.code == errc::device_lost) {
            one.is_leaving = false;
            one = one.is_empty() ? mapping{} : one;
            return {};
        }
        return outcome;
    }
    // What a lost device had cannot be had any more, whatever the driver answers.
    [[nodiscard]] static status note_unlocked(mapping& one, status outcome) noexcept {
        if (!outcome && outcome.code != errc::device_lost) {
            return outcome;
        }
        one.is_locked = false;
        one.readers = one.writers = 0;
        return {};
    }
    [[nodiscard]] status clear_locked_twin(accessor who, mapping& one, va_range whole) noexcept {
        if (has_others_locked(who, one)) {
            note_device(who, one, access::none);
            return {};
        }
        const status outcome = leave(whole);
        if (outcome) {
            send_home_if_idle(one, whole);
        }
        return outcome;
    }

    const driver& driver_;
    page_locker& locker_;
    bool can_split_ = false;
    shared::page_records<mapping> table_;
    std::atomic<bool> is_device_read_refused_{false};
};

}  // namespace xmm::cuda
