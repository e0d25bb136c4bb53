// SPDX-License-Identifier: Apache-2.0
// thread_cache_resource.hpp - a few blocks of each small size kept near the threads that use them.
//
// Model    Threads are spread over shards by their id; each shard keeps up to sixteen blocks of a size.
//          Requests are rounded up to the size they are kept under. Only calls without a stream are
//          cached, since a block kept must be free of work; all others, and large ones, pass through.
// Threads  Any. One lock per shard, rank leaf, never held upstream.
// Failure  When the upstream has no memory, all caches are given back and it is asked once more.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <new>
#include <thread>

#include <xmm/core/lock.hpp>
#include <xmm/resources/adaptors/adaptor.hpp>
#include <xmm/resources/size_classes.hpp>

namespace xmm {

template <resource Upstream>
class thread_cache_resource final : public adaptor<Upstream> {
public:
    static constexpr std::size_t largest_cached_bytes = std::size_t{32} << 10;

    explicit thread_cache_resource(Upstream& upstream)
        : adaptor<Upstream>{"thread cache", upstream},
          shard_count_{std::clamp(2 * std::thread::hardware_concurrency(), 2U, 64U)},
          shards_{std::make_unique<shard[]>(shard_count_)} {}
    ~thread_cache_resource() override { flush(); }

    // Gives every cached block back to the upstream.
    void flush() noexcept {
        for (std::size_t one = 0; one < shard_count_; ++one) {
            for (std::size_t index = 0; index < class_count; ++index) {
                while (void* pointer = take(shards_[one], index)) {
                    give_back(stream_ref{}, pointer, index);
                }
            }
        }
    }

private:
    using classes = detail::size_classes;
    static constexpr std::size_t class_count = classes::index_of(largest_cached_bytes, 1) + 1;
    static constexpr std::size_t largest_alignment = device_alignment;
    static constexpr std::size_t most_blocks = 16;

    struct block_stack {
        std::array<void*, most_blocks> blocks;
        std::size_t count = 0;
    };
    struct alignas(64) shard {
        ranked_mutex<lock_rank::leaf> lock;
        std::array<block_stack, class_count> stacks;  // under lock
    };

    [[nodiscard]] static bool is_cached(std::size_t bytes, std::size_t alignment) noexcept {
        return bytes <= largest_cached_bytes && alignment <= largest_alignment;
    }
    void* do_allocate_on(stream_ref stream, std::size_t bytes, std::size_t alignment) override {
        if (!is_cached(bytes, alignment)) {
            return this->upstream().allocate(stream, bytes, alignment);
        }
        const std::size_t index = classes::index_of(bytes, alignment);
        if (stream.is_none()) {
            if (void* pointer = take(own_shard(), index)) {
                return pointer;
            }
        }
        try {
            return ask(stream, index);
        } catch (const std::bad_alloc&) {
            flush();
            return ask(stream, index);
        }
    }
    void do_deallocate_on(stream_ref stream, void* pointer, std::size_t bytes,
                          std::size_t alignment) noexcept override {
        if (!is_cached(bytes, alignment)) {
            this->upstream().deallocate(stream, pointer, bytes, alignment);
            return;
        }
        const std::size_t index = classes::index_of(bytes, alignment);
        if (!stream.is_none() || !try_keep(own_shard(), index, pointer)) {
            give_back(stream, pointer, index);
        }
    }
    // A block for any request of that class.
    [[nodiscard]] void* ask(stream_ref stream, std::size_t index) {
        return this->upstream().allocate(stream, classes::bytes_of(index), alignment_of(index));
    }
    void give_back(stream_ref stream, void* pointer, std::size_t index) noexcept {
        this->upstream().deallocate(stream, pointer, classes::bytes_of(index), alignment_of(index));
    }
    [[nodiscard]] static std::size_t alignment_of(std::size_t index) noexcept {
        return std::min(classes::alignment_of(index), largest_alignment);
    }
    [[nodiscard]] shard& own_shard() const noexcept {
        return shards_[std::hash<std::thread::id>{}(std::this_thread::get_id()) % shard_count_];
    }
    [[nodiscard]] static void* take(shard& from, std::size_t index) noexcept {
        return with(from.lock, [&]() -> void* {
            block_stack& stack = from.stacks[index];
            return stack.count != 0 ? stack.blocks[--stack.count] : nullptr;
        });
    }
    [[nodiscard]] static bool try_keep(shard& in, std::size_t index, void* pointer) noexcept {
        return with(in.lock, [&] {
            block_stack& stack = in.stacks[index];
            if (stack.count == most_blocks) {
                return false;
            }
            stack.blocks[stack.count++] = pointer;
            return true;
        });
    }

    std::size_t shard_count_;
    std::unique_ptr<shard[]> shards_;
};

}  // namespace xmm
