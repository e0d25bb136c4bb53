// SPDX-License-Identifier: Apache-2.0
// contents.hpp - what granules in transit hold, brought to their new frames.
//
// Model    Copies and fills of a batch that share a queue go down it as one call: a lane. Quiet work yields the
//          link to faults: in chunks, one mover a queue at a time, until somebody waits for one of its pages.
//          Between two devices that do not reach each other the bytes make a stop on the host.
//          Where a driver owns the pages there is nothing to copy: it is told to place them. Those that leave a device
//          do so one batch at a time, quiet or not.
// Threads  Any. No lock is held: nobody else changes the frames of a granule in transit.
// Failure  Each granule of a lane that failed gets the outcome; the others go on.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include <sys/mman.h>

#include <xmm/mapping/address_space.hpp>
#include <xmm/placement/frame_stock.hpp>

namespace xmm {

inline constexpr unsigned max_batch = 16;

// One granule on its way. The caller has begun its transit and holds the frame.
struct page_move {
    granule* moved = nullptr;
    frame_record* to = nullptr;
    unsigned accessor = no_slot;  // who gets a mapping at the end; no_slot: nobody
    access who = access::read_write;
    bool keeps_copy = false;      // read-mostly: the old frame stays, as the data's home
    bool is_overwritten = false;  // a first touch that needs no zeroes: all of it is written next
    std::size_t bytes = 0;        // filled in, as the outcome: `to` may be gone after a failure
    status outcome{};
};

// Whether one copy leads from a frame of that node to one of the other. A driver that owns the pages sees to it.
[[nodiscard]] inline bool is_direct(const node& from, const node& to) noexcept {
    return from.is_host || to.is_host || from.slot == to.slot ||
           (from.driver == to.driver &&
            (is_steered(to) || (from.can(ability::peer) && to.can(ability::peer))));
}

// Between frames of two devices that do not reach each other, by way of plain memory. Returns when it is done;
// one part is under way at a time, so that others get the link in between.
[[nodiscard]] inline status copy_through_host(node& from, node& to, piece all) noexcept {
    constexpr std::size_t most = std::size_t{4} << 20;
    const std::size_t room = std::min(most, all.to.bytes);
    void* stop = ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stop == MAP_FAILED) {
        return fail(errc::no_memory, "the host has no memory for a copy between two devices");
    }
    const auto copy = [](node& carrier, queue_id line, piece part) noexcept {
        result<ticket> point = carrier.driver.memcpy(line, {&part, 1});
        return point ? carrier.driver.wait(*point) : point.error();
    };
    status outcome;
    for (std::size_t done = 0; done < all.to.bytes && outcome; done += room) {
        const std::size_t bytes = std::min(room, all.to.bytes - done);
        const va_range between{to_address(stop), bytes};
        outcome =
            copy(from, from.queues[node::urgent_out], {between, {all.from.begin + done, bytes}});
        if (outcome) {
            outcome = copy(to, to.queues[node::urgent_in], {{all.to.begin + done, bytes}, between});
        }
    }
    ::munmap(stop, room);
    return outcome;
}

class contents {
public:
    explicit contents(address_space& space) noexcept : space_{space} {}

    // For each granule without a failure so far: its new frame gets the old one's bytes, or zeroes.
    void bring(std::span<page_move> batch, bool is_quiet) noexcept {
        lanes all;
        unsigned lane_count = 0;
        for (page_move& one : batch) {
            if (one.outcome && !is_far(one)) {
                add_to_lane(all, lane_count, one);
            }
        }
        std::array<result_ticket, max_batch> points;
        for (unsigned i = 0; i < lane_count; ++i) {
            if (all[i].placed_on != nullptr && all[i].placed_on->is_host) {
                place_out(all[i], is_quiet);
            } else if (is_quiet && !all[i].is_fill && all[i].placed_on == nullptr) {
                copy_quietly(all[i]);
            } else {
                points[i] = submit(all[i], is_quiet ? all[i].quiet : all[i].urgent);
            }
        }
        for (page_move& one : batch) {
            if (one.outcome && is_far(one)) {
                bring_through_host(one);
            }
        }
        for (unsigned i = 0; i < lane_count; ++i) {
            if (points[i].is_pending) {
                settle(all[i], all[i].at->driver.wait(points[i].point));
            }
        }
    }

    // Tells a driver that owns the pages to put those of the device there, once more: the CPU's touches, which nobody
    // sees, may have taken some. The granules have their frames there and are in transit.
    status place_again(node& device, std::span<const va_range> ranges, bool is_quiet) noexcept {
        auto point = device.driver.place(device.queues[is_quiet ? node::quiet_in : node::urgent_in],
                                         ranges, device.id);
        return point ? device.driver.wait(*point) : point.error();
    }
    // Gives up the bytes of one granule in transit whose driver owns its pages, and any device's memory with them.
    status forget(granule& one) noexcept {
        for (unsigned slot = space_.host_count(); slot < space_.node_count(); ++slot) {
            if (one.frames[slot] == nullptr) {
                continue;
            }
            node& device = space_.at_slot(slot);
            const queue_id queue = device.queues[node::urgent_out];
            // Without it the bytes are carried home for nothing.
            static_cast<void>(device.driver.discard(queue, {&one.va, 1}));
            auto point = device.driver.place(queue, {&one.va, 1}, space_.host_near(device).id);
            if (status gone = point ? device.driver.wait(*point) : point.error(); !gone) {
                return gone;
            }
        }
        return {};
    }

private:
    // Copies or fills that go down one queue together, as one call.
    struct lane {
        node* at = nullptr;
        node* placed_on = nullptr;  // where the driver that owns the pages is to place them
        queue_id urgent;
        queue_id quiet;
        bool is_fill = false;
        bool has_copies = false;  // where the driver is to keep the old page, too
        bool is_copied = false;   // placed beside the host's page, which must be there first
        unsigned count = 0;
        std::array<piece, max_batch> pieces;
        std::array<page_move*, max_batch> owners;

        [[nodiscard]] bool is_awaited() const noexcept {
            for (unsigned i = 0; i < count; ++i) {
                // relaxed: a hint; a late look only delays the change of lanes.
                if (owners[i]->moved->is_urgent.load(std::memory_order_relaxed)) {
                    return true;
                }
            }
            return false;
        }
    };
    using lanes = std::array<lane, max_batch>;

    struct result_ticket {
        ticket point;
        bool is_pending = false;
    };

    void add_to_lane(lanes& all, unsigned& lane_count, page_move& one) noexcept {
        frame_record* from = one.moved->home_frame();
        node& target = space_.at_slot(one.to->slot);
        if (is_steered(target)) {
            add_to_placing_lane(all, lane_count, one);
            return;
        }
        if (from == nullptr && (one.to->backing.zeroed || one.is_overwritten)) {
            return;
        }
        const bool is_out = leaves_device(from, target);
        node* carrier = carrier_of(from, target);
        if (carrier == nullptr) {
            bring_on_host(one, from);
            return;
        }
        const queue_id urgent = carrier->queues[is_out ? node::urgent_out : node::urgent_in];
        const queue_id quiet = carrier->queues[is_out ? node::quiet_out : node::quiet_in];
        unsigned i = 0;
        while (i < lane_count &&
               !(all[i].urgent == urgent && all[i].is_fill == (from == nullptr))) {
            ++i;
        }
        lane& chosen = all[i];
        if (i == lane_count) {
            ++lane_count;
            chosen.at = carrier;
            chosen.urgent = urgent;
            chosen.quiet = quiet;
            chosen.is_fill = from == nullptr;
        }
        const std::size_t bytes = one.to->backing.bytes;
        const address source = from != nullptr ? from->backing.standing : 0;
        chosen.pieces[chosen.count] = {{one.to->backing.standing, bytes}, {source, bytes}};
        chosen.owners[chosen.count++] = &one;
        count_bytes(one, from);
    }
    static bool leaves_device(const frame_record* from, const node& target) noexcept {
        return from != nullptr && target.is_host && !from->is_host;
    }
    // A device's own queues carry its traffic, both ways; some device's carry what stays on hosts. Null: there is none.
    node* carrier_of(const frame_record* from, node& target) noexcept {
        return leaves_device(from, target) ? &space_.at_slot(from->slot)
               : target.is_host            ? space_.host_carrier()
                                           : &target;
    }
    bool is_far(const page_move& one) noexcept {
        const frame_record* from = one.moved->home_frame();
        return from != nullptr &&
               !is_direct(space_.at_slot(from->slot), space_.at_slot(one.to->slot));
    }
    void bring_through_host(page_move& one) noexcept {
        const frame_record* from = one.moved->home_frame();
        const std::size_t bytes = one.to->backing.bytes;
        one.outcome =
            copy_through_host(space_.at_slot(from->slot), space_.at_slot(one.to->slot),
                              {{one.to->backing.standing, bytes}, {from->backing.standing, bytes}});
        count_bytes(one, from);
    }
    // The queue of a device that takes part carries the order, any device's what stays on hosts.
    void add_to_placing_lane(lanes& all, unsigned& lane_count, page_move& one) noexcept {
        frame_record* from = one.moved->home_frame();
        node& target = space_.at_slot(one.to->slot);
        const bool is_out = leaves_device(from, target);
        node* carrier = carrier_of(from, target);
        if (carrier == nullptr) {
            return;  // from host to host, and no device is left: the page stays on either
        }
        // In transit: nobody else changes the state.
        const bool is_copied =
            one.keeps_copy && !target.is_host && one.moved->current() != residency::duplicated;
        unsigned i = 0;
        while (i < lane_count &&
               !(all[i].at == carrier && all[i].placed_on == &target &&
                 all[i].has_copies == one.keeps_copy && all[i].is_copied == is_copied)) {
            ++i;
        }
        lane& chosen = all[i];
        if (i == lane_count) {
            ++lane_count;
            chosen.at = carrier;
            chosen.placed_on = &target;
            chosen.has_copies = one.keeps_copy;
            chosen.is_copied = is_copied;
            chosen.urgent = carrier->queues[is_out ? node::urgent_out : node::urgent_in];
            chosen.quiet = carrier->queues[is_out ? node::quiet_out : node::quiet_in];
        }
        chosen.pieces[chosen.count] = {one.moved->va, one.moved->va};
        chosen.owners[chosen.count++] = &one;
        if (from != nullptr) {
            count_bytes(one, from);
        }
    }
    void count_bytes(const page_move& one, const frame_record* from) noexcept {
        node& target = space_.at_slot(one.to->slot);
        (from != nullptr ? target.bytes_in : target.bytes_zeroed).add(one.bytes);
        if (from != nullptr) {
            space_.at_slot(from->slot).bytes_out.add(one.bytes);
        }
    }
    // Without any device, host frames are the CPU's own: their standing addresses are plain memory.
    void bring_on_host(page_move& one, const frame_record* from) noexcept {
        void* to = to_pointer(one.to->backing.standing);
        if (from != nullptr) {
            std::memcpy(to, to_pointer(from->backing.standing), one.bytes);
        } else {
            std::memset(to, 0, one.bytes);
        }
        count_bytes(one, from);
    }

    result_ticket submit(lane& one, queue_id queue) noexcept {
        if (one.is_fill || one.placed_on != nullptr) {
            std::array<va_range, max_batch> ranges;
            for (unsigned i = 0; i < one.count; ++i) {
                ranges[i] = one.pieces[i].to;
            }
            // What lies in a row is one call of a driver that owns the pages, if it also comes in a row.
            std::sort(ranges.begin(), ranges.begin() + one.count,
                      [](va_range a, va_range b) { return a.begin < b.begin; });
            const std::span<const va_range> all{ranges.data(), one.count};
            if (one.has_copies) {
                // For as long as there are copies: else the driver would make some of its own.
                const status told =
                    one.at->driver.advise(all, driver_advice::read_mostly, one.placed_on->id);
                if (!told) {
                    settle(one, told);
                    return {};
                }
            }
            // Else the only copy would be the device's, and stay there once copies end.
            if (one.is_copied) {
                const node_id host = space_.host_near(*one.placed_on).id;
                if (auto first = one.at->driver.place(queue, all, host); !first) {
                    settle(one, first.error());
                    return {};
                }
            }
            return submitted(one, one.is_fill
                                      ? one.at->driver.zero(queue, all)
                                      : one.at->driver.place(queue, all, one.placed_on->id));
        }
        return submitted(one, one.at->driver.memcpy(queue, {one.pieces.data(), one.count}));
    }
    // One mover at a time: a driver that is told by several threads to bring pages out of a device is slower by a
    // third (measured: docs/results/h200.md).
    void place_out(lane& one, bool is_quiet) noexcept {
        detail::futex_word& turn = turn_of(one);
        std::uint32_t nobody = 0;
        // acquire, and release in give_turn: a pair, though nothing but the turn hangs on it.
        while (!turn.compare_exchange_strong(nobody, 1, std::memory_order_acquire)) {
            detail::futex_wait_until(turn, 1, detail::monotonic_ns() + 200'000);
            nobody = 0;
        }
        const result_ticket under_way = submit(one, is_quiet ? one.quiet : one.urgent);
        if (under_way.is_pending) {
            settle(one, one.at->driver.wait(under_way.point));
        }
        give_turn(one);
    }
    result_ticket submitted(lane& one, result<ticket>&& point) noexcept {
        if (!point) {
            settle(one, point.error());
            return {};
        }
        return {*point, true};
    }
    static void settle(lane& one, status outcome) noexcept {
        for (unsigned i = 0; i < one.count && !outcome; ++i) {
            one.owners[i]->outcome = outcome;
        }
    }

    // One mover at a time fills a quiet queue, in chunks of about half a millisecond of link time, three in
    // flight: so a fault finds the link free soon. Once somebody waits for a page of this lane, or while
    // others have the turn, what is left goes down the urgent queue.
    void copy_quietly(lane& one) noexcept {
        const std::size_t chunk = chunk_bytes(one);
        const bool has_turn = take_turn(one);
        std::array<ticket, 3> in_flight{};
        unsigned oldest = 0;
        for (unsigned i = 0; i < one.count; ++i) {
            piece left = one.pieces[i];
            while (!left.to.is_empty()) {
                const bool is_awaited = !has_turn || one.is_awaited();
                const std::size_t bytes =
                    is_awaited ? left.to.bytes : std::min(chunk, left.to.bytes);
                const piece next{{left.to.begin, bytes}, {left.from.begin, bytes}};
                left = {{left.to.begin + bytes, left.to.bytes - bytes},
                        {left.from.begin + bytes, left.from.bytes - bytes}};
                status outcome = one.at->driver.wait(in_flight[oldest]);
                if (outcome) {
                    auto point =
                        one.at->driver.memcpy(is_awaited ? one.urgent : one.quiet, {&next, 1});
                    outcome = point ? status{} : point.error();
                    in_flight[oldest] = point ? *point : ticket{};
                    oldest = (oldest + 1) % in_flight.size();
                }
                if (!outcome) {
                    one.owners[i]->outcome = outcome;
                    break;
                }
            }
        }
        // Before the last chunks have passed, so that the next mover's follow without a gap.
        if (has_turn) {
            give_turn(one);
        }
        for (ticket point : in_flight) {
            settle(one, one.at->driver.wait(point));
        }
    }
    static bool is_in(const lane& one) noexcept {
        return one.quiet == one.at->queues[node::quiet_in];
    }
    static detail::futex_word& turn_of(lane& one) noexcept {
        return one.at->quiet_turns[is_in(one) ? 0 : 1];
    }
    // False if a page of the lane is awaited: then it does not wait for its turn.
    static bool take_turn(lane& one) noexcept {
        detail::futex_word& turn = turn_of(one);
        for (;;) {
            if (one.is_awaited()) {
                return false;
            }
            std::uint32_t nobody = 0;
            // acquire, and release in give_turn: a pair, though nothing but the turn hangs on it.
            if (turn.compare_exchange_strong(nobody, 1, std::memory_order_acquire)) {
                return true;
            }
            // Looks up now and then, since who waits for a page does not know of turns.
            detail::futex_wait_until(turn, 1, detail::monotonic_ns() + 200'000);
        }
    }
    static void give_turn(lane& one) noexcept {
        turn_of(one).store(0, std::memory_order_release);
        detail::futex_wake(turn_of(one), 1);
    }
    static std::size_t chunk_bytes(const lane& one) noexcept {
        const node_description& about = one.at->about;
        const std::uint64_t rate =
            is_in(one) ? about.link_in_bytes_per_second : about.link_out_bytes_per_second;
        constexpr std::size_t largest = std::size_t{32} << 20;
        constexpr std::size_t smallest = std::size_t{512} << 10;
        return rate == 0 ? largest : std::clamp<std::size_t>(rate / 2000, smallest, largest);
    }

    address_space& space_;
};

}  // namespace xmm
