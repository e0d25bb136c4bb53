// SPDX-License-Identifier: Apache-2.0
// launch.hpp - the way work reaches any device: with the ranges that it is going to touch.
//
// Model    launch(queue, {reads(x), writes(y)}, fn) prepares the ranges, calls fn with the launcher of
//          the queue's device, and remembers the ranges until the work is done. On devices that fault, a
//          range is a hint for placement; on others every page of every range is mapped before fn runs
//          and stays until the work is done, so a kernel must touch nothing else.
//          fn takes soft::stream& (software devices). A launch may be a set of overloads, of which the
//          queue's device takes the one for it.
// Threads  Any. On devices without faults, launches of one space are prepared one after another.
// Failure  Nothing was enqueued and the ranges are as before, unless fn itself failed or threw: what it had
//          enqueued by then goes on, and its ranges count as used until it is done.
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

[[nodiscard]] inline use reads(const void* pointer, std::size_t bytes) noexcept {
    return {{to_address(pointer), bytes}, access::read};
}
[[nodiscard]] inline use writes(const void* pointer, std::size_t bytes) noexcept {
    return {{to_address(pointer), bytes}, access::write};
}
[[nodiscard]] inline use reads_writes(const void* pointer, std::size_t bytes) noexcept {
    return {{to_address(pointer), bytes}, access::read_write};
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

// A function object that calls fn with the queue's own launcher, if fn takes it.
template <class Fn>
status call_launcher(queue& line, Fn& fn) {
    if constexpr (std::is_invocable_v<Fn&, soft::stream&>) {
        if (void* driver = line.native(soft::driver::native_kind)) {
            soft::stream stream{*static_cast<soft::driver*>(driver), line.id()};
            if constexpr (std::is_void_v<std::invoke_result_t<Fn&, soft::stream&>>) {
                fn(stream);
                return {};
            } else {
                auto outcome = fn(stream);
                return outcome ? status{} : outcome.error();
            }
        }
    }
    return fail(errc::unsupported, "the function takes no launcher of this queue's device");
}

}  // namespace detail

// Overloads for several kinds of devices in one function object.
template <class... Fns>
struct overloads : Fns... {
    using Fns::operator()...;
};
template <class... Fns>
overloads(Fns...) -> overloads<Fns...>;

// fn may return nothing, or a result whose failure is passed on. The ticket is reached when the work is done.
template <class Fn>
[[nodiscard]] result<ticket> launch(queue& line, std::span<const use> uses, Fn&& fn) {
    if (line.id().value == 0) {
        return fail(errc::invalid_argument, "a moved-from queue");
    }
    space_state& state = line.owner();
    result<node*> on = state.check_node(line.node());
    if (!on) {
        return on.error();
    }
    for (const use& one : uses) {
        if (result<va_range> range =
                state.check_range(to_pointer(one.range.begin), one.range.bytes);
            !range) {
            return range.error();
        }
    }
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
    status called;
    try {
        called = detail::call_launcher(line, fn);
    } catch (...) {
        marks.hand_over(line.record());
        throw;
    }
    result<ticket> point = line.record();
    const status recorded = point.error();
    const ticket done = point ? *point : ticket{};
    marks.hand_over(std::move(point));
    state.core.uses().retire_finished();
    called = called ? recorded : called;
    return called ? result<ticket>{done} : result<ticket>{called};
}

template <class Fn>
[[nodiscard]] result<ticket> launch(queue& line, std::initializer_list<use> uses, Fn&& fn) {
    return launch(line, std::span<const use>{uses.begin(), uses.size()}, std::forward<Fn>(fn));
}

}  // namespace xmm
