// SPDX-License-Identifier: Apache-2.0
// reclaim.hpp - win back frames when a node runs low.
//
// Model    A frame is taken from the pool, or created, or won: from heaps that have idle ones, then from the
//          oldest mapped pages of the node:
//          clean copies are dropped, the rest is demoted to the nearest host, 32 MiB (of small nodes an
//          eighth) or one granule at a time. Demoted pages get no CPU mapping until the CPU touches
//          them. Pinned, fixed, held and moving pages are passed by, and used ones where the device
//          cannot move under access.
// Threads  Any number at once; each takes victims of its own.
// Failure  no_memory when nothing is left to take; the pages are as before.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include <unistd.h>

#include <xmm/os/signal_mask.hpp>
#include <xmm/placement/move.hpp>

namespace xmm {

// Why a node had no frame for somebody.
struct shortage {
    node_id node = no_node;
    std::size_t bytes = 0;  // asked for
    std::size_t used = 0;   // by this process then
    std::size_t limit = 0;
    const char* cause = "";
};

// For whom a thread waits that finds no frame. Who holds frames on their way to a node waits for none on their way: two
// might wait for each other's.
enum class awaited : std::uint8_t { reclaims, arrivals_too };

class reclaimer {
public:
    static constexpr std::size_t batch_bytes = std::size_t{32} << 20;
    static constexpr unsigned shrinking_threads = 4;
    // A driver that owns the pages is slower when several threads tell it; so one does, of much at once.
    static constexpr std::size_t steered_batch_bytes = std::size_t{512} << 20;
    static constexpr std::chrono::seconds patience{
        30};  // much more than one batch takes over any link

    reclaimer(address_space& space, mover& moves) noexcept : space_{space}, moves_{moves} {}

    // A frame on that node. Callers hold no lock; their own granule is in transit. The frame counts as on its way until
    // a move is done with it, or the stock has it back.
    [[nodiscard]] result<frame_record*> obtain(node& from, std::size_t bytes,
                                               awaited whom = awaited::arrivals_too) noexcept {
        // The driver may refuse what the ledger allows; a bound keeps two rivals from passing one
        // frame to and fro for ever.
        std::uint64_t latest_ns = 0;
        for (unsigned attempt = 0; attempt < 64;) {
            // acquire: pairs with the release in reclaim; read before the pool is asked.
            const std::uint32_t seen = from.reclaims_won.load(std::memory_order_acquire);
            result<frame_record*> taken = moves_.stock().take_counted(from, bytes);
            if (taken || taken.code() != errc::no_memory) {
                return taken;
            }
            // Of a small node no large part at once: what came last would go with the rest.
            const std::size_t wanted =
                std::max(bytes, std::min(batch_bytes, from.book->limit() / 8));
            if (reclaim(from, wanted) > 0) {
                ++attempt;
            } else if (!await_others(from, seen, whom, latest_ns)) {
                break;
            }
        }
        result<frame_record*> taken = moves_.stock().take_counted(from, bytes);
        if (!taken) {
            note_shortage(from, bytes, taken.error().why);
        }
        return taken;
    }
    // Charges the node for memory that is no frame; pages go for it as in obtain. Given back to the ledger. What it
    // answers is held until the driver has given the memory.
    [[nodiscard]] result<ledger::change> reserve(node& from, std::size_t bytes) noexcept {
        std::uint64_t latest_ns = 0;
        for (unsigned attempt = 0; attempt < 64 && bytes <= from.book->limit();) {
            // acquire: as in obtain.
            const std::uint32_t seen = from.reclaims_won.load(std::memory_order_acquire);
            do {
                ledger::change under_way{*from.book};
                if (from.book->try_reserve(bytes)) {
                    // nvcc takes no shorter form.
                    return result<ledger::change>{std::move(under_way)};
                }
            } while (from.book->drop_free_frame());
            if (reclaim(from, bytes) > 0) {
                ++attempt;
            } else if (!await_others(from, seen, awaited::arrivals_too, latest_ns)) {
                break;
            }
        }
        ledger::change under_way{*from.book};
        if (from.book->try_reserve(bytes)) {
            return result<ledger::change>{std::move(under_way)};
        }
        const status refused = fail(errc::no_memory, "the node's budget is used up");
        note_shortage(from, bytes, refused.why);
        return refused;
    }
    void note_shortage(const node& from, std::size_t bytes, const char* why) noexcept {
        const shortage now{from.id, bytes, from.book->used(), from.book->limit(), why};
        with(shortage_lock_, [&] { last_shortage_ = now; });
    }
    // The last time that obtain or reserve found nothing, or that somebody noted it; node no_node: never.
    [[nodiscard]] shortage last_shortage() const noexcept {
        std::lock_guard guard{shortage_lock_};
        return last_shortage_;
    }

    // A frame for pages that leave a device: on the nearest host, else on any.
    [[nodiscard]] result<frame_record*> obtain_on_host(
        const node& near, std::size_t bytes, awaited whom = awaited::arrivals_too) noexcept {
        node& first = space_.host_near(near);
        result<frame_record*> taken = obtain(first, bytes, whom);
        for (unsigned slot = 0; slot < space_.host_count() && !taken; ++slot) {
            if (slot != first.slot) {
                result<frame_record*> other = obtain(space_.at_slot(slot), bytes, whom);
                if (other) {
                    return other;
                }
            }
        }
        return taken;
    }

    // On the one node, or on any host.
    [[nodiscard]] result<frame_record*> obtain(place from, std::size_t bytes,
                                               awaited whom = awaited::arrivals_too) noexcept {
        return from.is_any_host ? obtain_on_host(*from.at, bytes, whom)
                                : obtain(*from.at, bytes, whom);
    }

    // Moves a granule in transit into the frame, which need not have been had, and ends its transit.
    status bring(page_move& one, result<frame_record*> into) noexcept {
        if (!into) {
            end_transit(*one.moved);
            return into.error();
        }
        one.to = *into;
        static_cast<void>(moves_.move({&one, 1}, false));
        return one.outcome;
    }
    static void end_transit(granule& one) noexcept {
        with(one.lock, [&] { one.end_transit_locked(); });
    }

    // Frees about that many bytes of the node's frames into its pool; returns how many.
    std::size_t reclaim(node& from, std::size_t wanted) noexcept {
        from.reclaims.fetch_add(1, std::memory_order_relaxed);  // relaxed: counted, no more
        const std::size_t won = reclaim_counted(from, wanted);
        if (won > 0) {
            // release: pairs with the acquire in obtain; the frames won are in the pool.
            from.reclaims_won.fetch_add(1, std::memory_order_release);
        }
        // release, both: pair with the acquires in await_others, where each is read before the one above it.
        // Who waits for others that are at work still need not look at one that won nothing.
        const bool was_last = from.reclaims.fetch_sub(1, std::memory_order_release) == 1;
        if (won > 0 || was_last) {
            from.reclaims_ended.fetch_add(1, std::memory_order_release);
            detail::futex_wake_all(from.reclaims_ended);
        }
        return won;
    }

    // Brings the node back under its limit after the budget was lowered. False if pinned or used pages
    // keep it above, or if `gives_up` was set meanwhile.
    bool shrink_to_limit(node& one, const std::atomic<bool>* gives_up = nullptr) noexcept {
        one.pool.trim(0);
        // One batch is copied while others are cleared, mapped and dropped.
        std::array<std::thread, shrinking_threads - 1> others;
        const std::size_t used = one.book->used();
        if (!is_steered(one) && used > one.book->limit() &&
            used - one.book->limit() >= 8 * batch_bytes) {
            const detail::signals_blocked quiet;  // signals belong to the program's own threads
            for (std::thread& other : others) {
                try {
                    other = std::thread{[&] { static_cast<void>(shrink_alone(one, gives_up)); }};
                } catch (const std::exception&) {
                    break;  // fewer do as well
                }
            }
        }
        const bool is_below = shrink_alone(one, gives_up);
        bool are_others = false;
        for (std::thread& other : others) {
            if (other.joinable()) {
                other.join();
                are_others = true;
            }
        }
        return is_below || (are_others && shrink_alone(one, gives_up));
    }

    [[nodiscard]] bool can_move_locked(const granule& one) noexcept {
        return !one.is_moving() && !one.is_held() && one.pins == 0 && !one.is_fixed &&
               moves_.can_lose_mappings_locked(one);
    }

private:
    bool shrink_alone(node& one, const std::atomic<bool>* gives_up) noexcept {
        // What is won may be taken by others before it is dropped: as in obtain, not for ever.
        std::size_t lowest = SIZE_MAX;
        for (unsigned attempt = 0; attempt < 64; ++attempt) {
            // acquire: pairs with the release in reclaim; read before the ledger is.
            const std::uint32_t seen = one.reclaims_won.load(std::memory_order_acquire);
            const std::size_t used = one.book->used();
            const std::size_t limit = one.book->limit();
            if (used <= limit) {
                return true;
            }
            if (used < lowest) {
                lowest = used;
                attempt = 0;
            }
            // relaxed: nothing else is read by who set it.
            if (gives_up != nullptr && gives_up->load(std::memory_order_relaxed)) {
                return false;
            }
            const std::size_t part = is_steered(one)
                                         ? std::min(used - limit, steered_batch_bytes)
                                         : std::max((used - limit) / shrinking_threads,
                                                    std::min(used - limit, batch_bytes));
            std::uint64_t latest_ns = 0;
            if (reclaim(one, part) == 0 &&
                !await_others(one, seen, awaited::arrivals_too, latest_ns)) {
                break;
            }
            one.pool.trim(0);
        }
        return one.book->used() <= one.book->limit();
    }

    std::size_t reclaim_counted(node& from, std::size_t wanted) noexcept {
        space_.uses().retire_finished();  // pages of finished kernels may go
        // acquire: pairs with the release in device_heap.
        frame_lender* lender = from.lender.load(std::memory_order_acquire);
        std::size_t won = lender != nullptr ? lender->give_back(wanted) : 0;
        for (unsigned looks = 0; won < wanted;) {
            std::array<granule*, max_batch> victims;
            bool was_locked = false;
            const unsigned count = take_victims(from, wanted - won, victims, was_locked);
            if (count == 0) {
                // Of a small node one page may be all that there is: somebody looks at it, for a moment.
                if (won > 0 || !was_locked || ++looks > most_looks) {
                    break;
                }
                ::usleep(100);
                continue;
            }
            const std::size_t more = free_victims(from, {victims.data(), count});
            if (more == 0) {
                break;  // the hosts are full, too
            }
            won += more;
        }
        from.reclaimed_bytes.add(won);
        return won;
    }
    // The last victims may be in others' hands, which is no lack of frames. True: somebody has won some since `seen`
    // was read, or a frame has arrived that may go, so look again. One that ends with nothing is no reason: two who see
    // each other end would never stop. The first call says until when all of them may last.
    static bool await_others(node& from, std::uint32_t seen, awaited whom,
                             std::uint64_t& latest_ns) noexcept {
        // Ours has ended. Others wait for nobody on this node: they lead to the host, or have a frame and bring it in.
        // How many end with nothing says nothing of one that is still at work. New ones may come as old ones end, so
        // not for all of them for ever.
        if (latest_ns == 0) {
            latest_ns = detail::monotonic_ns() + std::chrono::nanoseconds{patience}.count();
        }
        while (detail::monotonic_ns() < latest_ns) {
            // acquire, all: pair with the releases in reclaim and note_arrival. One that has ended here has left
            // `reclaims` or `coming`, and one that has left those is counted below if it won.
            const std::uint32_t ended = from.reclaims_ended.load(std::memory_order_acquire);
            const bool are_others =
                from.reclaims.load(std::memory_order_acquire) != 0 ||
                (whom == awaited::arrivals_too && from.coming.load(std::memory_order_acquire) != 0);
            // acquire: as in obtain.
            if (from.reclaims_won.load(std::memory_order_acquire) != seen) {
                return true;
            }
            if (!are_others) {
                return false;
            }
            detail::futex_wait_until(from.reclaims_ended, ended, latest_ns);
        }
        return false;
    }

    static constexpr unsigned most_looks = 50;

    // `was_locked`: some page was passed by because its lock was held.
    unsigned take_victims(node& from, std::size_t wanted, std::array<granule*, max_batch>& victims,
                          bool& was_locked) noexcept {
        unsigned count = 0;
        std::size_t bytes = 0;
        while (count < max_batch && bytes < wanted) {
            granule* victim = from.active.pop_victim([&](frame_record& oldest) {
                granule& page = *oldest.owner;
                if (!page.lock.try_lock()) {
                    was_locked = true;
                    return false;
                }
                const bool can_go = can_move_locked(page) && (!from.is_host || is_copy(page, from));
                if (can_go) {
                    page.begin_transit_locked(false);
                    bytes += page.va.bytes;
                }
                page.lock.unlock();
                return can_go;
            });
            if (victim == nullptr) {
                break;
            }
            victims[count++] = victim;
        }
        return count;
    }
    // From a host only clean copies can go: nothing is roomier. A driver's own stay with the devices' (see
    // steered.hpp).
    static bool is_copy(const granule& page, const node& on) noexcept {
        return page.current() == residency::duplicated && page.home != on.slot && !is_steered(on);
    }

    std::size_t free_victims(node& from, std::span<granule*> victims) noexcept {
        std::array<page_move, max_batch> batch;
        unsigned count = 0;
        std::size_t won = 0;
        for (granule* victim : victims) {
            // In transit: va, state and frames are this thread's to read.
            const std::size_t bytes = victim->va.bytes;
            if (victim->current() == residency::duplicated) {
                won += drop_copies(*victim, from) ? bytes : 0;
                continue;
            }
            result<frame_record*> to =
                obtain_on_host(from, bytes, count > 0 ? awaited::reclaims : awaited::arrivals_too);
            if (!to) {
                give_up(*victim, from);
                continue;
            }
            batch[count++] = {.moved = victim, .to = *to};
        }
        if (count > 0) {
            static_cast<void>(moves_.move({batch.data(), count}, false));
            for (unsigned i = 0; i < count; ++i) {
                won += batch[i].outcome ? batch[i].bytes : 0;
            }
        }
        return won;
    }

    // Ends the transit. A host's copy becomes the home if the home was here.
    bool drop_copies(granule& victim, node& from) noexcept {
        std::lock_guard guard{victim.lock};
        status outcome{};
        if (victim.home != from.slot) {
            outcome = moves_.drop_copy_locked(victim, from.slot);
        } else {
            unsigned other = 0;
            while (other == from.slot || victim.frames[other] == nullptr) {
                ++other;  // there is one: the state says so
            }
            outcome = moves_.collapse_locked(victim, other);
        }
        if (outcome) {
            from.copies_dropped.add(1);
        } else {
            from.active.move_to_recent(*victim.frames[from.slot]);
        }
        victim.end_transit_locked();
        return outcome.is_ok();
    }
    void give_up(granule& victim, node& from) noexcept {
        std::lock_guard guard{victim.lock};
        from.active.move_to_recent(*victim.frames[from.slot]);
        victim.end_transit_locked();
    }

    address_space& space_;
    mover& moves_;
    mutable ranked_mutex<lock_rank::leaf> shortage_lock_;
    shortage last_shortage_;  // guarded by shortage_lock_
};

}  // namespace xmm
