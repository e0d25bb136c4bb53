// SPDX-License-Identifier: Apache-2.0
// failure_callback_resource.hpp - asks the program to make room before a request fails.
//
// Model    The callback is told the bytes; true means "try again", false lets the failure through. It runs
//          on the thread that asked, with no lock held, and may give memory back to this very resource.
// Threads  Any; the callback may run on several threads at once.
#pragma once

#include <new>

#include <xmm/resources/adaptors/adaptor.hpp>

namespace xmm {

using failure_callback = bool (*)(std::size_t bytes, void* context);

template <resource Upstream>
class failure_callback_resource final : public adaptor<Upstream> {
public:
    failure_callback_resource(Upstream& upstream, failure_callback callback,
                              void* context = nullptr) noexcept
        : adaptor<Upstream>{"failure callback", upstream}, callback_{callback}, context_{context} {}

private:
    void* do_allocate_on(stream_ref stream, std::size_t bytes, std::size_t alignment) override {
        for (;;) {
            try {
                return this->upstream().allocate(stream, bytes, alignment);
            } catch (const std::bad_alloc&) {
                if (!callback_(bytes, context_)) {
                    throw;
                }
            }
        }
    }
    void do_deallocate_on(stream_ref stream, void* pointer, std::size_t bytes,
                          std::size_t alignment) noexcept override {
        this->upstream().deallocate(stream, pointer, bytes, alignment);
    }
    bool do_is_equal_to(const resource_base& other) const noexcept override {
        const auto* same = dynamic_cast<const failure_callback_resource*>(&other);
        return same != nullptr && this->upstream() == same->upstream();
    }

    failure_callback callback_;
    void* context_;
};

}  // namespace xmm
