// SPDX-License-Identifier: Apache-2.0
// paper_driver.hpp - a backend without memory: it keeps the books, for tests of what asks it.
//
// Model    Addresses are proposed from a counter and declined on request; frames, claims and queues are
//          counted, so that a leak shows. Nothing is ever read or written.
// Threads  One.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <vector>

#include <xmm/concepts/backend.hpp>

namespace xmm::test {

struct paper_driver {
    std::vector<node_id> ids;
    std::size_t bytes_each = std::size_t{64} << 20;
    std::size_t granule_bytes = std::size_t{32} << 20;
    address next_proposal = address{1} << 40;
    bool is_proposing = true;
    unsigned declines_left = 0;     // of ranges proposed by others
    int queues_until_failure = -1;  // -1: never
    int frames_until_failure = -1;
    unsigned frame_failures = 1;          // how many calls fail then
    errc last_failure = errc::no_memory;  // of the last of them; of the others it is no_memory
    std::vector<va_range> claims;
    std::function<void(va_range)> on_release;  // before the addresses are free
    std::vector<va_range> proposed;            // all of them, in order
    std::vector<frame> frames;
    std::vector<frame> dropped;
    unsigned frame_calls = 0;
    unsigned queue_count = 0;
    std::uint32_t next_queue = 1;
    std::uint64_t next_handle = 1;

    std::span<const node_id> nodes() noexcept { return ids; }
    result<node_description> describe(node_id) noexcept {
        node_description about;
        about.bytes = bytes_each;
        about.granule_bytes = granule_bytes;
        about.nearest_host = node_id{0};
        return about;
    }
    result<va_range> va_examine(va_range range, std::size_t alignment) noexcept {
        if (range.begin == 0) {
            if (!is_proposing) {
                return fail(errc::no_memory, "no addresses on paper");
            }
            range.begin = align_up(next_proposal, alignment);
            next_proposal = range.end();
            proposed.push_back(range);
        } else if (declines_left > 0) {
            --declines_left;
            return fail(errc::unsupported, "declined on paper");
        }
        claims.push_back(range);
        return range;
    }
    void va_release(va_range range) noexcept {
        const auto found = std::find(claims.begin(), claims.end(), range);
        XMM_ASSERT(found != claims.end(), "released what was not claimed");
        claims.erase(found);
        if (on_release) {
            on_release(range);
        }
    }
    result<queue_id> queue_create(node_id, queue_priority) noexcept {
        if (queues_until_failure == 0) {
            return fail(errc::no_memory, "no queues on paper");
        }
        queues_until_failure -= queues_until_failure > 0 ? 1 : 0;
        ++queue_count;
        return queue_id{next_queue++};
    }
    void queue_destroy(queue_id) noexcept { --queue_count; }
    result<ticket> memcpy(queue_id queue, std::span<const piece>) noexcept {
        return ticket{queue, 1};
    }
    result<ticket> zero(queue_id queue, std::span<const va_range>) noexcept {
        return ticket{queue, 1};
    }
    std::uint64_t reached = ~std::uint64_t{0};  // tickets up to this value are done
    unsigned waits = 0;
    bool is_done(ticket point) noexcept { return point.value <= reached; }
    status wait(ticket point) noexcept {
        ++waits;
        reached = std::max(reached, point.value);
        return {};
    }
    std::atomic<errc> record_failure{errc::ok};
    result<ticket> record(queue_id queue) noexcept {
        const errc refusal = record_failure;
        return refusal == errc::ok ? result<ticket>{ticket{queue, 1}}
                                   : fail(refusal, "no tickets on paper");
    }
    status make_wait(queue_id, ticket) noexcept { return {}; }
    result<frame> frame_create(node_id node, std::size_t bytes) noexcept {
        ++frame_calls;
        if (frames_until_failure == 0) {
            frames_until_failure = --frame_failures == 0 ? -1 : 0;
            return fail(frame_failures == 0 ? last_failure : errc::no_memory, "no frames on paper");
        }
        frames_until_failure -= frames_until_failure > 0 ? 1 : 0;
        frames.push_back({next_handle, next_handle << 32, bytes, node, true});
        ++next_handle;
        return frames.back();
    }
    void frame_drop(frame f) noexcept {
        const auto found = std::find_if(frames.begin(), frames.end(),
                                        [&](const frame& one) { return one.handle == f.handle; });
        XMM_ASSERT(found != frames.end(), "dropped what was not created");
        dropped.push_back(*found);
        frames.erase(found);
    }
    progress pmap_enter(node_id, std::span<const run> runs) noexcept { return {runs.size(), {}}; }
    progress pmap_clear(node_id, std::span<const va_range> ranges) noexcept {
        return {ranges.size(), {}};
    }
};
static_assert(backend<paper_driver> && !takes_device_faults<paper_driver>);

}  // namespace xmm::test
