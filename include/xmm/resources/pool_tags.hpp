// SPDX-License-Identifier: Apache-2.0
// pool_tags.hpp - tags that nobody else has: made on demand, used again when they are given back.
//
// Model    Users' own tags are below first_made; those that are made are from there upwards.
// Threads  Any. One lock (rank leaf).
// Failure  make: no_memory without memory, or when all are in use. give_back cannot fail.
#pragma once

#include <cstdint>
#include <new>
#include <vector>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>
#include <xmm/resources/malloc_request.hpp>

namespace xmm {

class pool_tags {
public:
    static constexpr std::uint16_t first_made = 0x8000;

    [[nodiscard]] result<pool_tag> make() noexcept {
        return with(lock_, [&]() -> result<pool_tag> {
            if (!idle_.empty()) {
                const pool_tag tag = idle_.back();
                idle_.pop_back();
                return tag;
            }
            if (made_ == 0x10000 - first_made) {
                return fail(errc::no_memory, "too many pools on one heap");
            }
            try {
                idle_.reserve(made_ + 1);  // so that give_back cannot fail
            } catch (const std::bad_alloc&) {
                return fail(errc::no_memory, "no memory for a tag");
            }
            return pool_tag{static_cast<std::uint16_t>(first_made + made_++)};
        });
    }
    // No block has it any more.
    void give_back(pool_tag tag) noexcept {
        with(lock_, [&] { idle_.push_back(tag); });
    }

private:
    ranked_mutex<lock_rank::leaf> lock_;
    std::vector<pool_tag> idle_;  // under lock_, as the next
    unsigned made_ = 0;
};

}  // namespace xmm
