// SPDX-License-Identifier: Apache-2.0
// limit_resource.hpp - at most that many bytes at a time.
//
// Failure  A request above what is left throws out_of_memory with used and limit; the upstream is not
//          asked, and no other thread's request suffers from it.
#pragma once

#include <atomic>

#include <xmm/resources/adaptors/adaptor.hpp>

namespace xmm {

template <resource Upstream>
class limit_resource final : public adaptor<Upstream> {
public:
    limit_resource(Upstream& upstream, std::size_t limit) noexcept
        : adaptor<Upstream>{"limit", upstream}, limit_{limit} {}

    [[nodiscard]] std::size_t limit() const noexcept { return limit_; }
    [[nodiscard]] resource_usage usage() const noexcept override {
        // relaxed: a figure for reports
        return {used_.load(std::memory_order_relaxed), limit_};
    }

private:
    void* do_allocate_on(stream_ref stream, std::size_t bytes, std::size_t alignment) override {
        reserve(bytes);
        try {
            return this->upstream().allocate(stream, bytes, alignment);
        } catch (...) {
            release(bytes);
            throw;
        }
    }
    void do_deallocate_on(stream_ref stream, void* pointer, std::size_t bytes,
                          std::size_t alignment) noexcept override {
        this->upstream().deallocate(stream, pointer, bytes, alignment);
        release(bytes);
    }
    // relaxed: the counter guards no other data
    void reserve(std::size_t bytes) {
        std::size_t used = used_.load(std::memory_order_relaxed);
        do {
            if (bytes > limit_ || used > limit_ - bytes) {
                this->refuse(bytes, "the limit of this resource");
            }
        } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    }
    void release(std::size_t bytes) noexcept { used_.fetch_sub(bytes, std::memory_order_relaxed); }

    std::size_t limit_;
    std::atomic<std::size_t> used_{0};
};

}  // namespace xmm
