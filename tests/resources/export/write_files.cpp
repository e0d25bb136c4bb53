// SPDX-License-Identifier: Apache-2.0
// Plays a made-up heap of two devices, records it, and writes it in every form into a folder, with what is
// true of it in facts.json. check.py reads the files back.
//
// write_files FOLDER
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <xmm/resources/export/chrome_trace.hpp>
#include <xmm/resources/export/replay_csv.hpp>
#include <xmm/resources/export/rmm_csv.hpp>
#include <xmm/resources/export/torch_snapshot.hpp>

using namespace xmm;
using namespace xmm::literals;

namespace {

constexpr std::size_t slot_bytes = 2_MiB;
constexpr std::size_t slots_of_a_span = 48;

// Addresses of one queue and tag: blocks first fit, frames where blocks lie and for a while after.
struct span_of_slots {
    address begin;
    segment_owner owner;
    std::map<address, snapshot_block> blocks{};
    std::vector<int> users = std::vector<int>(slots_of_a_span);
    std::vector<bool> has_frame = std::vector<bool>(slots_of_a_span);

    [[nodiscard]] address find(std::size_t bytes) const {
        address at = begin;
        for (const auto& [start, block] : blocks) {
            if (start - at >= bytes) {
                return at;
            }
            at = block.range.end();
        }
        return begin + slots_of_a_span * slot_bytes - at >= bytes ? at : 0;
    }
    template <class Fn>
    void for_each_slot(va_range range, Fn&& fn) {
        for (std::size_t i = (range.begin - begin) / slot_bytes;
             i <= (range.end() - 1 - begin) / slot_bytes; ++i) {
            fn(i, begin + i * slot_bytes);
        }
    }
};

struct played_heap {
    trace_recorder recorder;
    std::vector<span_of_slots> spans;
    std::size_t live = 0, peak_live = 0, reserved = 0, peak_reserved = 0;
    std::size_t allocations = 0, failures = 0;

    bool allocate(span_of_slots& span, std::size_t requested) {
        const std::size_t bytes = align_up(requested, 512);
        const address at = span.find(bytes);
        const segment_owner& who = span.owner;
        if (at == 0) {
            ++failures;
            recorder.record(trace_action::out_of_memory, 123456, requested, who.stream, who.tag);
            return false;
        }
        span.for_each_slot({at, bytes}, [&](std::size_t i, address slot) {
            ++span.users[i];
            if (!span.has_frame[i]) {
                span.has_frame[i] = true;
                reserved += slot_bytes;
                recorder.record(trace_action::segment_map, slot, slot_bytes, who.stream, who.tag);
            }
        });
        span.blocks[at] = {{at, bytes}, requested, block_state::active_allocated};
        recorder.record(trace_action::allocate, at, requested, who.stream, who.tag);
        ++allocations;
        live += requested;
        peak_live = std::max(peak_live, live);
        peak_reserved = std::max(peak_reserved, reserved);
        return true;
    }
    void let_go(span_of_slots& span, snapshot_block& block) {
        recorder.record(trace_action::free_requested, block.range.begin, block.range.bytes,
                        span.owner.stream, span.owner.tag);
        block.state = block_state::active_pending_free;
    }
    auto complete(span_of_slots& span, std::map<address, snapshot_block>::iterator at) {
        const snapshot_block block = at->second;
        recorder.record(trace_action::free_completed, block.range.begin, block.range.bytes,
                        span.owner.stream, span.owner.tag);
        span.for_each_slot(block.range, [&](std::size_t i, address) { --span.users[i]; });
        live -= block.requested;
        return span.blocks.erase(at);
    }
    void give_frames_back(span_of_slots& span) {
        for (std::size_t i = 0; i < slots_of_a_span; ++i) {
            if (span.has_frame[i] && span.users[i] == 0) {
                recorder.record(trace_action::segment_unmap, span.begin + i * slot_bytes,
                                slot_bytes, span.owner.stream, span.owner.tag);
                span.has_frame[i] = false;
                reserved -= slot_bytes;
            }
        }
    }
    [[nodiscard]] heap_snapshot snapshot(node_id node) {
        snapshot_builder builder;
        for (span_of_slots& span : spans) {
            for (std::size_t i = 0; i < slots_of_a_span; ++i) {
                if (span.has_frame[i]) {
                    builder.add_frame({span.begin + i * slot_bytes, slot_bytes}, span.owner);
                }
            }
            for (const auto& [at, block] : span.blocks) {
                builder.add_block(block.range, block.requested, block.state);
            }
        }
        recorder.record(trace_action::snapshot, 0, 0);
        return {node,
                builder.build(),
                recorder.trace(),
                {"", "weights", "act\"ivations\\\n\xff\xc3\xa9"}};
    }
};

void play(played_heap& heap, unsigned seed, int steps) {
    std::mt19937 random{seed};
    for (int step = 0; step < steps; ++step) {
        span_of_slots& span = heap.spans[random() % heap.spans.size()];
        const unsigned choice = random() % 100;
        if (choice < 48) {
            const std::size_t most = choice < 4 ? 7_MiB : span.owner.is_small ? 20_KiB : 2_MiB;
            (void)heap.allocate(span, 1 + random() % most);
        } else if (choice < 98 && !span.blocks.empty()) {
            const auto at =
                std::next(span.blocks.begin(), static_cast<long>(random() % span.blocks.size()));
            if (at->second.state == block_state::active_allocated) {
                heap.let_go(span, at->second);
            }
            if (choice < 90) {
                heap.complete(span, at);
            }
        } else {
            heap.give_frames_back(span);
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: write_files FOLDER\n");
        return 2;
    }
    const std::string folder = argv[1];
    played_heap first, second;
    first.spans = {
        {.begin = 0x7f1200000000, .owner = {.stream = 0, .tag = 1}},
        {.begin = 0x7f1200000000 + slots_of_a_span * slot_bytes,  // next to it
         .owner = {.stream = 0x55aa12345670, .tag = 2}},
        {.begin = 0x7f1300000000, .owner = {.stream = 0x55aa12345670, .tag = 0, .is_small = true}}};
    second.spans = {{.begin = 0x7f2200000000, .owner = {}}};
    if (!first.recorder.start(1 << 16) ||
        !second.recorder.start(300)) {  // the second one overflows
        return 1;
    }
    play(first, 1, 6000);
    (void)first.allocate(first.spans[0], 1 << 30);
    play(second, 2, 900);
    const heap_snapshot devices[] = {first.snapshot({1}), second.snapshot({2})};

    const auto write = [&](const char* name, auto&& fn) {
        std::ofstream out{folder + '/' + name, std::ios::binary};
        fn(out);
        return out.good();
    };
    const bool is_done =
        write("rmm.csv", [&](std::ostream& out) { write_rmm_csv(out, devices[0].trace); }) &&
        write("replay.csv",
              [&](std::ostream& out) {
                  write_replay_csv(out, devices[0].trace, devices[0].segments);
              }) &&
        write("replay2.csv",
              [&](std::ostream& out) {
                  write_replay_csv(out, devices[1].trace, devices[1].segments);
              }) &&
        write("snapshot.pickle", [&](std::ostream& out) { write_torch_snapshot(out, devices); }) &&
        write("trace.json", [&](std::ostream& out) { write_chrome_trace(out, devices); }) &&
        write("facts.json", [&](std::ostream& out) {
            out << '[';
            const char* comma = "";
            for (const played_heap* heap : {&first, &second}) {
                std::size_t alive = 0, pending = 0, pending_bytes = 0;
                for (const span_of_slots& span : heap->spans) {
                    for (const auto& [at, block] : span.blocks) {
                        const bool is_pending = block.state == block_state::active_pending_free;
                        alive += is_pending ? 0 : 1;
                        pending += is_pending ? 1 : 0;
                        pending_bytes += is_pending ? block.requested : 0;
                    }
                }
                const recorded_trace& trace = devices[heap == &first ? 0 : 1].trace;
                out << comma << "{\"live\":" << heap->live << ",\"peak_live\":" << heap->peak_live
                    << ",\"reserved\":" << heap->reserved
                    << ",\"peak_reserved\":" << heap->peak_reserved
                    << ",\"allocations\":" << heap->allocations
                    << ",\"failures\":" << heap->failures << ",\"alive\":" << alive
                    << ",\"pending\":" << pending << ",\"pending_bytes\":" << pending_bytes
                    << ",\"events\":" << trace.events.size() << ",\"lost\":" << trace.lost
                    << ",\"wall_us\":" << trace.times.wall_ns / 1000 << '}';
                comma = ",";
            }
            out << "]\n";
        });
    return is_done ? 0 : 1;
}
