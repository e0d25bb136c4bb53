// SPDX-License-Identifier: Apache-2.0
// pool_resource.hpp - small blocks out of large ones: a pool over any resource.
//
// Model    Chunks come from the upstream and are cut into slabs, one block size each; a block given back
//          waits on the list of its size. The lists lie in host memory, never in the chunks: so a pool
//          is what its upstream is, on a device too, and its bookkeeping moves no pages.
//          A block given back on a queue is reused at once by that queue, and by others once the queue
//          has passed that point; it stands in the line of its queue, and only the head of a line is asked for.
//          Where the queue cannot say (it is being captured) it is asked again, and if it ends before it can, the block
//          stays in its chunk. Blocks above a quarter of a chunk go straight to the upstream.
//          Chunks return to the upstream in release() or with the pool.
//          Over a device_resource of a space the blocks are the device's own malloc's (xpu_malloc), under a tag of
//          the pool's; what follows is for every other upstream.
// Threads  Any. One lock per size guards its list, one the chunks; none is held during an upstream call.
// Failure  When the upstream has no memory, blocks still waiting for a queue are waited for first.
//          In a child of fork, where devices reach the memory, allocate throws, and nothing is given back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include <xmm/core/lock.hpp>
#include <xmm/os/registry.hpp>
#include <xmm/resources/heap_resource.hpp>
#include <xmm/resources/memory_resource.hpp>
#include <xmm/resources/size_classes.hpp>
#include <xmm/resources/space_resource.hpp>
#include <xmm/resources/upstream.hpp>

namespace xmm {

struct pool_options {
    std::size_t chunk_bytes = page_bytes;                     // the first one
    std::size_t largest_chunk_bytes = std::size_t{64} << 20;  // they grow with the pool up to this
};

template <resource Upstream>
class pool_resource : public detail::base_for<Upstream::static_reach> {
    using base = detail::base_for<Upstream::static_reach>;

public:
    static constexpr reach static_reach = Upstream::static_reach;

    // The upstream outlives the pool.
    explicit pool_resource(Upstream& upstream, pool_options options = {})
        : base{"pool", upstream.node(), upstream.reachable_by()},
          upstream_{upstream},
          options_{options},
          largest_bytes_{options.chunk_bytes / 4},
          class_count_{classes::index_of(largest_bytes_, chunk_alignment) + 1},
          lists_{std::make_unique<size_list[]>(class_count_)} {
        if (options.chunk_bytes < least_chunk_bytes) {
            throw std::invalid_argument{"xmm::pool_resource: chunks below 64 KiB serve nobody"};
        }
        if constexpr (std::is_same_v<Upstream, device_resource>) {
            if (result<xpu_malloc*> found = upstream.space().heap(upstream.node())) {
                // Without a tag to be had, it is a pool like any other.
                if (result<pool_tag> tag = (*found)->make_tag()) {
                    heap_.emplace(**found, upstream.queues(), *tag);
                }
            }
        }
    }
    ~pool_resource() override {
        if (heap_) {
            heap_->heap().drop_tag(heap_->tag());  // releases
        } else {
            release();
        }
    }

    [[nodiscard]] Upstream& upstream() const noexcept { return upstream_; }
    [[nodiscard]] resource_usage usage() const noexcept override {
        return detail::usage_of(upstream_);
    }
    [[nodiscard]] queue_port queues() const noexcept override {
        return detail::queues_of(upstream_);
    }

    // Gives all chunks back; no block of the pool is in use any more, on the CPU or on a queue.
    void release() noexcept {
        if (is_parents()) {
            return;
        }
        if (heap_) {
            heap_->heap().release(heap_->tag());
            return;
        }
        for (std::size_t index = 0; index < class_count_; ++index) {
            size_list& list = lists_[index];
            with(list.lock, [&] {
                list.ready.clear();
                list.lines.clear();
                list.cursor = list.end = nullptr;
                list.blocks = 0;
            });
        }
        std::vector<chunk> all;
        with(chunks_lock_, [&] { all.swap(chunks_); });
        for (const chunk& one : all) {
            upstream_.deallocate_sync(one.begin, one.bytes, chunk_alignment);
        }
    }
    // The bytes of all chunks.
    [[nodiscard]] std::size_t reserved_bytes() const noexcept {
        if (heap_) {
            return heap_->heap().reserved_bytes(heap_->tag());
        }
        return with(chunks_lock_, [&] {
            std::size_t sum = 0;
            for (const chunk& one : chunks_) {
                sum += one.bytes;
            }
            return sum;
        });
    }

private:
    using classes = detail::size_classes;

    static constexpr const char* no_records = "the host has no memory for a pool's records";
    static constexpr std::size_t least_chunk_bytes = std::size_t{64} << 10;
    static constexpr std::size_t chunk_alignment = 4096;  // blocks aligned above that go upstream
    static constexpr std::size_t slab_bytes = std::size_t{64} << 10;

    struct waiting_block {
        void* pointer;
        ticket point;
        bool is_known;  // false: its queue could not say, and is to be asked again
    };
    // What was given back on one queue, that has not passed it yet.
    struct queue_line {
        queue_id queue;
        std::deque<waiting_block> known;  // in the order of their points, nearly
        std::vector<void*> unknown;

        [[nodiscard]] bool is_empty() const noexcept { return known.empty() && unknown.empty(); }
    };
    // (L) under its lock
    struct size_list {
        mutable ranked_mutex<lock_rank::extent_heap> lock;  // may ask a queue whether it is done
        std::vector<void*> ready;                           // (L) room for every block of the size
        std::vector<queue_line> lines;                      // (L) an empty one serves any queue
        std::byte* cursor = nullptr;                        // (L) the slab being cut, up to its end
        std::byte* end = nullptr;                           // (L)
        std::size_t blocks = 0;  // (L) of all slabs, and of those that are under way
    };
    struct chunk {
        std::byte* begin;
        std::size_t bytes;
        std::size_t cut;  // handed out as slabs
    };

    // A child of fork has none of the memory that devices reach; plain memory it has.
    [[nodiscard]] bool is_parents() const noexcept {
        return includes(this->reachable_by(), reach::device) && registry::is_forked_child();
    }
    [[nodiscard]] bool is_pooled(std::size_t bytes, std::size_t alignment) const noexcept {
        return bytes <= largest_bytes_ && alignment <= chunk_alignment;
    }
    void* do_allocate_on(stream_ref stream, std::size_t bytes, std::size_t alignment) override {
        if (is_parents()) {
            this->refuse(bytes, "this is a forked child: the memory is its parent's");
        }
        if (heap_) {
            return heap_->allocate(stream, bytes, alignment);
        }
        if (!is_pooled(bytes, alignment)) {
            return upstream_.allocate(stream, bytes, alignment);
        }
        const std::size_t index = classes::index_of(bytes, alignment);
        size_list& list = lists_[index];
        for (;;) {
            if (void* pointer = take(list, index, stream.queue())) {
                return pointer;
            }
            try {
                add_slab(list, index);
            } catch (const std::bad_alloc&) {
                if (!wait_for_one(list)) {
                    throw;
                }
            }
        }
    }
    void do_deallocate_on(stream_ref stream, void* pointer, std::size_t bytes,
                          std::size_t alignment) noexcept override {
        if (is_parents()) {
            return;
        }
        if (heap_) {
            heap_->deallocate(stream, pointer, bytes, alignment);
            return;
        }
        if (!is_pooled(bytes, alignment)) {
            upstream_.deallocate(stream, pointer, bytes, alignment);
            return;
        }
        size_list& list = lists_[classes::index_of(bytes, alignment)];
        waiting_block given{pointer, {}, true};
        if (!try_note_point(stream, given)) {
            return;  // nobody will ever say: it stays in its chunk until release()
        }
        const bool has_place = with(list.lock, [&] { return try_put_locked(list, given); });
        if (!has_place && given.is_known) {
            const status waited = queues().wait(given.point);
            if (waited || is_over(waited.code)) {
                with(list.lock, [&] { list.ready.push_back(pointer); });  // always has room
            }
        }
    }
    // False: no memory; the block stays in its chunk then, unless it is waited for.
    static bool try_put_locked(size_list& list, const waiting_block& given) noexcept {
        if (given.is_known && given.point.value == 0) {
            list.ready.push_back(given.pointer);  // always has room
            return true;
        }
        try {
            queue_line& line = line_of_locked(list, given.point.queue);
            if (given.is_known) {
                line.known.push_back(given);
            } else {
                line.unknown.push_back(given.pointer);
            }
            return true;
        } catch (const std::bad_alloc&) {
            return false;
        }
    }
    static queue_line& line_of_locked(size_list& list, queue_id queue) {
        auto found = std::ranges::find(list.lines, queue, &queue_line::queue);
        if (found == list.lines.end()) {
            found = std::ranges::find_if(list.lines, &queue_line::is_empty);
        }
        if (found == list.lines.end()) {
            found = list.lines.insert(found, queue_line{});
        }
        found->queue = queue;
        return *found;
    }
    // The point after which a block may be reused; value 0 if that is now.
    [[nodiscard]] bool try_note_point(stream_ref stream, waiting_block& given) const noexcept {
        const queue_port port = queues();
        if (stream.queue() != queue_id{} && port) {
            given.point.queue = stream.queue();
            if (const status asked = ask(port, given); asked || !is_over(asked.code)) {
                return true;
            }
            given = {given.pointer, {}, true};
        }
        return this->try_await(stream);
    }
    static status ask(queue_port port, waiting_block& block) noexcept {
        result<ticket> point = port.record(block.point.queue);
        block.is_known = point.has_value();
        block.point = point ? *point : block.point;
        return point.error();
    }
    // A block that is free now, or will be by the time the asking queue comes to it.
    [[nodiscard]] void* take(size_list& list, std::size_t index, queue_id asking) noexcept {
        return with(list.lock, [&]() -> void* {
            if (list.ready.empty() && list.cursor != list.end) {
                void* pointer = list.cursor;
                list.cursor += classes::bytes_of(index);
                return pointer;
            }
            if (list.ready.empty() && !take_own_locked(list, asking)) {
                sweep_locked(list);
            }
            if (list.ready.empty()) {
                return nullptr;
            }
            void* pointer = list.ready.back();
            list.ready.pop_back();
            return pointer;
        });
    }
    // Makes ready one block that was given back on the asking queue. False: there is none.
    static bool take_own_locked(size_list& list, queue_id asking) noexcept {
        const auto own = std::ranges::find(list.lines, asking, &queue_line::queue);
        if (own == list.lines.end() || own->is_empty()) {
            return false;
        }
        if (own->known.empty()) {
            list.ready.push_back(own->unknown.back());
            own->unknown.pop_back();
        } else {
            list.ready.push_back(own->known.front().pointer);
            own->known.pop_front();
        }
        return true;
    }
    // Makes ready what the queues have passed.
    void sweep_locked(size_list& list) noexcept {
        const queue_port port = queues();
        for (queue_line& line : list.lines) {
            ask_again_locked(port, list, line);
            while (!line.known.empty() && is_passed(port, line.known.front().point)) {
                list.ready.push_back(line.known.front().pointer);
                line.known.pop_front();
            }
        }
    }
    static bool is_passed(queue_port port, ticket point) noexcept {
        return point.value == 0 || port.is_done(point);
    }
    // One question for all that their queue could not say anything of.
    static void ask_again_locked(queue_port port, size_list& list, queue_line& line) noexcept {
        if (line.unknown.empty()) {
            return;
        }
        const result<ticket> point = port.record(line.queue);
        if (point.code() == errc::device_lost) {
            list.ready.insert(list.ready.end(), line.unknown.begin(), line.unknown.end());
        } else if (point) {
            // Those that find no place now are asked for again.
            while (!line.unknown.empty() &&
                   try_put_locked(list, {line.unknown.back(), *point, true})) {
                line.unknown.pop_back();
            }
            return;
        }
        if (!point && is_over(point.code())) {
            line.unknown.clear();  // of a queue that is gone nobody knows any more what it had done
        }
    }
    // False if no queue holds a block of that size, or none can say until when.
    [[nodiscard]] bool wait_for_one(size_list& list) const noexcept {
        ticket point;
        const bool has_one = with(list.lock, [&] {
            const auto known = std::ranges::find_if(
                list.lines, [](const queue_line& line) { return !line.known.empty(); });
            if (known != list.lines.end()) {
                point = known->known.front().point;
            }
            return known != list.lines.end();
        });
        return has_one && queues().wait(point).is_ok();
    }
    void add_slab(size_list& list, std::size_t index) {
        const std::size_t block = classes::bytes_of(index);
        const std::size_t bytes =
            align_up(std::max(slab_bytes / block, std::size_t{1}) * block, chunk_alignment);
        const std::size_t count = bytes / block;
        // Room for all blocks now, so that giving back never allocates. Before there is a slab that could be lost.
        try {
            reserve_ready(list, count);
        } catch (const std::bad_alloc&) {
            this->refuse(bytes, no_records);
        }
        std::byte* slab;
        try {
            slab = cut_slab(bytes);
        } catch (...) {
            with(list.lock, [&] { list.blocks -= count; });
            throw;
        }
        with(list.lock, [&] {
            while (list.cursor != list.end) {  // another thread was here too: keep what it left
                list.ready.push_back(list.cursor);
                list.cursor += block;
            }
            list.cursor = slab;
            list.end = slab + count * block;
        });
    }
    // They count from here on.
    static void reserve_ready(size_list& list, std::size_t count) {
        with(list.lock, [&] {
            const std::size_t blocks = list.blocks + count;
            if (list.ready.capacity() < blocks) {
                list.ready.reserve(2 * blocks);
            }
            list.blocks = blocks;
        });
    }
    [[nodiscard]] std::byte* cut_slab(std::size_t bytes) {
        if (std::byte* slab = with(chunks_lock_, [&] { return try_cut_locked(bytes); })) {
            return slab;
        }
        const std::size_t wanted = next_chunk_bytes(bytes);
        auto* begin = static_cast<std::byte*>(upstream_.allocate_sync(wanted, chunk_alignment));
        try {
            with(chunks_lock_, [&] { chunks_.push_back({begin, wanted, bytes}); });
        } catch (const std::bad_alloc&) {
            upstream_.deallocate_sync(begin, wanted, chunk_alignment);
            this->refuse(wanted, no_records);
        }
        return begin;
    }
    [[nodiscard]] std::byte* try_cut_locked(std::size_t bytes) noexcept {
        for (auto one = chunks_.rbegin(); one != chunks_.rend(); ++one) {
            if (one->bytes - one->cut >= bytes) {
                std::byte* slab = one->begin + one->cut;
                one->cut += bytes;
                return slab;
            }
        }
        return nullptr;
    }
    [[nodiscard]] std::size_t next_chunk_bytes(std::size_t bytes) const noexcept {
        const std::size_t grown = std::min(reserved_bytes() / 4, options_.largest_chunk_bytes);
        const std::size_t least = std::max(options_.chunk_bytes, bytes);
        return std::max(align_down(grown, page_bytes), least);
    }

    Upstream& upstream_;
    pool_options options_;
    std::size_t largest_bytes_;
    std::size_t class_count_;
    std::unique_ptr<size_list[]> lists_;
    mutable ranked_mutex<lock_rank::leaf> chunks_lock_;
    std::vector<chunk> chunks_;          // under chunks_lock_
    std::optional<heap_resource> heap_;  // instead of all that, see above
};

}  // namespace xmm
