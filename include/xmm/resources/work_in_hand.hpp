// SPDX-License-Identifier: Apache-2.0
// work_in_hand.hpp - who is at work on what others may be waiting for.
//
// Model    A thread that takes something out of what is shared says so until it is done with it (a piece). Who finds
//          nothing there waits for the pieces that were begun before it asked, and looks again.
// Threads  Any. One lock (rank leaf). A thread with a piece of its own does not wait for those of others.
// Failure  None.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>

#include <xmm/core/list.hpp>
#include <xmm/core/lock.hpp>

namespace xmm {

class work_in_hand {
public:
    class piece {
    public:
        explicit piece(work_in_hand& all) noexcept : all_{all} {
            std::lock_guard guard{all_.lock_};
            number_ = ++all_.last_;
            all_.pieces_.push_back(*this);
        }
        piece(const piece&) = delete;
        piece& operator=(const piece&) = delete;
        ~piece() {
            std::lock_guard guard{all_.lock_};
            all_.pieces_.remove(*this);
        }

    private:
        friend class work_in_hand;

        work_in_hand& all_;
        std::uint64_t number_ = 0;
        list_link link_;
    };

    // Whether there were any.
    bool await() noexcept {
        constexpr unsigned most_yields = 64;
        std::uint64_t last = 0;
        bool is_over = with(lock_, [&] {
            last = last_;
            return pieces_.is_empty();
        });
        const bool had_some = !is_over;
        for (unsigned tries = 0; !is_over; ++tries) {
            if (tries < most_yields) {
                std::this_thread::yield();
            } else {
                std::this_thread::sleep_for(
                    std::chrono::milliseconds{1});  // it may be a queue's end
            }
            is_over = with(lock_, [&] {
                const piece* oldest = pieces_.front();
                return oldest == nullptr || oldest->number_ > last;
            });
        }
        return had_some;
    }

private:
    ranked_mutex<lock_rank::leaf> lock_;
    list<piece, &piece::link_> pieces_;  // under lock_, oldest first
    std::uint64_t last_ = 0;             // under lock_
};

}  // namespace xmm
