// SPDX-License-Identifier: Apache-2.0
// shortage_desk.hpp - the user's callback for when nothing else is left, and who is in it.
//
// Model    One callback at a time. Who exchanges it waits until all others are out of the one before, so that what
//          that one uses may go.
// Threads  Any. A mutex without a rank guards it all: nothing else is taken under it, nor is the callback made.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>

#include <xmm/core/list.hpp>
#include <xmm/resources/malloc_request.hpp>

namespace xmm {

class shortage_desk {
public:
    // Returns when no thread is in an earlier callback any more, unless the caller itself is: then at once.
    void set(shortage_callback callback, void* context) {
        std::unique_lock hold{lock_};
        callback_ = callback;
        context_ = context;
        const std::uint64_t number = ++number_;
        left_.wait(hold, [&] { return may_return_locked(number); });
    }
    // False where there is no callback, or it has nothing to give.
    bool ask(std::size_t bytes) {
        caller me;
        me.thread = std::this_thread::get_id();
        shortage_callback callback = nullptr;
        void* context = nullptr;
        {
            std::lock_guard hold{lock_};
            if (callback_ == nullptr) {
                return false;
            }
            callback = callback_;
            context = context_;
            me.number = number_;
            callers_.push_back(me);
        }
        const bool has_given = callback(bytes, context);
        {
            std::lock_guard hold{lock_};
            callers_.remove(me);
        }
        left_.notify_all();
        return has_given;
    }

private:
    struct caller {
        std::thread::id thread;
        std::uint64_t number = 0;  // of the callback that it is in
        list_link link;
    };

    bool may_return_locked(std::uint64_t number) {
        bool is_in_one = false;
        bool are_others = false;
        callers_.for_each([&](const caller& one) {
            is_in_one = is_in_one || one.thread == std::this_thread::get_id();
            are_others = are_others || one.number < number;
        });
        return is_in_one || !are_others;
    }

    std::mutex lock_;
    std::condition_variable left_;
    shortage_callback callback_ = nullptr;  // under lock_, as all below
    void* context_ = nullptr;
    std::uint64_t number_ = 0;
    list<caller, &caller::link> callers_;
};

}  // namespace xmm
