// SPDX-License-Identifier: Apache-2.0
// extent_hooks.hpp - the jemalloc hook table, served by the frames of a device.
//
// Model    One per arena. Extents are carved one behind the other from a few large reservations of address
//          space in slots of 2 MiB, so that small extents share a slot. A slot has a frame while any byte of
//          it is committed: jemalloc commits what it first uses and decommits what is purged. To the budget of
//          the device, committed bytes are live ones: until a purge they are nobody else's.
// Threads  Any. One lock, rank extent_hooks, held while frames are asked for; jemalloc's own come before it.
// Failure  A hook that fails answers jemalloc in its own terms and leaves everything as it was; the reason is
//          kept. Without frames to be had no further address space is taken. Nothing here touches the memory,
//          reclaims, or calls user code.
// See      small_blocks.hpp makes the arena; device_frames.hpp has the slots.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>

namespace xmm {

// jemalloc's nine hooks, in its order and with its meanings: `true` says no, but for the one that allocates.
struct jemalloc_hooks {
    using purge_hook = bool (*)(jemalloc_hooks*, void* at, std::size_t bytes, std::size_t offset,
                                std::size_t length, unsigned arena);

    void* (*alloc)(jemalloc_hooks*, void* wanted, std::size_t bytes, std::size_t alignment,
                   bool* zero, bool* commit, unsigned arena) = nullptr;
    bool (*dalloc)(jemalloc_hooks*, void* at, std::size_t bytes, bool committed,
                   unsigned arena) = nullptr;
    void (*destroy)(jemalloc_hooks*, void* at, std::size_t bytes, bool committed,
                    unsigned arena) = nullptr;
    bool (*commit)(jemalloc_hooks*, void* at, std::size_t bytes, std::size_t offset,
                   std::size_t length, unsigned arena) = nullptr;
    bool (*decommit)(jemalloc_hooks*, void* at, std::size_t bytes, std::size_t offset,
                     std::size_t length, unsigned arena) = nullptr;
    purge_hook purge_lazy = nullptr;
    purge_hook purge_forced = nullptr;
    bool (*split)(jemalloc_hooks*, void* at, std::size_t bytes, std::size_t first,
                  std::size_t second, bool committed, unsigned arena) = nullptr;
    bool (*merge)(jemalloc_hooks*, void* first, std::size_t first_bytes, void* second,
                  std::size_t second_bytes, bool committed, unsigned arena) = nullptr;
};

// Frames is device_frames, or what a test puts in its place.
template <class Frames>
class extent_hooks final : private jemalloc_hooks {
public:
    static constexpr std::size_t slot_bytes = page_bytes;

    extent_hooks(Frames& frames, queue_id queue, std::uint32_t tag = 0,
                 void* owner = nullptr) noexcept
        : frames_{frames}, queue_{queue}, tag_{tag}, owner_{owner} {
        alloc = &on_alloc;
        dalloc = &on_dalloc;
        destroy = &on_destroy;
        commit = &on_commit;
        decommit = &on_decommit;
        split = &on_split;
        merge = &on_merge;
    }
    extent_hooks(const extent_hooks&) = delete;
    extent_hooks& operator=(const extent_hooks&) = delete;
    // The arena is gone.
    ~extent_hooks() {
        XMM_ASSERT(committed_bytes() == 0, "an arena's hooks go after the arena");
        for (std::size_t i = 0; i < reservation_count(); ++i) {
            frames_.release(reservations_[i].span);
        }
    }

    // Their queue is over, all its work done: they go on with another one.
    void set_queue(queue_id queue) noexcept {
        std::lock_guard guard{lock_};
        queue_ = queue;
        for (std::size_t i = 0; i < reservation_count(); ++i) {
            frames_.set_queue(reservations_[i].span->user(), queue);
        }
    }

    // What arena creation is told.
    [[nodiscard]] jemalloc_hooks* table() noexcept { return this; }

    // Bytes that jemalloc uses or keeps for reuse; all of them have frames.
    [[nodiscard]] std::size_t committed_bytes() const noexcept {
        // relaxed: a figure.
        return committed_.load(std::memory_order_relaxed);
    }
    // Slots that have a frame because of it.
    [[nodiscard]] std::size_t slot_count() const noexcept {
        return slots_.load(std::memory_order_relaxed);  // relaxed: a figure
    }
    // Address space taken from the device, used or not.
    [[nodiscard]] std::size_t reserved_bytes() const noexcept {
        std::size_t bytes = 0;
        for (std::size_t i = 0; i < reservation_count(); ++i) {
            bytes += reservations_[i].range.bytes;
        }
        return bytes;
    }
    // Whether the address is in an extent of this arena. Lock-free.
    [[nodiscard]] bool contains(address at) const noexcept {
        for (std::size_t i = 0; i < reservation_count(); ++i) {
            if (reservations_[i].range.contains(at)) {
                return true;
            }
        }
        return false;
    }
    // Why a hook failed last; ok if frames were had since.
    [[nodiscard]] status last_failure() noexcept {
        return with(lock_, [&] { return last_failure_; });
    }
    [[nodiscard]] bool is_valid() noexcept;

private:
    using span_pointer = std::remove_cvref_t<decltype(*std::declval<Frames&>().reserve(0, 0, {}))>;

    // Doubling up to 64 GiB, so that few are ever needed.
    static constexpr std::size_t first_reservation_bytes = std::size_t{64} << 20;
    static constexpr std::size_t most_doublings = 10;
    static constexpr std::size_t most_reservations = 32;

    struct reservation {
        span_pointer span{};
        va_range range;
        std::size_t carved = 0;                      // handed to jemalloc, from the beginning on
        std::unique_ptr<std::uint32_t[]> committed;  // bytes, by slot
    };

    [[nodiscard]] static extent_hooks& self(jemalloc_hooks* table) noexcept {
        return *static_cast<extent_hooks*>(table);
    }

    // jemalloc asks for a growing series of sizes, not committed, and once more for exactly what it needs,
    // committed, when the first way failed: that would fail as well.
    static void* on_alloc(jemalloc_hooks* table, void* wanted, std::size_t bytes,
                          std::size_t alignment, bool* zero, bool* commit, unsigned) noexcept {
        // zero: nobody can zero this memory from here. Records would ask for it, data never does.
        if (wanted != nullptr || *zero || *commit) {
            return nullptr;
        }
        extent_hooks& me = self(table);
        return with(me.lock_, [&] { return me.carve_locked(bytes, alignment); });
    }
    // Refused, so that the addresses stay jemalloc's and only the frames go: it decommits next.
    static bool on_dalloc(jemalloc_hooks*, void*, std::size_t, bool, unsigned) noexcept {
        return true;
    }
    static void on_destroy(jemalloc_hooks* table, void* at, std::size_t bytes, bool committed,
                           unsigned) noexcept {
        if (committed) {
            extent_hooks& me = self(table);
            with(me.lock_, [&] { me.decommit_locked({to_address(at), bytes}); });
        }
    }
    static bool on_commit(jemalloc_hooks* table, void* at, std::size_t, std::size_t offset,
                          std::size_t length, unsigned) noexcept {
        extent_hooks& me = self(table);
        return !with(me.lock_, [&] { return me.commit_locked({to_address(at) + offset, length}); });
    }
    static bool on_decommit(jemalloc_hooks* table, void* at, std::size_t, std::size_t offset,
                            std::size_t length, unsigned) noexcept {
        extent_hooks& me = self(table);
        with(me.lock_, [&] { me.decommit_locked({to_address(at) + offset, length}); });
        return false;
    }
    static bool on_split(jemalloc_hooks*, void*, std::size_t, std::size_t, std::size_t, bool,
                         unsigned) noexcept {
        return false;
    }
    static bool on_merge(jemalloc_hooks* table, void* first, std::size_t, void* second, std::size_t,
                         bool, unsigned) noexcept {
        const extent_hooks& me = self(table);
        return me.find(to_address(first)) != me.find(to_address(second));
    }

    [[nodiscard]] std::size_t reservation_count() const noexcept {
        // acquire: pairs with the release in reserve_locked; a reservation is complete before it is seen.
        return count_.load(std::memory_order_acquire);
    }
    [[nodiscard]] const reservation* find(address at) const noexcept {
        for (std::size_t i = 0; i < reservation_count(); ++i) {
            if (reservations_[i].range.contains(at)) {
                return &reservations_[i];
            }
        }
        return nullptr;
    }
    [[nodiscard]] reservation& find_locked(va_range range) noexcept {
        for (std::size_t i = 0; i < reservation_count(); ++i) {
            if (reservations_[i].range.contains(range)) {
                return reservations_[i];
            }
        }
        detail::assertion_failed("jemalloc names an extent that it did not get", __FILE__,
                                 __LINE__);
    }

    [[nodiscard]] void* carve_locked(std::size_t bytes, std::size_t alignment) noexcept {
        if (is_starved_ && !has_frame_locked()) {
            return nullptr;
        }
        const std::size_t count = reservation_count();
        reservation* from = count == 0 ? nullptr : &reservations_[count - 1];
        const auto start_in = [&](const reservation& r) {
            return align_up(r.range.begin + r.carved, alignment) - r.range.begin;
        };
        if (from == nullptr || start_in(*from) + bytes > from->range.bytes) {
            from = reserve_locked(bytes + alignment);
            if (from == nullptr) {
                return nullptr;
            }
        }
        const std::size_t start = start_in(*from);
        from->carved = start + bytes;
        return to_pointer(from->range.begin + start);
    }
    [[nodiscard]] reservation* reserve_locked(std::size_t bytes) noexcept {
        const std::size_t index = reservation_count();
        if (index == most_reservations) {
            last_failure_ = fail(errc::no_memory, "an arena has no more address space");
            return nullptr;
        }
        const std::size_t wanted =
            std::max(first_reservation_bytes << std::min(index, most_doublings),
                     align_up(bytes, slot_bytes));
        reservation& fresh = reservations_[index];
        fresh.committed.reset(new (std::nothrow) std::uint32_t[wanted / slot_bytes]());
        if (fresh.committed == nullptr) {
            last_failure_ = fail(errc::no_memory, "the host has no memory for records");
            return nullptr;
        }
        auto span = frames_.reserve(wanted, slot_bytes, queue_, tag_, owner_);
        if (!span) {
            last_failure_ = span.error();
            return nullptr;
        }
        fresh.span = span.value();
        fresh.range = {fresh.span->range().begin, wanted};
        count_.store(index + 1, std::memory_order_release);
        return &fresh;
    }

    // After frames ran out: growing would cost addresses each time and be of no use.
    [[nodiscard]] bool has_frame_locked() noexcept {
        const std::size_t count = reservation_count();
        const reservation& last = reservations_[count - 1];
        const std::size_t slot = last.range.bytes / slot_bytes - 1;
        if (last.committed[slot] == 0) {
            const va_range probe{last.range.begin + slot * slot_bytes, slot_bytes};
            const status had = frames_.acquire(*last.span, probe);
            if (!had) {
                last_failure_ = had;
                return false;
            }
            frames_.release(*last.span, probe);
        }
        is_starved_ = false;
        return true;
    }

    // The slots of the range that no other extent has committed a byte of: all but perhaps the first and the
    // last, so they lie side by side. `own` is what the range itself has in them now.
    struct slot_run {
        std::size_t first = 0;
        std::size_t count = 0;
    };
    static std::size_t bytes_in_slot(const reservation& r, std::size_t slot,
                                     va_range range) noexcept {
        return intersect(range, {r.range.begin + slot * slot_bytes, slot_bytes}).bytes;
    }
    [[nodiscard]] static slot_run own_slots(const reservation& r, va_range range,
                                            bool is_committed) noexcept {
        std::size_t first = (range.begin - r.range.begin) / slot_bytes;
        std::size_t last = (range.end() - 1 - r.range.begin) / slot_bytes;
        const auto is_shared = [&](std::size_t slot) {
            return r.committed[slot] > (is_committed ? bytes_in_slot(r, slot, range) : 0);
        };
        if (is_shared(first)) {
            if (first == last) {
                return {};
            }
            ++first;
        }
        if (is_shared(last)) {
            if (first == last) {
                return {};
            }
            --last;
        }
        return {first, last - first + 1};
    }
    [[nodiscard]] static va_range range_of(const reservation& r, slot_run slots) noexcept {
        return {r.range.begin + slots.first * slot_bytes, slots.count * slot_bytes};
    }
    template <class Fn>
    static void for_slots(const reservation& r, va_range range, Fn&& fn) noexcept {
        const std::size_t last = (range.end() - 1 - r.range.begin) / slot_bytes;
        for (std::size_t slot = (range.begin - r.range.begin) / slot_bytes; slot <= last; ++slot) {
            fn(r.committed[slot], static_cast<std::uint32_t>(bytes_in_slot(r, slot, range)));
        }
    }

    [[nodiscard]] bool commit_locked(va_range range) noexcept {
        reservation& in = find_locked(range);
        if (const slot_run fresh = own_slots(in, range, false); fresh.count != 0) {
            const status had = frames_.acquire(*in.span, range_of(in, fresh));
            if (!had) {
                last_failure_ = had;
                is_starved_ = true;
                return false;
            }
            last_failure_ = {};
            is_starved_ = false;
            slots_.fetch_add(fresh.count, std::memory_order_relaxed);  // relaxed: a figure
        }
        for_slots(in, range, [](std::uint32_t& committed, std::uint32_t bytes) {
            XMM_ASSERT(committed + bytes <= slot_bytes, "an extent was committed twice");
            committed += bytes;
        });
        committed_.fetch_add(range.bytes, std::memory_order_relaxed);  // relaxed: a figure
        frames_.add_live(static_cast<std::ptrdiff_t>(range.bytes));
        return true;
    }
    void decommit_locked(va_range range) noexcept {
        reservation& in = find_locked(range);
        const slot_run gone = own_slots(in, range, true);
        for_slots(in, range, [](std::uint32_t& committed, std::uint32_t bytes) {
            XMM_ASSERT(committed >= bytes, "an extent was decommitted twice");
            committed -= bytes;
        });
        committed_.fetch_sub(range.bytes, std::memory_order_relaxed);  // relaxed: a figure
        frames_.add_live(-static_cast<std::ptrdiff_t>(range.bytes));
        if (gone.count != 0) {
            frames_.release(*in.span, range_of(in, gone));
            slots_.fetch_sub(gone.count, std::memory_order_relaxed);
        }
    }

    // (C) constant once made  (A) atomic  (L) under lock_
    Frames& frames_;           // (C)
    queue_id queue_;           // (L)
    const std::uint32_t tag_;  // (C)
    void* const owner_;        // (C)
    ranked_mutex<lock_rank::extent_hooks> lock_;
    std::array<reservation, most_reservations>
        reservations_;                       // (L) spans and ranges (C) below count_
    std::atomic<std::size_t> count_{0};      // (A,L)
    std::atomic<std::size_t> committed_{0};  // (A,L)
    std::atomic<std::size_t> slots_{0};      // (A,L)
    bool is_starved_ = false;                // (L) the last commit got no frames
    status last_failure_;                    // (L)
};

// The sums agree, and nothing is committed beyond what jemalloc was handed.
template <class Frames>
bool extent_hooks<Frames>::is_valid() noexcept {
    return with(lock_, [&] {
        std::size_t bytes = 0;
        std::size_t slots = 0;
        for (std::size_t i = 0; i < reservation_count(); ++i) {
            const reservation& r = reservations_[i];
            for (std::size_t slot = 0; slot < r.range.bytes / slot_bytes; ++slot) {
                const std::size_t begin = slot * slot_bytes;
                const std::size_t carved = r.carved > begin ? r.carved - begin : 0;
                if (r.committed[slot] > std::min(carved, slot_bytes)) {
                    return false;
                }
                bytes += r.committed[slot];
                slots += r.committed[slot] != 0 ? 1 : 0;
            }
        }
        return bytes == committed_bytes() && slots == slot_count();
    });
}

}  // namespace xmm
