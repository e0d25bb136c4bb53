// SPDX-License-Identifier: Apache-2.0
// transfer.hpp - gmemcpy: copies between any two pointers, run by run, without moving a page.
//
// Model    A copy is cut at granule ends. Each unified granule is held where its data is (it stays there
//          until the hold is dropped), and the copy goes between standing addresses on the device's queue.
//          Never-touched sources read as zero; never-touched destinations get a frame on their preferred
//          node, else on the host. Plain memory takes part as it is. Where a driver owns the pages, their own
//          addresses are the standing ones, and the CPU copies what is on no device.
// Threads  Any. A thread waits for a page only while it holds none, so two copies cannot wait for each other.
// Failure  A failed copy leaves the destination's bytes undefined, all else as before.
#pragma once

#include <unistd.h>

#include <cstring>

#include <xmm/placement/reclaim.hpp>

namespace xmm {

// One side of a copy, unified as a whole or not at all. What began as unified never becomes plain memory: it may be
// unmapped in the middle, and what is at its addresses then is not the copy's to touch.
struct copy_side {
    address at = 0;
    bool is_unified = false;
};

class copier {
public:
    copier(address_space& space, mover& moves, reclaimer& frames) noexcept
        : space_{space}, moves_{moves}, frames_{frames} {}

    // Ranges do not overlap. Returns when the bytes are there.
    status copy(copy_side to, copy_side from, std::size_t bytes) noexcept {
        group groups
            [2];  // while one is under way, the other is prepared, so that the link has no gap
        group* work = &groups[0];
        group* sent = &groups[1];
        while (bytes > 0) {
            const std::size_t part =
                std::min({bytes, until_granule_end(to.at), until_granule_end(from.at)});
            if (work->count == group_size) {
                status outcome = send(*work);
                const status settled = settle(*sent);
                outcome = outcome ? settled : outcome;
                std::swap(work, sent);
                if (!outcome) {
                    static_cast<void>(settle(*sent));  // the other has nothing yet
                    return outcome;
                }
            }
            const status added = add(*work, to, from, part);
            if (added.code == errc::busy && work->count + sent->count > 0) {
                // Let go of everything, then wait for the one that is busy.
                if (const status outcome = finish(*work, *sent); !outcome) {
                    return outcome;
                }
                continue;
            }
            if (added.code == errc::busy) {
                await(to.at, from.at);
                work->has_given_way = true;  // once for each piece: the holder may be this thread
                continue;
            }
            if (!added) {
                static_cast<void>(finish(*work, *sent));
                return added;
            }
            work->has_given_way = false;
            to.at += part;
            from.at += part;
            bytes -= part;
        }
        return finish(*work, *sent);
    }

private:
    static constexpr unsigned group_size = 16;

    // Pieces under preparation, with what they hold.
    struct group {
        struct entry {
            piece part;
            node* carrier = nullptr;  // null: the CPU does it, between plain addresses
            node* far = nullptr;      // a device that the carrier does not reach: the source's
            bool is_in = true;
            bool is_fill = false;
            granule* held[2] = {};
        };
        std::array<entry, group_size> entries;
        unsigned count = 0;
        // What was sent: points to wait for.
        std::array<ticket, group_size> points{};
        std::array<node*, group_size> at{};
        unsigned point_count = 0;
        bool has_given_way = false;  // to those who wait for the next piece's holds to be dropped
    };
    // One side of a piece.
    struct side {
        granule* held = nullptr;
        frame_record* on = nullptr;
        address at = 0;
        bool is_zero = false;
        // Clean copies that have to stay, since kernels depend on them: they get the bytes, too.
        std::array<frame_record*, max_slots> copies{};
        unsigned copy_count = 0;
    };

    std::size_t until_granule_end(address at) noexcept {
        std::size_t left = SIZE_MAX;
        space_.with_granule(at, [&](granule& page) { left = page.va.end() - at; });
        return left;
    }

    status add(group& work, copy_side to, copy_side from, std::size_t part) noexcept {
        side target;
        side source;
        if (!work.has_given_way && (is_waited_for(to.at) || is_waited_for(from.at))) {
            return fail(errc::busy, "others wait for the holds of this page");
        }
        if (status got = hold(target, to, access::write, part); !got) {
            return got;
        }
        if (work.count + 1 + target.copy_count > group_size) {
            drop(target);
            return fail(errc::busy, "no room in this group");
        }
        if (status got = hold(source, from, access::read, part); !got) {
            drop(target);
            return got;
        }
        const std::size_t offset =
            target.at - (target.on != nullptr ? target.on->backing.standing : 0);
        group::entry& one = add_entry(work, target, source, part);
        one.held[0] = target.held;
        one.held[1] = source.held;
        for (unsigned i = 0; i < target.copy_count; ++i) {
            target.on = target.copies[i];
            target.at = target.on->backing.standing + offset;
            add_entry(work, target, source, part);
        }
        return {};
    }
    group::entry& add_entry(group& work, const side& target, const side& source,
                            std::size_t part) noexcept {
        group::entry& one = work.entries[work.count++];
        one = {};
        one.part = {{target.at, part}, {source.at, part}};
        one.is_fill = source.is_zero;
        choose_carrier(one, target, source);
        return one;
    }
    void choose_carrier(group::entry& one, const side& target, const side& source) noexcept {
        const bool to_device = target.on != nullptr && !target.on->is_host;
        const bool from_device = source.on != nullptr && !source.on->is_host;
        if (moves_.is_steering() && !to_device && !from_device) {
            one.carrier = nullptr;  // a device's queue might bring the pages to the device
        } else if (to_device) {
            one.carrier = &space_.at_slot(target.on->slot);
            node* from = from_device ? &space_.at_slot(source.on->slot) : nullptr;
            one.far = from != nullptr && !is_direct(*from, *one.carrier) ? from : nullptr;
        } else if (from_device) {
            one.carrier = &space_.at_slot(source.on->slot);
            one.is_in = false;
        } else {
            one.carrier =
                target.on != nullptr || source.on != nullptr ? space_.host_carrier() : nullptr;
        }
        if (source.on != nullptr) {
            space_.at_slot(source.on->slot).bytes_out.add(one.part.to.bytes);
        }
        if (target.on != nullptr) {
            space_.at_slot(target.on->slot).bytes_in.add(one.part.to.bytes);
        }
    }

    // busy: the page moves, or is held by others who must let go first.
    status hold(side& wanted, copy_side what, access who, std::size_t part) noexcept {
        const address at = what.at;
        wanted.at = at;
        for (;;) {
            granule* first_touched = nullptr;
            va_range va;
            unsigned on = no_slot;
            status outcome;
            const bool is_unified = space_.with_granule(at, [&](granule& page) {
                if (!page.va.contains(va_range{at, part})) {
                    // Since the piece was cut: a smaller granule, where it was to end with the one before.
                    outcome = fail(errc::not_mapped, "unmapped during the copy");
                } else if (page.is_moving()) {
                    outcome = fail(errc::busy, "the page is on its way");
                } else if (outcome = moves_.note_on_host_locked(page); !outcome) {
                    return;
                } else if (page.current() == residency::untouched && !has_write(who)) {
                    wanted.is_zero = true;
                } else if (page.current() == residency::untouched) {
                    page.begin_transit_locked(false);
                    first_touched = &page;
                    va = page.va;
                    on = page.preferred != no_slot ? page.preferred : cpu_accessor;
                } else {
                    outcome = hold_resident_locked(wanted, page, who);
                }
            });
            if (!is_unified) {
                return !what.is_unified && space_.find(at) == nullptr
                           ? status{}
                           : fail(errc::not_mapped, "unmapped during the copy");
            }
            if (first_touched == nullptr) {
                return outcome;
            }
            if (status placed = place(*first_touched, space_.at_slot(on), va, part); !placed) {
                return placed;
            }
        }
    }
    status hold_resident_locked(side& wanted, granule& page, access who) noexcept {
        if (has_write(who) && page.current() == residency::duplicated) {
            if (page.is_held()) {
                return fail(errc::busy, "the page's copies are in use");
            }
            if (!moves_.can_lose_mappings_locked(page)) {
                // Those of a driver that owns the pages end with the write.
                for (frame_record* copy : page.frames) {
                    if (!moves_.is_steering() && copy != nullptr && copy != page.home_frame()) {
                        wanted.copies[wanted.copy_count++] = copy;
                    }
                }
            } else if (status collapsed = moves_.collapse_locked(page, page.home); !collapsed) {
                return collapsed;
            }
        }
        page.add_hold_locked();
        wanted.held = &page;
        wanted.on = page.home_frame();
        if (has_write(who)) {
            wanted.on->backing.zeroed = false;
        }
        if (!moves_.is_steering()) {
            wanted.at = wanted.on->backing.standing + (wanted.at - page.va.begin);
        }
        return {};
    }
    // The page is in transit for this thread.
    status place(granule& page, node& on, va_range va, std::size_t part) noexcept {
        page_move one{.moved = &page, .is_overwritten = part == va.bytes};
        return frames_.bring(one, obtain(on, va.bytes));
    }
    // On the wanted node, else on a host.
    result<frame_record*> obtain(node& on, std::size_t bytes) noexcept {
        if (!on.is_host) {
            if (result<frame_record*> taken = frames_.obtain(on, bytes)) {
                return taken;
            }
        }
        return frames_.obtain_on_host(on, bytes);
    }
    bool is_waited_for(address at) const noexcept {
        const granule* page = space_.find(at);
        return page != nullptr && page->has_hold_waiters();
    }
    // A moment, not until they are gone: they may wait for a hold of this thread's.
    static void give_way(const granule& page) noexcept {
        for (unsigned tries = 0; tries < 200 && page.has_hold_waiters(); ++tries) {
            ::usleep(100);
        }
    }
    // Waits for what made the two sides busy; this thread holds nothing.
    void await(address to, address from) noexcept {
        for (address at : {to, from}) {
            granule* page = space_.find(at);
            if (page != nullptr) {
                give_way(*page);
                page->await_rest();
                bool has_copies = false;
                space_.with_granule(
                    at, [&](granule& one) { has_copies = one.current() == residency::duplicated; });
                if (has_copies && at == to) {
                    page->await_no_holds();
                }
            }
        }
    }
    static void drop(side& one) noexcept {
        if (one.held != nullptr) {
            one.held->drop_hold();
        }
    }

    // Both groups, whatever becomes of either.
    status finish(group& work, group& sent) noexcept {
        status outcome = send(work);
        for (group* one : {&sent, &work}) {
            const status settled = settle(*one);
            outcome = outcome ? settled : outcome;
        }
        return outcome;
    }
    // Submits all pieces, one call for those that share a queue. settle() follows in any case.
    status send(group& work) noexcept {
        std::array<bool, group_size> is_sent{};
        status outcome{};
        for (unsigned i = 0; i < work.count && outcome; ++i) {
            if (is_sent[i]) {
                continue;
            }
            const group::entry& first = work.entries[i];
            if (first.carrier == nullptr) {
                copy_plain(first);
                continue;
            }
            if (first.far != nullptr) {
                outcome = copy_through_host(*first.far, *first.carrier, first.part);
                continue;
            }
            std::array<piece, group_size> pieces;
            std::array<va_range, group_size> fills;
            unsigned count = 0;
            for (unsigned j = i; j < work.count; ++j) {
                const group::entry& other = work.entries[j];
                if (other.carrier == first.carrier && other.is_in == first.is_in &&
                    other.is_fill == first.is_fill && other.far == nullptr) {
                    is_sent[j] = true;
                    fills[count] = other.part.to;
                    pieces[count++] = other.part;
                }
            }
            node& carrier = *first.carrier;
            const queue_id queue = carrier.queues[first.is_in ? node::urgent_in : node::urgent_out];
            result<ticket> point = first.is_fill
                                       ? carrier.driver.zero(queue, {fills.data(), count})
                                       : carrier.driver.memcpy(queue, {pieces.data(), count});
            if (point) {
                work.at[work.point_count] = &carrier;
                work.points[work.point_count++] = *point;
            } else {
                outcome = point.error();
            }
        }
        return outcome;
    }
    // Waits for what was sent, and lets the pages go.
    status settle(group& work) noexcept {
        status outcome{};
        for (unsigned i = 0; i < work.point_count; ++i) {
            const status waited = work.at[i]->driver.wait(work.points[i]);
            outcome = outcome ? waited : outcome;
        }
        for (unsigned i = 0; i < work.count; ++i) {
            for (granule* held : work.entries[i].held) {
                if (held != nullptr) {
                    held->drop_hold();
                }
            }
        }
        work.count = 0;
        work.point_count = 0;
        return outcome;
    }
    static void copy_plain(const group::entry& one) noexcept {
        if (one.is_fill) {
            std::memset(to_pointer(one.part.to.begin), 0, one.part.to.bytes);
            return;
        }
        std::memcpy(to_pointer(one.part.to.begin), to_pointer(one.part.from.begin),
                    one.part.to.bytes);
    }

    address_space& space_;
    mover& moves_;
    reclaimer& frames_;
};

}  // namespace xmm
