// SPDX-License-Identifier: Apache-2.0
// queue_uses.hpp - which blocks other queues were lent.
//
// Model    A queue is noted once a block, until the block or the queue is over. Most programs note none: then one load
//          tells.
// Threads  Any. A lock a shard (rank leaf).
// Failure  add() is no_memory without memory for the note, or for a 33rd queue that is not over.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <new>
#include <unordered_map>
#include <vector>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>

namespace xmm {

class queue_uses {
public:
    static constexpr std::size_t most_queues = 32;  // of a block
    using queue_list = std::array<queue_id, most_queues>;

    [[nodiscard]] bool has_any() const noexcept {
        // relaxed: who lends a block and who gives it back agree on the order of the two.
        return count_.load(std::memory_order_relaxed) != 0;
    }
    status add(address block, queue_id queue) noexcept {
        shard& one = shard_of(block);
        try {
            std::lock_guard guard{one.lock};
            const auto [at, is_new] = one.queues.try_emplace(block);
            count_.fetch_add(is_new ? 1 : 0, std::memory_order_relaxed);  // relaxed: see has_any
            std::vector<queue_id>& lent = at->second;  // an empty one goes with its block
            if (std::ranges::find(lent, queue) == lent.end()) {
                if (lent.size() == most_queues) {
                    return fail(errc::no_memory, "a block can be lent to 32 queues");
                }
                lent.push_back(queue);
            }
            return {};
        } catch (const std::bad_alloc&) {
            return fail(errc::no_memory, "no memory to note a use");
        }
    }
    // Writes down the queues that the block was lent to, and says how many there are.
    [[nodiscard]] std::size_t list(address block, queue_list& lent) const noexcept {
        if (!has_any()) {
            return 0;
        }
        const shard& one = shard_of(block);
        std::lock_guard guard{one.lock};
        const auto found = one.queues.find(block);
        if (found == one.queues.end()) {
            return 0;
        }
        std::ranges::copy(found->second, lent.begin());
        return found->second.size();
    }
    [[nodiscard]] bool is_lent(address block, queue_id queue) const noexcept {
        queue_list lent;
        const std::size_t count = list(block, lent);
        return std::find(lent.begin(), lent.begin() + count, queue) != lent.begin() + count;
    }
    void drop(address block) noexcept {
        if (!has_any()) {
            return;
        }
        shard& one = shard_of(block);
        std::lock_guard guard{one.lock};
        count_.fetch_sub(one.queues.erase(block),
                         std::memory_order_relaxed);  // relaxed: see has_any
    }
    // The block is not lent to that queue.
    void drop(address block, queue_id queue) noexcept {
        shard& one = shard_of(block);
        std::lock_guard guard{one.lock};
        const auto at = one.queues.find(block);
        if (at != one.queues.end() && std::erase(at->second, queue) != 0 && at->second.empty()) {
            one.queues.erase(at);
            count_.fetch_sub(1, std::memory_order_relaxed);  // relaxed: see has_any
        }
    }
    // The queue is over: no block is lent to it any more. Walks all notes.
    void drop(queue_id queue) noexcept {
        if (!has_any()) {
            return;
        }
        for (shard& one : shards_) {
            std::lock_guard guard{one.lock};
            std::size_t gone = 0;
            for (auto at = one.queues.begin(); at != one.queues.end();) {
                std::vector<queue_id>& lent = at->second;
                const bool is_last = std::erase(lent, queue) != 0 && lent.empty();
                gone += is_last ? 1 : 0;
                at = is_last ? one.queues.erase(at) : std::next(at);
            }
            count_.fetch_sub(gone, std::memory_order_relaxed);  // relaxed: see has_any
        }
    }

private:
    static constexpr std::size_t shard_count = 16;

    struct shard {
        mutable ranked_mutex<lock_rank::leaf> lock;
        std::unordered_map<address, std::vector<queue_id>> queues;  // under lock
    };
    static std::size_t index_of(address block) noexcept {
        return (block >> 9 ^ block >> 21) % shard_count;
    }
    shard& shard_of(address block) noexcept { return shards_[index_of(block)]; }
    const shard& shard_of(address block) const noexcept { return shards_[index_of(block)]; }

    std::atomic<std::size_t> count_{0};  // blocks with notes
    std::array<shard, shard_count> shards_;
};

}  // namespace xmm
