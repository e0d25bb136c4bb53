// SPDX-License-Identifier: Apache-2.0
// aligned_resource.hpp - large requests are aligned to at least so much.
//
// Model    Every resource honours the alignment it is asked for; this one asks for more where the program
//          does not, say 4 KiB for direct I/O. Requests below the threshold pass as they are.
// Failure  The constructor throws std::invalid_argument if the alignment is no power of two.
#pragma once

#include <algorithm>

#include <xmm/resources/adaptors/adaptor.hpp>

namespace xmm {

template <resource Upstream>
class aligned_resource final : public adaptor<Upstream> {
public:
    aligned_resource(Upstream& upstream, std::size_t alignment, std::size_t threshold_bytes = 0)
        : adaptor<Upstream>{"aligned", upstream},
          alignment_{alignment},
          threshold_bytes_{threshold_bytes} {
        if (!std::has_single_bit(alignment)) {
            throw std::invalid_argument{
                "xmm::aligned_resource: an alignment must be a power of two"};
        }
    }

private:
    [[nodiscard]] std::size_t raised(std::size_t bytes, std::size_t alignment) const noexcept {
        return bytes >= threshold_bytes_ ? std::max(alignment, alignment_) : alignment;
    }
    void* do_allocate_on(stream_ref stream, std::size_t bytes, std::size_t alignment) override {
        return this->upstream().allocate(stream, bytes, raised(bytes, alignment));
    }
    void do_deallocate_on(stream_ref stream, void* pointer, std::size_t bytes,
                          std::size_t alignment) noexcept override {
        this->upstream().deallocate(stream, pointer, bytes, raised(bytes, alignment));
    }
    bool do_is_equal_to(const resource_base& other) const noexcept override {
        const auto* same = dynamic_cast<const aligned_resource*>(&other);
        return same != nullptr && same->alignment_ == alignment_ &&
               same->threshold_bytes_ == threshold_bytes_ && this->upstream() == same->upstream();
    }

    std::size_t alignment_;
    std::size_t threshold_bytes_;
};

}  // namespace xmm
