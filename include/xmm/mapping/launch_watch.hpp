// SPDX-License-Identifier: Apache-2.0
// launch_watch.hpp - finds work that could touch a page which is just leaving its device.
//
// Model    For debugging; on with XMM_CONF=check_launches:on. On a device without faults a kernel may touch only what
//          its launch, or a touch, has named. When a page loses its mapping on such a device, each queue of the
//          device is asked whether it has work that is not done though all that was named for it is: somebody
//          enqueued that by other ways, and nothing keeps its pages. One message a queue; the page leaves all the
//          same. What runs behind a launch that is not done yet goes unseen, as does work in streams that are no
//          queues.
// Threads  Any. One lock, rank leaf; drivers are asked without it.
// Failure  Queues beyond the first 64, and those that give no ticket, are not watched.
#pragma once

#include <array>
#include <utility>

#include <xmm/concepts/backend_table.hpp>
#include <xmm/core/lock.hpp>
#include <xmm/os/conf.hpp>
#include <xmm/os/crash_message.hpp>

namespace xmm {

class launch_watch {
public:
    launch_watch() noexcept : is_on_{conf::of_process().flag("check_launches", false)} {}

    [[nodiscard]] bool is_on() const noexcept { return is_on_; }

    void add(backend_ref driver, node_id device, queue_id queue) noexcept {
        change(queue_id{}, [&](watched& one) { one = {driver, device, {queue, 0}, 0, false}; });
    }
    void remove(queue_id queue) noexcept {
        change(queue, [](watched& one) { one = {}; });
    }
    // All in the queue up to that point is known.
    void name(ticket point) noexcept {
        change(point.queue, [&](watched& one) { one.named = point; });
    }
    // What is in the queue may be anything, as long as there are touches.
    void touch(queue_id queue) noexcept {
        change(queue, [](watched& one) { ++one.touches; });
    }
    void end_touches(queue_id queue) noexcept {
        change(queue, [](watched& one) { one.touches = 0; });
    }

    // The range is about to lose its mapping on the device. Locks of pages may be held.
    void look(node_id device, va_range leaving) noexcept {
        if (!is_on_) {
            return;
        }
        for (watched& slot : queues_) {
            const watched one = with(lock_, [&] { return slot; });
            if (one.named.queue.value == 0 || one.device != device || one.touches > 0 ||
                one.is_told || (one.named.value != 0 && !one.driver.is_done(one.named))) {
                continue;
            }
            result<ticket> now = one.driver.record(one.named.queue);
            if (!now || one.driver.is_done(*now)) {
                continue;
            }
            // It may have been named meanwhile.
            const bool is_first = with(lock_, [&] {
                const bool is_same = slot.named.queue == one.named.queue &&
                                     slot.named.value == one.named.value && slot.touches == 0;
                return is_same && !std::exchange(slot.is_told, true);
            });
            if (is_first) {
                detail::crash_message{}
                    .add("xmm: page ")
                    .add(leaving.begin)
                    .add(" leaves a device on which work runs that no launch has named; if the ")
                    .add("work touches it, the device is lost. Use xmm::launch, or xmm::touch ")
                    .add("and xmm::safe_point")
                    .write();
            }
        }
    }

private:
    struct watched {
        backend_ref driver;
        node_id device = no_node;
        ticket named;  // queue 0: nothing is watched here; value 0: nothing was named yet
        unsigned touches = 0;
        bool is_told = false;
    };

    // Of that queue, or of a free place for queue 0.
    template <class Fn>
    void change(queue_id queue, Fn&& fn) noexcept {
        if (!is_on_) {
            return;
        }
        std::lock_guard guard{lock_};
        for (watched& one : queues_) {
            if (one.named.queue == queue) {
                fn(one);
                return;
            }
        }
    }

    const bool is_on_;
    ranked_mutex<lock_rank::leaf> lock_;
    std::array<watched, 64> queues_;  // guarded by lock_
};

}  // namespace xmm
