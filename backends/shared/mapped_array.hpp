// SPDX-License-Identifier: Apache-2.0
// mapped_array.hpp - an array that takes memory as it is touched.
//
// Model    Zeroes from the system, which are the elements' state at the start; no constructors, no destructors.
// Threads  As the elements'.
// Failure  open() says so.
#pragma once

#include <cerrno>
#include <cstddef>
#include <type_traits>

#include <sys/mman.h>

#include <xmm/core/status.hpp>

namespace xmm::shared {

template <class T>
class mapped_array {
    static_assert(std::is_trivially_destructible_v<T>);

public:
    mapped_array() = default;
    ~mapped_array() {
        if (all_ != nullptr) {
            ::munmap(static_cast<void*>(all_), count_ * sizeof(T));
        }
    }
    mapped_array(const mapped_array&) = delete;
    mapped_array& operator=(const mapped_array&) = delete;

    // Once; an array that is open stays as it is.
    [[nodiscard]] status open(std::size_t count, const char* why_not) noexcept {
        if (all_ != nullptr) {
            return {};
        }
        void* at = ::mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) {
            return fail(errc::no_memory, why_not, errno);
        }
        all_ = static_cast<T*>(at);
        count_ = count;
        return {};
    }
    [[nodiscard]] T& operator[](std::size_t i) const noexcept { return all_[i]; }
    [[nodiscard]] T* data() const noexcept { return all_; }
    [[nodiscard]] std::size_t size() const noexcept { return count_; }

private:
    T* all_ = nullptr;  // (C) once open, as is the next
    std::size_t count_ = 0;
};

}  // namespace xmm::shared
