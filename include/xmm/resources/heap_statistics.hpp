// SPDX-License-Identifier: Apache-2.0
// heap_statistics.hpp - counts what a device's heap has handed out and holds.
//
// Model    Blocks are counted in stripes, each written by one thread; frames and rare events in one place.
//          A block is allocated until it is given back, and active until its last use is over as well.
//          Peaks of frames are exact. Those of blocks are looked at for each metric and pool by itself: each stripe
//          answers for so much of it, and asks for more when it is past that; when all together answer for more than
//          the highest peak, a new peak is looked at, and if there is none, those that asked share what is left up to
//          the highest. A stripe looks at itself at each block of 1 MiB and more, so that none is missed but where its
//          thread counts it at the very moment at which another one looks. What smaller ones add between two looks may
//          be missed: below 1 MiB, and 4096 blocks, a stripe. Threads that go up and down below what they had together
//          share next to nothing. A stripe is seen as it was at one moment, all of them at moments close by: a block
//          that one thread allocates and another one frees in between may be counted or missed. Cached small blocks
//          are counted by class, outside of that moment: of one thread's, the latest may be missed.
//          In a child of fork no peak is looked at, and nothing begins anew.
// Threads  Any; a stripe belongs to one thread at a time. One lock (rank leaf) guards the list of
//          stripes, the frames and the peaks.
// Failure  try_attach answers null without memory; on_shared serves a thread that has no stripe.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include <xmm/core/list.hpp>
#include <xmm/core/lock.hpp>
#include <xmm/core/types.hpp>
#include <xmm/os/registry.hpp>
#include <xmm/resources/block_classes.hpp>
#include <xmm/resources/heap_figures.hpp>

namespace xmm {

class heap_statistics {
    // The metrics that blocks have, the first ones; of each: all, small, large.
    static constexpr std::size_t block_metrics = 5;
    template <class T>
    using per_pool = std::array<std::array<T, 1 + heap_pools>, block_metrics>;
    using net = std::array<std::int64_t, block_metrics>;

    static constexpr std::int64_t look_bytes = std::int64_t{1} << 20;
    static constexpr std::int64_t look_blocks = 4096;

    [[nodiscard]] static constexpr bool is_count(std::size_t metric) noexcept {
        return metric == static_cast<unsigned>(heap_metric::allocation) ||
               metric == static_cast<unsigned>(heap_metric::active);
    }

public:
    // The counts of one thread, a few ns a block. No atomic here is read-modify-written.
    class alignas(64) stripe {
    public:
        void allocated(heap_pool pool, std::size_t bytes, std::size_t requested) noexcept {
            write(pool, [&](tally& to) {
                add(to.given_count, 1);
                add(to.given_bytes, bytes);
                add(to.given_requested, requested);
            });
            if (pool == heap_pool::small) {
                note_small(bytes);
            } else if (asks_) {
                note_large(bytes);
            }
        }
        // The program let go; work of a queue may still use the block.
        void free_requested(heap_pool pool, std::size_t bytes) noexcept {
            write(pool, [&](tally& to) {
                add(to.left_count, 1);
                add(to.left_bytes, bytes);
            });
        }
        // The block may be reused. Follows its free_requested, maybe from another thread; the same sizes
        // as at its allocation.
        void free_completed(heap_pool pool, std::size_t bytes, std::size_t requested) noexcept {
            write(pool, [&](tally& to) { complete(to, bytes, requested); });
        }
        // The way of a cached small block: one count each, sizes follow from the class.
        void small_allocated(unsigned block_class) noexcept {
            add(quick_[block_class].given, 1);
            note_small(block_classes::bytes_of(block_class));
        }
        void small_freed(unsigned block_class) noexcept { add(quick_[block_class].freed, 1); }
        // Both at once, for a block that no queue can still use.
        void freed(heap_pool pool, std::size_t bytes, std::size_t requested) noexcept {
            write(pool, [&](tally& to) {
                add(to.left_count, 1);
                add(to.left_bytes, bytes);
                complete(to, bytes, requested);
            });
        }

    private:
        friend class heap_statistics;
        using counter = std::atomic<std::uint64_t>;
        template <class T>
        struct tally_of {
            T given_count{0}, given_bytes{0}, given_requested{0};
            T left_count{0}, left_bytes{0};
            T done_count{0}, done_bytes{0}, done_requested{0};
        };
        struct alignas(64) tally : tally_of<counter> {};
        using reading = tally_of<std::uint64_t>;
        // What there is, by metric. Below 0 where others free what this thread allocates.
        [[nodiscard]] static net net_of(const reading& from) noexcept {
            const auto left = [](std::uint64_t up, std::uint64_t down) {
                return static_cast<std::int64_t>(up - down);
            };
            return {
                left(from.given_count, from.left_count), left(from.given_bytes, from.left_bytes),
                left(from.given_count, from.done_count), left(from.given_bytes, from.done_bytes),
                left(from.given_requested, from.done_requested)};
        }

        explicit stripe(heap_statistics& owner, bool asks = true) noexcept
            : owner_{owner}, asks_{asks} {}

        template <class Fn>
        void write(heap_pool pool, Fn&& fn) noexcept {
            // relaxed: this thread is the only writer.
            const std::uint64_t version = version_.load(std::memory_order_relaxed);
            version_.store(version + 1, std::memory_order_relaxed);
            fn(tallies_[static_cast<unsigned>(pool)]);
            // release: pairs with the acquire in read; the numbers of this version are complete.
            version_.store(version + 2, std::memory_order_release);
        }
        static void add(counter& to, std::uint64_t amount) noexcept {
            // release: pairs with the acquire in read; who sees the new number sees an odd version after it.
            to.store(to.load(std::memory_order_relaxed) + amount, std::memory_order_release);
        }
        static void complete(tally& to, std::size_t bytes, std::size_t requested) noexcept {
            add(to.done_count, 1);
            add(to.done_bytes, bytes);
            add(to.done_requested, requested);
        }
        // As it was at one moment; a writer that is stopped halfway is not waited for.
        [[nodiscard]] std::array<reading, heap_pools> read() const noexcept {
            constexpr int most_tries = 100;
            std::array<reading, heap_pools> seen;
            for (int i = 0; i < most_tries; ++i) {
                const std::uint64_t version = version_.load(std::memory_order_acquire);
                for (std::size_t pool = 0; pool < heap_pools; ++pool) {
                    seen[pool] = read(tallies_[pool]);
                }
                // relaxed: not before the acquiring loads above it.
                if (version % 2 == 0 && version_.load(std::memory_order_relaxed) == version) {
                    break;
                }
            }
            add_quick(seen[static_cast<unsigned>(heap_pool::small)]);
            return seen;
        }
        void add_quick(reading& to) const noexcept {
            for (unsigned one = 0; one < block_classes::count; ++one) {
                // What was freed is read first, so that nothing is freed before it was given. acquire: pairs
                // with the release in add.
                const std::uint64_t freed = quick_[one].freed.load(std::memory_order_acquire);
                const std::uint64_t given = quick_[one].given.load(std::memory_order_acquire);
                const std::uint64_t bytes = block_classes::bytes_of(one);
                to.given_count += given;
                to.given_bytes += given * bytes;
                to.given_requested += given * bytes;
                to.left_count += freed;
                to.left_bytes += freed * bytes;
                to.done_count += freed;
                to.done_bytes += freed * bytes;
                to.done_requested += freed * bytes;
            }
        }
        [[nodiscard]] static reading read(const tally& from) noexcept {
            const auto get = [](const counter& one) { return one.load(std::memory_order_acquire); };
            return {get(from.given_count), get(from.given_bytes),   get(from.given_requested),
                    get(from.left_count),  get(from.left_bytes),    get(from.done_count),
                    get(from.done_bytes),  get(from.done_requested)};
        }
        // Every so many bytes, and as many blocks, are worth a look.
        void note_small(std::size_t bytes) noexcept {
            room_ -= static_cast<std::int64_t>(bytes + look_bytes / look_blocks);
            if (room_ < 0) {
                look_at_small();
            }
        }
        [[gnu::noinline]] void look_at_small() noexcept {
            room_ = look_bytes;
            if (asks_) {
                small_ = net_of(read()[static_cast<unsigned>(heap_pool::small)]);
                if (is_past_anywhere(true)) {
                    owner_.answer_for(*this);
                }
            }
        }
        // A block of 1 MiB and more asks as soon as the stripe is past its share, whatever is left of that.
        void note_large(std::size_t bytes) noexcept {
            const bool is_exact = bytes >= static_cast<std::size_t>(look_bytes);
            // Of the small ones the latest look is good enough to tell that it is not.
            if (is_past_anywhere(is_exact)) {
                ask_for_large(is_exact);
            }
        }
        [[gnu::noinline]] void ask_for_large(bool is_exact) noexcept {
            room_ = look_bytes;
            small_ = net_of(read()[static_cast<unsigned>(heap_pool::small)]);
            if (is_past_anywhere(is_exact)) {
                owner_.answer_for(*this);
            }
        }
        [[nodiscard]] bool is_past_anywhere(bool is_exact) const noexcept {
            const net large = net_of(read(tallies_[static_cast<unsigned>(heap_pool::large)]));
            for (std::size_t i = 0; i < large.size(); ++i) {
                // What small blocks have added since the latest look is not seen here: both together are the bound.
                const std::int64_t room = is_count(i) ? room_ / (look_bytes / look_blocks) : room_;
                const std::int64_t slack = is_exact ? 0 : std::max<std::int64_t>(room - 1, 0);
                const auto is_past = [&](std::size_t place, std::int64_t now) {
                    // relaxed: a number; who is past it asks under the lock.
                    return now - answered_[i][place].load(std::memory_order_relaxed) > slack;
                };
                if (is_past(0, small_[i] + large[i]) || is_past(1, small_[i]) ||
                    is_past(2, large[i])) {
                    return true;
                }
            }
            return false;
        }
        std::atomic<std::uint64_t> version_{0};  // odd while its thread writes
        heap_statistics& owner_;
        const bool asks_;
        // Its thread's, both: what small blocks may take until it looks at itself, and what they had when it did.
        std::int64_t room_ = look_bytes;
        net small_{};
        // Its share of the owner's answered_; written under the owner's lock.
        per_pool<std::atomic<std::int64_t>> answered_{};
        per_pool<bool> has_asked_{};  // since shares were last handed out; under the owner's lock
        list_link link_;              // under the owner's lock
        std::array<tally, heap_pools> tallies_;
        struct quick_tally {
            counter given{0}, freed{0};
        };
        std::array<quick_tally, block_classes::count> quick_;
    };

    heap_statistics() = default;
    heap_statistics(const heap_statistics&) = delete;
    heap_statistics& operator=(const heap_statistics&) = delete;
    ~heap_statistics() {
        while (stripe* one = stripes_.pop_front()) {
            delete one;
        }
    }

    // A stripe for the calling thread, or for who has it after that; null if there is no memory.
    [[nodiscard]] stripe* try_attach() noexcept {
        // Not under the lock: who serves a fault waits for it, and the thread that faulted may be in malloc.
        auto* made = new (std::nothrow) stripe{*this};
        if (made != nullptr) {
            with(lock_, [&] { stripes_.push_back(*made); });
        }
        return made;
    }
    // fn(stripe&) with a stripe that all threads share, one at a time.
    template <class Fn>
    void on_shared(Fn&& fn) noexcept {
        with(shared_lock_, [&] { fn(shared_); });
        answer_for(shared_);
    }

    void frames_created(heap_pool pool, std::size_t bytes, std::size_t frames = 1) noexcept {
        with(lock_, [&] {
            change_locked(heap_metric::segment, pool, frames, 0);
            change_locked(heap_metric::reserved_bytes, pool, bytes, 0);
        });
    }
    void frames_dropped(heap_pool pool, std::size_t bytes, std::size_t frames = 1) noexcept {
        with(lock_, [&] {
            change_locked(heap_metric::segment, pool, 0, frames);
            change_locked(heap_metric::reserved_bytes, pool, 0, bytes);
        });
    }
    void count(heap_count what, std::uint64_t amount = 1) noexcept {
        // relaxed: a number that nothing hangs on.
        counts_[static_cast<unsigned>(what)].fetch_add(amount, std::memory_order_relaxed);
    }

    // Most calls take less than a microsecond: whole ones are only what is read.
    void count_driver_ns(std::uint64_t spent) noexcept { count(heap_count::driver_us, spent); }

    // idle_bytes: of frames that no block keeps in place, so that they could be given back.
    [[nodiscard]] heap_figures read(std::size_t idle_bytes = 0) noexcept {
        return with(lock_, [&] {
            look_locked();
            const std::int64_t held = sums_[index(heap_metric::reserved_bytes)][0].current() -
                                      sums_[index(heap_metric::active_bytes)][0].current() -
                                      static_cast<std::int64_t>(idle_bytes);
            sums_[index(heap_metric::inactive_split_bytes)][0].set(
                static_cast<std::uint64_t>(std::max<std::int64_t>(held, 0)));
            heap_figures result;
            for (std::size_t metric = 0; metric < heap_metrics; ++metric) {
                for (std::size_t pool = 0; pool <= heap_pools; ++pool) {
                    result.counters[metric][pool] = sums_[metric][pool].figures();
                }
            }
            for (std::size_t i = 0; i < heap_counts; ++i) {
                result.counts[i] = static_cast<std::int64_t>(
                    counts_[i].load(std::memory_order_relaxed) - counts_base_[i]);
            }
            result.counts[static_cast<unsigned>(heap_count::driver_us)] /= 1000;
            return result;
        });
    }
    // Peaks begin again at what is now.
    void reset_peaks() noexcept {
        if (registry::is_forked_child()) {
            return;
        }
        with(lock_, [&] {
            gather_locked();
            for_each_sum([](sum& one) { one.peak = one.current(); });
            per_pool<bool> all;
            for (auto& metric : all) {
                metric.fill(true);
            }
            tighten_locked(all);
            highest_ = answered_;
        });
    }
    // "allocated", "freed" and the counts begin again at zero.
    void reset_accumulated() noexcept {
        if (registry::is_forked_child()) {
            return;
        }
        with(lock_, [&] {
            gather_locked();
            for_each_sum([](sum& one) {
                one.up_base = one.up;
                one.down_base = one.down;
            });
            for (std::size_t i = 0; i < heap_counts; ++i) {
                counts_base_[i] = counts_[i].load(std::memory_order_relaxed);
            }
        });
    }

private:
    struct sum {
        std::uint64_t up = 0, down = 0;            // all that was ever added, and taken off
        std::uint64_t up_base = 0, down_base = 0;  // at the last reset_accumulated
        std::int64_t peak = 0;

        [[nodiscard]] std::int64_t current() const noexcept {
            return std::max<std::int64_t>(static_cast<std::int64_t>(up - down), 0);
        }
        void note_peak() noexcept { peak = std::max(peak, current()); }
        // For a metric that is not counted, but measured.
        void set(std::uint64_t value) noexcept {
            up = up_base = value;
            note_peak();
        }
        [[nodiscard]] heap_counter figures() const noexcept {
            // Where a block was seen freed but not allocated yet, it was not there.
            return {current(), std::max(peak, current()), static_cast<std::int64_t>(up - up_base),
                    static_cast<std::int64_t>(std::min(up, down) - down_base)};
        }
    };

    [[nodiscard]] static constexpr std::size_t index(heap_metric metric) noexcept {
        return static_cast<unsigned>(metric);
    }
    template <class Fn>
    void for_each_sum(Fn&& fn) noexcept {
        for (auto& metric : sums_) {
            std::ranges::for_each(metric, fn);
        }
    }

    // A stripe is past what it answered for. Together below the highest peak there is no new one.
    [[gnu::noinline]] void answer_for(stripe& one) noexcept {
        if (registry::is_forked_child()) {
            return;  // a thread of the parent's may have the lock for ever
        }
        with(lock_, [&] {
            per_pool<bool> is_high{};
            bool is_any_high = false;
            const per_pool<std::int64_t> now = values_of(one);
            for_each_place([&](std::size_t metric, std::size_t pool) {
                // relaxed, here and below: numbers; what they are about is read from the stripes.
                if (now[metric][pool] >
                    one.answered_[metric][pool].load(std::memory_order_relaxed)) {
                    one.has_asked_[metric][pool] = true;
                    answer_locked(one, metric, pool, now[metric][pool]);
                }
                is_high[metric][pool] = answered_[metric][pool] > highest_[metric][pool];
                is_any_high = is_any_high || is_high[metric][pool];
            });
            if (is_any_high) {
                look_at_locked(is_high);
            }
        });
    }
    // Where all together seem to be past the highest peak.
    void look_at_locked(const per_pool<bool>& is_high) noexcept {
        tighten_locked(is_high);
        bool is_peak = false;
        for_each_place([&](std::size_t metric, std::size_t pool) {
            const std::int64_t left = highest_[metric][pool] - answered_[metric][pool];
            if (left < 0) {
                highest_[metric][pool] = answered_[metric][pool];
                is_peak = true;
            } else if (is_high[metric][pool]) {
                share_locked(metric, pool, left);
            }
        });
        if (is_peak) {
            look_locked();
        }
    }
    template <class Fn>
    static void for_each_place(Fn&& fn) {
        for (std::size_t metric = 0; metric < block_metrics; ++metric) {
            for (std::size_t pool = 0; pool <= heap_pools; ++pool) {
                fn(metric, pool);
            }
        }
    }
    [[nodiscard]] static per_pool<std::int64_t> values_of(const stripe& one) noexcept {
        const auto seen = one.read();
        const net small = stripe::net_of(seen[static_cast<unsigned>(heap_pool::small)]);
        const net large = stripe::net_of(seen[static_cast<unsigned>(heap_pool::large)]);
        per_pool<std::int64_t> values;
        for (std::size_t i = 0; i < block_metrics; ++i) {
            values[i] = {small[i] + large[i], small[i], large[i]};
        }
        return values;
    }
    void answer_locked(stripe& one, std::size_t metric, std::size_t pool,
                       std::int64_t now) noexcept {
        auto& before = one.answered_[metric][pool];
        answered_[metric][pool] += now - before.load(std::memory_order_relaxed);
        before.store(now, std::memory_order_relaxed);
    }
    template <class Fn>
    void for_each_stripe(Fn&& fn) noexcept {
        stripes_.for_each(fn);
        fn(shared_);
    }
    // There, each answers for what it has.
    void tighten_locked(const per_pool<bool>& there) noexcept {
        for_each_stripe([&](stripe& one) {
            const per_pool<std::int64_t> now = values_of(one);
            for_each_place([&](std::size_t metric, std::size_t pool) {
                if (there[metric][pool]) {
                    answer_locked(one, metric, pool, now[metric][pool]);
                }
            });
        });
    }
    // To those that asked since the last time, alike: what the others have is theirs.
    void share_locked(std::size_t metric, std::size_t pool, std::int64_t amount) noexcept {
        std::int64_t sharers = 0;
        for_each_stripe([&](stripe& one) { sharers += one.has_asked_[metric][pool] ? 1 : 0; });
        for_each_stripe([&](stripe& one) {
            if (std::exchange(one.has_asked_[metric][pool], false)) {
                const std::int64_t before =
                    one.answered_[metric][pool].load(std::memory_order_relaxed);
                answer_locked(one, metric, pool, before + amount / sharers);
            }
        });
    }
    void look_locked() noexcept {
        gather_locked();
        for_each_sum([](sum& one) { one.note_peak(); });
    }
    void change_locked(heap_metric metric, heap_pool pool, std::uint64_t up,
                       std::uint64_t down) noexcept {
        for (const std::size_t at : {std::size_t{0}, 1 + static_cast<std::size_t>(pool)}) {
            sum& one = sums_[index(metric)][at];
            one.up += up;
            one.down += down;
            one.note_peak();
        }
    }
    void gather_locked() noexcept {
        using reading = stripe::reading;
        std::array<reading, heap_pools> pools{};
        const auto gather = [&](const stripe& one) {
            const std::array<reading, heap_pools> seen = one.read();
            for (std::size_t pool = 0; pool < heap_pools; ++pool) {
                reading& to = pools[pool];
                const reading& from = seen[pool];
                to.given_count += from.given_count;
                to.given_bytes += from.given_bytes;
                to.given_requested += from.given_requested;
                to.left_count += from.left_count;
                to.left_bytes += from.left_bytes;
                to.done_count += from.done_count;
                to.done_bytes += from.done_bytes;
                to.done_requested += from.done_requested;
            }
        };
        stripes_.for_each(gather);
        gather(shared_);
        const auto set = [&](heap_metric metric, auto up, auto down) {
            auto& to = sums_[index(metric)];
            to[0].up = to[0].down = 0;
            for (std::size_t pool = 0; pool < heap_pools; ++pool) {
                to[1 + pool].up = pools[pool].*up;
                to[1 + pool].down = pools[pool].*down;
                to[0].up += pools[pool].*up;
                to[0].down += pools[pool].*down;
            }
        };
        set(heap_metric::allocation, &reading::given_count, &reading::left_count);
        set(heap_metric::allocated_bytes, &reading::given_bytes, &reading::left_bytes);
        set(heap_metric::active, &reading::given_count, &reading::done_count);
        set(heap_metric::active_bytes, &reading::given_bytes, &reading::done_bytes);
        set(heap_metric::requested_bytes, &reading::given_requested, &reading::done_requested);
    }

    // (A) atomic  (L) lock_  (S) shared_lock_
    // (L) what all stripes answer for; no less than there is, but for what they may miss
    per_pool<std::int64_t> answered_{};
    per_pool<std::int64_t> highest_{};  // (L) the most that was looked at
    std::array<std::atomic<std::uint64_t>, heap_counts> counts_{};  // (A)
    ranked_mutex<lock_rank::leaf> lock_;
    list<stripe, &stripe::link_> stripes_;                              // (L) owned
    std::array<std::array<sum, 1 + heap_pools>, heap_metrics> sums_{};  // (L) all, small, large
    std::array<std::uint64_t, heap_counts> counts_base_{};              // (L)
    ranked_mutex<lock_rank::leaf> shared_lock_;
    // It never asks by itself: that takes another lock.
    stripe shared_{*this, false};  // (S) written by one at a time
};

}  // namespace xmm
