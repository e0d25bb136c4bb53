// SPDX-License-Identifier: Apache-2.0
// thread_safe_resource.hpp - one thread at a time, for an upstream that knows no threads.
#pragma once

#include <mutex>

#include <xmm/resources/adaptors/adaptor.hpp>

namespace xmm {

template <resource Upstream>
class thread_safe_resource final : public adaptor<Upstream> {
public:
    explicit thread_safe_resource(Upstream& upstream) noexcept
        : adaptor<Upstream>{"thread safe", upstream} {}

private:
    void* do_allocate_on(stream_ref stream, std::size_t bytes, std::size_t alignment) override {
        const std::lock_guard guard{mutex_};
        return this->upstream().allocate(stream, bytes, alignment);
    }
    void do_deallocate_on(stream_ref stream, void* pointer, std::size_t bytes,
                          std::size_t alignment) noexcept override {
        const std::lock_guard guard{mutex_};
        this->upstream().deallocate(stream, pointer, bytes, alignment);
    }

    std::mutex mutex_;  // no rank: held while the upstream runs, it comes before all of ours
};

}  // namespace xmm
