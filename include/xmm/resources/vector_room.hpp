// SPDX-License-Identifier: Apache-2.0
// vector_room.hpp - room for a vector that a lock guards, made before the lock is taken.
//
// Model    Where a thread that serves a fault may wait for the lock, nobody may be in malloc under it: the thread that
//          faulted may hold a lock of malloc's. So the vector's next memory is made without the lock, and exchanged
//          under it; what the vector had goes when this does.
// Threads  One; try_fit under the vector's lock.
// Failure  try_make is false without memory.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace xmm {

template <class T>
class vector_room {
public:
    // Without the lock.
    [[nodiscard]] bool try_make(std::size_t count) noexcept {
        try {
            std::vector<T> fresh;
            fresh.reserve(count);
            room_.swap(fresh);
            return true;
        } catch (const std::bad_alloc&) {
            return false;
        }
    }
    // The vector has room for that many, and the elements that it had. False: what was made is too small.
    [[nodiscard]] bool try_fit(std::vector<T>& to, std::size_t count) noexcept {
        if (to.capacity() >= count) {
            return true;
        }
        if (room_.capacity() < count) {
            return false;
        }
        room_.assign(to.begin(), to.end());  // in its own memory
        to.swap(room_);
        return true;
    }

private:
    std::vector<T> room_;
};

}  // namespace xmm
