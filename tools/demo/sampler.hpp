// SPDX-License-Identifier: Apache-2.0
// sampler.hpp - notes every few milliseconds where the pages of some ranges are, and what passed a link.
//
// Model    A thread takes samples for a heat map. When it has twice as many as a picture has
//          columns it drops every second one and goes on at half the pace, so that any run fits.
// Threads  One owner; the sampling thread lives as long as the object.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <xmm/xmm.hpp>

#include "heat_map.hpp"
#include "measure.hpp"

namespace xmm::demo {

class residency_sampler {
public:
    struct named_range {
        std::string name;
        va_range range;
    };

    // The queue is one of the device that is watched, and outlives this.
    residency_sampler(space& memory, queue& line, std::vector<named_range> ranges)
        : memory_{memory}, line_{line}, device_{line.node()}, ranges_{std::move(ranges)} {
        for (const auto& [name, range] : ranges_) {
            first_pages_.push_back(pages_);
            pages_ += align_up(range.bytes, page_bytes) / page_bytes;
        }
        take();
        thread_ = std::thread{[this] { run(); }};
    }
    residency_sampler(const residency_sampler&) = delete;
    residency_sampler& operator=(const residency_sampler&) = delete;
    ~residency_sampler() { stop(); }

    // Takes a last sample and gives all of them out.
    [[nodiscard]] heat_map finish(std::string title) {
        stop();
        take();
        heat_map out;
        out.title = std::move(title);
        out.page_bytes = page_bytes;
        for (std::size_t i = 0; i < ranges_.size(); ++i) {
            out.stretches.push_back({ranges_[i].name, first_pages_[i]});
        }
        out.seconds = samples_.back().seconds;
        out.samples = std::move(samples_);
        return out;
    }

private:
    using clock = std::chrono::steady_clock;
    static constexpr std::size_t most_samples = 2048;

    void stop() {
        {
            std::lock_guard held{lock_};
            is_over_ = true;
        }
        wake_.notify_all();
        if (thread_.joinable()) {
            thread_.join();
        }
    }
    void run() {
        std::unique_lock held{lock_};
        while (!wake_.wait_for(held, pause_, [this] { return is_over_; })) {
            held.unlock();
            take();
            if (samples_.size() >= most_samples) {
                for (std::size_t i = 0; i < samples_.size() / 2; ++i) {
                    samples_[i] = std::move(samples_[2 * i]);
                }
                samples_.resize(samples_.size() / 2);
                pause_ *= 2;
            }
            held.lock();
        }
    }
    void take() {
        heat_sample sample;
        sample.seconds = std::chrono::duration<double>(clock::now() - begin_).count();
        sample.link_bytes = link_bytes(line_) - link_before_;
        sample.pages.resize(pages_, page_place::nowhere);
        memory_.for_each_granule([&](const granule_view& one) { note(one, sample); });
        samples_.push_back(std::move(sample));
    }
    void note(const granule_view& one, heat_sample& sample) const {
        for (std::size_t i = 0; i < ranges_.size(); ++i) {
            const va_range common = intersect(one.va, ranges_[i].range);
            if (common.is_empty() || one.home == no_node) {
                continue;
            }
            const page_place place = one.copies > 1        ? page_place::both
                                     : one.home == device_ ? page_place::device
                                                           : page_place::host;
            const std::size_t first = (common.begin - ranges_[i].range.begin) / page_bytes;
            const std::size_t count = align_up(common.bytes, page_bytes) / page_bytes;
            std::fill_n(sample.pages.begin() + static_cast<std::ptrdiff_t>(first_pages_[i] + first),
                        count, place);
        }
    }

    space& memory_;
    queue& line_;
    node_id device_;
    std::vector<named_range> ranges_;
    std::vector<std::size_t> first_pages_;  // of each range, in a sample
    std::size_t pages_ = 0;
    std::vector<heat_sample> samples_;
    std::uint64_t link_before_ = link_bytes(line_);
    clock::time_point begin_ = clock::now();
    clock::duration pause_ = std::chrono::milliseconds{5};
    std::mutex lock_;
    std::condition_variable wake_;
    bool is_over_ = false;
    std::thread thread_;
};

}  // namespace xmm::demo
