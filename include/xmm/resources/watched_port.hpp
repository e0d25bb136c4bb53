// SPDX-License-Identifier: Apache-2.0
// watched_port.hpp - a frame port in front of another one: counts what heaps ask of a device, and how long it takes.
//
// Threads  As the port behind it.
// Failure  As the port behind it.
#pragma once

#include <chrono>
#include <cstdint>

#include <xmm/resources/frame_port.hpp>
#include <xmm/resources/heap_statistics.hpp>
#include <xmm/resources/trace_recorder.hpp>

namespace xmm {

class watched_port final : public frame_port {
public:
    // note(self, action, slot, bytes) is told of each frame that is mapped, and before it is unmapped.
    using note_function = void (*)(void* self, trace_action action, address slot,
                                   std::size_t bytes) noexcept;

    // What it is given outlives it.
    watched_port(frame_port& to, heap_statistics& counts, note_function note, void* self) noexcept
        : to_{to}, counts_{counts}, note_{note}, self_{self} {}

    result<address> reserve(std::size_t bytes, std::size_t slot_bytes) noexcept override {
        return to_.reserve(bytes, slot_bytes);
    }
    void release(va_range reservation) noexcept override { to_.release(reservation); }
    std::size_t most_bytes() const noexcept override { return to_.most_bytes(); }
    std::size_t used_bytes() const noexcept override { return to_.used_bytes(); }
    const ledger* book() const noexcept override { return to_.book(); }
    result<port_frame> create(std::size_t bytes) noexcept override {
        const timing watch{counts_, heap_count::device_alloc};
        result<port_frame> made = to_.create(bytes);
        if (made) {
            counts_.frames_created(heap_pool::large, bytes);
        }
        return made;
    }
    void drop(port_frame one, std::size_t bytes) noexcept override {
        const timing watch{counts_, heap_count::device_free};
        to_.drop(one, bytes);
        counts_.frames_dropped(heap_pool::large, bytes);
    }
    void drop_kept() noexcept override {
        const timing watch{counts_};
        to_.drop_kept();
    }
    status map(address slot, port_frame one, std::size_t bytes) noexcept override {
        const timing watch{counts_, heap_count::device_alloc};
        const status mapped = to_.map(slot, one, bytes);
        if (mapped) {
            note_(self_, trace_action::segment_map, slot, bytes);
        }
        return mapped;
    }
    void unmap(address slot, port_frame one, std::size_t bytes) noexcept override {
        note_(self_, trace_action::segment_unmap, slot, bytes);
        const timing watch{counts_, heap_count::device_free};
        to_.unmap(slot, one, bytes);
    }
    result<ticket> record(queue_id queue) noexcept override { return to_.record(queue); }
    bool is_done(ticket point) noexcept override { return to_.is_done(point); }
    status wait(ticket point) noexcept override {
        const timing watch{counts_};
        return to_.wait(point);
    }
    bool was_ours(queue_id queue) noexcept override { return to_.was_ours(queue); }
    bool can_alias() const noexcept override { return to_.can_alias(); }
    void lend(address slot, port_frame one, std::size_t bytes) noexcept override {
        note_(self_, trace_action::segment_unmap, slot, bytes);
        to_.lend(slot, one, bytes);
    }
    void come_back(address slot, port_frame one, std::size_t bytes) noexcept override {
        to_.come_back(slot, one, bytes);
        note_(self_, trace_action::segment_map, slot, bytes);
    }
    void end_loan(address slot, port_frame one, std::size_t bytes) noexcept override {
        const timing watch{counts_, heap_count::device_free};
        to_.end_loan(slot, one, bytes);
    }
    bool is_quiet(address slot) noexcept override { return to_.is_quiet(slot); }

private:
    struct timing {
        heap_statistics& counts;
        std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();

        explicit timing(heap_statistics& to) noexcept : counts{to} {}
        timing(heap_statistics& to, heap_count what) noexcept : counts{to} { to.count(what); }
        timing(const timing&) = delete;
        timing& operator=(const timing&) = delete;
        ~timing() {
            const auto spent = std::chrono::steady_clock::now() - began;
            counts.count_driver_ns(static_cast<std::uint64_t>(
                std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count()));
        }
    };

    frame_port& to_;
    heap_statistics& counts_;
    const note_function note_;
    void* const self_;
};

}  // namespace xmm
