// SPDX-License-Identifier: Apache-2.0
// torch_models.hpp - PyTorch's caching allocator as a model: its default form and expandable segments.
//
// Model    native-model: blocks in multiples of 512 bytes. Requests up to 1 MiB come from segments of 2 MiB,
//          those below 10 MiB from segments of 20 MiB, larger ones from one of their own in steps of
//          2 MiB. A free block serves its stream only, the best fit first; it is split where the rest is of
//          use (1 MiB in the large pool), and merges with its free neighbours. Segments go back to the
//          driver only when it has no more memory, and only those without a block.
//          expandable-model: a stream's small and large blocks lie in one address range each, as large as
//          the device and an eighth, backed on demand by handles of 2 and 20 MiB, at its end or in a hole; any
//          rest is split off. When the driver has no more memory free blocks give their whole handles back.
//          Written from the allocator's behaviour in PyTorch 2.11 with its default settings; checked
//          against reserved bytes measured there (tests/replay/models.cpp).
// Threads  One.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "candidate.hpp"

namespace xmm::trace_replay {

namespace detail {

inline constexpr std::uint64_t torch_mib = std::uint64_t{1} << 20;
inline constexpr std::uint64_t torch_unit = 512;
inline constexpr std::uint64_t torch_largest_small = torch_mib;
inline constexpr std::uint64_t torch_small_segment = 2 * torch_mib;
inline constexpr std::uint64_t torch_large_segment = 20 * torch_mib;
inline constexpr std::uint64_t torch_smallest_own = 10 * torch_mib;
inline constexpr std::uint64_t torch_own_step = 2 * torch_mib;

[[nodiscard]] constexpr std::uint64_t round_to(std::uint64_t bytes, std::uint64_t step) noexcept {
    return (bytes + step - 1) / step * step;
}

struct torch_block {
    std::uint64_t at = 0;
    std::uint64_t bytes = 0;
    std::uint32_t stream = 0;
    bool is_small = false;
    bool is_used = false;
    bool is_mapped = true;
    torch_block* before = nullptr;
    torch_block* after = nullptr;
};

struct by_size {
    bool operator()(const torch_block* a, const torch_block* b) const noexcept {
        return std::tie(a->stream, a->bytes, a->at) < std::tie(b->stream, b->bytes, b->at);
    }
};
struct by_address {
    bool operator()(const torch_block* a, const torch_block* b) const noexcept {
        return std::tie(a->stream, a->at) < std::tie(b->stream, b->at);
    }
};

// Free blocks of one size class, mapped ones by size and holes by address.
struct torch_pool {
    std::set<torch_block*, by_size> free;
    std::set<torch_block*, by_address> holes;
};

// Records of blocks, used again.
class torch_blocks {
public:
    [[nodiscard]] torch_block* make() {
        if (spare_.empty()) {
            return &all_.emplace_back();
        }
        torch_block* one = spare_.back();
        spare_.pop_back();
        *one = {};
        return one;
    }
    void give_back(torch_block* one) { spare_.push_back(one); }

private:
    std::deque<torch_block> all_;
    std::vector<torch_block*> spare_;
};

}  // namespace detail

class torch_model : public candidate {
public:
    // What both forms have in common. A device of 0 bytes never runs out.
    torch_model(const prices& list, std::uint64_t device_bytes)
        : candidate{list}, device_bytes_{device_bytes} {}

    [[nodiscard]] bool allocate(const trace_event& event) final {
        const std::uint64_t bytes = detail::round_to(event.bytes, detail::torch_unit);
        const bool is_small = bytes <= detail::torch_largest_small;
        block* found = find_free(event.stream, bytes, is_small);
        if (found == nullptr) {
            found = grow(event.stream, bytes, is_small);
        }
        if (found == nullptr) {
            release_cached();
            found = grow(event.stream, bytes, is_small);
        }
        if (found == nullptr) {
            return false;
        }
        const std::uint64_t rest = found->bytes - bytes;
        if (is_worth_splitting(rest, is_small)) {
            split(found, bytes);
        }
        found->is_used = true;
        if (event.block >= used_.size()) {
            used_.resize(std::max<std::size_t>(event.block + 1, used_.size() * 2));
        }
        used_[event.block] = found;
        return true;
    }
    void free_completed(const trace_event& event) final {
        block* one = std::exchange(used_[event.block], nullptr);
        one->is_used = false;
        put_free(one);
    }

protected:
    using block = detail::torch_block;
    using pool = detail::torch_pool;

    [[nodiscard]] pool& pool_of(bool is_small) noexcept { return is_small ? small_ : large_; }
    [[nodiscard]] bool has_room(std::uint64_t bytes) const noexcept {
        return device_bytes_ == 0 || bill_.reserved() + bytes <= device_bytes_;
    }
    [[nodiscard]] std::uint64_t device_bytes() const noexcept { return device_bytes_; }
    [[nodiscard]] block* make_block() { return blocks_.make(); }
    void drop_block(block* one) { blocks_.give_back(one); }

    // The head keeps `bytes`; the tail is another block, in no set yet.
    block* cut(block* head, std::uint64_t bytes) {
        block* tail = blocks_.make();
        tail->at = head->at + bytes;
        tail->bytes = head->bytes - bytes;
        tail->stream = head->stream;
        tail->is_small = head->is_small;
        tail->is_mapped = head->is_mapped;
        tail->before = head;
        tail->after = head->after;
        if (tail->after != nullptr) {
            tail->after->before = tail;
        }
        head->after = tail;
        head->bytes = bytes;
        return tail;
    }
    // Merges a block that is in no set with its neighbours of the same kind; they leave their sets.
    void merge(block* one) {
        if (block* left = one->before; left != nullptr && can_merge(*left, *one)) {
            forget(left);
            one->at = left->at;
            one->bytes += left->bytes;
            one->before = left->before;
            if (one->before != nullptr) {
                one->before->after = one;
            }
            blocks_.give_back(left);
        }
        if (block* right = one->after; right != nullptr && can_merge(*right, *one)) {
            forget(right);
            one->bytes += right->bytes;
            one->after = right->after;
            if (one->after != nullptr) {
                one->after->before = one;
            }
            blocks_.give_back(right);
        }
    }
    void put_free(block* one) {
        merge(one);
        pool_of(one->is_small).free.insert(one);
    }

    [[nodiscard]] virtual block* find_free(std::uint32_t stream, std::uint64_t bytes,
                                           bool is_small) = 0;
    // A free block that is in no set, from the driver.
    [[nodiscard]] virtual block* grow(std::uint32_t stream, std::uint64_t bytes, bool is_small) = 0;
    [[nodiscard]] virtual bool is_worth_splitting(std::uint64_t rest,
                                                  bool is_small) const noexcept = 0;
    virtual void release_cached() = 0;

private:
    [[nodiscard]] static bool can_merge(const block& other, const block& one) noexcept {
        return !other.is_used && other.is_mapped == one.is_mapped;
    }
    void forget(block* one) {
        if (one->is_mapped) {
            pool_of(one->is_small).free.erase(one);
        } else {
            pool_of(one->is_small).holes.erase(one);
        }
    }
    void split(block* head, std::uint64_t bytes) {
        block* tail = cut(head, bytes);
        pool_of(tail->is_small).free.insert(tail);
    }

    std::uint64_t device_bytes_;
    pool small_;
    pool large_;
    detail::torch_blocks blocks_;
    std::vector<block*> used_;  // by the trace's number
};

class native_model final : public torch_model {
public:
    using torch_model::torch_model;

private:
    block* find_free(std::uint32_t stream, std::uint64_t bytes, bool is_small) override {
        auto& free = pool_of(is_small).free;
        block key;
        key.stream = stream;
        key.bytes = bytes;
        const auto at = free.lower_bound(&key);
        if (at == free.end() || (*at)->stream != stream) {
            return nullptr;
        }
        block* one = *at;
        free.erase(at);
        return one;
    }
    block* grow(std::uint32_t stream, std::uint64_t bytes, bool is_small) override {
        const std::uint64_t segment = is_small ? detail::torch_small_segment
                                      : bytes < detail::torch_smallest_own
                                          ? detail::torch_large_segment
                                          : detail::round_to(bytes, detail::torch_own_step);
        if (!has_room(segment)) {
            return nullptr;
        }
        bill_.add_create(segment, bill_.price(driver_call::malloc, segment));
        block* one = make_block();
        one->at = next_;
        one->bytes = segment;
        one->stream = stream;
        one->is_small = is_small;
        next_ += segment;
        return one;
    }
    bool is_worth_splitting(std::uint64_t rest, bool is_small) const noexcept override {
        return is_small ? rest >= detail::torch_unit : rest > detail::torch_largest_small;
    }
    void release_cached() override {
        for (const bool is_small : {false, true}) {
            auto& free = pool_of(is_small).free;
            for (auto at = free.begin(); at != free.end();) {
                block* one = *at;
                if (one->before == nullptr && one->after == nullptr) {
                    at = free.erase(at);
                    bill_.add_drop(one->bytes, bill_.price(driver_call::free, one->bytes));
                    drop_block(one);
                } else {
                    ++at;
                }
            }
        }
    }

    std::uint64_t next_ = std::uint64_t{1} << 40;
};

class expandable_model final : public torch_model {
public:
    using torch_model::torch_model;

private:
    [[nodiscard]] static std::uint64_t handle_bytes(bool is_small) noexcept {
        return is_small ? detail::torch_small_segment : detail::torch_large_segment;
    }
    // A block counts for as much as it could grow to.
    [[nodiscard]] static std::uint64_t reach(const block* one) noexcept {
        return one->bytes +
               (one->after != nullptr && !one->after->is_mapped ? one->after->bytes : 0);
    }

    block* find_free(std::uint32_t stream, std::uint64_t bytes, bool is_small) override {
        auto& free = pool_of(is_small).free;
        block key;
        key.stream = stream;
        key.bytes = bytes;
        auto at = free.lower_bound(&key);
        if (at == free.end() || (*at)->stream != stream) {
            return nullptr;
        }
        for (auto next = std::next(at);
             next != free.end() && (*next)->stream == stream && reach(*next) < reach(*at); ++next) {
            at = next;
        }
        block* one = *at;
        free.erase(at);
        return one;
    }

    // The lowest hole that is large enough together with the free block before it and what follows.
    [[nodiscard]] block* find_place(std::uint32_t stream, std::uint64_t bytes, bool is_small) {
        auto& holes = pool_of(is_small).holes;
        block key;
        key.stream = stream;
        for (auto at = holes.lower_bound(&key); at != holes.end() && (*at)->stream == stream;
             ++at) {
            block* first = *at;
            if (first->before != nullptr && !first->before->is_used) {
                first = first->before;
            }
            std::uint64_t room = 0;
            for (const block* one = first; one != nullptr && !one->is_used && room < bytes;
                 one = one->after) {
                room += one->bytes;
            }
            if (room >= bytes) {
                return first;
            }
        }
        block* range = make_block();
        range->at = next_;
        range->bytes = range_bytes(bytes);
        range->stream = stream;
        range->is_small = is_small;
        range->is_mapped = false;
        next_ += range->bytes;
        holes.insert(range);
        return range;
    }
    [[nodiscard]] std::uint64_t range_bytes(std::uint64_t bytes) const noexcept {
        constexpr std::uint64_t unlimited = std::uint64_t{1} << 46;
        const std::uint64_t device = device_bytes() != 0 ? device_bytes() : unlimited;
        return detail::round_to(std::max(device + device / 8, bytes), detail::torch_large_segment);
    }

    // Backs the first `bytes` of a hole, whole handles; it becomes a free block and takes in its neighbours.
    [[nodiscard]] bool back(block* hole, std::uint64_t bytes) {
        const std::uint64_t handle = handle_bytes(hole->is_small);
        const std::uint64_t mapped = std::min(detail::round_to(bytes, handle), hole->bytes);
        if (!has_room(mapped)) {
            return false;
        }
        // One entry for all handles, however many a trace makes up; access is set for the whole stretch at once.
        const std::uint64_t count = (mapped + handle - 1) / handle;
        const double us = bill_.price(driver_call::create, handle) +
                          bill_.price(driver_call::map, handle) +
                          bill_.price(driver_call::set_access, handle);
        bill_.add_create(count * handle, static_cast<double>(count) * us, 2 * count + 1);
        auto& own = pool_of(hole->is_small);
        own.holes.erase(hole);
        if (mapped < hole->bytes) {
            own.holes.insert(cut(hole, mapped));
        }
        hole->is_mapped = true;
        put_free(hole);
        return true;
    }
    block* grow(std::uint32_t stream, std::uint64_t bytes, bool is_small) override {
        block* one = find_place(stream, bytes, is_small);
        if (!one->is_mapped && !back(one, std::min(bytes, one->bytes))) {
            return nullptr;
        }
        while (one->bytes < bytes) {
            block* hole = one->after;
            if (!back(hole, std::min(bytes - one->bytes, hole->bytes))) {
                return nullptr;
            }
            one = hole;
        }
        pool_of(is_small).free.erase(one);
        return one;
    }
    bool is_worth_splitting(std::uint64_t rest, bool /*is_small*/) const noexcept override {
        return rest >= detail::torch_unit;
    }
    // Whole handles inside free blocks.
    void release_cached() override {
        for (const bool is_small : {false, true}) {
            const std::uint64_t handle = handle_bytes(is_small);
            auto& own = pool_of(is_small);
            const std::vector<block*> all{own.free.begin(), own.free.end()};
            for (block* one : all) {
                const std::uint64_t begin = detail::round_to(one->at - origin, handle) + origin;
                const std::uint64_t end =
                    (one->at + one->bytes - origin) / handle * handle + origin;
                if (begin < end) {
                    unback(own, one, begin, end);
                }
            }
        }
    }
    void unback(pool& own, block* one, std::uint64_t begin, std::uint64_t end) {
        const std::uint64_t handle = handle_bytes(one->is_small);
        own.free.erase(one);
        if (begin > one->at) {
            block* tail = cut(one, begin - one->at);
            own.free.insert(one);
            one = tail;
        }
        if (end < one->at + one->bytes) {
            own.free.insert(cut(one, end - one->at));
        }
        const std::uint64_t count = (end - begin) / handle;
        const double us =
            bill_.price(driver_call::unmap, handle) + bill_.price(driver_call::drop, handle);
        bill_.add_drop(count * handle, static_cast<double>(count) * us, 2 * count);
        one->is_mapped = false;
        merge(one);
        own.holes.insert(one);
    }

    // Ranges are whole handles long, so that one grid fits all of them: 2 and 20 MiB divide it.
    static constexpr std::uint64_t origin = std::uint64_t{20} << 30;
    std::uint64_t next_ = origin;
};

}  // namespace xmm::trace_replay
