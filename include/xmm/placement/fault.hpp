// SPDX-License-Identifier: Apache-2.0
// fault.hpp - bring in the page that an access missed; the same for the CPU and for every device.
//
// Model    One loop: look at the record under its lock; if a mapping serves the access, it is resolved (a
//          repeated fault ends here); if the page moves or is held, wait and look again; else change one
//          thing (enter, first touch, move, duplicate, collapse) and look again. Hints come before the
//          policy. A device that gets no frame maps the host's instead, and so does one that asks for it with
//          access::in_place, since it needs more pages at once than it holds: so a kernel always goes on.
// Threads  Any number at once. Runs on the trap's service threads and on kernels' threads: it does not
//          call malloc and touches no unified memory.
// Failure  Says why in static text; nothing has changed that another look would not repeat. A CPU's fault
//          that finds no memory tries again for about an eighth of a second, on its service thread.
#pragma once

#include <unistd.h>

#include <optional>

#include <xmm/concepts/policy.hpp>
#include <xmm/os/fault_trap.hpp>
#include <xmm/placement/reclaim.hpp>

namespace xmm {

class fault_handler {
public:
    static constexpr const char* device_only =
        "the page is device-only memory: its device alone reaches it";

    fault_handler(address_space& space, mover& moves, reclaimer& frames, policy_ref first) noexcept
        : space_{space}, moves_{moves}, frames_{frames} {
        set_policy(first);
    }

    // After return nobody asks the one before any more: it may end. Faults that it has answered go by its answer.
    void set_policy(policy_ref next) noexcept {
        std::lock_guard guard{policy_lock_};
        policy_ = next;
    }
    [[nodiscard]] policy_ref current_policy() const noexcept {
        std::lock_guard guard{policy_lock_};
        return policy_;
    }

    // After ok the accessor has a mapping that allows `wanted`, unless it was taken away since.
    // not_mapped: no region there. busy: pinned or fixed elsewhere. no_memory: nowhere to put it.
    // With `is_deferred`, a page that launches use does not keep the last service thread: busy, and it is set.
    status handle(node& accessor_node, address at, access wanted,
                  bool* is_deferred = nullptr) noexcept {
        accessor_node.faults.add(1);
        status outcome = try_handle(accessor_node, at, wanted, is_deferred);
        // A CPU that gets nothing ends its program and a kernel its queue, so a shortage is given time to pass:
        // frames in others' hands, mappings that somebody is about to drop. And a device that was lost with the
        // contents half way need not have had a part in a CPU's: the next try goes without it.
        const bool may_pass = accessor_node.is_host || accessor_node.can(ability::device_faults);
        for (unsigned wait_us = 1000;
             ((may_pass && outcome.code == errc::no_memory) ||
              (accessor_node.is_host && outcome.code == errc::device_lost && wait_us == 1000)) &&
             wait_us <= 64000;
             wait_us *= 2) {
            ::usleep(wait_us);
            outcome = try_handle(accessor_node, at, wanted, is_deferred);
        }
        return outcome;
    }

private:
    status try_handle(node& accessor_node, address at, access wanted, bool* is_deferred) noexcept {
        attempt state{accessor_node, accessor_node.accessor(), at, wanted & access::read_write};
        // Where the device cannot map the host's frames, frames of its own are all that it can hope for.
        state.stays_on_host = covers(wanted, access::in_place) && !state.is_cpu() &&
                              space_.host_near(accessor_node).driver == accessor_node.driver;
        hold_waiter holders;
        for (unsigned round = 0; round < max_rounds; ++round) {
            granule* page = space_.find(at);
            if (page == nullptr) {
                return fail(errc::not_mapped, "no region of this space is there");
            }
            step next;
            {
                std::lock_guard guard{page->lock};
                if (!page->is_memory_locked(at)) {
                    return fail(errc::not_mapped, page->is_arena
                                                      ? "that memory of a heap was given back"
                                                      : "no region of this space is there");
                }
                next = look_locked(*page, state);
                if (next.kind == step::done && round == 0 && next.was_resolved) {
                    accessor_node.faults_coalesced.add(1);
                }
            }
            switch (next.kind) {
                case step::done: return next.outcome;
                case step::again: break;
                case step::await_rest: page->await_rest(); break;
                case step::await_holds: holders.await(*page); break;
                case step::await_uses:
                case step::await_driver:
                    if (!await_work(*page, next, is_deferred)) {
                        return fail(errc::busy, "a launch uses the page");
                    }
                    break;
                case step::move:
                    if (!bring(*page, state, next)) {
                        return state.last;
                    }
                    break;
            }
        }
        return fail(errc::no_memory, "the page was taken away as often as it was brought in");
    }

    static constexpr unsigned max_rounds = 10000;

    // What one look decided.
    struct step {
        enum kind_t : std::uint8_t {
            done,
            again,
            await_rest,
            await_holds,
            await_uses,
            await_driver,  // a former mapping there ends with work that may need the page's lock
            move
        } kind = done;
        bool was_resolved = false;  // before this look
        bool keeps_copy = false;    // move: leave the old frame as the home
        unsigned to = no_slot;      // move: the node; its transit has begun
        va_range va{};
        status outcome{};
    };
    struct attempt {
        node& from;
        unsigned accessor;
        address at;
        access wanted;
        bool stays_on_host = false;  // no frame was to be had on the device, or none is to be taken
        status last{};

        [[nodiscard]] bool is_cpu() const noexcept { return accessor == cpu_accessor; }
    };

    step look_locked(granule& page, attempt& state) noexcept {
        if (covers(page.mapped[state.accessor], state.wanted)) {
            return {.kind = step::done, .was_resolved = true};
        }
        if (page.is_moving()) {
            return look_at_moving_locked(page, state);
        }
        if (const status noted = moves_.note_on_host_locked(page); !noted) {
            return {.outcome = noted};
        }
        switch (page.current()) {
            case residency::untouched: return place_first_locked(page, state);
            case residency::on_host: return look_at_host_page_locked(page, state);
            case residency::on_device: return look_at_device_page_locked(page, state);
            case residency::duplicated: return look_at_copies_locked(page, state);
            case residency::released: break;
        }
        return {.outcome = fail(errc::not_mapped, "no region of this space is there")};
    }

    // The old frame serves readers until the flip, and writers who make an optional move give up.
    step look_at_moving_locked(granule& page, attempt& state) noexcept {
        const bool is_served = state.is_cpu() && page.current() == residency::on_host;
        if (is_served && !has_write(state.wanted)) {
            return enter_locked(page, state, access::read);
        }
        if (is_served && page.is_optional) {
            page.was_touched = true;
            return enter_locked(page, state, access::read_write);
        }
        return {.kind = step::await_rest};
    }

    step place_first_locked(granule& page, attempt& state) noexcept {
        return begin_move_locked(page, first_slot_locked(page, state), false);
    }
    unsigned first_slot_locked(granule& page, attempt& state) noexcept {
        const bool prefers_host =
            page.preferred != no_slot && space_.at_slot(page.preferred).is_host;
        const bool prefers_this = page.preferred == state.from.slot;
        if (state.is_cpu() || prefers_host || state.stays_on_host) {
            // Host pages go near the device that is likely to use them.
            return prefers_host     ? page.preferred
                   : state.is_cpu() ? moves_.host_of(page).slot
                                    : space_.host_near(state.from).slot;
        }
        if (prefers_this || choose(page, state, true) == placement_choice::on_device) {
            return state.from.slot;
        }
        return space_.host_near(state.from).slot;
    }

    step look_at_host_page_locked(granule& page, attempt& state) noexcept {
        if (state.is_cpu()) {
            return enter_locked(page, state, access::read_write);
        }
        const bool can_map = moves_.visible_frame(page, state.accessor) != nullptr;
        const bool must_stay =
            page.is_fixed || page.pins > 0 || page.is_held() || state.stays_on_host;
        if (must_stay && can_map) {
            return map_in_place_locked(page, state);
        }
        if (page.is_held()) {
            return {.kind = step::await_holds};
        }
        if (must_stay) {
            return {.outcome =
                        state.last.is_ok()
                            ? fail(errc::busy, "pinned on a host that this device cannot map")
                            : state.last};
        }
        const bool prefers_this = page.preferred == state.from.slot;
        const bool prefers_host =
            page.preferred != no_slot && space_.at_slot(page.preferred).is_host;
        const bool duplicates = page.is_read_mostly && !has_write(state.wanted);
        const bool comes =
            prefers_this || (!prefers_host && (duplicates || choose(page, state, false) ==
                                                                 placement_choice::on_device));
        // Another device may be using the host's frame and unable to lose it.
        const bool can_leave = moves_.can_lose_mappings_locked(page);
        if (can_map && (!comes || !can_leave)) {
            return map_in_place_locked(page, state);
        }
        return can_leave ? begin_move_locked(page, state.from.slot, duplicates)
                         : step{.kind = step::await_uses, .va = page.va};
    }

    step look_at_device_page_locked(granule& page, attempt& state) noexcept {
        if (page.home == state.from.slot) {
            return enter_locked(page, state, access::read_write);
        }
        if (page.is_fixed || page.pins > 0) {
            return {.outcome = fail(errc::busy, page.is_fixed ? device_only
                                                              : "the page is pinned on a device")};
        }
        if (page.is_held()) {
            return {.kind = step::await_holds};
        }
        if (!moves_.can_lose_mappings_locked(page)) {
            return {.kind = step::await_uses, .va = page.va};
        }
        const bool duplicates = page.is_read_mostly && !has_write(state.wanted) &&
                                moves_.can_copy_locked(page, state.from);
        if (state.is_cpu() || state.stays_on_host) {
            return begin_move_locked(page, space_.host_near(space_.at_slot(page.home)).slot,
                                     duplicates);
        }
        const bool comes = page.preferred == state.from.slot || duplicates ||
                           choose(page, state, false) == placement_choice::on_device;
        return begin_move_locked(page, comes ? state.from.slot : space_.host_near(state.from).slot,
                                 comes && duplicates);
    }

    step look_at_copies_locked(granule& page, attempt& state) noexcept {
        if (!has_write(state.wanted)) {
            if (state.stays_on_host && is_steered(state.from) &&
                page.frames[state.accessor] == nullptr) {
                return end_copies_locked(page);
            }
            if (moves_.visible_frame(page, state.accessor) != nullptr &&
                (state.is_cpu() || page.frames[state.accessor] != nullptr || state.stays_on_host)) {
                return enter_locked(page, state, access::read);
            }
            const unsigned to = state.is_cpu() || state.stays_on_host
                                    ? space_.host_near(state.from).slot
                                    : state.from.slot;
            if (page.frames[to] != nullptr ||
                (space_.at_slot(to).is_host &&
                 moves_.visible_frame(page, cpu_accessor) != nullptr)) {
                // A host's copy of another driver's, which this device cannot map.
                return {.outcome = state.last};
            }
            return page.is_held() ? step{.kind = step::await_holds}
                                  : begin_move_locked(page, to, true);
        }
        if (page.is_held()) {
            return {.kind = step::await_holds};
        }
        if (!moves_.can_lose_mappings_locked(page)) {
            return {.kind = step::await_uses, .va = page.va};
        }
        // The writer's own copy stays, if it has one; the next look does the rest.
        frame_record* own = moves_.visible_frame(page, state.accessor);
        const status collapsed =
            moves_.collapse_locked(page, own != nullptr ? own->slot : page.home);
        return collapsed ? step{.kind = step::again} : step{.outcome = collapsed};
    }

    // A driver that owns the pages gives each reader a copy while there are some, room or not.
    step end_copies_locked(granule& page) noexcept {
        if (page.is_held()) {
            return {.kind = step::await_holds};
        }
        if (!moves_.can_lose_mappings_locked(page)) {
            return {.kind = step::await_uses, .va = page.va};
        }
        const status collapsed =
            moves_.collapse_locked(page, space_.frame_at(page, space_.find_place(any_host))->slot);
        return collapsed ? step{.kind = step::again} : step{.outcome = collapsed};
    }

    placement_choice choose(const granule& page, const attempt& state,
                            bool is_first) const noexcept {
        // Under the lock, so that the policy is there while it is asked; that is short, as concepts/policy.hpp has it.
        std::lock_guard guard{policy_lock_};
        return policy_.choose({state.from.id, state.wanted, page.va.bytes, is_first});
    }

    step enter_locked(granule& page, attempt& state, access who) noexcept {
        if (page.is_read_mostly && !has_write(state.wanted)) {
            who = access::read;  // so that a later copy needs no mapping taken back
        }
        const status entered = moves_.enter_locked(page, state.accessor, who);
        if (entered) {
            moves_.relink_locked(page);
        } else if (entered.code == errc::busy) {
            return {.kind = page.is_firmly_used() ? step::await_uses : step::await_driver,
                    .va = page.va};
        }
        return {.outcome = entered};
    }
    step map_in_place_locked(granule& page, attempt& state) noexcept {
        state.from.mapped_in_place.add(1);
        return enter_locked(page, state, access::read_write);
    }
    static step begin_move_locked(granule& page, unsigned to, bool keeps_copy) noexcept {
        page.begin_transit_locked(false);
        return {.kind = step::move, .keeps_copy = keeps_copy, .to = to, .va = page.va};
    }

    // Kernels may run long, and wait for a host call that needs a page itself. False: this thread may not wait.
    bool await_work(granule& page, const step& next, bool* is_deferred) noexcept {
        std::optional<fault_trap::long_wait> wait;
        if (is_deferred != nullptr && !wait.emplace()) {
            *is_deferred = true;
            return false;
        }
        if (next.kind == step::await_uses) {
            space_.uses().await_unused(page, next.va, use_grip::firm);
        } else {
            ::usleep(1000);
        }
        return true;
    }

    // The page is in transit for this thread. False if nothing is left to try.
    bool bring(granule& page, attempt& state, const step& next) noexcept {
        node& to = space_.at_slot(next.to);
        const bool is_seen = to.is_host || next.to == state.accessor;
        page_move one{.moved = &page,
                      .accessor = is_seen ? state.accessor : no_slot,
                      .who = next.keeps_copy ? access::read : access::read_write,
                      .keeps_copy = next.keeps_copy};
        const place where{&to, to.is_host};  // on a host: on whichever has room
        if (status come = frames_.bring(one, frames_.obtain(where, next.va.bytes)); !come) {
            return try_host_after(come, to, state);
        }
        if (to.is_host && !state.is_cpu()) {
            state.from.mapped_in_place.add(1);
        }
        return true;
    }
    static bool try_host_after(status failure, const node& tried, attempt& state) noexcept {
        state.last = failure;
        if (tried.is_host) {
            return false;
        }
        state.stays_on_host = true;
        return true;
    }

    address_space& space_;
    mover& moves_;
    reclaimer& frames_;
    mutable ranked_mutex<lock_rank::leaf> policy_lock_;
    policy_ref policy_;  // guarded by policy_lock_
};

}  // namespace xmm
