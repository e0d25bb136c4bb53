// SPDX-License-Identifier: Apache-2.0
// backend.hpp - what a vendor supplies: the operators, abilities as named bits, the erased reference.
//
// Model    vendor, and exactly one of owns_frames (we create physical memory and map it) and
//          steers_driver (the driver owns the pages and moves them when told). va_examine, pmap_enter,
//          pmap_clear, memcpy and zero are the MMU operators of GMM (arXiv 2310.12554); the rest is the
//          housekeeping that a port to user space needs.
// Threads  Every operator may be called from any thread, with ranks above backend_queue held.
// Failure  Nothing throws. A batch says how many of its entries took effect.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <span>

#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>

namespace xmm {

enum class ability : std::uint32_t {
    device_faults = 1u << 0,       // a kernel that misses a page waits until the sink has answered
    moves_under_access = 1u << 1,  // a page may move while a kernel or the CPU uses it
    concurrent_access = 1u << 2,   // CPU and device on one page at once
    cpu_coherent = 1u << 3,        // the driver handles CPU touches of device-resident pages itself
    alias = 1u << 4,               // one frame may be mapped at two addresses
    host_frames = 1u << 5,         // creates host frames that its devices can map
    peer = 1u << 6,                // devices reach each other's frames
    exportable = 1u << 7,          // frames can be handed to other processes
    host_calls = 1u << 8,          // call() runs a host function in queue order
    split_views = 1u << 9,         // any two accessors may see different frames at one address
    split_cpu_view = 1u << 10,     // the CPU may see a host's frame where devices see a device's
};

struct abilities {
    std::uint32_t bits = 0;

    [[nodiscard]] constexpr bool has(ability one) const noexcept {
        return (bits & static_cast<std::uint32_t>(one)) != 0;
    }
    constexpr abilities& add(ability one) noexcept {
        bits |= static_cast<std::uint32_t>(one);
        return *this;
    }
};

struct node_description {
    std::array<char, 64> name{};  // NUL-terminated
    std::size_t bytes = 0;        // physical memory of the node
    // The next two and the latency are told to users and asked by no floor: frames of any number of pages up to
    // 512 MiB are asked for, and frame_create refuses what it cannot make.
    std::size_t smallest_frame_bytes = page_bytes;
    std::size_t largest_frame_bytes = xmm::largest_frame_bytes;
    // What regions on it move in, unless told: a power of two, at least a page.
    std::size_t granule_bytes = std::size_t{32} << 20;
    std::uint64_t link_in_bytes_per_second = 0;   // host to device; 0 is unknown or unlimited
    std::uint64_t link_out_bytes_per_second = 0;  // device to host
    std::uint64_t link_latency_ns = 0;
    node_id nearest_host = any_host;
    std::size_t headroom_bytes = 0;  // that other users of the node should always find free
    // A device's tables for host frames take one byte of its memory for so many of theirs; 0: none.
    std::size_t host_bytes_per_table_byte = 0;
    // How many bytes of free frames are worth keeping: many where creating one takes long.
    std::size_t kept_bytes = std::size_t{256} << 20;
    // Making a mapping read-only costs about as much as clearing it: who moves a page clears it at once.
    bool is_lowering_dear = false;
    abilities able;
};

// Faults go first; background work (prefetch, demotion) waits while they use the link.
enum class queue_priority : std::uint8_t { background, normal, urgent };

enum class fault_outcome : std::uint8_t {
    resolved,    // mapped now: retry the access
    not_mapped,  // no region there: the access is a program's error
    no_memory,   // nothing could be made resident
};

// Where a backend with device_faults sends what a kernel missed. Called on the kernel's thread. Where pages that the
// kernel needs at once push each other out, the backend asks for one of them with access::in_place as well.
struct device_fault_sink {
    void* context = nullptr;
    fault_outcome (*handle)(void* context, node_id accessor, address at,
                            access wanted) noexcept = nullptr;
};

enum class driver_advice : std::uint8_t {
    read_mostly,  // several nodes may have copies; devices without one are not made to map the pages in place
    unset_read_mostly,
    preferred,
    unset_preferred,
    mapped_in_place,  // every device maps a host's pages where they are; `preferred` to a host says so, too
};

template <class B>
concept vendor = requires(B& b, node_id node, va_range range, queue_id queue, ticket point,
                          queue_priority priority, std::span<const piece> pieces,
                          std::span<const va_range> ranges) {
    // The devices it drives; the span stays valid as long as the backend.
    { b.nodes() } noexcept -> std::same_as<std::span<const node_id>>;
    { b.describe(node) } noexcept -> std::same_as<result<node_description>>;
    // Claims the range for all its nodes, or declines it. begin == 0: proposes one that long,
    // aligned to the granule asked for by `alignment`.
    { b.va_examine(range, std::size_t{}) } noexcept -> std::same_as<result<va_range>>;
    { b.va_release(range) } noexcept -> std::same_as<void>;
    { b.queue_create(node, priority) } noexcept -> std::same_as<result<queue_id>>;
    { b.queue_destroy(queue) } noexcept -> std::same_as<void>;  // after the queued work is done
    // Pieces and ranges are read before the call returns.
    { b.memcpy(queue, pieces) } noexcept -> std::same_as<result<ticket>>;
    { b.zero(queue, ranges) } noexcept -> std::same_as<result<ticket>>;
    // Tickets of other backends, and of queues that are gone, count as reached.
    { b.is_done(point) } noexcept -> std::same_as<bool>;
    { b.wait(point) } noexcept -> std::same_as<status>;
    // All work submitted so far. invalid_argument, and nothing else, says that the queue is another backend's or
    // gone: so the floors above find out whose queue it is that a user names.
    { b.record(queue) } noexcept -> std::same_as<result<ticket>>;
    // Later work waits for the point; invalid_argument for another backend's.
    { b.make_wait(queue, point) } noexcept -> std::same_as<status>;
};

template <class B>
concept owns_frames = requires(B& b, node_id node, frame f, std::span<const run> runs,
                               std::span<const va_range> ranges, std::size_t bytes) {
    { b.frame_create(node, bytes) } noexcept -> std::same_as<result<frame>>;
    { b.frame_drop(f) } noexcept -> std::same_as<void>;  // mapped nowhere any more
    // After return the accessor `node` sees each run's frame with that access and no more. Entering
    // the same frame again changes the access. Any host node stands for the CPU.
    { b.pmap_enter(node, runs) } noexcept -> std::same_as<progress>;
    // After return no access of `node` through the old mapping is possible.
    { b.pmap_clear(node, ranges) } noexcept -> std::same_as<progress>;
};

template <class B>
concept steers_driver =
    requires(B& b, node_id node, queue_id queue, std::span<const va_range> ranges,
             driver_advice what, std::span<node_id> where) {
        { b.place(queue, ranges, node) } noexcept -> std::same_as<result<ticket>>;
        { b.advise(ranges, what, node) } noexcept -> std::same_as<status>;
        { b.residency(ranges, where) } noexcept -> std::same_as<status>;
        { b.discard(queue, ranges) } noexcept -> std::same_as<result<ticket>>;  // quiet ranges only
    };

template <class B>
concept takes_device_faults = requires(B& b, device_fault_sink sink, void* context) {
    { b.on_device_fault(sink) } noexcept -> std::same_as<status>;
    {
        b.off_device_fault(context)
    } noexcept -> std::same_as<void>;  // after return it is not called
};

template <class B>
concept makes_host_calls =
    requires(B& b, queue_id queue, void (*fn)(void*) noexcept, void* context) {
        { b.call(queue, fn, context) } noexcept -> std::same_as<result<ticket>>;
    };

// Memory that others take without our knowing: libraries of this process, other processes.
template <class B>
concept measures_free_memory = requires(B& b, node_id node) {
    // What nobody holds of a device's memory at the moment, in bytes.
    { b.free_bytes(node) } noexcept -> std::same_as<result<std::size_t>>;
};

template <class B>
concept backend = vendor<B> && (owns_frames<B> != steers_driver<B>);

}  // namespace xmm
