// SPDX-License-Identifier: Apache-2.0
// tracking_resource.hpp - every live block, and a report of those that were never given back.
//
// Model    A map from address to block, in host memory. Blocks are numbered in the order they were asked
//          for, so that a debugger can stop at the one that leaks.
// Threads  Any.
// Failure  A block that cannot be noted (no host memory) is given back and the request fails.
#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <vector>

#include <unistd.h>

#include <xmm/core/lock.hpp>
#include <xmm/resources/adaptors/adaptor.hpp>

namespace xmm {

struct tracked_block {
    void* pointer = nullptr;
    std::size_t bytes = 0;
    std::size_t alignment = 0;
    std::uint64_t number = 0;  // 1 is the first block of this resource
    std::int32_t thread = 0;   // the OS's id of the thread that asked
};

template <resource Upstream>
class tracking_resource final : public adaptor<Upstream> {
public:
    // With report_leaks, live blocks are listed on stderr when the resource goes.
    explicit tracking_resource(Upstream& upstream, bool report_leaks = true)
        : adaptor<Upstream>{"tracking", upstream}, report_leaks_{report_leaks} {}
    ~tracking_resource() override {
        if (report_leaks_ && !live_.empty()) {
            report(stderr);
        }
    }

    [[nodiscard]] std::size_t live_count() const noexcept {
        return with(lock_, [&] { return live_.size(); });
    }
    [[nodiscard]] std::size_t live_bytes() const noexcept {
        return with(lock_, [&] { return live_bytes_; });
    }
    // Blocks given back that were never handed out: a bug in the program, passed on all the same.
    [[nodiscard]] std::uint64_t unknown_count() const noexcept {
        return with(lock_, [&] { return unknown_; });
    }
    // The live blocks, oldest address first.
    [[nodiscard]] std::vector<tracked_block> live() const {
        return with(lock_, [&] {
            std::vector<tracked_block> all;
            for (const auto& [at, block] : live_) {
                all.push_back(block);
            }
            return all;
        });
    }
    // The live block that holds the address.
    [[nodiscard]] std::optional<tracked_block> find(const void* pointer) const noexcept {
        const address at = to_address(pointer);
        return with(lock_, [&]() -> std::optional<tracked_block> {
            auto next = live_.upper_bound(at);
            if (next == live_.begin() || at - (--next)->first >= next->second.bytes) {
                return std::nullopt;
            }
            return next->second;
        });
    }
    void report(std::FILE* to) const {
        const std::vector<tracked_block> blocks = live();
        std::fprintf(to, "xmm: %zu blocks with %zu bytes are still live:\n", blocks.size(),
                     live_bytes());
        for (const tracked_block& block : blocks) {
            std::fprintf(to, "  %p  %zu bytes, alignment %zu, number %" PRIu64 ", thread %d\n",
                         block.pointer, block.bytes, block.alignment, block.number, block.thread);
        }
    }

private:
    void* do_allocate_on(stream_ref stream, std::size_t bytes, std::size_t alignment) override {
        void* pointer = this->upstream().allocate(stream, bytes, alignment);
        try {
            with(lock_, [&] {
                const tracked_block block{pointer, bytes, alignment, last_number_ + 1, ::gettid()};
                live_.insert_or_assign(to_address(pointer), block);
                ++last_number_;
                live_bytes_ += bytes;
            });
        } catch (...) {
            this->upstream().deallocate(stream, pointer, bytes, alignment);
            this->refuse(bytes, "no host memory to note the block");
        }
        return pointer;
    }
    void do_deallocate_on(stream_ref stream, void* pointer, std::size_t bytes,
                          std::size_t alignment) noexcept override {
        with(lock_, [&] {
            if (const auto at = live_.find(to_address(pointer)); at != live_.end()) {
                live_bytes_ -= at->second.bytes;
                live_.erase(at);
            } else {
                ++unknown_;
            }
        });
        this->upstream().deallocate(stream, pointer, bytes, alignment);
    }

    bool report_leaks_;
    mutable ranked_mutex<lock_rank::leaf> lock_;
    std::map<address, tracked_block> live_;  // under lock_, as all below
    std::size_t live_bytes_ = 0;
    std::uint64_t last_number_ = 0;
    std::uint64_t unknown_ = 0;
};

}  // namespace xmm
