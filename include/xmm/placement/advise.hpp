// SPDX-License-Identifier: Apache-2.0
// advise.hpp - gmadvise: what each hint does.
//
// Model    Hints change pages, not regions. will_need and pin round outward to granules, dont_need rounds
//          inward, cold and the sticky hints round outward. Names and meaning follow the published GMEM.
// Threads  Any. A hint that loses a race to an unmap answers not_mapped; pages done before stay done.
// Failure  Only malformed input, pins, and a will_need whose job finds no memory or thread fail; a hint that cannot
//          be followed is dropped. A pin is all or nothing; pages that it moved by then stay where they came.
#pragma once

#include <xmm/placement/fault.hpp>
#include <xmm/placement/prefetch.hpp>

namespace xmm {

enum class advice : std::uint8_t {
    will_need,  // bring it to the node, mapped there
    dont_need,  // whole granules lose contents and frames; reads as zero or anything until written
    cold,       // first in line when the node runs low
    read_mostly,  // readers get copies, a write collapses them
    unset_read_mostly,
    preferred,  // first touch and faults place it on this node
    unset_preferred,
    pin,  // to the node (any_host: some host), and never moved until unpinned as often
    unpin,
};

[[nodiscard]] constexpr const char* name_of(advice what) noexcept {
    constexpr const char* names[] = {
        "will_need", "dont_need",       "cold", "read_mostly", "unset_read_mostly",
        "preferred", "unset_preferred", "pin",  "unpin"};
    return static_cast<unsigned>(what) < std::size(names) ? names[static_cast<unsigned>(what)]
                                                          : "?";
}

class adviser {
public:
    adviser(address_space& space, mover& moves, reclaimer& frames, prefetcher& early) noexcept
        : space_{space}, moves_{moves}, frames_{frames}, early_{early} {}

    // `to` is attached, the range not empty and all of it mapped when the call begins.
    status advise(place to, va_range range, advice what) noexcept {
        switch (what) {
            case advice::will_need: return bring(to, range);
            case advice::dont_need: return discard(range);
            case advice::pin: return pin(to, range);
            case advice::unpin: return unpin(range);
            default: break;
        }
        return for_each(range, [&](granule& page) { apply_locked(page, *to.at, what); });
    }

    // Waits until the pages are there, as far as they fit and nothing else holds them.
    status bring(place to, va_range range) noexcept {
        auto job = early_.start(range, to);
        if (job == nullptr) {
            return fail(errc::no_memory, "the host has no memory for a prefetch");
        }
        job->wait();
        return {};
    }

    // After a region was mapped: a driver that owns its pages is told where they stay.
    status settle_in(const region& made) noexcept {
        status told;
        space_.with_granule(made.va.begin, [&](granule& page) {
            told = moves_.keep_on_host(made.va, moves_.host_of(page));
        });
        return told;
    }

    // Every page resident on the node, or an error; nothing keeps it there afterwards. What comes late may push out
    // what came first, and others may take pages meanwhile: so all are looked at when all have come. They are not held
    // until then: heaps, kernels and the CPU would find no room, or wait, for as long as the range takes to come.
    // On a failure the pages that have come stay. no_memory, at once: larger than what the node may hold.
    status make_resident(place to, va_range range) noexcept {
        status seen;
        std::size_t all = 0;
        std::size_t missing = count_missing(to, range, seen, all);
        if (seen && missing > 0 && all > space_.limit_of(to)) {
            return refuse(*to.at, all, "a range larger than what its node may hold");
        }
        std::size_t fewest = SIZE_MAX;
        for (unsigned tries = 0; seen && tries < most_tries; ++tries) {
            seen = settle_all(to, range);
            missing = seen ? count_missing(to, range, seen, all) : missing;
            if (!seen || missing == 0) {
                return seen;
            }
            if (missing < fewest) {
                fewest = missing;
                tries = 0;
            }
        }
        if (!seen) {
            return seen;
        }
        // Where there is room for them, they went to somebody who wanted them elsewhere.
        return missing > room_at(to)
                   ? refuse(*to.at, missing, "the range does not fit beside what stays on its node")
                   : fail(errc::busy, "pages of the range were taken away while others came");
    }

    // Resident on the node and held: frames stay until release_hold. All or nothing.
    status hold(place to, va_range range) noexcept {
        unsigned rounds = 0;
        for (address at = range.begin; at < range.end();) {
            granule_in_use busy;
            result<va_range> there = settle(
                to, at, [](granule& page) { page.add_hold_locked(); }, false, &busy);
            if (there) {
                at = there->end();
                continue;
            }
            release_hold({range.begin, at - range.begin});
            if (busy.page == nullptr || ++rounds == max_rounds) {
                return there.error();
            }
            // With nothing held: a launch that has marked this page may wait for one of those before it.
            space_.uses().await_unused(*busy.page, busy.va, use_grip::firm);
            at = range.begin;
        }
        return {};
    }
    void release_hold(va_range range) noexcept {
        for (address at = range.begin; at < range.end();) {
            granule* page = space_.find(at);
            XMM_ASSERT(page != nullptr, "held pages were unmapped");
            const address after = with(page->lock, [&] { return page->va.end(); });
            page->drop_hold();
            at = after;
        }
    }

private:
    static constexpr unsigned max_rounds = 10000;
    static constexpr unsigned most_tries = 4;  // that bring no more of a range together
    struct granule_in_use {
        granule* page = nullptr;
        va_range va;
    };

    template <class Fn>
    status for_each(va_range range, Fn&& fn) noexcept {
        for (address at = range.begin; at < range.end();) {
            address after = 0;
            if (!space_.with_granule(at, [&](granule& page) {
                    fn(page);
                    after = page.va.end();
                })) {
                return fail(errc::not_mapped, "the range was unmapped meanwhile");
            }
            at = after;
        }
        return {};
    }

    status settle_all(place to, va_range range) noexcept {
        for (address at = range.begin; at < range.end();) {
            result<va_range> there = settle(to, at, [](granule&) {});
            if (!there) {
                return there.error();
            }
            at = there->end();
        }
        return {};
    }
    // Bytes of granules that are not on the node now, of `all`. A copy counts: its contents are the page's.
    std::size_t count_missing(place to, va_range range, status& seen, std::size_t& all) noexcept {
        std::size_t missing = 0;
        all = 0;
        seen = for_each(range, [&](granule& page) {
            const bool is_there = is_resident(page.current()) && !page.is_moving() &&
                                  space_.frame_at(page, to) != nullptr;
            all += page.va.bytes;
            missing += is_there ? 0 : page.va.bytes;
        });
        return missing;
    }
    // What the node, or any host, may have beside what it has.
    std::size_t room_at(place to) noexcept {
        std::size_t room = 0;
        for (unsigned slot = 0; slot < space_.node_count(); ++slot) {
            node& one = space_.at_slot(slot);
            if (&one == to.at || (to.is_any_host && one.is_host)) {
                const std::size_t limit = one.book->limit();
                const std::size_t more =
                    one.pool.free_bytes() + limit - std::min(limit, one.book->used());
                room += std::min(more, SIZE_MAX - room);
            }
        }
        return room;
    }
    status refuse(const node& on, std::size_t bytes, const char* why) noexcept {
        const status refused = fail(errc::no_memory, why);
        frames_.note_shortage(on, bytes, refused.why);
        return refused;
    }

    void apply_locked(granule& page, node& to, advice what) noexcept {
        switch (what) {
            case advice::cold:
                for (unsigned slot = 0; slot < space_.node_count(); ++slot) {
                    // Of an arena's frames no list knows.
                    if (page.frames[slot] != nullptr && !page.is_moving() && !page.is_arena) {
                        space_.at_slot(slot).active.move_to_old(*page.frames[slot]);
                    }
                }
                break;
            // Writers keep their mapping: the next move or copy takes it. A driver that owns the pages is told of
            // both hints when it matters: of copies while there are some, of the host where they stay at once.
            case advice::read_mostly: page.is_read_mostly = true; break;
            case advice::unset_read_mostly: page.is_read_mostly = false; break;
            case advice::preferred: prefer_locked(page, to.slot); break;
            case advice::unset_preferred: prefer_locked(page, no_slot); break;
            default: break;
        }
    }
    void prefer_locked(granule& page, std::uint8_t slot) noexcept {
        const node& before = moves_.host_of(page);
        page.preferred = slot;
        const node& after = moves_.host_of(page);
        if (&before != &after) {
            static_cast<void>(moves_.keep_on_host(page.va, after));
        }
    }

    status discard(va_range range) noexcept {
        space_.uses().retire_finished();  // pages of finished kernels are not in use
        for (address at = range.begin; at < range.end();) {
            address after = 0;
            granule* moving = nullptr;
            granule* leaving = nullptr;
            const bool is_there = space_.with_granule(at, [&](granule& page) {
                after = page.va.end();
                if (!range.contains(page.va) || page.pins > 0 || page.is_fixed || page.is_held() ||
                    page.is_used() || page.current() == residency::untouched) {
                    return;
                }
                if (page.is_moving()) {
                    moving = &page;
                    return;
                }
                if (moves_.is_steering()) {
                    page.begin_transit_locked(false);
                    leaving = &page;
                    return;
                }
                static_cast<void>(
                    moves_.discard_locked(page, residency_step::discard, residency::untouched));
            });
            if (!is_there) {
                return fail(errc::not_mapped, "the range was unmapped meanwhile");
            }
            if (leaving != nullptr) {
                static_cast<void>(moves_.forget(*leaving));
            }
            if (moving != nullptr) {
                moving->await_rest();
            } else {
                at = after;
            }
        }
        return {};
    }

    status pin(place to, va_range range) noexcept {
        for (address at = range.begin; at < range.end();) {
            result<va_range> there = settle(
                to, at, [](granule& page) { ++page.pins; }, true);
            if (!there) {
                static_cast<void>(unpin_pages({range.begin, at - range.begin}));
                return there.error();
            }
            at = there->end();
        }
        return {};
    }
    status unpin(va_range range) noexcept {
        bool all_pinned = true;
        status outcome = for_each(range, [&](granule& page) { all_pinned &= page.pins > 0; });
        if (outcome && !all_pinned) {
            outcome = fail(errc::invalid_argument, "unpinned more often than pinned");
        }
        return outcome ? unpin_pages(range) : outcome;
    }
    status unpin_pages(va_range range) noexcept {
        if (range.is_empty()) {
            return {};
        }
        return for_each(range, [](granule& page) { page.pins -= page.pins > 0 ? 1 : 0; });
    }

    // Brings one granule to the node as its single home, then runs fn(page) with the lock held, in the
    // same breath: nothing can move it in between. Answers the granule's range.
    // With `busy`, a page that a launch uses is named there and not waited for.
    template <class Fn>
    result<va_range> settle(place to, address at, Fn&& fn, bool counts_pins = false,
                            granule_in_use* busy = nullptr) noexcept {
        enum { done, again, rest, holds, uses, move, place_again } next = done;
        bool is_placed = false;  // this call has told the driver that owns the pages
        hold_waiter holders;
        for (unsigned round = 0; round < max_rounds; ++round) {
            granule* found = nullptr;
            va_range va;
            status outcome;
            const bool is_there = space_.with_granule(at, [&](granule& page) {
                found = &page;
                va = page.va;
                next = done;
                if (page.is_moving()) {
                    next = rest;
                } else if (const status noted = moves_.note_on_host_locked(page); !noted) {
                    outcome = noted;
                } else if (!is_placed && is_at_home_locked(page, to) &&
                           moves_.is_worth_placing_locked(page, *to.at)) {
                    page.begin_transit_locked(false);
                    next = place_again;
                } else if (is_at_home_locked(page, to)) {
                    outcome = enter_home_locked(page);
                    if (outcome) {
                        fn(page);
                    }
                } else if (page.pins > 0 || (page.is_fixed && is_resident(page.current()))) {
                    outcome = fail(errc::busy, counts_pins ? "already pinned on another node"
                                                           : "pinned or fixed on another node");
                } else if (page.is_held()) {
                    next = holds;
                } else if (!moves_.can_lose_mappings_locked(page)) {
                    next = uses;
                } else if (page.current() == residency::duplicated) {
                    const frame_record* there = space_.frame_at(page, to);
                    const unsigned keep = there != nullptr ? there->slot : page.home;
                    outcome = moves_.collapse_locked(page, keep);
                    next = again;
                } else {
                    page.begin_transit_locked(false);
                    next = move;
                }
            });
            if (!is_there) {
                return fail(errc::not_mapped, "the range was unmapped meanwhile");
            }
            if (!outcome) {
                return outcome;
            }
            switch (next) {
                case done: return va;
                case again: break;
                case rest: found->await_rest(); break;
                case holds: holders.await(*found); break;
                case uses:
                    if (busy != nullptr) {
                        *busy = {found, va};
                        return fail(errc::busy,
                                    "a launch on a device without faults uses the page");
                    }
                    space_.uses().await_unused(*found, va, use_grip::firm);
                    break;
                case place_again:
                    if (status placed = moves_.place_again(*to.at, {&found, 1}, false); !placed) {
                        return placed;
                    }
                    is_placed = true;
                    break;
                case move:
                    is_placed = true;
                    if (status moved = move_to(*found, to, va.bytes); !moved) {
                        return moved;
                    }
                    break;
            }
        }
        return fail(errc::busy, "the page was taken away as often as it was brought in");
    }
    status move_to(granule& page, place to, std::size_t bytes) noexcept {
        page_move one{.moved = &page, .accessor = to.at->accessor()};
        return frames_.bring(one, frames_.obtain(to, bytes));
    }
    // As the page's single home: a copy might be dropped.
    bool is_at_home_locked(granule& page, place to) noexcept {
        return is_resident(page.current()) && page.current() != residency::duplicated &&
               space_.frame_at(page, to) != nullptr;
    }
    status enter_home_locked(granule& page) noexcept {
        node& to = space_.at_slot(page.home);
        moves_.relink_locked(page);
        return has_write(page.mapped[to.accessor()])
                   ? status{}
                   : moves_.enter_locked(page, to.accessor(), access::read_write);
    }

    address_space& space_;
    mover& moves_;
    reclaimer& frames_;
    prefetcher& early_;
};

}  // namespace xmm
