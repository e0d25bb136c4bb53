// SPDX-License-Identifier: Apache-2.0
// device_view.hpp - span for kernels: a GPU reads it plainly, a software device through its port.
//
// Model    A view is a pointer and a count. On a thread that runs a kernel of a software device a
//          port is current: each access is translated there, may fault, and reaches frame memory.
//          Elsewhere (CPU code, device code of a GPU) it is plain memory.
// Threads  A view is a value. Two kernels on one element race as on any device; see fetch_add.
// Failure  A page that cannot be brought in ends the kernel: the access throws detail::kernel_aborted,
//          which only the launcher catches. It shows as device_lost on the kernel's ticket.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include <xmm/core/types.hpp>

namespace xmm {

// One stretch that a kernel wants to touch: what it asks for, and where it is while pinned.
struct device_pin {
    address at = 0;
    std::size_t bytes = 0;  // acquire cuts it to the end of the page
    access wanted = access::read;
    std::byte* data = nullptr;  // set by acquire
    std::uint32_t tag = 0;      // the port's own
};

// What a software device puts between a kernel's thread and memory.
struct device_port {
    // Translates all pins and holds their mappings in place until release; calls out to resolve
    // faults with nothing held. False: the kernel must end, and nothing is held.
    virtual bool acquire(std::span<device_pin> pins) noexcept = 0;
    virtual void release(std::span<const device_pin> pins) noexcept = 0;

protected:
    ~device_port() = default;
};

namespace detail {

struct kernel_aborted {};

// Set by the launcher's thunk, so it lies in the shared object that compiled the kernel.
inline constinit thread_local device_port* current_port = nullptr;

class port_scope {
public:
    explicit port_scope(device_port& port) noexcept : before_{current_port} {
        current_port = &port;
    }
    ~port_scope() { current_port = before_; }
    port_scope(const port_scope&) = delete;
    port_scope& operator=(const port_scope&) = delete;

private:
    device_port* const before_;
};

class pin_guard {
public:
    pin_guard(device_port& port, std::span<device_pin> pins) : port_{port}, pins_{pins} {
        if (!port.acquire(pins)) {
            throw kernel_aborted{};
        }
    }
    ~pin_guard() { port_.release(pins_); }
    pin_guard(const pin_guard&) = delete;
    pin_guard& operator=(const pin_guard&) = delete;

private:
    device_port& port_;
    std::span<device_pin> pins_;
};

inline void port_read(device_port& port, void* to, address from, std::size_t bytes) {
    for (std::byte* out = static_cast<std::byte*>(to); bytes > 0;) {
        device_pin pin{from, bytes, access::read};
        pin_guard held{port, {&pin, 1}};
        std::memcpy(out, pin.data, pin.bytes);
        out += pin.bytes, from += pin.bytes, bytes -= pin.bytes;
    }
}

inline void port_write(device_port& port, address to, const void* from, std::size_t bytes) {
    for (const std::byte* in = static_cast<const std::byte*>(from); bytes > 0;) {
        device_pin pin{to, bytes, access::write};
        pin_guard held{port, {&pin, 1}};
        std::memcpy(pin.data, in, pin.bytes);
        in += pin.bytes, to += pin.bytes, bytes -= pin.bytes;
    }
}

// Elements that end before the page does; 0 if the first one straddles its end.
template <class T>
std::size_t whole_elements(const T* first) noexcept {
    return (page_bytes - (xmm::to_address(first) & (page_bytes - 1))) / sizeof(T);
}

// Two types, so that units of both compilers may define operator[] side by side in one program.
struct plain_access {};
struct ported_access {};
#if defined(__CUDACC__) || defined(__HIPCC__)
using default_access = plain_access;
#else
using default_access = ported_access;
#endif

}  // namespace detail

template <class T>
class device_ref;

template <class T>
class device_view {
    static_assert(std::is_trivially_copyable_v<T>, "kernels copy elements as bytes");

public:
    using element_type = T;
    using value_type = std::remove_cv_t<T>;

    device_view() = default;
    XMM_HOST_DEVICE constexpr device_view(T* data, std::size_t size) noexcept
        : data_{data}, size_{size} {}
    constexpr device_view(std::span<T> all) noexcept : data_{all.data()}, size_{all.size()} {}
    template <class U>
        requires std::is_same_v<const U, T> && (!std::is_const_v<U>)
    XMM_HOST_DEVICE constexpr device_view(device_view<U> other) noexcept
        : data_{other.data()}, size_{other.size()} {}

    [[nodiscard]] XMM_HOST_DEVICE constexpr T* data() const noexcept { return data_; }
    [[nodiscard]] XMM_HOST_DEVICE constexpr std::size_t size() const noexcept { return size_; }
    [[nodiscard]] XMM_HOST_DEVICE constexpr device_view subview(std::size_t first,
                                                                std::size_t count) const noexcept {
        return {data_ + first, count};
    }

    // A value where T is const, a device_ref elsewhere; T& in units that a device compiler reads.
    template <class Access = detail::default_access>
    XMM_HOST_DEVICE decltype(auto) operator[](std::size_t i) const {
        if constexpr (std::is_same_v<Access, detail::plain_access>) {
            return (data_[i]);
        } else if constexpr (std::is_const_v<T>) {
            return load(i);
        } else {
            return device_ref<T>{data_ + i};
        }
    }

    [[nodiscard]] XMM_HOST_DEVICE value_type load(std::size_t i) const {
#if !XMM_IN_DEVICE_CODE
        if (device_port* port = detail::current_port; port != nullptr) [[unlikely]] {
            return load_ported(*port, data_ + i);
        }
#endif
        return data_[i];
    }

    XMM_HOST_DEVICE void store(std::size_t i, const value_type& value) const
        requires(!std::is_const_v<T>)
    {
#if !XMM_IN_DEVICE_CODE
        if (device_port* port = detail::current_port; port != nullptr) [[unlikely]] {
            return store_ported(*port, data_ + i, value);
        }
#endif
        data_[i] = value;
    }

    // Copies the elements from `first` on into `to`, which is the kernel's own memory.
    void read(std::size_t first, std::span<value_type> to) const {
        if (device_port* port = detail::current_port; port != nullptr) {
            detail::port_read(*port, to.data(), xmm::to_address(data_ + first), to.size_bytes());
        } else if (!to.empty()) {
            std::memcpy(to.data(), data_ + first, to.size_bytes());
        }
    }
    void write(std::size_t first, std::span<const value_type> from) const
        requires(!std::is_const_v<T>)
    {
        if (device_port* port = detail::current_port; port != nullptr) {
            detail::port_write(*port, xmm::to_address(data_ + first), from.data(),
                               from.size_bytes());
        } else if (!from.empty()) {
            std::memcpy(static_cast<void*>(data_ + first), from.data(), from.size_bytes());
        }
    }

    // Calls fn(std::span<T>, index of its first element) for stretches of at most a page, in order.
    // The stretch stays in place during the call, so fn must be short and touch no other view. Nor, on a software
    // device, unified memory through a plain pointer: that is an access of the CPU, for which the page may have to
    // leave the device, which waits for the call to end, for ever.
    template <class Fn>
    void for_each_span(std::size_t first, std::size_t count, Fn&& fn) const;

    // Changes element i to op(element), which is one access; returns the new value. What holds for the function of
    // for_each_span holds for op.
    template <class Op>
    value_type update(std::size_t i, Op&& op) const
        requires(!std::is_const_v<T>)
    {
        T* at = data_ + i;
        device_port* port = detail::current_port;
        if (port == nullptr) {
            return *at = op(*at);
        }
        if (detail::whole_elements(at) == 0) {
            const value_type value = op(load_ported(*port, at));
            store_ported(*port, at, value);
            return value;
        }
        device_pin pin{xmm::to_address(at), sizeof(T), access::read_write};
        detail::pin_guard held{*port, {&pin, 1}};
        value_type value;
        std::memcpy(&value, pin.data, sizeof(T));
        value = op(value);
        std::memcpy(pin.data, &value, sizeof(T));
        return value;
    }

    // Atomic among all kernels and CPU threads that use it on the same element; the element is
    // aligned to its size. Returns the value before.
    XMM_HOST_DEVICE value_type fetch_add(std::size_t i, value_type value) const
        requires(!std::is_const_v<T> && (std::is_integral_v<T> || std::is_floating_point_v<T>))
    {
#if XMM_IN_DEVICE_CODE
        if constexpr (std::is_integral_v<T> && sizeof(T) == sizeof(unsigned long long)) {
            // The one of several types of that size that atomicAdd knows; sums wrap alike.
            return static_cast<value_type>(
                atomicAdd(reinterpret_cast<unsigned long long*>(data_ + i),
                          static_cast<unsigned long long>(value)));
        } else {
            return atomicAdd(data_ + i, value);
        }
#else
        device_port* port = detail::current_port;
        if (port == nullptr) {
            return std::atomic_ref<T>{data_[i]}.fetch_add(value, std::memory_order_relaxed);
        }
        device_pin pin{xmm::to_address(data_ + i), sizeof(T), access::read_write};
        detail::pin_guard held{*port, {&pin, 1}};
        XMM_ASSERT(xmm::to_address(pin.data) % std::atomic_ref<T>::required_alignment == 0,
                   "fetch_add on an element that is not aligned");
        // relaxed: as on a device, an atomic add orders nothing but itself.
        return std::atomic_ref<T>{*reinterpret_cast<T*>(pin.data)}.fetch_add(
            value, std::memory_order_relaxed);
#endif
    }

private:
    static value_type load_ported(device_port& port, const T* at) {
        value_type value;
        if (detail::whole_elements(at) == 0) {
            detail::port_read(port, &value, xmm::to_address(at), sizeof(T));
        } else {
            device_pin pin{xmm::to_address(at), sizeof(T), access::read};
            detail::pin_guard held{port, {&pin, 1}};
            std::memcpy(&value, pin.data, sizeof(T));
        }
        return value;
    }
    static void store_ported(device_port& port, T* at, const value_type& value) {
        if (detail::whole_elements(at) == 0) {
            detail::port_write(port, xmm::to_address(at), &value, sizeof(T));
        } else {
            device_pin pin{xmm::to_address(at), sizeof(T), access::write};
            detail::pin_guard held{port, {&pin, 1}};
            std::memcpy(pin.data, &value, sizeof(T));
        }
    }

    T* data_ = nullptr;
    std::size_t size_ = 0;
};

template <class T>
device_view(T*, std::size_t) -> device_view<T>;

// Stands for one element, as T& does where memory is plain.
template <class T>
class device_ref {
public:
    explicit device_ref(T* at) noexcept : view_{at, 1} {}
    device_ref(const device_ref&) = default;

    operator T() const { return view_.load(0); }
    const device_ref& operator=(const T& value) const {
        view_.store(0, value);
        return *this;
    }
    device_ref& operator=(const device_ref& other) {
        view_.store(0, other.view_.load(0));
        return *this;
    }
    const device_ref& operator+=(const T& value) const {
        return change([&](T old) { return T(old + value); });
    }
    const device_ref& operator-=(const T& value) const {
        return change([&](T old) { return T(old - value); });
    }
    const device_ref& operator*=(const T& value) const {
        return change([&](T old) { return T(old * value); });
    }
    const device_ref& operator/=(const T& value) const {
        return change([&](T old) { return T(old / value); });
    }
    const device_ref& operator%=(const T& value) const {
        return change([&](T old) { return T(old % value); });
    }
    const device_ref& operator&=(const T& value) const {
        return change([&](T old) { return T(old & value); });
    }
    const device_ref& operator|=(const T& value) const {
        return change([&](T old) { return T(old | value); });
    }
    const device_ref& operator^=(const T& value) const {
        return change([&](T old) { return T(old ^ value); });
    }
    const device_ref& operator++() const {
        return change([](T old) { return T(old + 1); });
    }
    const device_ref& operator--() const {
        return change([](T old) { return T(old - 1); });
    }
    T operator++(int) const {
        return T(view_.update(0, [](T old) { return T(old + 1); }) - 1);
    }
    T operator--(int) const {
        return T(view_.update(0, [](T old) { return T(old - 1); }) + 1);
    }

private:
    template <class Op>
    const device_ref& change(Op op) const {
        view_.update(0, op);
        return *this;
    }

    device_view<T> view_;
};

namespace detail {

template <class Fn, class... T>
void call_with_spans(Fn& fn, std::size_t first, std::span<T>... spans) {
    if constexpr (std::is_invocable_v<Fn&, std::size_t, std::span<T>...>) {
        fn(first, spans...);
    } else {
        fn(spans...);
    }
}

// An element that lies in two pages has no span: fn works on copies, which are written back.
template <class Fn, class... T>
void call_with_copies(Fn& fn, std::size_t i, const device_view<T>&... views) {
    std::tuple<std::remove_cv_t<T>...> copies{views.load(i)...};
    const auto store_back = [i](const auto& view, const auto& copy) {
        if constexpr (!std::is_const_v<typename std::decay_t<decltype(view)>::element_type>) {
            view.store(i, copy);
        }
    };
    std::apply(
        [&](auto&... copy) {
            call_with_spans<Fn, T...>(fn, i, std::span<T>{&copy, 1}...);
            (store_back(views, copy), ...);
        },
        copies);
}

template <class T>
constexpr access span_access = std::is_const_v<T> ? access::read : access::read_write;

}  // namespace detail

// Calls fn(index of the first element, std::span<T>...) or fn(std::span<T>...) for the same stretch
// of indices of all views, from 0 to the shortest one's end. All spans stay in place during the
// call, so fn must be short and touch no other view, nor unified memory through a plain pointer, as with
// for_each_span. A page that is missing is brought in with none
// of the others held; that ends as long as a fault makes its page reachable, be it remotely.
template <class Fn, class... T>
void zip_spans(Fn&& fn, device_view<T>... views) {
    const std::size_t count = std::min({views.size()...});
    device_port* port = detail::current_port;
    if (port == nullptr) {
        if (count > 0) {
            detail::call_with_spans<Fn, T...>(fn, 0, std::span<T>{views.data(), count}...);
        }
        return;
    }
    for (std::size_t i = 0; i < count;) {
        const std::size_t stretch =
            std::min({count - i, detail::whole_elements(views.data() + i)...});
        if (stretch == 0) {
            detail::call_with_copies<Fn, T...>(fn, i++, views...);
            continue;
        }
        std::array pins{device_pin{xmm::to_address(views.data() + i), stretch * sizeof(T),
                                   detail::span_access<T>}...};
        detail::pin_guard held{*port, pins};
        std::apply(
            [&](const auto&... pin) {
                detail::call_with_spans<Fn, T...>(
                    fn, i, std::span<T>{reinterpret_cast<T*>(pin.data), stretch}...);
            },
            pins);
        i += stretch;
    }
}

template <class T>
template <class Fn>
void device_view<T>::for_each_span(std::size_t first, std::size_t count, Fn&& fn) const {
    zip_spans([&](std::size_t at, std::span<T> some) { fn(some, first + at); },
              subview(first, count));
}

static_assert(std::is_trivially_copyable_v<device_view<float>>);

}  // namespace xmm
