// SPDX-License-Identifier: Apache-2.0
// replay.hpp - the blocks of a trace in unified memory: written by kernels, verified when freed.
//
// Model    One region holds all blocks at their planned offsets, one queue does all the work in
//          order. A block is filled with its own pattern when it is allocated. When it is freed a
//          kernel compares every word and adds them up; about 200 blocks are compared by the CPU
//          instead, at the same pointers. The sums must come to what the pattern's formula says.
//          Whole pages that no live block touches any more are not needed: nobody moves them.
// Failure  demo_failure if the library refuses something; what differs is counted in the report.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <xmm/xmm.hpp>

#include "block_plan.hpp"
#include "check.hpp"
#include "format.hpp"
#include "heat_map.hpp"
#include "measure.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "sampler.hpp"

namespace xmm::demo {

class replay {
public:
    replay(space& memory, node_id device, const block_plan& plan)
        : memory_{memory},
          device_{device},
          plan_{plan},
          queue_{check(memory.make_queue(device), "make a queue")} {}
    replay(const replay&) = delete;
    replay& operator=(const replay&) = delete;
    ~replay() {
        (void)queue_.synchronize();
        for (void* one : {blocks_, results_}) {
            if (one != nullptr) {
                (void)memory_.unmap(one);
            }
        }
    }

    // Once. The report's places and counters are those at the end of the trace.
    run_report run(const std::string& title, progress_style style, heat_map& places) {
        map_options options;
        options.granule_bytes = page_bytes;
        options.name = "blocks";
        blocks_ = check(memory_.map(plan_.extent_bytes, options), "map the blocks");
        options.name = "results";
        results_ = check(memory_.map(page_bytes, options), "map the results");
        run_report out;
        {
            const run_clock clock{memory_, queue_};
            residency_sampler sampler{
                memory_, queue_, {{"blocks", {to_address(blocks_), plan_.extent_bytes}}}};
            execute(title, style);
            clock.fill(out);
            places = sampler.finish(title);
        }
        count_places(places, out);
        judge(out);
        return out;
    }

private:
    static constexpr std::uint32_t most_in_flight = 64;  // launches between two waits
    enum : std::size_t { result_mismatches, result_sum, result_count };

    void execute(const std::string& title, progress_style style) {
        progress_bar bar{title, plan_.steps.size(), style};
        page_use pages{plan_.extent_bytes, page_bytes};
        std::uint32_t in_flight = 0;
        for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
            const plan_step& step = plan_.steps[i];
            if (step.is_allocation) {
                pages.allocate(step);
                write(step);
            } else if (step.block % cpu_step_ == 0) {
                wait();
                verify_on_cpu(step);
            } else {
                verify(step);
            }
            if (!step.is_allocation) {
                pages.deallocate(step);
            }
            if (++in_flight == most_in_flight) {
                wait();
                let_go_of(pages.take_dead());
                in_flight = 0;
            }
            bar.show(i + 1);
        }
        wait();
    }

    [[nodiscard]] std::uint64_t* words_of(const plan_step& step) const noexcept {
        return reinterpret_cast<std::uint64_t*>(static_cast<std::byte*>(blocks_) + step.offset);
    }
    [[nodiscard]] static std::size_t count_of(const plan_step& step) noexcept {
        return step.bytes / sizeof(std::uint64_t);
    }
    void wait() { check(queue_.synchronize(), "wait for the kernels"); }

    // After a wait: kernels that verify these pages' last blocks have ended.
    void let_go_of(const std::vector<page_use::page_run>& dead) {
        for (const page_use::page_run& run : dead) {
            check(memory_.advise(device_, static_cast<std::byte*>(blocks_) + run.first * page_bytes,
                                 run.count * page_bytes, advice::dont_need),
                  "let go of dead pages");
        }
    }

    void write(const plan_step& step) {
        const device_view<std::uint64_t> block{words_of(step), count_of(step)};
        const block_pattern pattern{step.block};
        // Made in the kernel's own memory: a span of the block would count as read, too.
        const auto kernel = [block, pattern](std::size_t first, std::size_t last) {
            std::array<std::uint64_t, 1024> words;
            for (std::size_t at = first; at < last; at += words.size()) {
                const std::size_t count = std::min(words.size(), last - at);
                for (std::size_t i = 0; i < count; ++i) {
                    words[i] = pattern(at + i);
                }
                block.write(at, {words.data(), count});
            }
        };
        check(launch(queue_, {writes(block.data(), step.bytes)},
                     [&](soft::stream& on) { return on.parallel_for(block.size(), kernel); }),
              "launch a writing kernel");
    }

    void verify(const plan_step& step) {
        const device_view<const std::uint64_t> block{words_of(step), count_of(step)};
        const device_view<std::uint64_t> results{static_cast<std::uint64_t*>(results_),
                                                 result_count};
        const block_pattern pattern{step.block};
        const auto kernel = [block, results, pattern](std::size_t first, std::size_t last) {
            std::uint64_t mismatches = 0, sum = 0;
            block.for_each_span(first, last - first,
                                [&](std::span<const std::uint64_t> words, std::size_t at) {
                                    for (std::size_t i = 0; i < words.size(); ++i) {
                                        mismatches += words[i] != pattern(at + i) ? 1 : 0;
                                        sum += words[i];
                                    }
                                });
            if (mismatches != 0) {
                results.fetch_add(result_mismatches, mismatches);
            }
            results.fetch_add(result_sum, sum);
        };
        check(launch(
                  queue_,
                  {reads(block.data(), step.bytes), reads_writes(results.data(), result_count * 8)},
                  [&](soft::stream& on) { return on.parallel_for(block.size(), kernel); }),
              "launch a verifying kernel");
        expected_sum_ += pattern.sum(block.size());
        ++blocks_by_kernel_;
    }

    // The same pointer, read by the CPU: pages that are on the device come over by a fault.
    void verify_on_cpu(const plan_step& step) {
        const std::uint64_t* words = words_of(step);
        const block_pattern pattern{step.block};
        for (std::size_t i = 0; i < count_of(step); ++i) {
            cpu_mismatches_ += words[i] != pattern(i) ? 1 : 0;
        }
        ++blocks_by_cpu_;
    }

    void judge(run_report& out) const {
        const auto* results = static_cast<const std::uint64_t*>(results_);
        const std::uint64_t mismatches = results[result_mismatches] + cpu_mismatches_;
        out.is_correct = mismatches == 0 && results[result_sum] == expected_sum_;
        out.check = fmt::format("{} blocks by kernels, {} by the CPU: {}",
                                show_count(blocks_by_kernel_), show_count(blocks_by_cpu_),
                                mismatches != 0 ? fmt::format("{} words differ", mismatches)
                                : results[result_sum] != expected_sum_
                                    ? std::string{"the sum differs"}
                                    : std::string{"every word as written"});
        out.part = "replay";
        out.data_bytes = plan_.extent_bytes;
        out.work_bytes = 2 * plan_.written_bytes;
    }

    space& memory_;
    node_id device_;
    const block_plan& plan_;
    // Every so manieth block is the CPU's: about 200 in all, since each may bring pages over and back.
    const std::uint32_t cpu_step_ = std::max<std::uint32_t>(16, plan_.blocks / 200);
    queue queue_;
    void* blocks_ = nullptr;
    void* results_ = nullptr;
    std::uint64_t expected_sum_ = 0;
    std::uint64_t cpu_mismatches_ = 0;
    std::uint64_t blocks_by_kernel_ = 0;
    std::uint64_t blocks_by_cpu_ = 0;
};

}  // namespace xmm::demo
