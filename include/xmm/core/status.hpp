// SPDX-License-Identifier: Apache-2.0
// status.hpp - status codes and result<T>: expected failure as a value.
//
// Model    A status is a code, the driver's own code beside it, and a static sentence that says why.
// Failure  Taking the value of a failed result asserts.
#pragma once

#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

#include <xmm/core/config.hpp>

namespace xmm {

enum class errc : std::uint8_t {
    ok,
    no_memory,         // no frame, no address space, or no room for a mapping
    busy,              // lost to a use, a move or a pin; may succeed later
    not_mapped,        // the range, or part of it, belongs to no region of this space
    unsupported,       // this backend or this kernel cannot do it
    device_lost,       // the device faulted or its driver gave up
    invalid_argument,  // malformed: overflow, zero bytes, overlap, misalignment
    unknown_node,      // no such node, or not attached to this space
    forked,            // a child of fork: its parent's devices are not its own
};

[[nodiscard]] constexpr const char* name_of(errc code) noexcept {
    switch (code) {
        case errc::ok: return "ok";
        case errc::no_memory: return "no memory";
        case errc::busy: return "busy";
        case errc::not_mapped: return "not mapped";
        case errc::unsupported: return "unsupported";
        case errc::device_lost: return "device lost";
        case errc::invalid_argument: return "invalid argument";
        case errc::unknown_node: return "unknown node";
        case errc::forked: return "forked child";
    }
    return "?";
}

struct [[nodiscard]] status {
    errc code = errc::ok;
    std::int32_t driver_code = 0;  // errno or the vendor's own number; 0 if there is none
    const char* why = "";          // static text, never freed

    [[nodiscard]] constexpr bool is_ok() const noexcept { return code == errc::ok; }
    [[nodiscard]] constexpr explicit operator bool() const noexcept { return is_ok(); }
};

[[nodiscard]] constexpr status fail(errc code, const char* why,
                                    std::int32_t driver_code = 0) noexcept {
    return {code, driver_code, why};
}

// A value or the status that says why there is none.
template <class T>
class [[nodiscard]] result {
public:
    result(T made) noexcept(std::is_nothrow_move_constructible_v<T>) : has_value_{true} {
        ::new (static_cast<void*>(&value_)) T(std::move(made));
    }
    result(status failure) noexcept : failure_{failure} {
        XMM_ASSERT(!failure.is_ok(), "a result without a value needs a failure");
    }
    result(result&& other) noexcept(std::is_nothrow_move_constructible_v<T>)
        : failure_{other.failure_}, has_value_{other.has_value_} {
        if (has_value_) {
            ::new (static_cast<void*>(&value_)) T(std::move(other.value_));
        }
    }
    result(const result&) = delete;
    result& operator=(const result&) = delete;
    result& operator=(result&&) = delete;
    ~result() {
        if (has_value_) {
            value_.~T();
        }
    }

    [[nodiscard]] bool has_value() const noexcept { return has_value_; }
    [[nodiscard]] explicit operator bool() const noexcept { return has_value_; }
    [[nodiscard]] status error() const noexcept { return failure_; }
    [[nodiscard]] errc code() const noexcept { return failure_.code; }

    [[nodiscard]] T& value() & noexcept { return checked(); }
    [[nodiscard]] const T& value() const& noexcept { return checked(); }
    [[nodiscard]] T&& value() && noexcept { return std::move(checked()); }
    [[nodiscard]] T& operator*() & noexcept { return checked(); }
    [[nodiscard]] const T& operator*() const& noexcept { return checked(); }
    [[nodiscard]] T&& operator*() && noexcept { return std::move(checked()); }
    [[nodiscard]] T* operator->() noexcept { return &checked(); }
    [[nodiscard]] const T* operator->() const noexcept { return &checked(); }
    [[nodiscard]] T value_or(T other) && {
        return has_value_ ? std::move(value_) : std::move(other);
    }

private:
    // Not an XMM_ASSERT: a failure that a user forgets to look at must not become a wild pointer.
    T& checked() noexcept {
        must_have_value();
        return value_;
    }
    const T& checked() const noexcept {
        must_have_value();
        return value_;
    }
    void must_have_value() const noexcept {
        if (!has_value_) {
            detail::value_is_missing(failure_.why, name_of(failure_.code), failure_.driver_code);
        }
    }

    union {
        T value_;
    };
    status failure_;
    bool has_value_ = false;
};

// How far a batch came: the first `done` entries took effect, the others did not.
struct [[nodiscard]] progress {
    std::size_t done = 0;
    status outcome;

    [[nodiscard]] constexpr explicit operator bool() const noexcept { return outcome.is_ok(); }
};

}  // namespace xmm
