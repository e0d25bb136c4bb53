// SPDX-License-Identifier: Apache-2.0
// space_frames.hpp - the port of an extent heap to one device of a space.
//
// Model    A reservation is an arena: a region fixed on the device, one granule a slot, whose frames come and
//          go with map and unmap. So its memory is in the logical map as any other: launches name it,
//          gmemcpy copies it, reports show it; but no fault fills it and no reclaim takes it.
//          Frames come from the node's pool and go back there, charged to its ledger. A slot that lent its frame has
//          none for the map, and its device sees it there still. So it is with a slot of a host whose mapping the OS
//          refuses to clear (vm.max_map_count): nothing points there until the slot gets a frame again, and for that
//          the mapping has to go first.
// Threads  Any, on distinct slots and frames.
// Failure  create never reclaims: its caller does, without a lock (reclaimer), and asks again. unmap and end_loan
//          always part the slot from its frame.
#pragma once

#include <xmm/placement/release.hpp>
#include <xmm/resources/frame_port.hpp>
#include <xmm/resources/queue_driver.hpp>

namespace xmm {

class space_frames final : public frame_port {
public:
    space_frames(address_space& space, mover& moves, releaser& releases, node& device) noexcept
        : space_{space}, moves_{moves}, releases_{releases}, device_{device} {}

    [[nodiscard]] result<address> reserve(std::size_t bytes,
                                          std::size_t slot_bytes) noexcept override {
        result<region*> made = space_.map(bytes, {.granule_bytes = slot_bytes,
                                                  .alignment = slot_bytes,
                                                  .preferred = device_.id,
                                                  .fixed = device_.id,
                                                  .is_arena = true,
                                                  .name = "heap"});
        return made ? result<address>{(*made)->va.begin} : result<address>{made.error()};
    }
    void release(va_range reservation) noexcept override {
        result<region*> leaving = space_.claim_for_unmap(reservation.begin, region_kind::arena);
        XMM_ASSERT(leaving, "released what was never reserved");
        static_cast<void>(releases_.release(**leaving));
    }

    [[nodiscard]] std::size_t most_bytes() const noexcept override { return device_.book->limit(); }
    [[nodiscard]] std::size_t used_bytes() const noexcept override { return device_.book->used(); }
    [[nodiscard]] const ledger* book() const noexcept override { return device_.book; }
    [[nodiscard]] result<port_frame> create(std::size_t bytes) noexcept override {
        result<frame_record*> taken = device_.pool.take(bytes);
        return taken ? result<port_frame>{port_frame{*taken}} : result<port_frame>{taken.error()};
    }
    void drop(port_frame one, std::size_t) noexcept override {
        device_.pool.give_back(record_of(one));
    }
    // All that the node's pool has, whoever left it there.
    void drop_kept() noexcept override { device_.pool.trim(0); }

    [[nodiscard]] status map(address slot, port_frame one, std::size_t) noexcept override {
        granule* page = space_.find(slot);
        XMM_ASSERT(page != nullptr, "mapped outside of every reservation");
        return with(page->lock, [&] {
            // What an unmap had to leave there.
            const status cleared = moves_.end_lent_locked(*page);
            return cleared ? moves_.give_frame_locked(*page, record_of(one)) : cleared;
        });
    }
    // Waits for copies that hold the page, under the lock of the device's frames: see lock_rank::device_frames.
    void unmap(address slot, [[maybe_unused]] port_frame one, std::size_t) noexcept override {
        with_unheld(slot, [&](granule& page) {
            if (moves_.take_frame_locked(page).code() != errc::ok) {
                static_cast<void>(moves_.lend_frame_locked(page));
            }
        });
    }

    [[nodiscard]] bool can_alias() const noexcept override { return device_.can(ability::alias); }
    // Waits as unmap does.
    void lend(address slot, [[maybe_unused]] port_frame one, std::size_t) noexcept override {
        with_unheld(slot, [&](granule& page) {
            [[maybe_unused]] frame_record& lent = moves_.lend_frame_locked(page);
            XMM_ASSERT(&lent == &record_of(one), "lent another frame than it has");
        });
    }
    void come_back(address slot, port_frame one, std::size_t) noexcept override {
        granule* page = space_.find(slot);
        with(page->lock, [&] { moves_.take_back_locked(*page, record_of(one)); });
    }
    void end_loan(address slot, port_frame, std::size_t) noexcept override {
        with_unheld(slot, [&](granule& page) { static_cast<void>(moves_.end_lent_locked(page)); });
    }
    // Copies in queue order look their pages up when their turn comes, and have marked them till then.
    [[nodiscard]] bool is_quiet(address slot) noexcept override {
        return !space_.find(slot)->is_used();
    }

    [[nodiscard]] result<ticket> record(queue_id queue) noexcept override {
        return queue == queue_id{} ? result<ticket>{ticket{}} : driver_of(queue).record(queue);
    }
    [[nodiscard]] bool is_done(ticket point) noexcept override {
        return point.value == 0 || driver_of(point.queue).is_done(point);
    }
    status wait(ticket point) noexcept override {
        return point.value == 0 ? status{} : driver_of(point.queue).wait(point);
    }
    // A driver waits for tickets of its own queues alone, be they gone; what it has done it need not wait for.
    [[nodiscard]] bool was_ours(queue_id queue) noexcept override {
        const ticket point{queue, 1};
        for (unsigned slot = 0; slot < space_.node_count(); ++slot) {
            const backend_ref one = space_.at_slot(slot).driver;
            if (!one.is_done(point) || one.wait(point).code != errc::invalid_argument) {
                return true;
            }
        }
        return false;
    }

private:
    // A block of this device may be used by another driver's queue.
    [[nodiscard]] backend_ref driver_of(queue_id queue) const noexcept {
        return detail::driver_of(space_, queue, device_.driver);
    }
    template <class Fn>
    void with_unheld(address slot, Fn&& fn) noexcept {
        granule* page = space_.find(slot);
        hold_waiter holders;
        while (!with(page->lock, [&] {
            const bool is_free = !page->is_held();
            if (is_free) {
                fn(*page);
            }
            return is_free;
        })) {
            holders.await(*page);
        }
    }
    static frame_record& record_of(port_frame one) noexcept {
        return *static_cast<frame_record*>(one.handle);
    }

    address_space& space_;
    mover& moves_;
    releaser& releases_;
    node& device_;
};

}  // namespace xmm
