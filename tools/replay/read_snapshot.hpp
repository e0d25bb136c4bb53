// SPDX-License-Identifier: Apache-2.0
// read_snapshot.hpp - PyTorch's memory snapshots: what torch.cuda.memory._snapshot() returns, pickled.
//
// Model    A trace per device that has a history. Blocks that were there before the history began are known
//          by their frees, or by the segments at its end: they are allocated before the first event.
//          Events of segments, of the snapshot itself and those of kinds yet unknown hold no block.
//          A pickle may name a list any number of times: there is a limit to the devices, and all entries, segments and
//          blocks together are at most as many as the file has bytes. Where each is named for itself, they are fewer.
// Failure  bad_input with file, entry and reason.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "pickle.hpp"
#include "trace.hpp"

namespace xmm::trace_replay {

namespace detail {

class snapshot_reader {
public:
    snapshot_reader(const std::string& name, std::string_view text)
        : name_{name}, data_{pickle::parse(name, text)}, entries_left_{text.size()} {}

    [[nodiscard]] std::vector<trace> read() {
        const pickle::value root = data_.root();
        const auto devices = data_.find(root, "device_traces");
        if (!devices || devices->what != pickle::kind::list) {
            fail("no device_traces: not what torch.cuda.memory._snapshot() returns");
        }
        check_size(*devices);
        std::vector<trace> out;
        std::size_t with_history = 0;
        for (const pickle::value device : data_.items(*devices)) {
            with_history += data_.items(device).empty() ? 0 : 1;
        }
        std::int64_t number = 0;
        for (const pickle::value device : data_.items(*devices)) {
            if (device.what != pickle::kind::list) {
                fail(fmt::format("device_traces[{}] is no list", number));
            }
            if (!data_.items(device).empty()) {
                trace one = read_device(number, device);
                if (with_history > 1) {
                    one.name += fmt::format(":device{}", number);
                }
                if (one.blocks > 0) {
                    out.push_back(std::move(one));
                }
            }
            ++number;
        }
        if (out.empty()) {
            fail("no allocation in its device_traces; was the history recorded?");
        }
        return out;
    }

private:
    static constexpr std::size_t most_devices = 128;  // PyTorch numbers them with 7 bits

    enum class action : std::uint8_t { allocate, request, complete };
    struct entry {
        action what;
        std::uint64_t pointer, bytes, stream, us;
        std::size_t index;
    };

    [[noreturn]] void fail(std::string_view why) const {
        throw bad_input(fmt::format("{}: {}", name_, why));
    }
    [[noreturn]] void fail_at(std::int64_t device, std::size_t index, std::string_view why) const {
        fail(fmt::format("device_traces[{}][{}]: {}", device, index, why));
    }

    // All that is gone over later, without going over it: first the lists, then what they lead to.
    void check_size(pickle::value devices) {
        if (data_.items(devices).size() > most_devices) {
            fail(fmt::format("device_traces of {} devices: more than {}",
                             data_.items(devices).size(), most_devices));
        }
        for (const pickle::value device : data_.items(devices)) {
            count_entries(device);
        }
        const auto segments = data_.find(data_.root(), "segments").value_or(pickle::value{});
        count_entries(segments);
        for (const pickle::value segment : data_.items(segments)) {
            count_entries(data_.find(segment, "blocks").value_or(pickle::value{}));
            segments_of_[number(segment, "device").value_or(0)].push_back(segment);
        }
    }
    void count_entries(pickle::value list) {
        const std::size_t count = data_.items(list).size();
        if (count > entries_left_) {
            fail(
                "more entries, segments and blocks than the file has bytes: lists that are named "
                "again and again");
        }
        entries_left_ -= count;
    }

    // Addresses and streams are unsigned in PyTorch; -1 is no size.
    [[nodiscard]] std::optional<std::uint64_t> number(pickle::value in, const char* key) const {
        const auto found = data_.find(in, key);
        const auto value = found ? pickle::integer(*found) : std::nullopt;
        return value && *value >= 0 ? std::optional{static_cast<std::uint64_t>(*value)}
                                    : std::nullopt;
    }

    [[nodiscard]] std::vector<entry> read_entries(std::int64_t device, pickle::value list) const {
        std::vector<entry> out;
        std::size_t index = 0;
        for (const pickle::value one : data_.items(list)) {
            const std::size_t at = index++;
            const auto named = data_.find(one, "action");
            const auto what = named ? data_.text(*named) : std::nullopt;
            if (!what) {
                fail_at(device, at, "an entry without an action");
            }
            action kind{};
            if (*what == "alloc") {
                kind = action::allocate;
            } else if (*what == "free_requested") {
                kind = action::request;
            } else if (*what == "free_completed" || *what == "free") {
                kind = action::complete;
            } else {
                continue;
            }
            const auto pointer = number(one, "addr");
            const auto bytes = number(one, "size");
            if (!pointer || !bytes) {
                fail_at(device, at,
                        fmt::format("{} without {}", *what, pointer ? "a size" : "an address"));
            }
            out.push_back({kind, *pointer, *bytes, number(one, "stream").value_or(0),
                           number(one, "time_us").value_or(0), at});
        }
        return out;
    }

    struct earlier_block {
        std::uint64_t pointer, bytes, stream;
    };
    // Freed in the history but not allocated in it, or in use at its end without any event.
    [[nodiscard]] std::vector<earlier_block> find_earlier(std::int64_t device,
                                                          const std::vector<entry>& entries) const {
        std::vector<earlier_block> out;
        std::unordered_set<std::uint64_t> seen;
        for (const entry& one : entries) {
            if (seen.insert(one.pointer).second && one.what != action::allocate && one.bytes > 0) {
                out.push_back({one.pointer, one.bytes, one.stream});
            }
        }
        const auto own = segments_of_.find(static_cast<std::uint64_t>(device));
        if (own == segments_of_.end()) {
            return out;
        }
        for (const pickle::value segment : own->second) {
            const auto stream = number(segment, "stream").value_or(0);
            std::uint64_t next = number(segment, "address").value_or(0);
            for (const pickle::value block :
                 data_.items(data_.find(segment, "blocks").value_or(pickle::value{}))) {
                const std::uint64_t size = number(block, "size").value_or(0);
                const std::uint64_t pointer = number(block, "address").value_or(next);
                next = pointer + size;
                const auto state = data_.find(block, "state");
                const auto name = state ? data_.text(*state) : std::nullopt;
                const std::uint64_t bytes = number(block, "requested_size").value_or(size);
                if (name && name->starts_with("active") && bytes > 0 &&
                    seen.insert(pointer).second) {
                    out.push_back({pointer, bytes, stream});
                }
            }
        }
        return out;
    }

    [[nodiscard]] trace read_device(std::int64_t device, pickle::value list) const {
        const std::vector<entry> entries = read_entries(device, list);
        trace_builder out;
        const std::uint64_t begin = entries.empty() ? 0 : entries.front().us;
        for (const earlier_block& one : find_earlier(device, entries)) {
            if (const auto why = out.allocate(one.pointer, one.bytes, one.stream, 0)) {
                fail(fmt::format("block 0x{:x}: {}", one.pointer, *why));
            }
        }
        for (const entry& one : entries) {
            if (one.bytes == 0) {
                continue;  // holds no memory
            }
            const std::uint64_t us = one.us > begin ? one.us - begin : 0;
            const auto why = one.what == action::allocate
                                 ? out.allocate(one.pointer, one.bytes, one.stream, us)
                             : one.what == action::request
                                 ? out.request_free(one.pointer, one.bytes, one.stream, us)
                                 : out.complete_free(one.pointer, one.bytes, one.stream, us);
            if (why) {
                fail_at(device, one.index, fmt::format("block 0x{:x}: {}", one.pointer, *why));
            }
        }
        return std::move(out).finish(name_, "snapshot");
    }

    std::string name_;
    pickle data_;
    std::size_t entries_left_;
    std::unordered_map<std::uint64_t, std::vector<pickle::value>> segments_of_;  // by device
};

}  // namespace detail

[[nodiscard]] inline std::vector<trace> read_snapshot(const std::string& name,
                                                      std::string_view text) {
    return detail::snapshot_reader{name, text}.read();
}

}  // namespace xmm::trace_replay
