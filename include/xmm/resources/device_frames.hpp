// SPDX-License-Identifier: Apache-2.0
// device_frames.hpp - the frames of one device, under all its heaps: they follow demand.
//
// Model    acquire counts a block on each slot that a range overlaps and sees that each has a frame; release
//          takes the block off, and leaves the frame where it is. While the device holds no more than its
//          budget - the peak of live bytes and a little slack - a missing frame is created; beyond, the frame
//          that has been idle longest is taken from its slot, whichever heap's that is. A frame of another
//          queue is taken only when that queue's work up to the slot's last use is done; of a queue that is gone
//          before set_queue said that it was over, none is. On a port that can alias, a
//          frame that was taken stays mapped where it was (stale) until another one is to come there, or it
//          is dropped: so it comes back without a call of the driver.
// Threads  Any. Ranges whose slots have frames need the user's lock only. Giving and taking frames is under
//          one lock of rank device_frames; other users' locks are only tried there. Waiting for a queue is
//          outside of it.
// Failure  no_memory when the port has neither address space nor frames: then nothing was acquired, and
//          frames created on the way are dropped again.
// See      slot_span.hpp, stale_mappings.hpp, frame_port.hpp.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/resources/frame_port.hpp>
#include <xmm/resources/slot_span.hpp>
#include <xmm/resources/stale_mappings.hpp>

namespace xmm {

struct device_frames_options {
    // How far above the peak of live bytes frames are created rather than taken; in 1/1024.
    std::uint32_t slack = 7;
    // How often a queue is asked again whose port cannot tell how far it is: a millisecond each but for the first
    // 64. A span that is given back for good takes it to be over then.
    std::uint32_t patience = 4096;
};

struct frame_counts {
    std::size_t reserved_bytes = 0;  // of frames that exist
    std::size_t reserved_peak = 0;
    std::size_t live_bytes = 0;  // as told by set_live and add_live
    std::size_t live_peak = 0;
    std::uint64_t created = 0;
    std::uint64_t dropped = 0;
    std::uint64_t moved = 0;  // taken from an idle slot for another one
    std::uint64_t waits = 0;  // for a queue, before a frame could be taken
    std::size_t moved_bytes = 0;
};

// Told which addresses are whose, under the user's lock. It must not call back.
class span_observer {
public:
    // False: no memory to note it; then the reservation fails.
    [[nodiscard]] virtual bool reserved(const slot_span& span) noexcept = 0;
    virtual void released(const slot_span& span) noexcept = 0;

protected:
    ~span_observer() = default;
};

class device_frames {
public:
    using options = device_frames_options;

    // The port and the observer outlive it.
    explicit device_frames(frame_port& port, options chosen = {},
                           span_observer* observer = nullptr) noexcept
        : port_{&port}, options_{chosen}, observer_{observer} {}
    device_frames(const device_frames&) = delete;
    device_frames& operator=(const device_frames&) = delete;
    ~device_frames() { XMM_ASSERT(slot_count_ == 0, "a heap outlives the frames of its device"); }

    // Address space in slots of slot_bytes, a power of two from 2 to 512 MiB; no frame yet. The span belongs to
    // the user, whose lock is held.
    [[nodiscard]] result<slot_span*> reserve_locked(frame_user& user, std::size_t bytes,
                                                    std::size_t slot_bytes) noexcept;
    // The same with a user, and so a lock, of the span's own.
    [[nodiscard]] result<slot_span*> reserve(std::size_t bytes, std::size_t slot_bytes,
                                             queue_id queue, std::uint32_t tag = 0,
                                             void* owner = nullptr) noexcept;
    // No block overlaps it any more. Waits for its queue where a frame is still in use; a queue that is over, or gone,
    // or that its port cannot tell about for `patience`, uses nothing.
    void release_locked(slot_span* span) noexcept;
    void release(slot_span* span) noexcept;
    // No block overlaps it. Drops its frames, and waits for its queue where one is still in use. False: the port cannot
    // tell how far the queue is, and some frames are left.
    [[nodiscard]] bool try_empty_locked(slot_span& span) noexcept;

    // Each slot that the range overlaps has a frame until the range is released. Ranges that share a slot are
    // counted; they may not overlap.
    [[nodiscard]] status acquire_locked(slot_span& span, va_range range) noexcept {
        const std::size_t first = span.slot_of(range.begin);
        const std::size_t last = span.slot_of(range.end() - 1);
        XMM_ASSERT(!range.is_empty() && span.range().contains(range), "not a range of this span");
        span.add_block(first, last);
        if (span.missing(range) == 0) {
            return {};
        }
        const status given = give(span, first, last, range.bytes);
        if (!given) {
            span.drop_block(first, last, next_stamp(span));
        }
        return given;
    }
    // The work that used the range was submitted to the span's queue, or is done.
    void release_locked(slot_span& span, va_range range) noexcept {
        XMM_ASSERT(!range.is_empty() && span.range().contains(range), "not a range of this span");
        span.drop_block(span.slot_of(range.begin), span.slot_of(range.end() - 1), next_stamp(span));
    }
    [[nodiscard]] status acquire(slot_span& span, va_range range) noexcept {
        return with(span.user().lock(), [&] { return acquire_locked(span, range); });
    }
    void release(slot_span& span, va_range range) noexcept {
        with(span.user().lock(), [&] { release_locked(span, range); });
    }

    // The user's queue is over, all its work done: it goes on with another one, or with none (0).
    void set_queue(frame_user& user, queue_id queue) noexcept {
        with(user.lock(), [&] {
            with(lock_, [&] {
                // relaxed: read under one of these locks, or as a name.
                user.queue_.store(queue.value, std::memory_order_relaxed);
                user.points_.set_reached(user.stamp_);
            });
        });
    }

    // Drops idle frames, the longest idle first, until at most keep_bytes are left or none is idle. Waits for
    // queues. Answers how many bytes it dropped. The second form asks users with this tag only.
    std::size_t trim(std::size_t keep_bytes) noexcept { return trim_where(keep_bytes, nullptr); }
    std::size_t trim(std::size_t keep_bytes, std::uint32_t tag) noexcept {
        return trim_where(keep_bytes, &tag);
    }

    // Of frames that no block needs now. Heaps whose lock is not to be had for long are left out.
    [[nodiscard]] std::size_t idle_bytes() noexcept {
        for (unsigned tries = 0;; ++tries) {
            errand job;
            const std::size_t bytes = with(lock_, [&] { return idle_bytes_locked(job); });
            if (!job.has_skipped || tries == 2 * most_retries) {
                return bytes;
            }
            // Whoever has that lock may be waiting for ours, or for a queue.
            if (tries < most_retries) {
                std::this_thread::yield();
            } else {
                std::this_thread::sleep_for(std::chrono::milliseconds{1});
            }
        }
    }
    // Of frames behind the addresses of users with that tag.
    [[nodiscard]] std::size_t reserved_bytes(std::uint32_t tag) const noexcept {
        return with(lock_, [&] {
            std::size_t bytes = 0;
            for (const frame_user* user = users_; user != nullptr; user = user->next_) {
                for (const slot_span* span = user->spans_; span != nullptr && user->tag_ == tag;
                     span = span->next_) {
                    for (std::size_t slot = 0; slot < span->count_; ++slot) {
                        bytes += span->frames_[slot] ? span->slot_bytes() : 0;
                    }
                }
            }
            return bytes;
        });
    }

    // fn(va_range, const frame_user&) for each slot that has a frame. Under the lock of the device's frames.
    template <class Fn>
    void for_each_frame(Fn&& fn) const {
        std::lock_guard guard{lock_};
        for (const frame_user* user = users_; user != nullptr; user = user->next_) {
            for (const slot_span* span = user->spans_; span != nullptr; span = span->next_) {
                for (std::size_t slot = span->next(0, span->count_, true); slot < span->count_;
                     slot = span->next(slot + 1, span->count_, true)) {
                    fn(va_range{span->slot_begin(slot), span->slot_bytes()}, *user);
                }
            }
        }
    }

    // Drops idle frames whose queues are done, and waits for nobody: for who serves faults.
    std::size_t drop_finished(std::size_t keep_bytes) noexcept {
        return trim_where(keep_bytes, nullptr, false);
    }

    // Live bytes came (or went) of a user that does not tell them by set_live.
    void add_live(std::ptrdiff_t bytes) noexcept {
        // relaxed: the budget is a measure, nothing is published by it.
        live_.fetch_add(static_cast<std::size_t>(bytes), std::memory_order_relaxed);
        if (bytes > 0) {
            with(lock_, [&] { look_locked(); });
        }
    }
    // The most bytes that were live at once; of several users, at the times when frames were missing. The budget
    // follows it. Users' locks may be held.
    [[nodiscard]] std::size_t live_peak() const noexcept {
        return with(lock_, [&] {
            look_locked();
            return live_peak_;
        });
    }
    // As it was when frames were last missing.
    [[nodiscard]] std::size_t noted_live_peak() const noexcept {
        return with(lock_, [&] { return live_peak_; });
    }
    [[nodiscard]] frame_counts counts() const noexcept {
        return with(lock_, [&] {
            frame_counts counts = counts_;
            counts.live_bytes = look_locked();
            counts.live_peak = live_peak_;
            return counts;
        });
    }
    // Every slot with a frame is counted once, and no frame is lost. The caller holds no user's lock.
    [[nodiscard]] bool is_valid() const noexcept;

    [[nodiscard]] frame_port& port() const noexcept { return *port_; }

private:
    struct idle_slot {
        std::uint64_t stamp;
        slot_span* span;
        std::size_t slot;
        // For a heap whose front is to go first: idle longest, and of one extent the last, so that what is
        // left of it stays in one piece.
        friend bool operator<(const idle_slot& a, const idle_slot& b) noexcept {
            if (a.stamp != b.stamp) {
                return a.stamp > b.stamp;
            }
            return a.span->slot_begin(a.slot) < b.span->slot_begin(b.slot);
        }
    };
    enum class outcome { done, wait, none };
    // Of one call of give or trim.
    struct errand {
        frame_user* own = nullptr;           // its lock is held
        const std::uint32_t* tag = nullptr;  // ask users with this tag only
        std::size_t slot_bytes = 0;          // the size that can be taken as it is
        std::size_t limit = 0;
        bool is_listed = false;
        bool has_skipped = false;     // a user was busy
        bool has_unfinished = false;  // a queue was
        unsigned retries = 0;
        ticket until;  // to wait for; value 0: try again
        status why;
    };
    static constexpr unsigned most_retries = 64;
    static constexpr std::uint64_t just_created = ~std::uint64_t{0};  // a stamp, within one call

    [[nodiscard]] std::uint64_t next_stamp(slot_span& span) noexcept {
        // The epoch in front makes stamps of several users comparable. relaxed: only a rough order hangs on it.
        frame_user& user = *span.user_;
        const std::uint64_t epoch = std::uint64_t{epoch_.load(std::memory_order_relaxed)} << 32;
        user.stamp_ = std::max(user.stamp_ + 1, epoch);
        return user.stamp_;
    }
    // The first that was passed by is the one that has been idle longest.
    static void note_unfinished(errand& job, ticket point) noexcept {
        job.until = job.has_unfinished ? job.until : point;
        job.has_unfinished = true;
    }
    // All that could be taken has been: is there something to wait for?
    outcome none_left(errand& job) const noexcept {
        if (job.has_unfinished && job.until.value != 0) {
            return outcome::wait;
        }
        const bool is_worth_it = job.has_unfinished || job.has_skipped;
        job.until = {};
        // Who holds no lock can wait for those that do: they may be waiting for a queue. A queue that cannot be asked
        // (during a capture, maybe this thread's) is not worth that.
        const unsigned patience = job.has_skipped ? options_.patience : 2 * most_retries;
        const unsigned most = job.own != nullptr ? most_retries : patience;
        return is_worth_it && job.retries < most ? outcome::wait : outcome::none;
    }
    // In the list is who has a frame: there may be thousands who had one, and what is done for each counts.
    void enter_locked(frame_user& user) noexcept {
        if (!std::exchange(user.is_listed_, true)) {
            user.next_ = users_;
            users_ = &user;
        }
    }
    void leave_locked(frame_user*& at) noexcept {
        live_peak_ = std::max(live_peak_, at->live_peak());
        at->is_listed_ = false;
        at = at->next_;
    }
    // Live bytes, and their peak is noted. The users count for themselves, so that those who miss no frame share nothing;
    // they are asked when it matters.
    std::size_t look_locked() const noexcept {
        std::size_t live = live_.load(std::memory_order_relaxed);  // relaxed: a measure
        for (const frame_user* user = users_; user != nullptr; user = user->next_) {
            live += user->live_bytes();
            live_peak_ = std::max(live_peak_, user->live_peak());
        }
        live_peak_ = std::max(live_peak_, live);
        return live;
    }
    // What is asked for is not noted: it may be refused.
    [[nodiscard]] std::size_t limit_for_locked(std::size_t live, std::size_t asked) const noexcept {
        const std::size_t peak = std::max(live_peak_, live + asked);
        return peak + static_cast<std::size_t>(static_cast<double>(peak) * options_.slack / 1024);
    }

    status give(slot_span& span, std::size_t first, std::size_t last, std::size_t asked) noexcept;
    outcome give_one_locked(slot_span& span, std::size_t slot, errand& job) noexcept;
    bool take_again_locked(slot_span& span, std::size_t slot, errand& job) noexcept;
    outcome take_locked(errand& job, idle_slot& from, port_frame& taken) noexcept;
    outcome create_locked(errand& job, std::size_t bytes, port_frame& made) noexcept;
    outcome drop_coldest_locked(errand& job, std::vector<idle_slot>& from) noexcept;
    void take_back_locked(slot_span& span, std::size_t first, std::size_t last) noexcept;
    bool clear_locked(slot_span& span, ticket& until) noexcept;
    std::size_t trim_where(std::size_t keep_bytes, const std::uint32_t* tag,
                           bool may_wait = true) noexcept;
    status pause(errand& job) noexcept;
    bool pause_release(errand& job) noexcept;

    // Work of the same queue comes in order, so only what looks the slot up when its turn comes is in the way.
    bool can_lend_locked(const errand& job, const idle_slot& victim,
                         bool is_finished) const noexcept {
        return is_finished || (victim.span->user_ == job.own &&
                               port_->is_quiet(victim.span->slot_begin(victim.slot)));
    }
    void list_idle_locked(errand& job) noexcept;
    [[nodiscard]] std::size_t idle_bytes_locked(errand& job) noexcept {
        list_idle_locked(job);
        std::size_t bytes = 0;
        for (const auto* list : {&idle_, &others_}) {
            for (const idle_slot& one : *list) {
                bytes += one.span->slot_bytes();
            }
        }
        return bytes;
    }
    bool claim_locked(const idle_slot& victim, errand& job, port_frame& taken) noexcept;
    void drop_locked(port_frame frame, std::size_t bytes) noexcept {
        port_->drop(frame, bytes);
        counts_.reserved_bytes -= bytes;
        ++counts_.dropped;
    }
    // Under the user's lock as well.
    void drop_slot_locked(slot_span& span, std::size_t slot) noexcept {
        port_->unmap(span.slot_begin(slot), span.frames_[slot], span.slot_bytes());
        drop_locked(std::exchange(span.frames_[slot], {}), span.slot_bytes());
        span.clear_mapped(slot);
    }

    mutable ranked_mutex<lock_rank::device_frames> lock_;
    frame_port* const port_;
    const options options_;
    span_observer* const observer_;
    frame_user* users_ = nullptr;  // that have frames, or may have; guarded by lock_, as all below
    frame_counts counts_;
    std::vector<idle_slot> idle_;    // what list_idle_locked found, of the size that is wanted
    std::vector<idle_slot> others_;  // of other sizes
    stale_mappings stale_;
    std::size_t slot_count_ = 0;                       // of all spans
    mutable std::size_t live_peak_ = 0;                // looked up as it is asked for
    std::atomic<std::size_t> live_{0};                 // of users that do not count themselves
    alignas(64) std::atomic<std::uint32_t> epoch_{0};  // counts the calls that gave frames
};

// ---- reservations

inline result<slot_span*> device_frames::reserve_locked(frame_user& user, std::size_t bytes,
                                                        std::size_t slot_bytes) noexcept {
    XMM_ASSERT(std::has_single_bit(slot_bytes) && slot_bytes >= page_bytes &&
                   slot_bytes <= largest_frame_bytes,
               "not a size of a slot");
    bytes = align_up(bytes, slot_bytes);
    result<address> base = port_->reserve(bytes, slot_bytes);
    if (!base) {
        return base.error();
    }
    const va_range range{*base, bytes};
    const auto shift = static_cast<unsigned>(std::countr_zero(slot_bytes));
    std::unique_ptr<slot_span> span{new (std::nothrow) slot_span{user, range, shift}};
    if (!span || !span->make_slots() || (observer_ != nullptr && !observer_->reserved(*span))) {
        port_->release(range);
        return fail(errc::no_memory, "no memory for the records of slots");
    }
    const bool has_room = with(lock_, [&] {
        try {
            // Room for every slot, so that listing the idle ones allocates nothing: faults do it, too.
            idle_.reserve(slot_count_ + span->count_);
            others_.reserve(slot_count_ + span->count_);
            if (!stale_.reserve(slot_count_ + span->count_)) {
                return false;
            }
        } catch (const std::bad_alloc&) {
            return false;
        }
        slot_count_ += span->count_;
        span->next_ = user.spans_;
        user.spans_ = span.get();
        return true;
    });
    if (!has_room) {
        if (observer_ != nullptr) {
            observer_->released(*span);
        }
        port_->release(range);
        return fail(errc::no_memory, "no memory for the records of slots");
    }
    return span.release();
}

inline result<slot_span*> device_frames::reserve(std::size_t bytes, std::size_t slot_bytes,
                                                 queue_id queue, std::uint32_t tag,
                                                 void* owner) noexcept {
    std::unique_ptr<frame_user> user{new (std::nothrow) frame_user{queue, tag, true, owner}};
    if (!user) {
        return fail(errc::no_memory, "no memory for the records of slots");
    }
    result<slot_span*> span =
        with(user->lock(), [&] { return reserve_locked(*user, bytes, slot_bytes); });
    if (span) {
        (*span)->own_user_ = std::move(user);
    }
    return span;
}

inline void device_frames::release_locked(slot_span* span) noexcept {
    std::unique_ptr<slot_span> gone{span};
    frame_user& user = *span->user_;
    errand job;
    job.own = &user;
    for (bool is_empty = false; !is_empty;) {
        with(lock_, [&] {
            is_empty = clear_locked(*span, job.until);
            if (is_empty) {
                slot_span** link = &user.spans_;
                while (*link != span) {
                    link = &(*link)->next_;
                }
                *link = span->next_;
                slot_count_ -= span->count_;
                if (user.spans_ == nullptr && user.is_listed_) {
                    frame_user** at = &users_;
                    while (*at != &user) {
                        at = &(*at)->next_;
                    }
                    leave_locked(*at);
                }
            }
        });
        if (!is_empty && (user.points_.is_lost() || !pause_release(job))) {
            // All that is left is of this queue: a frame goes to another one only when nothing uses it.
            with(lock_, [&] { user.points_.set_reached(user.stamp_); });
        }
    }
    if (observer_ != nullptr) {
        observer_->released(*span);
    }
    port_->release(span->range_);
}

// What of its frames no work uses. True: none is left, nor a mapping.
inline bool device_frames::clear_locked(slot_span& span, ticket& until) noexcept {
    frame_user& user = *span.user_;
    bool is_empty = true;
    user.listed_ = user.stamp_;
    for (std::size_t slot = 0; slot < span.count_; ++slot) {
        XMM_ASSERT(!span.has_block(slot), "a span is released with a block in it");
        if (span.is_stale(slot) && !stale_.end_at(*port_, span, slot, until)) {
            is_empty = false;
        } else if (span.has_frame(slot)) {
            if (user.is_finished(*port_, span.stamp_of(slot), until) &&
                stale_.end_of(*port_, span.frames_[slot], until)) {
                drop_slot_locked(span, slot);
            } else {
                is_empty = false;
            }
        }
    }
    return is_empty;
}

inline bool device_frames::try_empty_locked(slot_span& span) noexcept {
    for (;;) {
        errand job;
        job.own = span.user_;
        if (with(lock_, [&] { return clear_locked(span, job.until); })) {
            return true;
        }
        if (job.until.value == 0) {
            return false;
        }
        if (const status waited = pause(job); is_over(waited.code)) {
            with(lock_, [&] { span.user_->points_.set_reached(span.user_->stamp_); });
        } else if (!waited) {
            return false;
        }
    }
}

inline void device_frames::release(slot_span* span) noexcept {
    const std::unique_ptr<frame_user> own = std::move(span->own_user_);  // outlives its lock
    with(span->user().lock(), [&] { release_locked(span); });
}

// ---- giving frames

inline status device_frames::give(slot_span& span, std::size_t first, std::size_t last,
                                  std::size_t asked) noexcept {
    errand job;
    job.own = span.user_;
    job.slot_bytes = span.slot_bytes();
    for (;;) {
        outcome end = outcome::done;
        with(lock_, [&] {
            epoch_.fetch_add(1, std::memory_order_relaxed);  // relaxed: see next_stamp
            enter_locked(*job.own);
            const std::size_t live = look_locked();
            job.limit = limit_for_locked(live, asked);
            job.is_listed = false;
            for (std::size_t slot = span.next(first, last + 1, false);
                 slot <= last && end == outcome::done;
                 slot = span.next(slot + 1, last + 1, false)) {
                end = give_one_locked(span, slot, job);
            }
            if (end == outcome::none) {
                take_back_locked(span, first, last);
            } else if (end == outcome::done) {
                live_peak_ = std::max(live_peak_, live + asked);
                std::replace(&span.stamps_[first], &span.stamps_[last] + 1, just_created,
                             std::uint64_t{0});
            }
        });
        if (end == outcome::done) {
            return {};
        }
        if (end == outcome::none) {
            return job.why;
        }
        if (const status waited = pause(job); !waited) {
            with(lock_, [&] { take_back_locked(span, first, last); });
            return waited;
        }
    }
}

inline device_frames::outcome device_frames::give_one_locked(slot_span& span, std::size_t slot,
                                                             errand& job) noexcept {
    if (span.is_stale(slot) && take_again_locked(span, slot, job)) {
        return outcome::done;
    }
    if (ticket point; span.is_stale(slot) && !stale_.end_at(*port_, span, slot, point)) {
        note_unfinished(job, point);
        job.why =
            fail(errc::busy, "work may use the slot's last mapping, and its queue cannot say");
        return none_left(job);
    }
    const std::size_t bytes = span.slot_bytes();
    port_frame frame;
    idle_slot from{0, nullptr, 0};
    job.why = {};
    if (counts_.reserved_bytes + bytes <= job.limit) {
        if (result<port_frame> made = port_->create(bytes)) {
            frame = *made;
        } else {
            job.why = made.error();
        }
    }
    if (!frame) {
        const outcome taken = take_locked(job, from, frame);
        if (taken == outcome::wait) {
            return taken;
        }
        if (taken == outcome::none) {
            const outcome made = create_locked(job, bytes, frame);
            if (made != outcome::done) {
                return made;
            }
        }
    }
    const bool is_created = from.span == nullptr;
    if (is_created) {
        counts_.reserved_bytes += bytes;
        counts_.reserved_peak = std::max(counts_.reserved_peak, counts_.reserved_bytes);
        ++counts_.created;
    }
    if (const status mapped = port_->map(span.slot_begin(slot), frame, bytes); !mapped) {
        job.why = mapped;
        frame_user* const lender = is_created ? nullptr : from.span->user_;
        const bool is_lent = !is_created && from.span->is_stale(from.slot);
        if (is_lent && (lender == job.own || lender->lock_.try_lock())) {
            // It is still mapped where it was: there it stays.
            port_->come_back(from.span->slot_begin(from.slot), frame, bytes);
            stale_.take_back();
            from.span->frames_[from.slot] = frame;
            from.span->set_mapped(from.slot);
            if (lender != job.own) {
                lender->lock_.unlock();
            }
        } else {
            // Older mappings of it are of work that is done, or it could not have been taken.
            ticket until;
            (void)stale_.end_of(*port_, frame, until);
            drop_locked(frame, bytes);
        }
        return outcome::none;
    }
    if (!is_created) {
        ++counts_.moved;
        counts_.moved_bytes += bytes;
    }
    span.frames_[slot] = frame;
    span.stamps_[slot] = is_created ? just_created : 0;
    span.set_mapped(slot);
    return outcome::done;
}

// The frame that was here before, if it lies idle elsewhere: its mapping is still here, so no driver is called.
inline bool device_frames::take_again_locked(slot_span& span, std::size_t slot,
                                             errand& job) noexcept {
    list_idle_locked(job);
    const stale_mappings::entry* old = stale_.find(span, slot);
    const auto at = std::ranges::find_if(idle_, [&](const idle_slot& one) {
        return one.span->frames_[one.slot].handle == old->frame.handle;
    });
    if (at == idle_.end()) {
        return false;
    }
    const idle_slot victim = *at;
    frame_user& user = *victim.span->user_;
    ticket point;
    port_frame taken;
    if (!can_lend_locked(job, victim, user.is_finished(*port_, victim.stamp, point)) ||
        !claim_locked(victim, job, taken)) {
        return false;
    }
    port_->lend(victim.span->slot_begin(victim.slot), taken, victim.span->slot_bytes());
    port_->come_back(span.slot_begin(slot), taken, span.slot_bytes());
    stale_.turn(*old, {victim.span, victim.slot, taken, victim.stamp});
    span.frames_[slot] = taken;
    span.stamps_[slot] = 0;
    span.set_mapped(slot);
    return true;
}

// The frame that has been idle longest, of the wanted size; those whose queue is done come first.
inline device_frames::outcome device_frames::take_locked(errand& job, idle_slot& from,
                                                         port_frame& taken) noexcept {
    list_idle_locked(job);
    while (!idle_.empty()) {
        std::pop_heap(idle_.begin(), idle_.end());
        const idle_slot victim = idle_.back();
        idle_.pop_back();
        frame_user& user = *victim.span->user_;
        ticket point;
        const bool is_finished = user.is_finished(*port_, victim.stamp, point);
        const bool is_aliased =
            port_->can_alias() && stale_.has_room() && can_lend_locked(job, victim, is_finished);
        if (!is_finished && !is_aliased) {
            note_unfinished(job, point);
            continue;
        }
        if (!claim_locked(victim, job, taken)) {
            continue;
        }
        if (is_aliased) {
            port_->lend(victim.span->slot_begin(victim.slot), taken, victim.span->slot_bytes());
            stale_.push({victim.span, victim.slot, taken, victim.stamp});
        } else {
            port_->unmap(victim.span->slot_begin(victim.slot), taken, victim.span->slot_bytes());
        }
        from = victim;
        return outcome::done;
    }
    return none_left(job);
}

// No frame of the wanted size is idle: idle ones of other sizes make room, as far as there are any.
inline device_frames::outcome device_frames::create_locked(errand& job, std::size_t bytes,
                                                           port_frame& made) noexcept {
    for (;;) {
        const bool has_room = counts_.reserved_bytes + bytes <= job.limit && job.why.is_ok();
        const outcome dropped = has_room ? outcome::none : drop_coldest_locked(job, others_);
        if (dropped == outcome::wait) {
            return dropped;
        }
        if (dropped == outcome::none || !job.why.is_ok()) {
            if (result<port_frame> one = port_->create(bytes)) {
                made = *one;
                job.why = {};
                return outcome::done;
            } else {
                job.why = one.error();
            }
            if (dropped == outcome::none && others_.empty()) {
                return outcome::none;
            }
        }
    }
}

inline device_frames::outcome device_frames::drop_coldest_locked(
    errand& job, std::vector<idle_slot>& from) noexcept {
    while (!from.empty()) {
        std::pop_heap(from.begin(), from.end());
        const idle_slot victim = from.back();
        from.pop_back();
        ticket point;
        port_frame taken;
        const bool is_finished = victim.span->user_->is_finished(*port_, victim.stamp, point) &&
                                 stale_.end_of(*port_, victim.span->frames_[victim.slot], point);
        if (!is_finished) {
            note_unfinished(job, point);
        } else if (claim_locked(victim, job, taken)) {
            port_->unmap(victim.span->slot_begin(victim.slot), taken, victim.span->slot_bytes());
            drop_locked(taken, victim.span->slot_bytes());
            return outcome::done;
        }
    }
    return none_left(job);
}

// A failed give: what it created goes again. What it took from idle slots stays, idle, where it is now.
inline void device_frames::take_back_locked(slot_span& span, std::size_t first,
                                            std::size_t last) noexcept {
    for (std::size_t slot = first; slot <= last; ++slot) {
        if (span.has_frame(slot) && span.stamps_[slot] == just_created) {
            drop_slot_locked(span, slot);
        }
    }
}

inline std::size_t device_frames::trim_where(std::size_t keep_bytes, const std::uint32_t* tag,
                                             bool may_wait) noexcept {
    errand job;
    job.tag = tag;
    std::size_t dropped = 0;
    for (;;) {
        outcome end = outcome::none;
        with(lock_, [&] {
            job.is_listed = false;
            list_idle_locked(job);
            while (counts_.reserved_bytes > keep_bytes) {
                const std::size_t before = counts_.reserved_bytes;
                end = drop_coldest_locked(job, others_);
                if (end != outcome::done) {
                    break;
                }
                dropped += before - counts_.reserved_bytes;
                end = outcome::none;
            }
        });
        if (end != outcome::wait || !may_wait || !pause(job)) {
            return dropped;
        }
    }
}

inline status device_frames::pause(errand& job) noexcept {
    if (job.until.value != 0) {
        with(lock_, [&] { ++counts_.waits; });
        return port_->wait(job.until);
    }
    if (++job.retries < most_retries) {
        std::this_thread::yield();
    } else {
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    return {};
}

// False: the queue is over, or counts as over.
inline bool device_frames::pause_release(errand& job) noexcept {
    const status waited = pause(job);
    if (is_over(waited.code)) {
        return false;
    }
    if (!waited) {
        job.until = {};  // no answer, as if the port could not tell
        (void)pause(job);
    }
    return job.retries < options_.patience;
}

// ---- idle slots, and what may still use them

inline void device_frames::list_idle_locked(errand& job) noexcept {
    if (job.is_listed) {
        return;
    }
    job.is_listed = true;
    job.has_skipped = false;
    job.has_unfinished = false;
    job.until = {};
    idle_.clear();
    others_.clear();
    for (frame_user** at = &users_; *at != nullptr;) {
        frame_user* const user = *at;
        frame_user** const next = &user->next_;
        if ((job.tag != nullptr && user->tag_ != *job.tag) || user->points_.is_lost()) {
            at = next;
            continue;
        }
        const bool is_own = user == job.own;
        if (!is_own && !user->lock_.try_lock()) {
            job.has_skipped = true;
            at = next;
            continue;
        }
        user->listed_ = user->stamp_;
        bool has_frame = is_own;  // or will have
        for (slot_span* span = user->spans_; span != nullptr; span = span->next_) {
            has_frame = has_frame || span->has_any_frame();
            std::vector<idle_slot>& to = span->slot_bytes() == job.slot_bytes ? idle_ : others_;
            for (std::size_t slot = span->next(0, span->count_, true); slot < span->count_;
                 slot = span->next(slot + 1, span->count_, true)) {
                if (!span->has_block(slot)) {
                    try {
                        to.push_back({span->stamp_of(slot), span, slot});
                    } catch (const std::bad_alloc&) {
                        break;  // the ones found so far will have to do
                    }
                }
            }
        }
        if (has_frame) {
            at = next;
        } else {
            leave_locked(*at);
        }
        if (!is_own) {
            user->lock_.unlock();
        }
    }
    std::make_heap(idle_.begin(), idle_.end());
    std::make_heap(others_.begin(), others_.end());
}

// Takes the frame from its slot, unless the slot was used since it was listed.
inline bool device_frames::claim_locked(const idle_slot& victim, errand& job,
                                        port_frame& taken) noexcept {
    slot_span& span = *victim.span;
    const bool is_own = span.user_ == job.own;
    if (!is_own && !span.user_->lock_.try_lock()) {
        job.has_skipped = true;
        return false;
    }
    const bool is_idle = span.is_idle(victim.slot) && span.stamp_of(victim.slot) == victim.stamp;
    if (is_idle) {
        span.clear_mapped(victim.slot);
        taken = span.frames_[victim.slot];
        span.frames_[victim.slot] = {};
    }
    if (!is_own) {
        span.user_->lock_.unlock();
    }
    return is_idle;
}

inline bool device_frames::is_valid() const noexcept {
    for (;;) {
        bool is_sound = true;
        const bool is_seen = with(lock_, [&] {
            std::size_t held = 0;
            for (frame_user* user = users_; user != nullptr; user = user->next_) {
                if (!user->lock_.try_lock()) {
                    return false;
                }
                for (const slot_span* span = user->spans_; span != nullptr; span = span->next_) {
                    for (std::size_t slot = 0; slot < span->count_; ++slot) {
                        const bool has_frame = span->has_frame(slot);
                        held += has_frame ? span->slot_bytes() : 0;
                        is_sound = is_sound && has_frame == bool{span->frames_[slot]} &&
                                   (has_frame || !span->has_block(slot));
                    }
                }
                user->lock_.unlock();
            }
            is_sound = is_sound && held == counts_.reserved_bytes;
            return true;
        });
        if (is_seen) {
            return is_sound;
        }
        std::this_thread::yield();  // whoever has that lock may be waiting for ours
    }
}

}  // namespace xmm
