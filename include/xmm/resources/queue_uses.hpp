// SPDX-License-Identifier: Apache-2.0
// queue_uses.hpp - which blocks other queues were lent.
//
// Model    A queue is noted once a block. Most programs note none: then one load tells.
// Threads  Any. A lock a shard (rank leaf).
// Failure  add() is no_memory without memory for the note.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <new>
#include <unordered_map>
#include <vector>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>

namespace xmm {

class queue_uses {
public:
    [[nodiscard]] bool has_any() const noexcept {
        // relaxed: who lends a block and who gives it back agree on the order of the two.
        return count_.load(std::memory_order_relaxed) != 0;
    }
    status add(address block, queue_id queue) noexcept {
        shard& one = shard_of(block);
        try {
            std::lock_guard guard{one.lock};
            const auto [at, is_new] = one.queues.try_emplace(block);
            count_.fetch_add(is_new ? 1 : 0, std::memory_order_relaxed);
            if (std::ranges::find(at->second, queue) == at->second.end()) {
                at->second.push_back(queue);
            }
            return {};
        } catch (const std::bad_alloc&) {
            return fail(errc::no_memory, "no memory to note a use");
        }
    }
    // fn(queue_id) for each that the block was lent to; it is forgotten then.
    template <class Fn>
    void take(address block, Fn&& fn) {
        if (!has_any()) {
            return;
        }
        shard& one = shard_of(block);
        std::vector<queue_id> lent;
        with(one.lock, [&] {
            if (const auto found = one.queues.find(block); found != one.queues.end()) {
                lent.swap(found->second);
                one.queues.erase(found);
                count_.fetch_sub(1, std::memory_order_relaxed);
            }
        });
        std::ranges::for_each(lent, fn);
    }

private:
    struct shard {
        ranked_mutex<lock_rank::leaf> lock;
        std::unordered_map<address, std::vector<queue_id>> queues;  // under lock
    };
    shard& shard_of(address block) noexcept {
        return shards_[(block >> 9 ^ block >> 21) % shards_.size()];
    }

    std::atomic<std::size_t> count_{0};  // blocks with notes
    std::array<shard, 16> shards_;
};

}  // namespace xmm
