// SPDX-License-Identifier: Apache-2.0
// resource.hpp - what a memory resource offers: who reaches its memory, streams, the concept itself.
//
// Model    A resource hands out memory of one kind. Who can reach that memory is known at compile time
//          (`static_reach`), so that a container of host objects never lands on a device.
//          A call with a stream takes effect in the order of that stream; a call without one takes
//          effect at once: who gives memory back that way says that no work uses it any more.
// Threads  A stream_ref is a value; the stream it names must outlive the call it is passed to.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>

namespace xmm {

// Who can read and write memory with plain loads and stores.
enum class reach : std::uint8_t { none = 0, host = 1, device = 2, host_and_device = 3 };

[[nodiscard]] constexpr bool includes(reach have, reach want) noexcept {
    return (static_cast<unsigned>(have) & static_cast<unsigned>(want)) ==
           static_cast<unsigned>(want);
}

namespace detail {

// A queue of ours, as the facade hands it out.
template <class Q>
concept queue_like = requires(Q& queue) {
    { queue.id() } -> std::same_as<queue_id>;
    { queue.synchronize() } -> std::same_as<status>;
};

template <class S>
concept has_a_wait =
    requires(const S& stream) { stream.sync(); } || requires(const S& stream) { stream.wait(); };

// Another library's view of its stream, such as cuda::stream_ref: a handle and a way to wait.
template <class S>
concept foreign_stream = !queue_like<S> && std::constructible_from<S, typename S::value_type> &&
                         has_a_wait<S> && requires(const S& stream) {
                             { stream.get() } -> std::convertible_to<void*>;
                         };

}  // namespace detail

// A stream by name: one of our queues, or another library's stream, with a way to wait for it.
class stream_ref {
public:
    using wait_function = status (*)(void* native, queue_id queue) noexcept;

    // No stream: the call takes effect at once.
    constexpr stream_ref() noexcept = default;

    // A queue by number, where the caller knows how to wait for it.
    constexpr stream_ref(queue_id queue, void* native, wait_function wait) noexcept
        : queue_{queue}, native_{native}, wait_{wait} {}

    // Implicit, so that a queue or a cuda::stream_ref is passed as it is.
    template <detail::queue_like Queue>
    stream_ref(Queue& queue) noexcept
        : queue_{queue.id()},
          native_{const_cast<void*>(static_cast<const void*>(&queue))},
          wait_{[](void* native, queue_id) noexcept -> status {
              return static_cast<Queue*>(native)->synchronize();
          }} {}

    template <detail::foreign_stream Stream>
    stream_ref(const Stream& stream) noexcept
        : native_{stream.get()}, wait_{[](void* native, queue_id) noexcept -> status {
              return wait_for_foreign<Stream>(native);
          }} {}

    stream_ref(int) = delete;
    stream_ref(std::nullptr_t) = delete;

    [[nodiscard]] constexpr bool is_none() const noexcept { return wait_ == nullptr; }
    // 0: not one of ours.
    [[nodiscard]] constexpr queue_id queue() const noexcept { return queue_; }
    [[nodiscard]] constexpr void* native() const noexcept { return native_; }

    // Returns when all work submitted so far is done. device_lost: nothing of it runs any more; so it is, too, when
    // another library's wait throws. Any other failure says nothing about the work: busy while the stream is being
    // captured, no_memory while too much waits in it.
    status synchronize() const noexcept { return is_none() ? status{} : wait_(native_, queue_); }

private:
    template <class Stream>
    static status wait_for_foreign(void* native) noexcept {
        try {
            const Stream stream{static_cast<typename Stream::value_type>(native)};
            if constexpr (requires { stream.sync(); }) {
                stream.sync();
            } else {
                stream.wait();
            }
            return {};
        } catch (...) {
            return fail(errc::device_lost, "waiting for a foreign stream failed");
        }
    }

    queue_id queue_;
    void* native_ = nullptr;
    wait_function wait_ = nullptr;
};

template <class R>
concept resource = requires(R& r, const R& constant, stream_ref stream, void* pointer,
                            std::size_t bytes, std::size_t alignment) {
    requires std::same_as<const reach, decltype(R::static_reach)>;
    // Throws xmm::out_of_memory when there is none, std::invalid_argument on a bad alignment.
    { r.allocate(stream, bytes, alignment) } -> std::same_as<void*>;
    { r.allocate_sync(bytes, alignment) } -> std::same_as<void*>;
    // Bytes and alignment as they were asked for.
    { r.deallocate(stream, pointer, bytes, alignment) } noexcept -> std::same_as<void>;
    { r.deallocate_sync(pointer, bytes, alignment) } noexcept -> std::same_as<void>;
    // Equal: memory from one may be given back to the other.
    { constant == constant } -> std::convertible_to<bool>;
    { constant.node() } noexcept -> std::same_as<node_id>;
    { constant.reachable_by() } noexcept -> std::same_as<reach>;
};

template <class R>
concept host_reachable = resource<R> && includes(R::static_reach, reach::host);

template <class R>
concept device_reachable = resource<R> && includes(R::static_reach, reach::device);

}  // namespace xmm
