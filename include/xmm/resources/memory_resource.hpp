// SPDX-License-Identifier: Apache-2.0
// memory_resource.hpp - the base of all resources: allocate, deallocate, is_equal.
//
// Model    resource_base is what every resource offers. memory_resource adds std::pmr for memory that
//          the CPU reaches; device_memory_resource does not, since a pmr container there would compile
//          and crash. Neither is copied: a resource is known by its address.
//          Zero bytes: a pointer that is not null and must not be read; it costs nothing and may be given
//          back. Alignment: any power of two; device-only memory is at least 256-aligned.
// Threads  As the derived class says; the stock ones: any.
// Failure  allocate throws xmm::out_of_memory, or std::invalid_argument if the alignment is no power of
//          two; nothing is changed then. Everything else is noexcept. A block given back on a stream that cannot say
//          how far it is (see stream_ref::synchronize) is kept until it can, or for good, with a line on stderr.
#pragma once

#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory_resource>
#include <stdexcept>
#include <thread>

#include <xmm/concepts/resource.hpp>
#include <xmm/resources/frame_port.hpp>
#include <xmm/resources/out_of_memory.hpp>
#include <xmm/resources/space_port.hpp>

namespace xmm {

inline constexpr std::size_t host_alignment = alignof(std::max_align_t);
inline constexpr std::size_t device_alignment =
    256;  // what cudaMalloc gives, so what kernels expect

class resource_base {
public:
    resource_base(const resource_base&) = delete;
    resource_base& operator=(const resource_base&) = delete;
    virtual ~resource_base() = default;

    [[nodiscard]] node_id node() const noexcept { return node_; }
    [[nodiscard]] reach reachable_by() const noexcept { return reach_; }
    [[nodiscard]] const char* name() const noexcept { return name_; }
    [[nodiscard]] virtual resource_usage usage() const noexcept { return {}; }
    [[nodiscard]] virtual queue_port queues() const noexcept {
        return {};
    }  // empty: it knows of none

    // The memory may be used by work submitted to the stream from now on, and after that work.
    [[nodiscard]] void* allocate(stream_ref stream, std::size_t bytes,
                                 std::size_t alignment = host_alignment) {
        check(bytes, alignment);
        return bytes == 0 ? nothing(alignment)
                          : do_allocate_on(stream, bytes, effective(alignment));
    }
    // Work submitted to the stream before may still use the memory.
    void deallocate(stream_ref stream, void* pointer, std::size_t bytes,
                    std::size_t alignment = host_alignment) noexcept {
        XMM_ASSERT(std::has_single_bit(alignment), "given back with an alignment never asked for");
        if (bytes != 0 && pointer != nullptr) {
            do_deallocate_on(stream, pointer, bytes, effective(alignment));
        }
    }
    [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment = host_alignment) {
        return allocate(stream_ref{}, bytes, alignment);
    }
    void deallocate_sync(void* pointer, std::size_t bytes,
                         std::size_t alignment = host_alignment) noexcept {
        deallocate(stream_ref{}, pointer, bytes, alignment);
    }

    // Whether memory from one may be given back to the other.
    [[nodiscard]] bool is_equal(const resource_base& other) const noexcept {
        return this == &other || do_is_equal_to(other);
    }

protected:
    resource_base(const char* name, node_id node, reach who) noexcept
        : name_{name}, node_{node}, reach_{who} {}

    // Bytes are above 0 and far from overflow; the alignment is a power of two.
    virtual void* do_allocate_on(stream_ref stream, std::size_t bytes, std::size_t alignment) = 0;
    virtual void do_deallocate_on(stream_ref stream, void* pointer, std::size_t bytes,
                                  std::size_t alignment) noexcept = 0;
    virtual bool do_is_equal_to(const resource_base&) const noexcept { return false; }

    // Whether nothing that was submitted to the stream runs any more, after a wait. False: the stream cannot say.
    [[nodiscard]] static bool try_await(stream_ref stream) noexcept {
        constexpr unsigned patience = 64;  // milliseconds; a capture may end on this very thread
        for (unsigned tries = 0;; ++tries) {
            const status waited = stream.synchronize();
            // A child of fork has a copy of its own, or nothing.
            if (waited || is_over(waited.code) || waited.code == errc::forked) {
                return true;
            }
            if (tries == patience) {
                return false;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds{1});
        }
    }
    void say_left_alone(const void* pointer) const noexcept {
        std::fprintf(stderr, "xmm: %s: %p stays: its stream cannot say whether work uses it\n",
                     name_, pointer);
    }
    [[noreturn]] void refuse(std::size_t bytes, const char* cause,
                             std::int32_t driver_code = 0) const {
        throw out_of_memory{name_, node_, bytes, usage(), cause, driver_code};
    }

private:
    void check(std::size_t bytes, std::size_t alignment) const {
        if (!std::has_single_bit(alignment)) {
            throw std::invalid_argument{"xmm: an alignment must be a power of two"};
        }
        // Half of the addresses is more than any machine has; below it no sum in a resource overflows.
        constexpr std::size_t most = std::numeric_limits<std::ptrdiff_t>::max();
        if (alignment > most / 2 || bytes > most / 2 - alignment) {
            refuse(bytes, "more than an address space holds");
        }
    }
    [[nodiscard]] std::size_t effective(std::size_t alignment) const noexcept {
        const bool is_device_only = reach_ == reach::device;
        return is_device_only && alignment < device_alignment ? device_alignment : alignment;
    }
    [[nodiscard]] void* nothing(std::size_t alignment) const noexcept {
        return to_pointer(effective(alignment));
    }

    const char* name_;
    node_id node_;
    reach reach_;
};

// Memory that the CPU reaches: a std::pmr resource, for every pmr container.
class memory_resource : public std::pmr::memory_resource, public resource_base {
public:
    static constexpr reach static_reach = reach::host;  // at least; derived classes may know more

    using resource_base::allocate;
    using resource_base::deallocate;
    using std::pmr::memory_resource::allocate;
    using std::pmr::memory_resource::deallocate;

    [[nodiscard]] bool is_equal(const memory_resource& other) const noexcept {
        return resource_base::is_equal(other);
    }
    using resource_base::is_equal;
    using std::pmr::memory_resource::is_equal;

    friend bool operator==(const memory_resource& a, const memory_resource& b) noexcept {
        return a.is_equal(b);
    }

protected:
    using resource_base::resource_base;

private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) final {
        return resource_base::allocate_sync(bytes, alignment);
    }
    void do_deallocate(void* pointer, std::size_t bytes, std::size_t alignment) final {
        resource_base::deallocate_sync(pointer, bytes, alignment);
    }
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept final {
        const auto* one_of_ours = dynamic_cast<const memory_resource*>(&other);
        return one_of_ours != nullptr && resource_base::is_equal(*one_of_ours);
    }
};

// Memory that only a device reaches. For raw bytes there is raw_pmr(): nothing may be constructed in
// them by the CPU, so it suits code that asks a pmr resource for buffers and never looks inside.
class device_memory_resource : public resource_base {
public:
    static constexpr reach static_reach = reach::device;

    friend bool operator==(const device_memory_resource& a,
                           const device_memory_resource& b) noexcept {
        return a.is_equal(b);
    }
    [[nodiscard]] std::pmr::memory_resource* raw_pmr() noexcept { return &raw_; }

protected:
    using resource_base::resource_base;

private:
    class raw_bridge final : public std::pmr::memory_resource {
    public:
        explicit raw_bridge(device_memory_resource& owner) noexcept : owner_{owner} {}

    private:
        void* do_allocate(std::size_t bytes, std::size_t alignment) override {
            return owner_.allocate_sync(bytes, alignment);
        }
        void do_deallocate(void* pointer, std::size_t bytes, std::size_t alignment) override {
            owner_.deallocate_sync(pointer, bytes, alignment);
        }
        bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
            const auto* bridge = dynamic_cast<const raw_bridge*>(&other);
            return bridge != nullptr && owner_.is_equal(bridge->owner_);
        }

        device_memory_resource& owner_;
    };

    raw_bridge raw_{*this};
};

namespace detail {

// The base of a resource whose memory is reached like that.
template <reach Who>
using base_for =
    std::conditional_t<includes(Who, reach::host), memory_resource, device_memory_resource>;

}  // namespace detail
}  // namespace xmm
