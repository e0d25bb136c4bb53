// SPDX-License-Identifier: Apache-2.0
// queue_points.hpp - up to which of its releases the work of a queue is done.
//
// Model    Releases are numbered by stamps. A point is a ticket of the queue with the latest stamp at its time:
//          reached, it tells that all work up to that release is done. Points are recorded only when somebody
//          asks about a release that none covers, so a queue whose frames nobody wants costs nothing.
// Threads  None of its own: the lock of device_frames guards it.
#pragma once

#include <algorithm>
#include <cstdint>

#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/resources/frame_port.hpp>

namespace xmm {

class queue_points {
public:
    // Whether the queue's work up to the release `stamp` is done; `latest` is the latest stamp known, at least
    // as high. If not, `until` is what to wait for; its value is 0 where the port could not tell.
    [[nodiscard]] bool is_reached(frame_port& port, queue_id queue, std::uint64_t stamp,
                                  std::uint64_t latest, ticket& until) noexcept {
        if (queue.value == 0 || stamp <= reached_) {
            return true;
        }
        while (used_ > 0 && port.is_done(points_[0].when)) {
            reached_ = points_[0].stamp;
            std::move(points_ + 1, points_ + used_, points_);
            --used_;
        }
        if (stamp <= reached_) {
            return true;
        }
        for (unsigned i = 0; i < used_; ++i) {
            if (points_[i].stamp >= stamp) {
                until = points_[i].when;
                return false;
            }
        }
        result<ticket> now = port.record(queue);
        if (!now && now.code() != errc::device_lost) {
            // Of a queue that ends with its work done that is said before it is gone: see set_reached.
            is_lost_ = now.code() == errc::invalid_argument;
            until = {};
            return false;
        }
        if (!now || port.is_done(*now)) {
            set_reached(latest);
            return true;
        }
        used_ = std::min(used_, capacity - 1);  // the new one covers the last one too
        points_[used_++] = {latest, *now};
        until = *now;
        return false;
    }
    void set_reached(std::uint64_t stamp) noexcept {
        reached_ = stamp;
        used_ = 0;
        is_lost_ = false;
    }
    // The queue is gone, and nobody has said that its work was done: nobody will ever know.
    [[nodiscard]] bool is_lost() const noexcept { return is_lost_; }

private:
    struct point {
        std::uint64_t stamp = 0;
        ticket when;
    };
    static constexpr unsigned capacity = 8;

    std::uint64_t reached_ = 0;
    point points_[capacity];  // not known to be reached, oldest first
    unsigned used_ = 0;
    bool is_lost_ = false;
};

}  // namespace xmm
