// SPDX-License-Identifier: Apache-2.0
// streams.hpp - streams with a thread each, positions in them, events, captures.
//
// Model    Work is numbered in its stream; a position is a stream and a number, done when the stream has come so
//          far. Work may wait for positions of other streams. In a capture, work becomes a node and is not run.
// Threads  Any. work_lock guards what is marked (W); a stream's own lock its queue.
// Failure  Work that fails ends its context: whatever follows there is passed over, and waiting for it ends.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "driver.hpp"
#include "soft_cuda.hpp"

namespace soft_cuda {

class stream;

struct position {
    std::shared_ptr<stream> of;
    std::uint64_t number = 0;

    [[nodiscard]] bool is_done() const noexcept;
    void wait() const;
};

using task = std::function<CUresult()>;
struct work {
    std::vector<position> after;
    task run;  // may be empty
    bool is_run_when_lost = false;
};

// What streams record between begin and end. All of it (W).
struct capture {
    struct node {
        std::vector<std::size_t> after;
        task run;
    };
    std::uint64_t id = 0;
    CUstreamCaptureMode mode{};
    std::thread::id owner;
    stream* origin = nullptr;
    bool is_invalid = false;
    std::vector<node> nodes;
    std::vector<stream*> members;
};

class stream : public std::enable_shared_from_this<stream> {
public:
    stream(context& of, unsigned flags, int priority, std::uint64_t id) noexcept
        : owner{of}, flags{flags}, priority{priority}, id{id} {}
    stream(const stream&) = delete;

    context& owner;
    const unsigned flags;
    const int priority;
    const std::uint64_t id;
    std::shared_ptr<soft_cuda::capture> captured_by;  // (W)
    std::vector<std::size_t> tips;                    // (W) nodes that the next one follows

    [[nodiscard]] bool is_blocking() const noexcept {
        return (flags & CU_STREAM_NON_BLOCKING) == 0;
    }

    position push(work what);
    [[nodiscard]] position tail();
    [[nodiscard]] bool has_reached(std::uint64_t number) const noexcept {
        // acquire: pairs with the release in run, so what the work wrote is seen.
        return completed_.load(std::memory_order_acquire) >= number;
    }
    void wait_for(std::uint64_t number);
    void close();  // its thread ends after the work it has

private:
    void run();

    std::mutex mutex_;
    std::condition_variable arrived_, advanced_;
    std::deque<work> queue_;
    std::uint64_t submitted_ = 0;
    std::atomic<std::uint64_t> completed_{0};
    bool has_thread_ = false, is_closing_ = false;
};

struct event {
    context* owner = nullptr;
    unsigned flags = 0;
    position at;                                        // (W) of nullptr: never recorded
    std::shared_ptr<std::atomic<std::uint64_t>> stamp;  // (W) when it was passed; 0: not yet
    std::shared_ptr<soft_cuda::capture> recorded_in;    // (W)
    std::vector<std::size_t> tips;                      // (W)
};

struct graph {
    std::vector<capture::node> nodes;
};

struct work_table {
    std::unordered_map<const void*, std::shared_ptr<stream>> streams;
    std::unordered_map<const void*, std::shared_ptr<event>> events;
    std::unordered_map<const void*, std::shared_ptr<graph>> graphs, executables;
    std::unordered_map<const context*, std::shared_ptr<stream>> legacy;
    std::vector<std::weak_ptr<stream>> destroyed;  // some may still have work
    std::vector<std::shared_ptr<soft_cuda::capture>> captures;
    std::uint64_t next_id = 1;
};

extern std::mutex work_lock;
[[nodiscard]] work_table& works();  // (W)

// The stream behind a handle, as the current context means it; nullptr: no such stream. (W)
[[nodiscard]] std::shared_ptr<stream> stream_of(CUstream handle);

// Puts work in a stream's order, or makes a node of it. Takes work_lock. `done`, where given, is where it will be
// done, and of nothing where it was captured.
[[nodiscard]] CUresult submit(CUstream handle, work what, position* done = nullptr);
[[nodiscard]] CUresult submit_locked(const std::shared_ptr<stream>& to, work what, position* done);
[[nodiscard]] CUresult check_legacy_locked(const stream& asked);
void invalidate_locked(soft_cuda::capture& which);
void end_capture_locked(soft_cuda::capture& which);  // its streams are ordinary ones again

// The ends of all streams of a context, destroyed ones too, to be waited for.
[[nodiscard]] std::vector<position> tails_of(const context& of);
void drain(const context& of);
// The end of a context: its streams and events go.
void end_streams_of(context& of);

}  // namespace soft_cuda
