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
// See      frame_giver.hpp gives a frame, frame_trimmer.hpp drops those that nobody needs; idle_slots.hpp has these,
//          slot_span.hpp the slots.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/resources/frame_budget.hpp>
#include <xmm/resources/frame_dropper.hpp>
#include <xmm/resources/frame_errand.hpp>
#include <xmm/resources/frame_giver.hpp>
#include <xmm/resources/frame_port.hpp>
#include <xmm/resources/frame_trimmer.hpp>
#include <xmm/resources/frame_users.hpp>
#include <xmm/resources/idle_slots.hpp>
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
        : port_{&port}, observer_{observer}, patience_{chosen.patience}, budget_{chosen.slack} {}
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
    [[nodiscard]] bool try_empty_locked(slot_span& span) noexcept {
        return trimmer_.try_empty(span);
    }

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
                slots::set_reached(user);
            });
        });
    }

    // Drops idle frames, the longest idle first, until at most keep_bytes are left or none is idle. Waits for
    // queues. Answers how many bytes it dropped. The second form asks users with this tag only.
    std::size_t trim(std::size_t keep_bytes) noexcept {
        return trimmer_.trim(keep_bytes, nullptr, true);
    }
    std::size_t trim(std::size_t keep_bytes, std::uint32_t tag) noexcept {
        return trimmer_.trim(keep_bytes, &tag, true);
    }

    // Of frames that no block needs now. Heaps whose lock is not to be had for long are left out.
    [[nodiscard]] std::size_t idle_bytes() noexcept {
        for (unsigned tries = 0;; ++tries) {
            frame_errand job;
            const std::size_t bytes = with(lock_, [&] {
                idle_.list(users_, job);
                return idle_.bytes();
            });
            if (!job.has_skipped || tries == 2 * frame_errand::most_retries) {
                return bytes;
            }
            frame_errand::nap(tries);
        }
    }
    // Of frames behind the addresses of users with that tag.
    [[nodiscard]] std::size_t reserved_bytes(std::uint32_t tag) const noexcept {
        std::size_t bytes = 0;
        for_each_frame([&](va_range slot, const frame_user& user) {
            bytes += user.tag() == tag ? slot.bytes : 0;
        });
        return bytes;
    }

    // fn(va_range, const frame_user&) for each slot that has a frame. Under the lock of the device's frames, for which
    // faults wait: fn allocates nothing.
    template <class Fn>
    void for_each_frame(Fn&& fn) const {
        std::lock_guard guard{lock_};
        users_.for_each([&](const frame_user& user) {
            slots::for_each_span(user, [&](const slot_span& span) {
                const std::size_t end = span.slot_count();
                for (std::size_t slot = span.next(0, end, true); slot < end;
                     slot = span.next(slot + 1, end, true)) {
                    fn(va_range{span.slot_begin(slot), span.slot_bytes()}, user);
                }
            });
        });
    }

    // Drops idle frames whose queues are done, and waits for nobody: for who serves faults.
    std::size_t drop_finished(std::size_t keep_bytes) noexcept {
        return trimmer_.trim(keep_bytes, nullptr, false);
    }

    // Live bytes came (or went) of a user that does not tell them by set_live.
    void add_live(std::ptrdiff_t bytes) noexcept {
        users_.add_live(bytes);
        if (bytes > 0) {
            with(lock_, [&] { users_.look(); });
        }
    }
    // The most bytes that were live at once; of several users, at the times when frames were missing. The budget
    // follows it. Users' locks may be held.
    [[nodiscard]] std::size_t live_peak() const noexcept {
        return with(lock_, [&] {
            users_.look();
            return users_.live_peak();
        });
    }
    // As it was when frames were last missing.
    [[nodiscard]] std::size_t noted_live_peak() const noexcept {
        return with(lock_, [&] { return users_.live_peak(); });
    }
    [[nodiscard]] frame_counts counts() const noexcept {
        return with(lock_, [&] {
            frame_counts counts = budget_.counts();
            counts.live_bytes = users_.look();
            counts.live_peak = users_.live_peak();
            return counts;
        });
    }
    // Every slot with a frame is counted once, and no frame is lost. The caller holds no user's lock.
    [[nodiscard]] bool is_valid() const noexcept;

    [[nodiscard]] frame_port& port() const noexcept { return *port_; }

private:
    using outcome = frame_errand::outcome;

    // What the parts do with a user and its spans, under lock_: slot_span.hpp shows it to this class alone.
    struct slots {
        [[nodiscard]] static frame_user*& next(frame_user& user) noexcept { return user.next_; }
        [[nodiscard]] static bool& is_listed(frame_user& user) noexcept { return user.is_listed_; }
        [[nodiscard]] static bool is_lost(const frame_user& user) noexcept {
            return user.points_.is_lost();
        }
        // The work of its queue up to its latest release counts as done. Under its lock.
        static void set_reached(frame_user& user) noexcept {
            user.points_.set_reached(user.stamp_);
        }
        template <class Fn>
        static void for_each_span(const frame_user& user, Fn&& fn) {
            for (slot_span* span = user.spans_; span != nullptr; span = span->next_) {
                fn(*span);
            }
        }
        // Its slots are looked at now: a point that is recorded covers all its releases. Under its lock.
        static void note_look(frame_user& user) noexcept { user.listed_ = user.stamp_; }
        // Whether the work up to that release is done.
        [[nodiscard]] static bool is_finished(frame_port& port, const slot_span& span,
                                              std::uint64_t stamp, ticket& until) noexcept {
            return span.user_->is_finished(port, stamp, until);
        }

        [[nodiscard]] static bool is_stale(const slot_span& span, std::size_t slot) noexcept {
            return span.is_stale(slot);
        }
        [[nodiscard]] static port_frame frame(const slot_span& span, std::size_t slot) noexcept {
            return span.frames_[slot];
        }
        // Under the user's lock, all below.
        [[nodiscard]] static bool has_block(const slot_span& span, std::size_t slot) noexcept {
            return span.has_block(slot);
        }
        [[nodiscard]] static bool is_idle(const slot_span& span, std::size_t slot) noexcept {
            return span.is_idle(slot);
        }
        [[nodiscard]] static std::uint64_t stamp_of(const slot_span& span,
                                                    std::size_t slot) noexcept {
            return span.stamp_of(slot);
        }
        // Of that slot alone: stamp_of may be a later one, of 64 slots.
        [[nodiscard]] static std::uint64_t& stamp(slot_span& span, std::size_t slot) noexcept {
            return span.stamps_[slot];
        }
        static void put_frame(slot_span& span, std::size_t slot, port_frame frame,
                              std::uint64_t stamp) noexcept {
            span.stamps_[slot] = stamp;
            put_back_frame(span, slot, frame);
        }
        static void put_back_frame(slot_span& span, std::size_t slot, port_frame frame) noexcept {
            span.frames_[slot] = frame;
            span.set_mapped(slot);
        }
        [[nodiscard]] static port_frame take_frame(slot_span& span, std::size_t slot) noexcept {
            span.clear_mapped(slot);
            return std::exchange(span.frames_[slot], {});
        }
    };

    [[nodiscard]] std::uint64_t next_stamp(slot_span& span) noexcept {
        // The epoch in front makes stamps of several users comparable. relaxed: only a rough order hangs on it.
        frame_user& user = *span.user_;
        const std::uint64_t epoch = std::uint64_t{epoch_.load(std::memory_order_relaxed)} << 32;
        user.stamp_ = std::max(user.stamp_ + 1, epoch);
        return user.stamp_;
    }
    status give(slot_span& span, std::size_t first, std::size_t last, std::size_t asked) noexcept;

    mutable ranked_mutex<lock_rank::device_frames> lock_;
    frame_port* const port_;
    span_observer* const observer_;
    const unsigned patience_;
    frame_users<slots> users_;  // guarded by lock_, as all below
    frame_budget budget_;
    idle_slots<slots> idle_;
    stale_mappings stale_;
    frame_dropper<slots> dropper_{*port_, budget_, idle_, stale_, patience_};
    frame_giver<slots> giver_{*port_, users_, budget_, idle_, stale_, dropper_, patience_};
    frame_trimmer<slots> trimmer_{lock_, *port_, users_, budget_, idle_, dropper_, patience_};
    std::size_t slot_count_ = 0;                       // of all spans
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
    // Room for every slot, so that listing the idle ones allocates nothing: faults do it, too. Nor is anything
    // allocated under the lock, for which they wait.
    idle_slots<slots>::room idle_room;
    stale_mappings::room stale_room;
    for (bool is_entered = false; !is_entered;) {
        std::size_t all = 0;
        is_entered = with(lock_, [&] {
            all = slot_count_ + span->count_;
            if (!idle_.try_fit(idle_room, all) || !stale_.try_fit(stale_room, all)) {
                return false;
            }
            slot_count_ = all;
            span->next_ = user.spans_;
            user.spans_ = span.get();
            return true;
        });
        if (!is_entered && (!idle_room.try_make(all) || !stale_room.try_make(all))) {
            if (observer_ != nullptr) {
                observer_->released(*span);
            }
            port_->release(range);
            return fail(errc::no_memory, "no memory for the records of slots");
        }
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
    trimmer_.empty(*span);
    with(lock_, [&] {
        slot_span** link = &user.spans_;
        while (*link != span) {
            link = &(*link)->next_;
        }
        *link = span->next_;
        slot_count_ -= span->count_;
        if (user.spans_ == nullptr) {
            users_.leave(user);
        }
    });
    if (observer_ != nullptr) {
        observer_->released(*span);
    }
    port_->release(span->range_);
}

inline void device_frames::release(slot_span* span) noexcept {
    const std::unique_ptr<frame_user> own = std::move(span->own_user_);  // outlives its lock
    with(span->user().lock(), [&] { release_locked(span); });
}

// ---- giving frames

inline status device_frames::give(slot_span& span, std::size_t first, std::size_t last,
                                  std::size_t asked) noexcept {
    frame_errand job;
    job.own = span.user_;
    job.slot_bytes = span.slot_bytes();
    for (;;) {
        outcome end = outcome::done;
        with(lock_, [&] {
            epoch_.fetch_add(1, std::memory_order_relaxed);  // relaxed: see next_stamp
            users_.enter(*job.own);
            // What is asked for is not noted yet: it may be refused.
            const std::size_t live = users_.look();
            job.limit = budget_.limit_for(std::max(users_.live_peak(), live + asked));
            job.is_listed = false;
            for (std::size_t slot = span.next(first, last + 1, false);
                 slot <= last && end == outcome::done;
                 slot = span.next(slot + 1, last + 1, false)) {
                end = giver_.give_one(span, slot, job);
            }
            if (end == outcome::none) {
                giver_.take_back(span, first, last);
            } else if (end == outcome::done) {
                users_.note_live(live + asked);
                giver_.keep(span, first, last);
            }
        });
        if (end == outcome::done) {
            return {};
        }
        if (end == outcome::none) {
            return job.why;
        }
        if (const status waited = trimmer_.pause(job); !waited) {
            with(lock_, [&] { giver_.take_back(span, first, last); });
            return waited;
        }
    }
}

inline bool device_frames::is_valid() const noexcept {
    for (;;) {
        bool is_sound = true;
        bool is_seen = true;
        with(lock_, [&] {
            std::size_t held = 0;
            users_.for_each([&](frame_user& user) {
                if (!is_seen || !user.lock_.try_lock()) {
                    is_seen = false;
                    return;
                }
                slots::for_each_span(user, [&](const slot_span& span) {
                    for (std::size_t slot = 0; slot < span.count_; ++slot) {
                        const bool has_frame = span.has_frame(slot);
                        held += has_frame ? span.slot_bytes() : 0;
                        is_sound = is_sound && has_frame == bool{span.frames_[slot]} &&
                                   (has_frame || !span.has_block(slot));
                    }
                });
                user.lock_.unlock();
            });
            is_sound = is_sound && held == budget_.reserved_bytes();
        });
        if (is_seen) {
            return is_sound;
        }
        std::this_thread::yield();  // whoever has that lock may be waiting for ours
    }
}

}  // namespace xmm
