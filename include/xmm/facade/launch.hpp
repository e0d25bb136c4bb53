// SPDX-License-Identifier: Apache-2.0
// launch.hpp - the way work reaches any device: with the ranges that it is going to touch.
//
// Model    launch(queue, {reads(x), writes(y)}, fn) prepares the ranges, calls fn with the launcher of
//          the queue's device, and remembers the ranges until the work is done. On devices that fault, a
//          range is a hint for placement; on others every page of every range is mapped before fn runs
//          and stays until the work is done, so a kernel must touch nothing else; only a device whose driver owns
//          the pages bears it, and is slow at it. A range of zero bytes is nothing, and no pointer of it is looked at.
//          fn takes cuda_stream& (CUDA devices), levelzero_stream& (Level Zero devices) or soft::stream& (software
//          devices). A launch may be a set of overloads, of which the queue's device takes the one for it; each
//          names the type that it takes.
// Threads  Any. On devices without faults, launches of one space are prepared one after another.
// Failure  Nothing was enqueued and the contents are as before; pages may have moved. But if fn itself failed or
//          threw, or the queue has no ticket for what is in it, what was enqueued by then goes on, and its ranges
//          count as used until it is done. busy: the queue is a stream under capture.
#pragma once

#include <initializer_list>
#include <iterator>
#include <mutex>
#include <ranges>
#include <span>
#include <type_traits>

#include <xmm/facade/launch_preparation.hpp>
#include <xmm/facade/space.hpp>

namespace xmm {

namespace detail {

// An empty range is nowhere: it overlaps no page.
[[nodiscard]] inline use use_of(const void* pointer, std::size_t bytes, access who) noexcept {
    return {bytes == 0 ? va_range{} : va_range{to_address(pointer), bytes}, who};
}

}  // namespace detail

[[nodiscard]] inline use reads(const void* pointer, std::size_t bytes) noexcept {
    return detail::use_of(pointer, bytes, access::read);
}
[[nodiscard]] inline use writes(const void* pointer, std::size_t bytes) noexcept {
    return detail::use_of(pointer, bytes, access::write);
}
[[nodiscard]] inline use reads_writes(const void* pointer, std::size_t bytes) noexcept {
    return detail::use_of(pointer, bytes, access::read_write);
}

namespace detail {

template <class R>
concept stretch = std::ranges::contiguous_range<R> && std::ranges::sized_range<R>;
template <stretch R>
[[nodiscard]] std::size_t bytes_of(const R& elements) noexcept {
    return std::ranges::size(elements) * sizeof(std::ranges::range_value_t<R>);
}

}  // namespace detail

template <detail::stretch R>
[[nodiscard]] use reads(const R& elements) noexcept {
    return reads(std::ranges::data(elements), detail::bytes_of(elements));
}
template <detail::stretch R>
[[nodiscard]] use writes(const R& elements) noexcept {
    return writes(std::ranges::data(elements), detail::bytes_of(elements));
}
template <detail::stretch R>
[[nodiscard]] use reads_writes(const R& elements) noexcept {
    return reads_writes(std::ranges::data(elements), detail::bytes_of(elements));
}

namespace detail {

// Where a launcher has a device that must be the thread's own while fn runs.
template <class Launcher>
auto current_for(const Launcher& one) noexcept {
    if constexpr (requires { one.make_current(); }) {
        return one.make_current();
    } else {
        return 0;
    }
}

// Calls fn with a launcher of that kind, if fn takes one and the queue's device has one.
template <class Launcher, class Fn>
bool try_launcher(queue& line, Fn& fn, status& outcome) {
    if constexpr (std::is_invocable_v<Fn&, Launcher&>) {
        using driver_type = typename Launcher::driver_type;
        void* driver = line.native(driver_type::native_kind);
        if (driver == nullptr) {
            return false;
        }
        Launcher one{*static_cast<driver_type*>(driver), line.id()};
        [[maybe_unused]] const auto scope = current_for(one);
        using answer = std::invoke_result_t<Fn&, Launcher&>;
        if constexpr (std::is_void_v<answer>) {
            fn(one);
        } else if constexpr (std::is_same_v<answer, status>) {
            outcome = fn(one);
        } else {
            auto enqueued = fn(one);
            outcome = enqueued ? status{} : enqueued.error();
        }
        return true;
    }
    return false;
}
template <class... Launchers, class Fn>
status call_launcher(queue& line, Fn& fn) {
    status outcome;
    const bool was_called = (try_launcher<Launchers>(line, fn, outcome) || ...);
    return was_called
               ? outcome
               : fail(errc::unsupported, "the function takes no launcher of this queue's device");
}

// The node of the queue, if the ranges are memory of its space and the queue gives tickets: one that is captured, full
// or lost gets no work.
[[nodiscard]] inline result<node*> check_uses(queue& line, std::span<const use> uses) noexcept {
    if (line.id().value == 0) {
        return fail(errc::invalid_argument, "a moved-from queue");
    }
    space_state& state = line.owner();
    result<node*> on = state.check_node(line.node());
    if (!on) {
        return on;
    }
    for (const use& one : uses) {
        // access::in_place is for faults: no mapping ever covers it.
        if (one.who == access::none || !covers(access::read_write, one.who)) {
            return fail(errc::invalid_argument, "a use reads, writes, or both");
        }
        if (one.range.is_empty()) {
            continue;
        }
        if (result<va_range> range =
                state.check_range(to_pointer(one.range.begin), one.range.bytes);
            !range) {
            return range.error();
        }
    }
    if (result<ticket> point = line.record(); !point) {
        return point.error();
    }
    return on;
}

}  // namespace detail

// Overloads for several kinds of devices in one function object.
template <class... Fns>
struct overloads : Fns... {
    using Fns::operator()...;
};
template <class... Fns>
overloads(Fns...) -> overloads<Fns...>;

// fn may return nothing, or a status or result whose failure is passed on. For devices of a vendor of your own
// name its launcher, launch<my::stream>(...): a type made from (driver&, queue_id), whose driver_type has a
// native_kind and a native(); see concepts/backend_table.hpp. The ticket is reached when the work is done.
template <class... Launchers, class Fn>
[[nodiscard]] result<ticket> launch(queue& line, std::span<const use> uses, Fn&& fn) {
    result<node*> on = detail::check_uses(line, uses);
    if (!on) {
        return on.error();
    }
    space_state& state = line.owner();
    std::unique_lock<space_state::launch_turn> order{state.launch_order, std::defer_lock};
    if (!(*on)->can(ability::device_faults)) {
        if (state.launch_order.is_mine()) {
            return fail(errc::busy,
                        "a launch from the function of another, on a device without faults");
        }
        order.lock();
    }
    detail::launch_preparation marks{state, **on, uses, detail::launch_preparation::grip_of(**on)};
    if (status prepared = marks.prepare(); !prepared) {
        return prepared;
    }
    if (status placed = marks.place(line.id()); !placed) {
        return placed;
    }
    status called;
    try {
        called = detail::call_launcher<Launchers...,
#if XMM_HAS_CUDA
                                       cuda::stream,
#endif
#if XMM_HAS_LEVELZERO
                                       levelzero::stream,
#endif
                                       soft::stream>(line, fn);
    } catch (...) {
        marks.hand_over(line.id(), line.record());
        throw;
    }
    result<ticket> point = line.record();
    const status recorded = point.error();
    const ticket done = point ? *point : ticket{};
    marks.hand_over(line.id(), std::move(point));
    state.core.uses().retire_finished();
    called = called ? recorded : called;
    return called ? result<ticket>{done} : result<ticket>{called};
}

template <class... Launchers, class Fn>
[[nodiscard]] result<ticket> launch(queue& line, std::initializer_list<use> uses, Fn&& fn) {
    return launch<Launchers...>(line, std::span<const use>{uses.begin(), uses.size()},
                                std::forward<Fn>(fn));
}

}  // namespace xmm
