// SPDX-License-Identifier: Apache-2.0
// touch.hpp - work that reaches a device without launch: a library's kernels, a captured graph, a launch by hand.
//
// Model    touch(queue, {reads(x), writes(y)}) prepares the ranges as a launch does, and they stay as they are until
//          safe_point(queue): what is enqueued in the queue's stream meanwhile, by whom and how often ever, may use
//          them. safe_point waits for all of it, then pages may move again. Between the two a range belongs to the
//          device: a CPU thread that touches a page which is not there as well waits for the safe point.
//          A queue may be touched several times before its safe point, and its end is one. A driver may bind a copy
//          in a graph to the kind of memory that its pointers were when it was captured: touch before the capture,
//          or copy by kernels.
// Threads  Any. The caller of safe_point sees to it that nobody enqueues such work meanwhile.
// Failure  touch: nothing is touched and the contents are as before; pages may have moved. busy: the queue is a stream
//          under capture, or a launch is being made. safe_point: as queue::synchronize; unless that succeeded or the
//          device is lost, all stays touched.
#pragma once

#include <initializer_list>

#include <xmm/facade/launch.hpp>

namespace xmm {

[[nodiscard]] inline status touch(queue& line, std::span<const use> uses) noexcept {
    result<node*> on = detail::check_uses(line, uses);
    if (!on) {
        return on.error();
    }
    space_state& state = line.owner();
    std::unique_lock<space_state::launch_turn> order{state.launch_order, std::defer_lock};
    const use_grip grip = detail::launch_preparation::grip_of(**on);
    if (grip == use_grip::firm) {
        if (state.launch_order.is_mine()) {
            return fail(errc::busy,
                        "a touch from the function of a launch, on a device without faults");
        }
        order.lock();
    }
    detail::launch_preparation marks{state, **on, uses, grip};
    status outcome = marks.prepare();
    outcome = outcome ? marks.place(line.id()) : outcome;
    return outcome ? marks.hand_over_touched(line.id()) : outcome;
}
[[nodiscard]] inline status touch(queue& line, std::initializer_list<use> uses) noexcept {
    return touch(line, std::span<const use>{uses.begin(), uses.size()});
}

// Blocks until the work in the queue is done, and ends what was touched for it.
[[nodiscard]] inline status safe_point(queue& line) noexcept { return line.close_uses(); }

}  // namespace xmm
