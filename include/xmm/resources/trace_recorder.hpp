// SPDX-License-Identifier: Apache-2.0
// trace_recorder.hpp - what a device's heap did, event by event, for those who look at it later.
//
// Model    A ring of events; when it is full the oldest goes. Off until start(): then record() is one
//          relaxed load. Events lie in the ring in the order of their times.
//          Who records keeps to an order, so that a reader never meets a block without memory: a frame is
//          recorded as mapped and a block as allocated after the fact, everything that ends before it.
// Threads  Any. One lock (rank leaf) guards the ring; record() may be called under any lock above leaf.
// Failure  start() answers no_memory and stays off. Recording never fails. In a child of fork nothing is recorded or
//          found, and start() answers forked: whoever had the lock is not there.
// See      export/ writes events and snapshots in the forms that other tools read.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include <unistd.h>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/os/registry.hpp>

namespace xmm {

enum class trace_action : std::uint8_t {
    allocate,
    free_requested,  // the program let go; work of a queue may still use the block
    free_completed,  // the block may be reused
    segment_map,     // addresses got a frame
    segment_unmap,   // and lost it: taken for other addresses, or given back
    out_of_memory,   // a request of `bytes` failed
    snapshot,        // somebody took one
};

[[nodiscard]] constexpr const char* name_of(trace_action action) noexcept {
    constexpr const char* names[] = {"alloc",       "free_requested", "free_completed",
                                     "segment_map", "segment_unmap",  "oom",
                                     "snapshot"};
    return names[static_cast<unsigned>(action)];
}

struct trace_event {
    std::uint64_t ns = 0;  // on the clock of trace_times
    // Of the block or of the mapped addresses; of a failure: how many bytes the device had free.
    address at = 0;
    std::size_t bytes = 0;     // of a block: as asked for
    std::uint64_t stream = 0;  // the native stream's address or number; 0: the default one
    std::uint32_t thread = 0;  // the OS's number
    std::uint16_t tag = 0;     // of the pool it belongs to
    trace_action action = trace_action::snapshot;

    friend bool operator==(const trace_event&, const trace_event&) = default;
};

// One moment on two clocks: the events' own, which never jumps, and the wall clock since 1970.
struct trace_times {
    std::uint64_t ns = 0;
    std::int64_t wall_ns = 0;

    [[nodiscard]] std::int64_t wall(std::uint64_t event_ns) const noexcept {
        return wall_ns + static_cast<std::int64_t>(event_ns - ns);
    }
};

// What was recorded, oldest first.
struct recorded_trace {
    std::vector<trace_event> events;
    std::uint64_t lost = 0;  // older ones that the ring had no room for
    trace_times times;
};

class trace_recorder {
public:
    static constexpr std::size_t default_capacity = std::size_t{1} << 20;

    trace_recorder() = default;
    trace_recorder(const trace_recorder&) = delete;
    trace_recorder& operator=(const trace_recorder&) = delete;

    [[nodiscard]] bool is_on() const noexcept {
        // relaxed: an event that is missed at the moment of switching is no loss.
        return is_on_.load(std::memory_order_relaxed) && !registry::is_forked_child();
    }

    // Begins with an empty ring of that many events, 40 bytes each, touched as they come.
    [[nodiscard]] status start(std::size_t capacity = default_capacity) noexcept {
        if (capacity == 0 || capacity > most_events) {
            return fail(errc::invalid_argument, "a trace holds 1 to 2^32 events");
        }
        if (registry::is_forked_child()) {
            return fail(errc::forked, "this is a forked child: the trace is its parent's");
        }
        ring_memory fresh{static_cast<trace_event*>(std::malloc(capacity * sizeof(trace_event)))};
        if (fresh == nullptr) {
            return fail(errc::no_memory, "no memory for a trace of that many events");
        }
        with(lock_, [&] {
            ring_.swap(fresh);
            capacity_ = capacity;
            recorded_ = 0;
            times_ = {now_ns(), wall_ns()};
            is_on_.store(true, std::memory_order_relaxed);  // relaxed: see is_on
        });
        return {};
    }
    // What was recorded stays until the next start.
    void stop() noexcept {
        if (!registry::is_forked_child()) {
            with(lock_, [&] { is_on_.store(false, std::memory_order_relaxed); });  // see is_on
        }
    }

    // Time and thread are filled in here.
    void record(trace_action action, address at, std::size_t bytes, std::uint64_t stream = 0,
                std::uint16_t tag = 0) noexcept {
        if (is_on()) {
            put({.at = at,
                 .bytes = bytes,
                 .stream = stream,
                 .thread = thread_number(),
                 .tag = tag,
                 .action = action});
        }
    }

    // A copy; empty if nothing was ever started. A free has the size of its allocation where the trace
    // has that too: who frees may know the block's size only. Throws std::bad_alloc.
    [[nodiscard]] recorded_trace trace() const {
        recorded_trace result = registry::is_forked_child() ? recorded_trace{} : copy();
        std::unordered_map<address, std::size_t> asked;
        for (trace_event& event : result.events) {
            if (event.action == trace_action::allocate) {
                asked[event.at] = event.bytes;
            } else if (event.action == trace_action::free_requested ||
                       event.action == trace_action::free_completed) {
                const auto found = asked.find(event.at);
                event.bytes = found != asked.end() ? found->second : event.bytes;
                if (found != asked.end() && event.action == trace_action::free_completed) {
                    asked.erase(found);
                }
            }
        }
        return result;
    }
    // Events in the ring now.
    [[nodiscard]] std::uint64_t count() const noexcept {
        return registry::is_forked_child()
                   ? 0
                   : with(lock_, [&] { return std::min<std::uint64_t>(recorded_, capacity_); });
    }

private:
    static constexpr std::size_t most_events = std::size_t{1} << 32;
    static_assert(sizeof(trace_event) == 40 && std::is_trivially_copyable_v<trace_event>);

    [[nodiscard]] recorded_trace copy() const {
        recorded_trace result;
        std::vector<trace_event>& events = result.events;
        for (std::uint64_t wanted = count(); events.size() != wanted;) {
            events.resize(wanted);  // without the lock, since others record meanwhile
            with(lock_, [&] {
                wanted = std::min<std::uint64_t>(recorded_, capacity_);
                if (wanted <= events.size()) {
                    events.resize(wanted);
                    copy_locked(events.data());
                    result.lost = recorded_ - wanted;
                    result.times = times_;
                }
            });
        }
        if (events.empty()) {
            result.times = with(lock_, [&] { return times_; });
        }
        return result;
    }

    struct free_memory {
        void operator()(trace_event* ring) const noexcept { std::free(ring); }
    };
    using ring_memory = std::unique_ptr<trace_event[], free_memory>;

    [[nodiscard]] static std::uint64_t now_ns() noexcept {
        using namespace std::chrono;
        return static_cast<std::uint64_t>(
            duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count());
    }
    [[nodiscard]] static std::int64_t wall_ns() noexcept {
        using namespace std::chrono;
        return duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
    }
    [[nodiscard]] static std::uint32_t thread_number() noexcept {
        thread_local const auto number = static_cast<std::uint32_t>(::gettid());  // a system call
        return number;
    }
    [[gnu::noinline]] void put(trace_event event) noexcept {
        with(lock_, [&] {
            if (is_on()) {
                event.ns = now_ns();  // under the lock, so that order and times agree
                ring_[recorded_++ % capacity_] = event;
            }
        });
    }
    void copy_locked(trace_event* to) const noexcept {
        if (recorded_ <= capacity_) {
            std::copy_n(ring_.get(), recorded_, to);
            return;
        }
        const std::size_t oldest = recorded_ % capacity_;
        std::copy_n(ring_.get(), oldest,
                    std::copy(ring_.get() + oldest, ring_.get() + capacity_, to));
    }

    // (A) atomic, written under L  (L) lock_
    std::atomic<bool> is_on_{false};  // (A)
    mutable ranked_mutex<lock_rank::leaf> lock_;
    ring_memory ring_;            // (L)
    std::size_t capacity_ = 0;    // (L) events that the ring holds
    std::uint64_t recorded_ = 0;  // (L) since the start
    trace_times times_;           // (L) of the start
};

}  // namespace xmm
