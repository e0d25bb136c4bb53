// SPDX-License-Identifier: Apache-2.0
// ledger.hpp - how much of a node's memory xmm may hold, and how much it holds.
//
// Model    One ledger per node and process, whatever number of spaces and heaps draw from the node.
//          limit = min(budget - overhead, capacity), in bytes; all may change at any time, the capacity as
//          others take memory of the node, and `used` be above the limit until frames are given back. `used`
//          counts every byte of frames created and not dropped, cached ones too. The pools that keep free frames
//          are known to the ledger, so that what one of them keeps starves no other.
// Threads  Any; lock-free, but for the keepers: a lock of rank frame_keepers.
// Failure  try_reserve answers false and changes nothing.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <optional>
#include <utility>

#include <xmm/core/list.hpp>
#include <xmm/core/lock.hpp>
#include <xmm/core/types.hpp>
#include <xmm/os/registry.hpp>

namespace xmm {

// A budget that does not limit.
inline constexpr std::size_t no_budget = SIZE_MAX;

// Who keeps free frames that are charged to a ledger: a pool.
class frame_keeper {
public:
    // Drops the frame that has been free longest; false if there is none. The lock of the keepers may be held.
    virtual bool drop_oldest() noexcept = 0;

protected:
    ~frame_keeper() = default;

private:
    friend class ledger;
    list_link link_;                     // under the lock of the ledger's keepers
    std::size_t most_ = 0;               // (C) while it is on the list
    std::atomic<std::size_t> bytes_{0};  // (A) what it keeps now
};

class ledger {
public:
    // The first space that attaches the node says how large it is; later ones agree.
    void open(std::size_t capacity) noexcept {
        std::size_t closed = 0;
        // relaxed: the figures stand alone; no other data hangs on them (all of this class).
        capacity_.compare_exchange_strong(closed, capacity, std::memory_order_relaxed);
    }
    [[nodiscard]] std::size_t capacity() const noexcept {
        return capacity_.load(std::memory_order_relaxed);
    }
    [[nodiscard]] std::size_t budget() const noexcept {
        return budget_.load(std::memory_order_relaxed);
    }
    [[nodiscard]] std::size_t used() const noexcept {
        // acquire: pairs with the releases in try_reserve and release; see change.
        return used_.load(std::memory_order_acquire);
    }
    [[nodiscard]] std::size_t peak() const noexcept {
        return peak_.load(std::memory_order_relaxed);
    }
    // What the node could give us altogether, by the latest measurement.
    void set_capacity(std::size_t bytes) noexcept {
        capacity_.store(bytes, std::memory_order_relaxed);
    }
    // What the driver takes of the node's memory for our sake beside the frames: tables that map them. Of the budget,
    // not of the capacity, which is measured without it.
    void set_overhead(std::size_t bytes) noexcept {
        overhead_.store(bytes, std::memory_order_relaxed);
    }
    [[nodiscard]] std::size_t limit() const noexcept {
        const std::size_t wanted = budget();
        const std::size_t overhead = overhead_.load(std::memory_order_relaxed);
        return std::min(wanted == no_budget ? wanted : wanted - std::min(wanted, overhead),
                        capacity());
    }
    // Frames that nobody needs go then, rather than being kept.
    [[nodiscard]] bool is_over_limit() const noexcept { return used() > limit(); }
    void set_budget(std::size_t bytes) noexcept { budget_.store(bytes, std::memory_order_relaxed); }

    [[nodiscard]] bool try_reserve(std::size_t bytes) noexcept {
        std::size_t seen = used();
        for (;;) {
            const std::size_t now = limit();  // once: it may change at any time
            if (bytes > now || seen > now - bytes) {
                return false;
            }
            // release: pairs with the acquire in used; who sees the bytes sees the change that they are part of.
            if (used_.compare_exchange_weak(seen, seen + bytes, std::memory_order_release,
                                            std::memory_order_relaxed)) {
                raise_peak(seen + bytes);
                return true;
            }
        }
    }
    void release(std::size_t bytes) noexcept {
        used_.fetch_sub(bytes, std::memory_order_release);  // release: as in try_reserve
    }

    // Bytes are charged before the driver is asked for them, and released after it has them back: meanwhile `used` and
    // what the driver has free do not fit together. Held from before the one to after the other, for who measures.
    class change {
    public:
        explicit change(ledger& book) noexcept : book_{&book} {
            // relaxed: the release of the charge, or the driver's lock, hands it on.
            book.changes_begun_.fetch_add(1, std::memory_order_relaxed);
        }
        change(change&& other) noexcept : book_{std::exchange(other.book_, nullptr)} {}
        change& operator=(change&&) = delete;
        ~change() {
            if (book_ != nullptr) {
                // release: pairs with the acquire in changes_if_quiet; what was changed is seen there.
                book_->changes_ended_.fetch_add(1, std::memory_order_release);
            }
        }

    private:
        ledger* book_;
    };
    // How many changes there have been; none if one is under way.
    [[nodiscard]] std::optional<std::uint64_t> changes_if_quiet() const noexcept {
        // acquire: pairs with the release in ~change. First, since none ends that has not begun.
        const std::uint64_t ended = changes_ended_.load(std::memory_order_acquire);
        return ended == changes_begun() ? std::optional{ended} : std::nullopt;
    }
    [[nodiscard]] std::uint64_t changes_begun() const noexcept {
        // relaxed: who has seen something of a change has seen that it began.
        return changes_begun_.load(std::memory_order_relaxed);
    }

    // Of free frames that all keepers have, together. They count what they keep.
    [[nodiscard]] std::size_t kept_bytes() const noexcept {
        return kept_.load(std::memory_order_relaxed);
    }
    void count_kept(frame_keeper& one, std::ptrdiff_t bytes) noexcept {
        one.bytes_.fetch_add(static_cast<std::size_t>(bytes), std::memory_order_relaxed);
        kept_.fetch_add(static_cast<std::size_t>(bytes), std::memory_order_relaxed);
    }
    // So much may all keepers have: what the one that wants most of the node may keep.
    [[nodiscard]] std::size_t most_kept_bytes() const noexcept {
        return most_kept_.load(std::memory_order_relaxed);
    }

    // It would have at most so many bytes of free frames kept.
    void add_keeper(frame_keeper& one, std::size_t most) noexcept {
        with(keepers_lock_, [&] {
            one.most_ = most;
            keepers_.push_back(one);
            find_most_locked();
        });
    }
    // After return nobody asks it for a frame. What it has counts for nobody's share any more: it counts no longer.
    void remove_keeper(frame_keeper& one) noexcept {
        with(keepers_lock_, [&] {
            keepers_.remove(one);
            find_most_locked();
            kept_.fetch_sub(one.bytes_.exchange(0, std::memory_order_relaxed),
                            std::memory_order_relaxed);
        });
    }
    // While more is kept than may be, who keeps most drops: so one that works keeps its share, however much others
    // had before. The lock is held as in drop_free_frame.
    void drop_excess() noexcept {
        while (kept_bytes() > most_kept_bytes()) {
            std::lock_guard guard{keepers_lock_};
            frame_keeper* fullest = nullptr;
            std::size_t bytes = 0;
            keepers_.for_each([&](frame_keeper& one) {
                const std::size_t its = one.bytes_.load(std::memory_order_relaxed);
                if (its > bytes) {
                    fullest = &one;
                    bytes = its;
                }
            });
            // One whose frames were taken meanwhile has counted them off: look again.
            if (fullest == nullptr) {
                return;
            }
            static_cast<void>(fullest->drop_oldest());
        }
    }
    // Has some keeper of the process drop one free frame; false if no keeper has any. The lock is held meanwhile, so
    // that the keeper does not end.
    bool drop_free_frame() noexcept {
        std::lock_guard guard{keepers_lock_};
        bool has_dropped = false;
        keepers_.for_each(
            [&](frame_keeper& one) { has_dropped = has_dropped || one.drop_oldest(); });
        return has_dropped;
    }

private:
    void find_most_locked() noexcept {
        std::size_t most = 0;
        keepers_.for_each([&](frame_keeper& one) { most = std::max(most, one.most_); });
        most_kept_.store(most, std::memory_order_relaxed);
    }
    void raise_peak(std::size_t bytes) noexcept {
        std::size_t seen = peak();
        while (seen < bytes &&
               !peak_.compare_exchange_weak(seen, bytes, std::memory_order_relaxed)) {
        }
    }

    std::atomic<std::size_t> capacity_{0};
    std::atomic<std::size_t> budget_{no_budget};
    std::atomic<std::size_t> overhead_{0};
    std::atomic<std::size_t> used_{0};
    std::atomic<std::uint64_t> changes_begun_{0};
    std::atomic<std::uint64_t> changes_ended_{0};
    std::atomic<std::size_t> peak_{0};
    std::atomic<std::size_t> kept_{0};
    std::atomic<std::size_t> most_kept_{0};
    ranked_mutex<lock_rank::frame_keepers> keepers_lock_;
    list<frame_keeper, &frame_keeper::link_> keepers_;  // guarded by keepers_lock_
};

// All ledgers of the process, by node; grows by blocks and never shrinks, since node ids never return.
class ledger_book {
public:
    static constexpr const char* registry_key = "ledger_book/4";

    [[nodiscard]] ledger* find_or_open(node_id node, std::size_t capacity) noexcept {
        const auto index = static_cast<std::size_t>(node.value);
        if (node.value < 0 || index / per_block >= block_count) {
            return nullptr;
        }
        std::lock_guard guard{lock_};
        block*& one = blocks_[index / per_block];
        if (one == nullptr) {
            void* memory = ::mmap(nullptr, sizeof(block), PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (memory == MAP_FAILED) {
                return nullptr;
            }
            one = ::new (memory) block();
        }
        ledger& found = one->ledgers[index % per_block];
        found.open(capacity);
        return &found;
    }

private:
    static constexpr std::size_t per_block = 64;
    static constexpr std::size_t block_count = 1024;
    struct block {
        ledger ledgers[per_block];
    };
    ranked_mutex<lock_rank::ledger> lock_;
    block* blocks_[block_count] = {};  // guarded by lock_; a block, once there, stays
};

[[nodiscard]] inline ledger* ledger_of(node_id node, std::size_t capacity) noexcept {
    return registry::object<ledger_book>().find_or_open(node, capacity);
}

}  // namespace xmm
