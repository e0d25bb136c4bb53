// SPDX-License-Identifier: Apache-2.0
// binning_resource.hpp - each size to the resource that serves it best.
//
// Model    Bins have a largest size; a request goes to the smallest bin that takes it, what no bin takes
//          to the upstream. Where a block came from shows in its size. Bins and upstream are reached alike.
//          A bin is one of xmm's own resources; another type becomes one within any adaptor.
// Threads  Any, once all bins are added.
#pragma once

#include <algorithm>
#include <vector>

#include <xmm/resources/adaptors/adaptor.hpp>

namespace xmm {

template <resource Upstream>
class binning_resource final : public adaptor<Upstream> {
public:
    using bin_resource = detail::base_for<Upstream::static_reach>;

    explicit binning_resource(Upstream& upstream) noexcept
        : adaptor<Upstream>{"binning", upstream} {}

    // Requests of up to that many bytes. No block is live and nobody allocates meanwhile.
    // Throws std::invalid_argument if the bin's memory is not reached by whom the upstream's is.
    void add_bin(std::size_t largest_bytes, bin_resource& bin) {
        if (!includes(bin.reachable_by(), Upstream::static_reach)) {
            throw std::invalid_argument{"xmm::binning_resource: not reached like the upstream"};
        }
        const auto place =
            std::ranges::lower_bound(bins_, largest_bytes, {}, &bin_entry::largest_bytes);
        bins_.insert(place, {largest_bytes, &bin});
    }

private:
    struct bin_entry {
        std::size_t largest_bytes;
        bin_resource* bin;
    };

    [[nodiscard]] bin_resource* bin_of(std::size_t bytes) const noexcept {
        const auto entry = std::ranges::lower_bound(bins_, bytes, {}, &bin_entry::largest_bytes);
        return entry != bins_.end() ? entry->bin : nullptr;
    }
    void* do_allocate_on(stream_ref stream, std::size_t bytes, std::size_t alignment) override {
        bin_resource* bin = bin_of(bytes);
        return bin != nullptr ? bin->allocate(stream, bytes, alignment)
                              : this->upstream().allocate(stream, bytes, alignment);
    }
    void do_deallocate_on(stream_ref stream, void* pointer, std::size_t bytes,
                          std::size_t alignment) noexcept override {
        if (bin_resource* bin = bin_of(bytes)) {
            bin->deallocate(stream, pointer, bytes, alignment);
        } else {
            this->upstream().deallocate(stream, pointer, bytes, alignment);
        }
    }

    std::vector<bin_entry> bins_;  // smallest first
};

}  // namespace xmm
