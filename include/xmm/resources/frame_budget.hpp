// SPDX-License-Identifier: Apache-2.0
// frame_budget.hpp - how many bytes of frames a device's heaps hold, and up to where they make more.
//
// Model    Frames are made while they come to no more than the peak of live bytes and a little slack; beyond, idle
//          ones are taken. What has been made, dropped, moved and waited for is counted.
// Threads  None of its own: the lock of device_frames guards it.
// Failure  None.
// See      frame_users.hpp has the live bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace xmm {

struct frame_counts {
    std::size_t reserved_bytes = 0;  // of frames that exist
    std::size_t reserved_peak = 0;
    std::size_t live_bytes = 0;  // as told by set_live and add_live
    std::size_t live_peak = 0;
    std::uint64_t created = 0;
    std::uint64_t dropped = 0;
    std::uint64_t moved = 0;  // taken from an idle slot for another one
    std::uint64_t waits = 0;  // for a queue, before a frame could be taken
    std::size_t moved_bytes = 0;
};

class frame_budget {
public:
    // How far above the peak frames are made; in 1/1024.
    explicit frame_budget(std::uint32_t slack) noexcept : slack_{slack} {}

    [[nodiscard]] std::size_t limit_for(std::size_t live_peak) const noexcept {
        return live_peak + static_cast<std::size_t>(static_cast<double>(live_peak) * slack_ / 1024);
    }
    [[nodiscard]] bool has_room(std::size_t bytes, std::size_t limit) const noexcept {
        return counts_.reserved_bytes + bytes <= limit;
    }
    [[nodiscard]] std::size_t reserved_bytes() const noexcept { return counts_.reserved_bytes; }
    // Without what is live.
    [[nodiscard]] const frame_counts& counts() const noexcept { return counts_; }

    void note_created(std::size_t bytes) noexcept {
        counts_.reserved_bytes += bytes;
        counts_.reserved_peak = std::max(counts_.reserved_peak, counts_.reserved_bytes);
        ++counts_.created;
    }
    void note_dropped(std::size_t bytes) noexcept {
        counts_.reserved_bytes -= bytes;
        ++counts_.dropped;
    }
    void note_moved(std::size_t bytes) noexcept {
        ++counts_.moved;
        counts_.moved_bytes += bytes;
    }
    void note_wait() noexcept { ++counts_.waits; }

private:
    const std::uint32_t slack_;
    frame_counts counts_;
};

}  // namespace xmm
