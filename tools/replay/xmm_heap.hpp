// SPDX-License-Identifier: Apache-2.0
// xmm_heap.hpp - xmm's malloc under replay: what programs call, over simulated frames.
//
// Model    A queue for each stream of the trace. Where the trace tells the two steps of a free apart, the
//          block was lent to another queue whose work ends when the free is complete, and is given back when
//          the program lets go. The trace does not name that queue: blocks that are done in the order in
//          which they were let go of share one. In a build without jemalloc the extent heaps serve small
//          blocks as well.
// Threads  One.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <xmm/resources/jemalloc_table.hpp>
#include <xmm/resources/xpu_malloc.hpp>

#include "../demo/bad_input.hpp"
#include "../demo/format.hpp"
#include "candidate.hpp"
#include "simulated_frames.hpp"

namespace xmm::trace_replay {

class xmm_heap final : public candidate {
public:
    xmm_heap(const prices& list, const simulation_options& simulation, bool uses_jemalloc)
        : candidate{list},
          port_{bill_, simulation},
          heap_{port_, node_id{1}, malloc_options{.uses_jemalloc = uses_jemalloc, .frames = {}}} {}

    [[nodiscard]] static bool has_jemalloc() noexcept {
        const jemalloc_functions* functions = jemalloc_table::find();
        return functions != nullptr && functions->check().is_ok();
    }

    [[nodiscard]] bool allocate(const trace_event& event) override {
        port_.set_clock(event.microseconds);
        malloc_request wanted;
        wanted.bytes = event.bytes;
        wanted.queue = queue_id{event.stream + 1};  // 0 names none
        result<void*> got = heap_.allocate(wanted);
        if (!got) {
            return false;
        }
        if (event.block >= blocks_.size()) {
            blocks_.resize(std::max<std::size_t>(event.block + 1, blocks_.size() * 2));
        }
        blocks_[event.block] = *got;
        return true;
    }
    void free_requested(const trace_event& event, std::uint64_t done_us) override {
        port_.set_clock(event.microseconds);
        if (done_us > event.microseconds) {
            const queue_id user = borrower(done_us);
            port_.set_completion(user, done_us);
            check(heap_.record_use(blocks_[event.block], user), "record_use");
        }
        give_back(event.block);
    }
    void free_completed(const trace_event& event) override {
        port_.set_clock(event.microseconds);
        if (blocks_[event.block] != nullptr) {  // nobody said that the program let go
            give_back(event.block);
        }
    }

private:
    static constexpr std::uint32_t first_borrower = std::uint32_t{1} << 30;  // above any stream's

    static void check(status outcome, const char* what) {
        if (!outcome) {
            throw demo::demo_failure(
                fmt::format("{}: {}: {}", what, name_of(outcome.code), outcome.why));
        }
    }
    // Of the queues whose work ends before that, the one that ends last; else a new one.
    [[nodiscard]] queue_id borrower(std::uint64_t done_us) {
        auto at = borrowers_.upper_bound(done_us);
        std::uint32_t queue = first_borrower + static_cast<std::uint32_t>(borrowers_.size());
        if (at != borrowers_.begin()) {
            --at;
            queue = at->second;
            borrowers_.erase(at);
        }
        borrowers_.emplace(done_us, queue);
        return {queue};
    }
    void give_back(std::uint32_t block) {
        check(heap_.deallocate(std::exchange(blocks_[block], nullptr)), "deallocate");
    }

    simulated_frames port_;
    xpu_malloc heap_;
    std::vector<void*> blocks_;  // by the trace's number; null once given back
    std::multimap<std::uint64_t, std::uint32_t> borrowers_;  // queues, by when their work ends
};

}  // namespace xmm::trace_replay
