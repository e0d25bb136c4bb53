// SPDX-License-Identifier: Apache-2.0
// prefetch.hpp - worker threads that bring pages in early.
//
// Model    A job is a range and a node; up to four workers take stretches of its granules in turn, claim
//          those that can move, and hand them to the mover as quiet work. Bytes in flight stay below 1/8
//          of the node's limit. A job brings no more than the node can hold: the leading part of the range.
//          Where a driver owns the pages, those that are there already are placed again: see steered.hpp.
// Threads  Jobs may be given from any thread. Workers start with the first job and end with the object. Two
//          mutexes, taken before all ranked locks: the prefetcher's, then a job's.
// Failure  A page that is pinned, in use or on its way is left alone: a prefetch is a hint.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <xmm/os/registry.hpp>
#include <xmm/os/signal_mask.hpp>
#include <xmm/placement/reclaim.hpp>

namespace xmm {

// A prefetch under way. Shared by the asker and the workers.
class prefetch_job {
public:
    // room: what the nodes there may hold.
    prefetch_job(va_range range, place to, std::size_t room) noexcept
        : range_{range}, where_{to}, to_{*to.at}, next_{range.begin}, room_{room} {}

    void wait() noexcept {
        std::unique_lock lock{lock_};
        changed_.wait(lock, [&] { return is_finished_locked(); });
    }
    [[nodiscard]] bool is_done() noexcept {
        std::lock_guard lock{lock_};
        return is_finished_locked();
    }

private:
    friend class prefetcher;
    [[nodiscard]] bool is_taken_locked() const noexcept {
        return next_ >= range_.end() || room_ == 0;
    }
    [[nodiscard]] bool is_finished_locked() const noexcept {
        return is_taken_locked() && workers_ == 0;
    }

    const va_range range_;  // as it was given: each granule that it touches is meant as a whole
    const place where_;
    node& to_;
    std::mutex lock_;  // guards all below
    std::condition_variable changed_;
    address next_;          // first page that no worker has taken
    std::size_t room_;      // bytes that may still be brought in
    unsigned workers_ = 0;  // inside a stretch
};

class prefetcher {
public:
    static constexpr unsigned worker_count = 4;

    prefetcher(address_space& space, mover& moves, reclaimer& frames) noexcept
        : space_{space}, moves_{moves}, frames_{frames} {}
    prefetcher(const prefetcher&) = delete;
    prefetcher& operator=(const prefetcher&) = delete;
    ~prefetcher() { stop(); }

    // Every page of the range is mapped. Null, with nothing begun, when memory for the job or a thread is lacking,
    // or after stop().
    [[nodiscard]] std::shared_ptr<prefetch_job> start(va_range range, place to) noexcept {
        space_.uses().retire_finished();  // pages of finished kernels may move
        detail::keep_this_object();       // for the job, and for the threads
        try {
            auto job = std::make_shared<prefetch_job>(range, to, space_.limit_of(to));
            std::lock_guard lock{lock_};
            if (is_stopping_) {
                return nullptr;
            }
            // First, so that a job that is refused is not done all the same.
            const detail::signals_blocked quiet;  // signals belong to the program's own threads
            while (workers_.size() < worker_count) {
                workers_.emplace_back([this] { work(); });
            }
            jobs_.push_back(job);
            changed_.notify_all();
            return job;
        } catch (...) {
            return nullptr;
        }
    }

    void stop() noexcept {
        {
            std::lock_guard lock{lock_};
            is_stopping_ = true;
            changed_.notify_all();
        }
        for (std::thread& worker : workers_) {
            worker.join();
        }
        workers_.clear();
    }

private:
    void work() noexcept {
        for (;;) {
            std::shared_ptr<prefetch_job> job;
            {
                std::unique_lock lock{lock_};
                changed_.wait(lock, [&] { return is_stopping_ || !jobs_.empty(); });
                if (is_stopping_) {
                    abandon_locked();
                    return;
                }
                job = jobs_.front();
            }
            if (!do_stretch(*job)) {
                std::lock_guard lock{lock_};
                std::erase(jobs_, job);
            }
        }
    }
    // Askers that still wait must not do so for ever.
    void abandon_locked() noexcept {
        for (auto& job : jobs_) {
            std::lock_guard lock{job->lock_};
            job->next_ = job->range_.end();
            job->changed_.notify_all();
        }
        jobs_.clear();
    }

    // False once nothing is left to take.
    bool do_stretch(prefetch_job& job) noexcept {
        std::array<page_move, max_batch> batch;
        unsigned count = 0;
        std::size_t bytes = 0;
        std::array<granule*, max_batch> there;
        unsigned there_count = 0;
        {
            std::lock_guard lock{job.lock_};
            if (job.is_taken_locked()) {
                return false;
            }
            ++job.workers_;
            const std::size_t most =
                stretch_bytes(space_.limit_of(job.where_), is_steered(job.to_));
            while (count < max_batch && there_count < max_batch && bytes < most &&
                   !job.is_taken_locked()) {
                granule* placed = nullptr;
                const std::size_t taken = claim_next_locked(job, batch[count], placed);
                if (placed != nullptr) {
                    there[there_count++] = placed;
                }
                if (taken > 0) {
                    ++count;
                    bytes += taken;
                    job.room_ -= std::min(job.room_, taken);
                }
            }
        }
        if (there_count > 0) {
            static_cast<void>(moves_.place_again(job.to_, {there.data(), there_count}, true));
        }
        const std::size_t arrived = bring({batch.data(), count}, job.where_);
        std::lock_guard lock{job.lock_};
        if (arrived < bytes) {
            job.room_ = 0;  // no frames are to be had: the rest would only push out what came first
        }
        --job.workers_;
        job.changed_.notify_all();
        return true;
    }
    // A driver that owns the pages yields the link to nobody, and is told of many at once.
    static std::size_t stretch_bytes(std::size_t limit, bool is_steered) noexcept {
        const std::size_t most = std::size_t{is_steered ? 512u : 8u} << 20;
        // At least one granule is tried, whatever the budget: a job that looks at none never ends.
        return std::clamp<std::size_t>(limit / (8 * worker_count), 1, most);
    }

    // Looks at one granule and advances. Returns its bytes if it is in transit now to the node, else 0; `placed`, if
    // it is in transit where it is.
    std::size_t claim_next_locked(prefetch_job& job, page_move& claimed,
                                  granule*& placed) noexcept {
        address after = align_down(job.next_, page_bytes) + page_bytes;
        std::size_t bytes = 0;
        const bool is_mapped = space_.with_granule(job.next_, [&](granule& page) {
            after = page.va.end();
            if (!moves_.note_on_host_locked(page)) {
                return;
            }
            if (try_serve_locked(page, job.where_)) {
                if (moves_.is_worth_placing_locked(page, job.to_)) {
                    page.begin_transit_locked(false);
                    placed = &page;
                }
                return;
            }
            if (!frames_.can_move_locked(page)) {
                return;
            }
            // A duplicated page has no single frame that could move: what comes is one more copy.
            const bool keeps_copy = page.current() == residency::duplicated ||
                                    (page.is_read_mostly && is_resident(page.current()) &&
                                     moves_.can_copy_locked(page, job.to_));
            page.begin_transit_locked(true);
            claimed = {.moved = &page,
                       .accessor = job.to_.accessor(),
                       .who = keeps_copy ? access::read : access::read_write,
                       .keeps_copy = keeps_copy};
            bytes = page.va.bytes;
        });
        static_cast<void>(is_mapped);  // a page unmapped meanwhile is passed by
        job.next_ = after;
        return bytes;
    }
    // Resident there already: to the recent end, and mapped.
    bool try_serve_locked(granule& page, place where) noexcept {
        frame_record* there = space_.frame_at(page, where);
        if (there == nullptr || page.is_moving()) {
            return false;
        }
        node& to = space_.at_slot(there->slot);
        if (!page.is_arena) {
            to.active.move_to_recent(*there);
        }
        if (page.mapped[to.accessor()] == access::none) {
            const bool is_shared = page.current() == residency::duplicated;
            static_cast<void>(moves_.enter_locked(page, to.accessor(),
                                                  is_shared ? access::read : access::read_write));
        }
        return true;
    }

    std::size_t bring(std::span<page_move> batch, place to) noexcept {
        std::array<std::uint8_t, max_batch> slots;  // a frame that has come may be gone soon after
        unsigned ready = 0;
        for (page_move& one : batch) {
            // The batch has frames of its own on their way; and a hint is not worth waiting for others'.
            result<frame_record*> taken =
                frames_.obtain(to, one.moved->va.bytes, awaited::reclaims);
            if (!taken) {
                break;
            }
            one.to = *taken;
            slots[ready++] = one.to->slot;
        }
        for (page_move& one : batch.subspan(ready)) {
            reclaimer::end_transit(*one.moved);
        }
        if (ready == 0) {
            return 0;
        }
        static_cast<void>(moves_.move(batch.first(ready), true));
        std::size_t settled = 0;
        for (unsigned i = 0; i < ready; ++i) {
            const page_move& one = batch[i];
            // Given up because it was used: that is no lack of frames.
            settled += one.outcome || one.outcome.code == errc::busy ? one.bytes : 0;
            space_.at_slot(slots[i]).prefetched_bytes.add(one.outcome ? one.bytes : 0);
        }
        return settled;
    }

    address_space& space_;
    mover& moves_;
    reclaimer& frames_;
    std::mutex lock_;  // guards jobs_, workers_, is_stopping_
    std::condition_variable changed_;
    std::vector<std::shared_ptr<prefetch_job>> jobs_;
    std::vector<std::thread> workers_;
    bool is_stopping_ = false;
};

}  // namespace xmm
