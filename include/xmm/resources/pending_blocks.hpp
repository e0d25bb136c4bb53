// SPDX-License-Identifier: Apache-2.0
// pending_blocks.hpp - what the program gave back while queues may still use it.
//
// Model    A block waits for a point of each queue that used it. It stands in the line of one of these queues; when
//          that queue has passed the point, the block goes on to the next queue's line, or is free. Work of a
//          queue ends in order, so only the head of each line is looked at.
// Threads  Any. One lock (rank leaf) guards the lines; queues are asked and waited for without it.
// Failure  add() is false without memory for a line.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include <xmm/core/list.hpp>
#include <xmm/core/lock.hpp>
#include <xmm/resources/frame_port.hpp>

namespace xmm {

template <class Block>
class pending_blocks {
public:
    struct entry {
        static constexpr unsigned most_points = 6;
        Block block{};
        std::array<ticket, most_points> points{};
        unsigned count = 0;
        list_link link;
    };
    using entry_list = list<entry, &entry::link>;

    [[nodiscard]] bool has_any() const noexcept {
        // relaxed: a hint; who misses one takes it the next time.
        return count_.load(std::memory_order_relaxed) != 0;
    }
    // It has at least one point.
    [[nodiscard]] bool add(entry& one) noexcept {
        std::lock_guard guard{lock_};
        if (!put_locked(one)) {
            return false;
        }
        count_.fetch_add(1, std::memory_order_relaxed);  // relaxed: see has_any
        return true;
    }
    // Hands out what is free by now.
    void take_finished(frame_port& port, entry_list& finished) noexcept {
        // A head stays in its line while its queue is asked, so that who waits for all finds it there.
        std::size_t line = 0;
        for (head_of_line head; look_at_head(line, head);) {
            if (!port.is_done(head.point)) {
                ++line;
            } else if (pop_if_still_head(line, head)) {
                settle(port, *head.one, finished);
            }
        }
    }
    // Waits for all that is there now, and hands it out. Whether there was any. What others have taken out and not
    // handed out yet is missed: see work_in_hand.
    bool await_all(frame_port& port, entry_list& finished) noexcept {
        entry_list all;
        with(lock_, [&] {
            for (const auto& line : lines_) {
                while (entry* one = line->waiting.pop_front()) {
                    all.push_back(*one);
                }
            }
        });
        const bool has_some = !all.is_empty();
        while (entry* one = all.pop_front()) {
            if (await_points(port, *one) || !with(lock_, [&] { return put_locked(*one); })) {
                hand_out(*one, finished);
            }
        }
        return has_some;
    }
    // False: the port cannot wait, and goes on like that.
    static bool await_points(frame_port& port, const entry& one) noexcept {
        constexpr unsigned patience = 64;  // milliseconds
        bool are_reached = true;
        for (unsigned i = 0; i < one.count; ++i) {
            status waited = port.wait(one.points[i]);
            for (unsigned tries = 0; !waited && !is_over(waited.code) && tries < patience;
                 ++tries) {
                std::this_thread::sleep_for(std::chrono::milliseconds{1});
                waited = port.wait(one.points[i]);
            }
            are_reached = are_reached && (waited || is_over(waited.code));
        }
        return are_reached;
    }
    template <class Fn>
    void for_each(Fn&& fn) const {
        std::lock_guard guard{lock_};
        for (const auto& line : lines_) {
            line->waiting.for_each([&](entry& one) { fn(static_cast<const entry&>(one)); });
        }
    }

private:
    struct queue_line {
        queue_id queue;
        // In the order of their points, nearly: who comes from another line stands last.
        entry_list waiting;
    };
    struct head_of_line {
        entry* one = nullptr;
        ticket point;
    };

    bool put_locked(entry& one) noexcept {
        const queue_id queue = one.points[one.count - 1].queue;
        queue_line* empty = nullptr;
        for (const auto& line : lines_) {
            if (line->queue == queue) {
                line->waiting.push_back(one);
                return true;
            }
            empty = line->waiting.is_empty() ? line.get() : empty;
        }
        if (empty == nullptr) {
            try {
                lines_.push_back(std::make_unique<queue_line>());
            } catch (const std::bad_alloc&) {
                return false;
            }
            empty = lines_.back().get();
        }
        empty->queue = queue;  // a line without blocks serves any queue
        empty->waiting.push_back(one);
        return true;
    }
    // Of the first line from there on that has a head.
    bool look_at_head(std::size_t& line, head_of_line& head) noexcept {
        return with(lock_, [&] {
            for (; line < lines_.size(); ++line) {
                if (entry* one = lines_[line]->waiting.front()) {
                    head = {one, one->points[one->count - 1]};
                    return true;
                }
            }
            return false;
        });
    }
    // Another thread may have taken it meanwhile, and the line be another queue's.
    bool pop_if_still_head(std::size_t line, const head_of_line& head) noexcept {
        return with(lock_, [&] {
            entry* one = lines_[line]->waiting.front();
            if (one == nullptr || one != head.one) {
                return false;
            }
            const ticket point = one->points[one->count - 1];
            const bool is_same = point.queue == head.point.queue && point.value == head.point.value;
            if (is_same) {
                lines_[line]->waiting.remove(*one);
            }
            return is_same;
        });
    }
    // Its last point is reached.
    void settle(frame_port& port, entry& one, entry_list& finished) noexcept {
        while (one.count > 0 && port.is_done(one.points[one.count - 1])) {
            --one.count;
        }
        if (one.count == 0) {
            hand_out(one, finished);
        } else if (!with(lock_, [&] { return put_locked(one); })) {
            await_points(port, one);  // no memory for a line
            hand_out(one, finished);
        }
    }
    void hand_out(entry& one, entry_list& finished) noexcept {
        finished.push_back(one);
        count_.fetch_sub(1, std::memory_order_relaxed);  // relaxed: see has_any
    }

    mutable ranked_mutex<lock_rank::leaf> lock_;
    std::vector<std::unique_ptr<queue_line>> lines_;  // under lock_; only ever more
    std::atomic<std::size_t> count_{0};
};

}  // namespace xmm
