// SPDX-License-Identifier: Apache-2.0
// frame_port.hpp - what an extent heap needs of the device whose memory it hands out.
//
// Model    Address space in slots of one size a reservation; a slot has no frame or one of exactly its size.
//          Frames are opaque handles, charged to the device's budget while they exist. A frame is mapped at
//          one slot at a time, unless the port says that it can alias.
// Threads  Any, on distinct slots and frames.
// Failure  create: no_memory when the budget or the device has no more. map leaves the slot unmapped when it
//          fails. Nothing here reclaims or calls user code; `wait` waits for a queue, unmap at most for a
//          copy under way.
#pragma once

#include <cstddef>
#include <cstdint>

#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/mapping/ledger.hpp>

namespace xmm {

// Whether a queue that answers this to `record` runs nothing any more: it is gone, or its device is lost. Not so
// `forked`: the parent's queue goes on, whatever its child may ask.
[[nodiscard]] constexpr bool is_over(errc code) noexcept {
    return code == errc::invalid_argument || code == errc::device_lost;
}

struct port_frame {
    void* handle = nullptr;
    [[nodiscard]] explicit operator bool() const noexcept { return handle != nullptr; }
};

class frame_port {
public:
    // Whole slots, aligned to slot_bytes: a power of two from 2 to 512 MiB. Unmapped.
    [[nodiscard]] virtual result<address> reserve(std::size_t bytes,
                                                  std::size_t slot_bytes) noexcept = 0;
    // A whole reservation; nothing is mapped in it.
    virtual void release(va_range reservation) noexcept = 0;

    // Of frames, that could be had as things are now, if nobody else had any.
    [[nodiscard]] virtual std::size_t most_bytes() const noexcept { return SIZE_MAX; }
    // That the device is charged with now, for all who draw on it; 0: it keeps no such book.
    [[nodiscard]] virtual std::size_t used_bytes() const noexcept { return 0; }
    // The book with both figures, for who looks often; null: there is none.
    [[nodiscard]] virtual const ledger* book() const noexcept { return nullptr; }
    [[nodiscard]] virtual result<port_frame> create(std::size_t bytes) noexcept = 0;
    // Mapped nowhere.
    virtual void drop(port_frame one, std::size_t bytes) noexcept = 0;
    // Of frames that were dropped the port may keep some for the next create: now the device gets them.
    virtual void drop_kept() noexcept {}

    [[nodiscard]] virtual status map(address slot, port_frame one, std::size_t bytes) noexcept = 0;
    // No work that was submitted before and uses the slot is unfinished.
    virtual void unmap(address slot, port_frame one, std::size_t bytes) noexcept = 0;

    // A point after all work submitted to the queue so far; queue 0 is always done.
    [[nodiscard]] virtual result<ticket> record(queue_id queue) noexcept = 0;
    [[nodiscard]] virtual bool is_done(ticket point) noexcept = 0;
    virtual status wait(ticket point) noexcept = 0;
    // Of a queue that `record` answers invalid_argument for: whether it is one of this device's space that is gone, and
    // not another space's, which may have work left. A port that cannot tell them apart takes all for its own.
    [[nodiscard]] virtual bool was_ours(queue_id) noexcept { return true; }

    // One frame may be mapped at several slots at once. Of these, one has it; at the others it is lent: they count as
    // slots without memory, and what is mapped there waits for end_loan, or for the frame to come back.
    [[nodiscard]] virtual bool can_alias() const noexcept { return false; }
    // Of a port that can alias: the slot that has the frame lends it.
    virtual void lend(address, port_frame, std::size_t) noexcept {}
    // It has it again; nobody else has.
    virtual void come_back(address, port_frame, std::size_t) noexcept {}
    // No work that was submitted before and uses the slot's mapping is unfinished.
    virtual void end_loan(address slot, port_frame one, std::size_t bytes) noexcept {
        unmap(slot, one, bytes);
    }
    // Nothing that was submitted before needs more of the slot than its mapping.
    [[nodiscard]] virtual bool is_quiet(address) noexcept { return true; }

protected:
    ~frame_port() = default;
};

}  // namespace xmm
