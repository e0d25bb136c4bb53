// SPDX-License-Identifier: Apache-2.0
// chrome_trace.hpp - a trace as Perfetto and chrome://tracing draw it: curves of bytes, blocks as bars.
//
// Model    JSON of the Trace Event Format. A node is a process; its tracks of numbers are bytes live (asked
//          for, until they may be reused), of these waiting for a queue, and reserved. Each block is an
//          asynchronous bar from its allocation until it may be reused, with a mark where the program let
//          go of it. Failures and frames that came and went are marks on the thread that caused them.
//          Curves begin with what a snapshot shows and the trace does not explain. Time is microseconds
//          since the first event.
// Threads  One per stream of output.
// Failure  As the stream reports it; std::bad_alloc.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <xmm/resources/export/text.hpp>
#include <xmm/resources/heap_snapshot.hpp>

namespace xmm {
namespace detail {

class chrome_writer {
public:
    explicit chrome_writer(std::ostream& out) : out_{out} {
        out_ << R"({"displayTimeUnit":"ns","traceEvents":[)";
    }
    void write(const heap_snapshot& device) {
        device_ = &device;
        alive_.clear();
        names();
        begin();
        for (const trace_event& event : device.trace.events) {
            write(event);
        }
        for (const auto& [at, left] : alive_) {  // a bar without an end is not drawn by all
            end_of_bar(left, last_ns_, left.thread);
        }
    }
    void finish(std::uint64_t lost) {
        out_ << "\n],\"otherData\":{\"xmm_events_lost\":\"" << lost << "\"}}\n";
    }
    // The clock's zero for all devices.
    void set_start(std::uint64_t ns) noexcept { start_ns_ = last_ns_ = ns; }

private:
    struct block {
        std::uint64_t bar;
        std::size_t bytes;
        std::uint32_t thread;
        bool is_pending;
    };

    // The beginning of an event; its last fields and the brace follow.
    std::ostream& open(const char* phase, std::string_view name, std::uint64_t ns,
                       std::uint32_t thread) {
        std::array<char, 40> time;
        const std::uint64_t since = ns - start_ns_;
        std::snprintf(time.data(), time.size(), "%llu.%03u",
                      static_cast<unsigned long long>(since / 1000),
                      static_cast<unsigned>(since % 1000));
        out_ << (is_first_ ? "\n" : ",\n") << R"({"ph":")" << phase << R"(","pid":)"
             << device_->node.value << R"(,"tid":)" << thread << R"(,"ts":)" << time.data()
             << R"(,"name":)" << json_string(name);
        is_first_ = false;
        return out_;
    }
    void names() {
        const auto name = [&](const char* what, std::uint32_t thread, const std::string& value) {
            open("M", what, start_ns_, thread)
                << R"(,"args":{"name":)" << json_string(value) << "}}";
        };
        name("process_name", 0, "xmm node " + std::to_string(device_->node.value));
        std::set<std::uint32_t> threads;
        for (const trace_event& event : device_->trace.events) {
            if (threads.insert(event.thread).second) {
                name("thread_name", event.thread, "thread " + std::to_string(event.thread));
            }
        }
    }
    // What was there before: seen at the end or freed meanwhile, without an event of its own.
    void begin() {
        live_ = pending_ = reserved_ = 0;
        std::set<address> known;
        for (const trace_event& event : device_->trace.events) {
            const auto bytes = static_cast<std::int64_t>(event.bytes);
            const bool is_free = event.action == trace_action::free_requested ||
                                 event.action == trace_action::free_completed;
            if (is_free && known.insert(event.at).second) {
                open_bar(event, start_ns_);
            } else if (event.action == trace_action::allocate) {
                known.insert(event.at);
            }
            reserved_ -= event.action == trace_action::segment_map ? bytes : 0;
            reserved_ += event.action == trace_action::segment_unmap ? bytes : 0;
        }
        for (const snapshot_segment& segment : device_->segments) {
            reserved_ += static_cast<std::int64_t>(segment.range.bytes);
            for (const snapshot_block& one : segment.blocks) {
                if (one.state != block_state::inactive && known.insert(one.range.begin).second) {
                    open_bar({.at = one.range.begin,
                              .bytes = one.requested,
                              .stream = segment.owner.stream,
                              .tag = segment.owner.tag},
                             start_ns_);
                    const bool is_pending = one.state == block_state::active_pending_free;
                    alive_[one.range.begin].is_pending = is_pending;
                    pending_ += is_pending ? static_cast<std::int64_t>(one.requested) : 0;
                }
            }
        }
        reserved_ = reserved_ < 0 ? 0 : reserved_;
        counters(start_ns_);
    }
    void write(const trace_event& event) {
        last_ns_ = event.ns;
        switch (event.action) {
            case trace_action::allocate:
                open_bar(event, event.ns);
                counters(event.ns);
                return;
            case trace_action::free_requested: request(event); return;
            case trace_action::free_completed: complete(event); return;
            case trace_action::segment_map:
                reserved_ += static_cast<std::int64_t>(event.bytes);
                mark(event, "frame mapped", 't');
                counters(event.ns);
                return;
            case trace_action::segment_unmap:
                reserved_ -= static_cast<std::int64_t>(event.bytes);
                mark(event, "frame taken", 't');
                counters(event.ns);
                return;
            case trace_action::out_of_memory: mark(event, "out of memory", 'p'); return;
            case trace_action::snapshot: mark(event, "snapshot", 't'); return;
        }
    }
    void open_bar(const trace_event& event, std::uint64_t ns) {
        live_ += static_cast<std::int64_t>(event.bytes);
        alive_[event.at] = {next_bar_, event.bytes, event.thread, false};
        open("b", std::to_string(event.bytes) + " B", ns, event.thread)
            << R"(,"cat":"block","id":)" << next_bar_++ << ',' << arguments(event) << '}';
    }
    void end_of_bar(const block& one, std::uint64_t ns, std::uint32_t thread) {
        open("e", std::to_string(one.bytes) + " B", ns, thread)
            << R"(,"cat":"block","id":)" << one.bar << '}';
    }
    void request(const trace_event& event) {
        const auto found = alive_.find(event.at);
        if (found == alive_.end() || found->second.is_pending) {
            return;
        }
        found->second.is_pending = true;
        pending_ += static_cast<std::int64_t>(found->second.bytes);
        open("n", "free requested", event.ns, event.thread)
            << R"(,"cat":"block","id":)" << found->second.bar << '}';
        counters(event.ns);
    }
    void complete(const trace_event& event) {
        const auto found = alive_.find(event.at);
        if (found == alive_.end()) {
            return;
        }
        const auto bytes = static_cast<std::int64_t>(found->second.bytes);
        pending_ -= found->second.is_pending ? bytes : 0;
        live_ -= bytes;
        end_of_bar(found->second, event.ns, event.thread);
        alive_.erase(found);
        counters(event.ns);
    }
    void mark(const trace_event& event, const char* name, char scope) {
        open("i", name, event.ns, event.thread)
            << R"(,"s":")" << scope << R"(",)" << arguments(event) << '}';
    }
    void counters(std::uint64_t ns) {
        const std::pair<const char*, std::int64_t> all[] = {{"live bytes", live_},
                                                            {"bytes waiting for a queue", pending_},
                                                            {"reserved bytes", reserved_}};
        for (const auto& [name, value] : all) {
            open("C", name, ns, 0) << R"(,"args":{"bytes":)" << value << "}}";
        }
    }
    [[nodiscard]] std::string arguments(const trace_event& event) const {
        const bool is_failure = event.action == trace_action::out_of_memory;  // is nowhere
        std::array<char, 160> text;
        std::snprintf(text.data(), text.size(), R"("address":"0x%zx",)", event.at);
        const std::string place = is_failure ? "" : text.data();
        std::snprintf(text.data(), text.size(), R"("bytes":%zu,"stream":"0x%llx")", event.bytes,
                      static_cast<unsigned long long>(event.stream));
        const bool has_name = event.tag < device_->tags.size() && !device_->tags[event.tag].empty();
        return R"("args":{)" + place + text.data() +
               (has_name ? R"(,"tag":)" + json_string(device_->tags[event.tag]) : "") + '}';
    }

    std::ostream& out_;
    const heap_snapshot* device_ = nullptr;
    bool is_first_ = true;
    std::uint64_t start_ns_ = 0;
    std::uint64_t last_ns_ = 0;
    std::uint64_t next_bar_ = 1;
    std::int64_t live_ = 0, pending_ = 0, reserved_ = 0;
    std::unordered_map<address, block> alive_;
};

}  // namespace detail

inline void write_chrome_trace(std::ostream& out, std::span<const heap_snapshot> devices) {
    std::uint64_t start = ~std::uint64_t{};
    std::uint64_t lost = 0;
    for (const heap_snapshot& device : devices) {
        lost += device.trace.lost;
        if (!device.trace.events.empty()) {
            start = std::min(start, device.trace.events.front().ns);
        }
    }
    detail::chrome_writer writer{out};
    for (const heap_snapshot& device : devices) {
        writer.set_start(start != ~std::uint64_t{} ? start : 0);
        writer.write(device);
    }
    writer.finish(lost);
}
inline void write_chrome_trace(std::ostream& out, const heap_snapshot& device) {
    write_chrome_trace(out, std::span{&device, 1});
}

}  // namespace xmm
