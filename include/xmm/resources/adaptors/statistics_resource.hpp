// SPDX-License-Identifier: Apache-2.0
// statistics_resource.hpp - how many bytes and blocks are in use, at most were, and have been in all.
//
// Model    A stack of counters: push() starts a new set at zero, pop() takes it off and adds it to the
//          one below, so that a stretch of a program is measured without losing the whole.
// Threads  Any. The stack belongs to the resource, not to a thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <xmm/core/lock.hpp>
#include <xmm/resources/adaptors/adaptor.hpp>

namespace xmm {

// In a pushed set `current` is below zero when older blocks were given back since.
struct usage_counter {
    std::int64_t current = 0;
    std::int64_t peak = 0;
    std::int64_t total = 0;

    void add(std::int64_t amount) noexcept {
        current += amount;
        peak = std::max(peak, current);
        total += amount;
    }
    void remove(std::int64_t amount) noexcept { current -= amount; }
    // What happened in `later` happened on top of this.
    void append(const usage_counter& later) noexcept {
        peak = std::max(peak, current + later.peak);
        current += later.current;
        total += later.total;
    }
    friend bool operator==(const usage_counter&, const usage_counter&) = default;
};

struct resource_statistics {
    usage_counter bytes;
    usage_counter blocks;
    std::int64_t failures = 0;

    friend bool operator==(const resource_statistics&, const resource_statistics&) = default;
};

template <resource Upstream>
class statistics_resource final : public adaptor<Upstream> {
public:
    explicit statistics_resource(Upstream& upstream)
        : adaptor<Upstream>{"statistics", upstream}, stack_(1) {}

    // The top set, the whole one unless push() was called.
    [[nodiscard]] resource_statistics statistics() const noexcept {
        return with(lock_, [&] { return stack_.back(); });
    }
    // Starts a set at zero and returns the one that it covers.
    resource_statistics push() {
        return with(lock_, [&] {
            stack_.emplace_back();
            return stack_[stack_.size() - 2];
        });
    }
    // Takes the top set off and returns it; the last one stays and is only read.
    resource_statistics pop() noexcept {
        return with(lock_, [&] {
            const resource_statistics top = stack_.back();
            if (stack_.size() > 1) {
                stack_.pop_back();
                stack_.back().bytes.append(top.bytes);
                stack_.back().blocks.append(top.blocks);
                stack_.back().failures += top.failures;
            }
            return top;
        });
    }

private:
    void* do_allocate_on(stream_ref stream, std::size_t bytes, std::size_t alignment) override {
        try {
            void* pointer = this->upstream().allocate(stream, bytes, alignment);
            with(lock_, [&] {
                stack_.back().bytes.add(static_cast<std::int64_t>(bytes));
                stack_.back().blocks.add(1);
            });
            return pointer;
        } catch (...) {
            with(lock_, [&] { ++stack_.back().failures; });
            throw;
        }
    }
    void do_deallocate_on(stream_ref stream, void* pointer, std::size_t bytes,
                          std::size_t alignment) noexcept override {
        with(lock_, [&] {
            stack_.back().bytes.remove(static_cast<std::int64_t>(bytes));
            stack_.back().blocks.remove(1);
        });
        this->upstream().deallocate(stream, pointer, bytes, alignment);
    }

    mutable ranked_mutex<lock_rank::leaf> lock_;
    std::vector<resource_statistics> stack_;  // under lock_; never empty
};

}  // namespace xmm
