// SPDX-License-Identifier: Apache-2.0
// frames.hpp - the physical memory of one node: handles of the driver, each with a standing address.
//
// Model    Of four kinds. A device's handles and the host's are mapped in a window of the node's own, where copies
//          reach them; the host's stay there for good, since they may be mapped often, and the CPU reaches them. Where
//          the driver has no such memory, a frame is a plain allocation, which nobody can map anywhere else.
//          What is handed out is counted here: a driver gives more than there is, and fails or spills later.
// Threads  Any. The driver is called without a lock.
// Failure  create() is all or nothing. What the driver does not take back stays counted.
// See      standing.hpp: where each frame is mapped.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>

#include <sys/mman.h>

#include <xmm/core/types.hpp>
#include <xmm/os/host_memory.hpp>

#include "device.hpp"
#include "standing.hpp"

namespace xmm::levelzero {

// Calls that name a context and addresses.
class mapper {
public:
    mapper(const driver& on, ze_context_handle_t context) noexcept
        : driver_{on}, context_{context} {}

    [[nodiscard]] const driver& calls() const noexcept { return driver_; }
    [[nodiscard]] ze_context_handle_t context() const noexcept { return context_; }

    // Of what takes the context first.
    template <class Function, class... Args>
    status call(Function driver_api::*which, Args... args) const noexcept {
        return driver_.call(which, context_, args...);
    }

    // A hint of 0 is none. The validation layer of before 1.9 wants one: an address that is taken says as little.
    [[nodiscard]] status reserve(address hint, std::size_t bytes, va_range& found) const noexcept {
        void* at = nullptr;
        status reserved = call(&driver_api::virtual_mem_reserve, to_pointer(hint), bytes, &at);
        if (hint == 0 &&
            reserved.driver_code == static_cast<int>(ZE_RESULT_ERROR_INVALID_NULL_POINTER)) {
            const address taken = align_down(to_address(this), page_bytes);
            reserved = call(&driver_api::virtual_mem_reserve, to_pointer(taken), bytes, &at);
        }
        found = {to_address(at), bytes};
        return reserved.code == errc::invalid_argument
                   ? fail(errc::no_memory, "the Level Zero driver has no such addresses",
                          reserved.driver_code)
                   : reserved;
    }
    // As it was reserved.
    void release(va_range range) const noexcept {
        (void)call(&driver_api::virtual_mem_free, to_pointer(range.begin), range.bytes);
    }
    // Always for writing: attributes are kept for a whole reservation.
    [[nodiscard]] status map(va_range at, ze_physical_mem_handle_t handle) const noexcept {
        return call(&driver_api::virtual_mem_map, to_pointer(at.begin), at.bytes, handle,
                    std::size_t{0}, ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE);
    }
    // The addresses stay reserved: where a driver lets go of them, others would get them.
    [[nodiscard]] status unmap(va_range at) const noexcept {
        const status outcome = call(&driver_api::virtual_mem_unmap, to_pointer(at.begin), at.bytes);
        if (outcome) {
            constexpr int only_if_free = 0x100000;  // MAP_FIXED_NOREPLACE
            (void)xmm::detail::map_quietly(
                to_pointer(at.begin), at.bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | only_if_free, -1, 0);
        }
        return outcome;
    }

private:
    const driver& driver_;
    ze_context_handle_t context_;
};

class node_memory {
public:
    enum class kind : std::uint8_t { device, host, plain_device, plain_host };

    // The device is the one whose memory it is; of a host, any.
    node_memory(const mapper& maps, device& on, node_id node, kind what, std::size_t bytes) noexcept
        : maps_{maps}, on_{on}, node_{node}, kind_{what}, bytes_{bytes} {}
    ~node_memory() {
        if (!stands_.window().is_empty() && !has_stuck_.load(std::memory_order_relaxed)) {
            maps_.release(stands_.window());
        }
    }
    node_memory(const node_memory&) = delete;
    node_memory& operator=(const node_memory&) = delete;

    // Before any other call. unsupported: the driver has no memory of that kind.
    [[nodiscard]] status open(ticket_watch watch) noexcept {
        if (is_plain()) {
            return {};
        }
        // The page size depends on the size that is asked for.
        std::size_t page = 0;
        if (const status asked = page_size(page_bytes, page); !asked) {
            return asked;
        }
        granularity_ = std::max(page_bytes, page);
        return shared::reserve_window(bytes_, granularity_, [&](std::size_t some) {
            va_range window;
            const status reserved = maps_.reserve(0, some, window);
            const status opened = reserved ? stands_.open(window, watch) : reserved;
            if (reserved && !opened) {
                maps_.release(window);
            }
            return opened;
        });
    }

    [[nodiscard]] node_id node() const noexcept { return node_; }
    [[nodiscard]] kind what() const noexcept { return kind_; }
    [[nodiscard]] bool is_host() const noexcept {
        return kind_ == kind::host || kind_ == kind::plain_host;
    }
    [[nodiscard]] bool is_plain() const noexcept {
        return kind_ == kind::plain_device || kind_ == kind::plain_host;
    }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] std::size_t smallest_frame_bytes() const noexcept { return granularity_; }
    // relaxed: a figure.
    [[nodiscard]] std::size_t bytes_in_use() const noexcept {
        return in_use_.load(std::memory_order_relaxed);
    }
    [[nodiscard]] standing& stands() noexcept { return stands_; }

    [[nodiscard]] result<frame> create(std::size_t bytes) noexcept {
        if (!is_host() && on_.is_lost()) {
            return fail(errc::device_lost, "the Level Zero device is lost");
        }
        if (!charge(bytes)) {
            return fail(errc::no_memory, "the node's memory is handed out");
        }
        frame made{0, 0, bytes, node_, false};
        const status outcome = is_plain() ? allocate(made) : create_standing(made);
        if (!outcome) {
            discharge(bytes);
            return is_host() ? outcome : on_.note(outcome);
        }
        return made;
    }
    // Returns when no copy uses it any more.
    void drop(const frame& f) noexcept {
        if (is_plain()) {
            if (maps_.call(&driver_api::mem_free, to_pointer(f.standing))) {
                discharge(f.bytes);
            }
            return;
        }
        standing_frame& one = stands_.at(f.standing);
        XMM_ASSERT(stands_.address_of(one) == f.standing && one.handle != nullptr,
                   "dropped a frame that is gone, or another node's");
        const status is_mine = stands_.begin_move(one, ticket_watch::forever);
        if (!is_mine || one.is_stuck || (one.place != 0 && !maps_.unmap({one.place, f.bytes}))) {
            abandon();
            return;
        }
        if (maps_.call(&driver_api::physical_mem_destroy, one.handle)) {
            discharge(f.bytes);
        }
        stands_.give(f.standing);
    }

    // A frame stays for good, and its addresses with it: a handle that is mapped must not be destroyed.
    void abandon() noexcept { has_stuck_.store(true, std::memory_order_relaxed); }

    // Where a copy reaches what stands there, and how far in a row; noted as used by it.
    struct reached {
        address at = 0;
        std::size_t bytes = 0;
    };
    [[nodiscard]] result<reached> reach(address at, std::size_t bytes, ticket by) noexcept {
        standing_frame& one = stands_.at(at);
        const address begin = stands_.address_of(one);
        const std::size_t left = begin + one.pages * page_bytes - at;
        if (is_host()) {
            return reached{at, std::min(bytes, left)};  // mapped there as long as it lives
        }
        auto place = stands_.use(one, by, [&](standing_frame& away) {
            return maps_.map({begin, away.pages * page_bytes}, away.handle);
        });
        return place ? result<reached>{reached{*place + (at - begin), std::min(bytes, left)}}
                     : result<reached>{place.error()};
    }

private:
    // relaxed: what counts is the sum.
    [[nodiscard]] bool charge(std::size_t bytes) noexcept {
        if (in_use_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= bytes_) {
            return true;
        }
        discharge(bytes);
        return false;
    }
    void discharge(std::size_t bytes) noexcept {
        in_use_.fetch_sub(bytes, std::memory_order_relaxed);
    }
    [[nodiscard]] status page_size(std::size_t bytes, std::size_t& page) const noexcept {
        return maps_.call(&driver_api::virtual_mem_query_page_size, on_.handle(), bytes, &page);
    }

    [[nodiscard]] status create_standing(frame& made) noexcept {
        std::size_t page = 0;
        if (const status asked = page_size(made.bytes, page); !asked) {
            return asked;
        }
        if (page == 0 || made.bytes % page != 0) {
            return fail(errc::unsupported, "the Level Zero driver makes no frames of that size");
        }
        const address at = stands_.take(made.bytes);
        if (at == 0) {
            return fail(errc::no_memory, "no addresses are left for another frame of this node");
        }
        standing_frame& one = stands_.at(at);
        ze_physical_mem_desc_t wanted;
        wanted.flags = is_host() ? ZE_PHYSICAL_MEM_FLAG_ALLOCATE_ON_HOST : 0;
        wanted.size = made.bytes;
        status outcome =
            maps_.call(&driver_api::physical_mem_create, on_.handle(), &wanted, &one.handle);
        if (outcome) {
            // At once: some drivers look for the memory only now.
            outcome = maps_.map({at, made.bytes}, one.handle);
            if (!outcome) {
                (void)maps_.call(&driver_api::physical_mem_destroy, one.handle);
            }
        }
        if (!outcome) {
            stands_.give(at);
            return outcome;
        }
        made.handle = reinterpret_cast<std::uintptr_t>(one.handle);
        made.standing = at;
        stands_.end_move(one, at);
        return {};
    }
    [[nodiscard]] status allocate(frame& made) const noexcept {
        const ze_relaxed_allocation_limits_exp_desc_t relaxed;
        const bool is_large = !is_host() && made.bytes > on_.largest_allocation();
        void* at = nullptr;
        status outcome;
        if (is_host()) {
            const ze_host_mem_alloc_desc_t wanted;
            outcome = maps_.call(&driver_api::mem_alloc_host, &wanted, made.bytes, page_bytes, &at);
        } else {
            ze_device_mem_alloc_desc_t wanted;
            wanted.pNext = is_large ? &relaxed : nullptr;
            outcome = maps_.call(&driver_api::mem_alloc_device, &wanted, made.bytes, page_bytes,
                                 on_.handle(), &at);
        }
        made.handle = made.standing = to_address(at);
        return outcome;
    }

    const mapper& maps_;
    device& on_;
    const node_id node_;
    const kind kind_;
    const std::size_t bytes_;
    std::size_t granularity_ = page_bytes;  // (C) once open
    standing stands_;
    std::atomic<std::size_t> in_use_{0};
    std::atomic<bool> has_stuck_{false};  // read by the destructor alone
};

}  // namespace xmm::levelzero
