// SPDX-License-Identifier: Apache-2.0
// faulty_backend.hpp - a backend around a backend: counts calls, fails or delays them, hides abilities.
//
// Model    Every operator is counted and passed on. A plan per operator may fail one call with a code,
//          a batch after some of its entries, and may delay each call. Stripped abilities are gone from
//          describe, and what they stand for is refused.
// Threads  As the inner backend; plans are set while no call is under way.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <span>
#include <thread>
#include <type_traits>

#include <xmm/concepts/backend.hpp>

namespace xmm::test {

enum class op : std::uint8_t {
    describe,
    va_examine,
    va_release,
    queue_create,
    queue_destroy,
    memcpy,
    zero,
    wait,
    record,
    make_wait,
    frame_create,
    frame_drop,
    pmap_enter,
    pmap_clear,
    place,
    advise,
    residency,
    discard,
    on_device_fault,
    off_device_fault,
    call,
};
inline constexpr std::size_t op_count = static_cast<std::size_t>(op::call) + 1;

// How one operator misbehaves.
struct op_plan {
    std::uint64_t fail_at = 0;     // the call that fails, counted from 1 since `plan`; 0: none
    std::uint64_t fail_count = 1;  // and how many in a row
    errc code = errc::no_memory;
    std::size_t after = 0;  // entries of a batch that still take effect
    std::chrono::microseconds delay{0};
};

template <backend B>
class faulty_backend {
public:
    explicit faulty_backend(B& inner) noexcept : inner_{inner} {}

    // ---- what tests set and ask

    void plan(op which, op_plan how) noexcept {
        slot_of(which).how = how;
        slot_of(which).since = calls(which);
    }
    void fail_next(op which, errc code, std::size_t after = 0) noexcept {
        plan(which, {.fail_at = 1, .code = code, .after = after});
    }
    [[nodiscard]] std::uint64_t calls(op which) const noexcept {
        return slots_[static_cast<std::size_t>(which)].calls.load(std::memory_order_relaxed);
    }
    // Runs or ranges that pmap_enter and pmap_clear were given.
    [[nodiscard]] std::uint64_t entries(op which) const noexcept {
        return slots_[static_cast<std::size_t>(which)].entries.load(std::memory_order_relaxed);
    }
    void decline_va_examine(bool declines) noexcept { declines_ = declines; }
    void strip(ability one) noexcept { stripped_ |= static_cast<std::uint32_t>(one); }
    [[nodiscard]] B& inner() noexcept { return inner_; }

    // ---- vendor

    std::span<const node_id> nodes() const noexcept { return inner_.nodes(); }
    result<node_description> describe(node_id node) noexcept {
        if (const status planned = begin(op::describe); !planned) {
            return planned;
        }
        auto about = inner_.describe(node);
        if (about) {
            about->able.bits &= ~stripped_;
        }
        return about;
    }
    result<va_range> va_examine(va_range range, std::size_t alignment) noexcept {
        if (const status planned = begin(op::va_examine); !planned) {
            return planned;
        }
        if (declines_) {
            return fail(errc::unsupported, "declined by the test");
        }
        return inner_.va_examine(range, alignment);
    }
    void va_release(va_range range) noexcept {
        (void)begin(op::va_release);
        inner_.va_release(range);
    }
    result<queue_id> queue_create(node_id node, queue_priority priority) noexcept {
        const status planned = begin(op::queue_create);
        return planned ? inner_.queue_create(node, priority) : result<queue_id>{planned};
    }
    void queue_destroy(queue_id queue) noexcept {
        (void)begin(op::queue_destroy);
        inner_.queue_destroy(queue);
    }
    result<ticket> memcpy(queue_id queue, std::span<const piece> pieces) noexcept {
        const status planned = begin(op::memcpy, pieces.size());
        return planned ? inner_.memcpy(queue, pieces) : result<ticket>{planned};
    }
    result<ticket> zero(queue_id queue, std::span<const va_range> ranges) noexcept {
        const status planned = begin(op::zero, ranges.size());
        return planned ? inner_.zero(queue, ranges) : result<ticket>{planned};
    }
    bool is_done(ticket point) noexcept { return inner_.is_done(point); }
    status wait(ticket point) noexcept {
        const status planned = begin(op::wait);
        return planned ? inner_.wait(point) : planned;
    }
    result<ticket> record(queue_id queue) noexcept {
        const status planned = begin(op::record);
        return planned ? inner_.record(queue) : result<ticket>{planned};
    }
    status make_wait(queue_id queue, ticket point) noexcept {
        const status planned = begin(op::make_wait);
        return planned ? inner_.make_wait(queue, point) : planned;
    }

    // ---- owns_frames

    result<frame> frame_create(node_id node, std::size_t bytes) noexcept
        requires owns_frames<B>
    {
        const status planned = begin(op::frame_create);
        return planned ? inner_.frame_create(node, bytes) : result<frame>{planned};
    }
    void frame_drop(frame f) noexcept
        requires owns_frames<B>
    {
        (void)begin(op::frame_drop);
        inner_.frame_drop(f);
    }
    progress pmap_enter(node_id node, std::span<const run> runs) noexcept
        requires owns_frames<B>
    {
        return batch(op::pmap_enter, runs,
                     [&](auto some) { return inner_.pmap_enter(node, some); });
    }
    progress pmap_clear(node_id node, std::span<const va_range> ranges) noexcept
        requires owns_frames<B>
    {
        return batch(op::pmap_clear, ranges,
                     [&](auto some) { return inner_.pmap_clear(node, some); });
    }

    // ---- steers_driver

    result<ticket> place(queue_id queue, std::span<const va_range> ranges, node_id node) noexcept
        requires steers_driver<B>
    {
        const status planned = begin(op::place, ranges.size());
        return planned ? inner_.place(queue, ranges, node) : result<ticket>{planned};
    }
    status advise(std::span<const va_range> ranges, driver_advice what, node_id node) noexcept
        requires steers_driver<B>
    {
        const status planned = begin(op::advise, ranges.size());
        return planned ? inner_.advise(ranges, what, node) : planned;
    }
    status residency(std::span<const va_range> ranges, std::span<node_id> where) noexcept
        requires steers_driver<B>
    {
        const status planned = begin(op::residency, ranges.size());
        return planned ? inner_.residency(ranges, where) : planned;
    }
    result<ticket> discard(queue_id queue, std::span<const va_range> ranges) noexcept
        requires steers_driver<B>
    {
        const status planned = begin(op::discard, ranges.size());
        return planned ? inner_.discard(queue, ranges) : result<ticket>{planned};
    }

    // ---- abilities

    status on_device_fault(device_fault_sink sink) noexcept
        requires takes_device_faults<B>
    {
        const status planned = begin(op::on_device_fault);
        if (planned && is_stripped(ability::device_faults)) {
            return fail(errc::unsupported, "stripped by the test");
        }
        return planned ? inner_.on_device_fault(sink) : planned;
    }
    void off_device_fault(void* context) noexcept
        requires takes_device_faults<B>
    {
        (void)begin(op::off_device_fault);
        inner_.off_device_fault(context);
    }
    result<ticket> call(queue_id queue, void (*fn)(void*) noexcept, void* context) noexcept
        requires makes_host_calls<B>
    {
        const status planned = begin(op::call);
        if (planned && is_stripped(ability::host_calls)) {
            return fail(errc::unsupported, "stripped by the test");
        }
        return planned ? inner_.call(queue, fn, context) : result<ticket>{planned};
    }

private:
    struct slot {
        std::atomic<std::uint64_t> calls{0};  // relaxed: tests read counts after the calls
        std::atomic<std::uint64_t> entries{0};
        std::uint64_t since = 0;
        op_plan how;
    };

    [[nodiscard]] slot& slot_of(op which) noexcept {
        return slots_[static_cast<std::size_t>(which)];
    }
    [[nodiscard]] bool is_stripped(ability one) const noexcept {
        return (stripped_ & static_cast<std::uint32_t>(one)) != 0;
    }

    status begin(op which, std::size_t entries = 0) noexcept {
        slot& mine = slot_of(which);
        const std::uint64_t number =
            mine.calls.fetch_add(1, std::memory_order_relaxed) + 1 - mine.since;
        mine.entries.fetch_add(entries, std::memory_order_relaxed);
        if (mine.how.delay.count() != 0) {
            std::this_thread::sleep_for(mine.how.delay);
        }
        const bool fails = mine.how.fail_at != 0 && number >= mine.how.fail_at &&
                           number - mine.how.fail_at < mine.how.fail_count;
        return fails ? fail(mine.how.code, "failed by the test") : status{};
    }
    template <class Entry, class Fn>
    progress batch(op which, std::span<const Entry> all, Fn&& pass_on) noexcept {
        const status planned = begin(which, all.size());
        if (planned) {
            return pass_on(all);
        }
        const std::size_t some = std::min(slot_of(which).how.after, all.size());
        const progress real = some == 0 ? progress{} : pass_on(all.first(some));
        return real ? progress{some, planned} : real;
    }

    B& inner_;
    std::array<slot, op_count> slots_;
    std::uint32_t stripped_ = 0;
    bool declines_ = false;
};

}  // namespace xmm::test
