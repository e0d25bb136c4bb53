// SPDX-License-Identifier: Apache-2.0
// torch_snapshot.hpp - snapshots as torch.cuda.memory._snapshot() gives them, for PyTorch's memory viewer.
//
// Model    A pickle of protocol 2 that holds dictionaries, lists, tuples of numbers, numbers and strings
//          only. The devices are numbered from 0 in the order of the snapshots. A tag is the number of the
//          segment's pool, its name the user_metadata of each event. There are no stack traces. What a
//          failure was recorded at is its device_free, the bytes that were free: PyTorch's viewer wants one.
// Threads  One per stream of output.
// Failure  As the stream reports it; std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include <xmm/resources/export/pickle_writer.hpp>
#include <xmm/resources/export/viewer_history.hpp>
#include <xmm/resources/heap_snapshot.hpp>

namespace xmm {
namespace detail {

class torch_writer {
public:
    explicit torch_writer(std::ostream& out) : out_{out} {}

    void write(std::span<const heap_snapshot> devices) {
        out_.dictionary([&] {
            out_.string("segments");
            out_.list(all_segments(devices), [&](const placed_segment& one) { segment(one); });
            out_.string("device_traces");
            out_.list(devices, [&](const heap_snapshot& device) {
                out_.list(viewer_history::of(device),
                          [&](const trace_event& one) { event(device, one); });
            });
            out_.string("allocator_settings");
            settings();
            out_.string("external_annotations");
            out_.empty_list();
        });
        out_.finish();
    }

private:
    struct placed_segment {
        const snapshot_segment* what;
        std::size_t device;
    };

    static std::vector<placed_segment> all_segments(std::span<const heap_snapshot> devices) {
        std::vector<placed_segment> all;
        for (std::size_t device = 0; device < devices.size(); ++device) {
            for (const snapshot_segment& one : devices[device].segments) {
                all.push_back({&one, device});
            }
        }
        return all;
    }
    void segment(const placed_segment& one) {
        const snapshot_segment& it = *one.what;
        out_.dictionary([&] {
            out_.entry("device", one.device);
            out_.entry("address", it.range.begin);
            out_.entry("total_size", it.range.bytes);
            out_.entry("allocated_size", it.allocated_bytes());
            out_.entry("active_size", it.active_bytes());
            out_.entry("requested_size", it.requested_bytes());
            out_.entry("stream", it.owner.stream);
            out_.entry("segment_type", it.owner.is_small ? "small" : "large");
            out_.string("segment_pool_id");
            out_.pair(0, it.owner.tag);
            out_.entry("is_expandable", true);
            frames();
            out_.string("blocks");
            out_.list(it.blocks, [&](const snapshot_block& block) {
                out_.dictionary([&] {
                    out_.entry("address", block.range.begin);
                    out_.entry("size", block.range.bytes);
                    out_.entry("requested_size", block.requested);
                    out_.entry("state", name_of(block.state));
                    frames();
                });
            });
        });
    }
    void event(const heap_snapshot& device, const trace_event& one) {
        const bool is_failure = one.action == trace_action::out_of_memory;
        out_.dictionary([&] {
            out_.entry("action", name_of(one.action));
            out_.entry(is_failure ? "device_free" : "addr", one.at);
            out_.entry("size", one.bytes);
            out_.entry("stream", one.stream);
            out_.entry("time_us", device.trace.times.wall(one.ns) / 1000);
            out_.entry("compile_context", "N/A");
            out_.entry("user_metadata", one.tag < device.tags.size() ? device.tags[one.tag] : "");
            frames();
        });
    }
    void frames() {
        out_.string("frames");
        out_.empty_list();
    }
    // What an allocator of that kind would say there.
    void settings() {
        out_.dictionary([&] {
            out_.entry("PYTORCH_CUDA_ALLOC_CONF", "");
            out_.entry("max_split_size", -1);
            out_.string("garbage_collection_threshold");
            out_.real(0);
            out_.entry("expandable_segments", true);
            out_.entry("pinned_num_register_threads", 1);
            out_.entry("release_lock_on_cudamalloc", false);
            out_.entry("pinned_use_cuda_host_register", false);
            out_.string("roundup_power2_divisions");
            out_.dictionary([&] {
                for (std::uint64_t mebibytes = 1; mebibytes <= 65536; mebibytes *= 2) {
                    out_.entry(std::to_string(mebibytes), 0);
                }
            });
        });
    }

    pickle_writer out_;
};

}  // namespace detail

// The stream is opened as binary.
inline void write_torch_snapshot(std::ostream& out, std::span<const heap_snapshot> devices) {
    detail::torch_writer{out}.write(devices);
}
inline void write_torch_snapshot(std::ostream& out, const heap_snapshot& device) {
    write_torch_snapshot(out, std::span{&device, 1});
}

}  // namespace xmm
