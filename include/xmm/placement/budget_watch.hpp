// SPDX-License-Identifier: Apache-2.0
// budget_watch.hpp - what others leave of a device's memory, looked up ten times a second.
//
// Model    A device's ledger has as its capacity what we hold and what is free, less a headroom, so that libraries and
//          other processes find memory before anything of theirs or ours fails; where they took so much that we hold
//          more than that, pages are demoted and idle frames of heaps given back. Only devices that are to keep a
//          headroom, and whose driver can tell, are watched; without one there is no thread. It also tells a driver
//          that owns the pages to map those that lost their mappings as frames were won.
// Threads  One of its own. measure() from any.
// Failure  A driver that does not answer, or frames that come and go without pause, leave the capacity as it was.
//          Pinned and used pages may keep a node above its limit until the next look. Where no thread is to be had
//          the first look is the only one, and only launches have pages mapped again.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <xmm/os/registry.hpp>
#include <xmm/os/signal_mask.hpp>
#include <xmm/placement/reclaim.hpp>

namespace xmm {

class budget_watch {
public:
    static constexpr std::chrono::milliseconds period{100};

    budget_watch(address_space& space, mover& moves, reclaimer& frames) noexcept
        : space_{space}, moves_{moves}, frames_{frames} {}
    budget_watch(const budget_watch&) = delete;
    budget_watch& operator=(const budget_watch&) = delete;
    ~budget_watch() { stop(); }

    // After devices were attached: a first look at once, the others by the thread.
    void start() noexcept {
        if (!measure_all() || thread_.joinable()) {
            return;
        }
        detail::keep_this_object();  // for the thread; kept already where locks are held
        try {
            const detail::signals_blocked quiet;  // signals belong to the program's own threads
            thread_ = std::thread{[this] { watch(); }};
        } catch (const std::exception&) {
            return;  // the devices are attached, and of use without it
        }
    }
    void stop() noexcept {
        {
            std::lock_guard guard{lock_};
            // relaxed: under the lock, and by itself for a shrink under way.
            is_stopping_.store(true, std::memory_order_relaxed);
        }
        bell_.notify_all();
        if (thread_.joinable()) {
            thread_.join();
        }
    }

    // Brings the ledger of a device up to date. False: it is not watched.
    bool measure(node& one) noexcept {
        if (one.is_host || one.about.headroom_bytes == 0 || !one.driver.has_free_bytes()) {
            return false;
        }
        if (one.about.host_bytes_per_table_byte != 0) {
            std::size_t host_bytes = 0;
            for (unsigned slot = 0; slot < space_.host_count(); ++slot) {
                host_bytes += space_.at_slot(slot).book->used();
            }
            const std::size_t tables = host_bytes / one.about.host_bytes_per_table_byte;
            one.book->set_overhead(align_up(tables, page_bytes) + page_bytes);
        }
        // What is being created, or dropped, at a look counts as ours and as free: once more, when it is done.
        for (unsigned tries = 0; tries < 8; ++tries) {
            const std::optional<std::uint64_t> changes = one.book->changes_if_quiet();
            if (!changes) {
                std::this_thread::sleep_for(std::chrono::milliseconds{1});
                continue;
            }
            const std::size_t used = one.book->used();
            const result<std::size_t> free = one.driver.free_bytes(one.id);
            if (!free) {
                return true;
            }
            // What is charged alone, on behalf of a driver that owns the pages, is no change: so both are asked.
            if (used == one.book->used() && *changes == one.book->changes_begun()) {
                set_capacity(one, used + *free);
                return true;
            }
        }
        return true;  // the next look may meet more quiet
    }

private:
    // ours: what we hold and what is free.
    static void set_capacity(node& one, std::size_t ours) noexcept {
        const std::size_t headroom = std::min(one.about.headroom_bytes, one.about.bytes);
        one.book->set_capacity(
            std::min(ours > headroom ? ours - headroom : 0, one.about.bytes - headroom));
    }
    bool measure_all() noexcept {
        bool is_any = false;
        for (unsigned slot = space_.host_count(); slot < space_.node_count(); ++slot) {
            is_any = measure(space_.at_slot(slot)) || is_any;
        }
        return is_any;
    }
    // While frames are being won it would only be in the way; but not for ever.
    void map_when_quiet() noexcept {
        constexpr unsigned most_put_off = 10;
        std::uint32_t won = 0;
        for (unsigned slot = space_.host_count(); slot < space_.node_count(); ++slot) {
            // relaxed: a hint.
            won += space_.at_slot(slot).reclaims_won.load(std::memory_order_relaxed);
        }
        const bool is_quiet = std::exchange(seen_won_, won) == won;
        if (is_quiet || ++put_off_ > most_put_off) {
            put_off_ = 0;
            // Two parts a look: those that come meanwhile have the next one.
            static_cast<void>(moves_.map_some_in_place() && moves_.map_some_in_place());
        }
    }
    void watch() noexcept {
        std::unique_lock lock{lock_};
        // relaxed: as in stop.
        while (!bell_.wait_for(lock, period,
                               [&] { return is_stopping_.load(std::memory_order_relaxed); })) {
            lock.unlock();
            map_when_quiet();
            for (unsigned slot = space_.host_count(); slot < space_.node_count(); ++slot) {
                node& one = space_.at_slot(slot);
                if (measure(one) && one.book->used() > one.book->limit()) {
                    static_cast<void>(frames_.shrink_to_limit(one, &is_stopping_));
                }
            }
            lock.lock();
        }
    }

    address_space& space_;
    mover& moves_;
    reclaimer& frames_;
    std::mutex lock_;  // held where is_stopping_ is set, so that the bell is heard
    std::condition_variable bell_;
    std::thread thread_;
    std::uint32_t seen_won_ = 0;  // the thread's own, as is the next
    unsigned put_off_ = 0;
    std::atomic<bool> is_stopping_{false};  // (A)
};

}  // namespace xmm
