// SPDX-License-Identifier: Apache-2.0
// steered.hpp - pages that a driver owns, and moves when told.
//
// Model    The records (see frame_stock.hpp) are as those of other pages and mean less: a frame, where the page
//          was placed last; a mapping, that the accessor was brought to it. The CPU reaches such a page at any time
//          and unseen: what it has touched since is somewhere, until the page is named or placed again, which costs
//          little if it is there still. So a device's ledger counts at least what we have placed there.
//          A device's mappings of a host's pages end with its copies of them. To tell the driver to map them again
//          takes as long as a copy would, and who wins frames has no use for it: that comes later, see later_mappings.
//          Where no driver owns pages, each of these does nothing, or answers so.
// Threads  As page_parts.hpp; place_again, forget and map_in_place take the locks that they need themselves.
// Failure  As the driver's advice: what it refused is as before.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <span>

#include <xmm/placement/contents.hpp>
#include <xmm/placement/page_parts.hpp>

namespace xmm {

// Stretches of a driver's pages on hosts that devices do not map. Bounded: what finds no room is mapped at once.
class later_mappings {
public:
    // False: no room.
    [[nodiscard]] bool add(va_range next) noexcept {
        std::lock_guard guard{lock_};
        for (unsigned i = 0; i < count_; ++i) {
            va_range& one = stretches_[i];
            if (one.end() == next.begin || next.end() == one.begin) {
                one = {std::min(one.begin, next.begin), one.bytes + next.bytes};
                return true;
            }
        }
        if (count_ == stretches_.size()) {
            return false;
        }
        stretches_[count_++] = next;
        // relaxed, here and below: a hint; whoever finds some takes them under the lock.
        has_some_.store(true, std::memory_order_relaxed);
        return true;
    }
    // What one of them has in the range, `most` bytes at most, and no longer among these; empty: there is nothing. More
    // than that only where there is no room for what would be left on both sides.
    [[nodiscard]] va_range take(va_range within, std::size_t most = SIZE_MAX) noexcept {
        if (!has_some_.load(std::memory_order_relaxed)) {
            return {};
        }
        std::lock_guard guard{lock_};
        for (unsigned i = 0; i < count_; ++i) {
            if (stretches_[i].overlaps(within)) {
                return cut_locked(i, within, most);
            }
        }
        return {};
    }

private:
    va_range cut_locked(unsigned i, va_range within, std::size_t most) noexcept {
        const va_range whole = stretches_[i];
        const address begin = std::max(whole.begin, align_down(within.begin, page_bytes));
        const address last =
            std::min(within.end() - 1, whole.end() - 1);  // of pages that are touched
        const std::size_t touched = align_down(last, page_bytes) + page_bytes - begin;
        const va_range cut{begin, std::min(touched, most)};
        const va_range before{whole.begin, cut.begin - whole.begin};
        const va_range after{cut.end(), whole.end() - cut.end()};
        if (!before.is_empty() && !after.is_empty() && count_ == stretches_.size()) {
            stretches_[i] = stretches_[--count_];
            return whole;
        }
        if (before.is_empty() && after.is_empty()) {
            stretches_[i] = stretches_[--count_];
        } else {
            stretches_[i] = before.is_empty() ? after : before;
            if (!before.is_empty() && !after.is_empty()) {
                stretches_[count_++] = after;
            }
        }
        has_some_.store(count_ != 0, std::memory_order_relaxed);
        return cut;
    }

    ranked_mutex<lock_rank::leaf> lock_;
    std::array<va_range, 64> stretches_{};  // guarded by lock_
    unsigned count_ = 0;                    // guarded by lock_
    std::atomic<bool> has_some_{false};     // (A)
};

class steered_pages : public page_parts {
public:
    explicit steered_pages(address_space& space) noexcept : page_parts{space}, contents_{space} {}

    [[nodiscard]] bool is_steering() noexcept { return is_steered(space_.at_slot(cpu_accessor)); }
    // The host where a page of the CPU's goes: near the device that is likely to use it. A driver's own pages stay
    // there unless they are placed on a device, and devices reach them on it.
    [[nodiscard]] node& host_of(const granule& one) noexcept {
        const unsigned first_device = space_.host_count();
        const unsigned near = one.preferred != no_slot             ? one.preferred
                              : first_device < space_.node_count() ? first_device
                                                                   : cpu_accessor;
        return space_.host_near(space_.at_slot(near));
    }
    // With the page lock: what nobody has placed yet is on its host, as far as anybody knows. The driver is not asked.
    [[nodiscard]] status note_on_host_locked(granule& one) noexcept {
        if (one.current() != residency::untouched || one.is_moving() || !is_steering()) {
            return {};
        }
        node& host = host_of(one);
        result<frame_record*> taken = stock_.take(host, one.va.bytes);
        if (!taken) {
            return taken.error();
        }
        (*taken)->owner = &one;
        one.frames[host.slot] = *taken;
        set_home_locked(one, residency_step::first_touch, host.slot);
        host.active.move_to_recent(**taken);
        host.first_touches.add(one.va.bytes / page_bytes);
        return {};
    }
    // With the page lock: whether the device may have lost pages of it to the CPU, although it has its frame.
    [[nodiscard]] bool is_worth_placing_locked(const granule& one, const node& on) const noexcept {
        return !on.is_host && is_steered(on) && one.frames[on.slot] != nullptr && !one.is_moving();
    }
    // With the page lock: the driver has been told to place it on the device, where it has a frame.
    static void note_placed_locked(granule& one, const node& on) noexcept {
        one.frames[on.slot]->placed_ns = detail::monotonic_ns();
    }
    // With the page lock: whether so much time has passed since that the driver is to be told again.
    [[nodiscard]] static bool is_due_locked(const granule& one, const node& on,
                                            std::uint64_t after_ns) noexcept {
        return detail::monotonic_ns() - one.frames[on.slot]->placed_ns >= after_ns;
    }
    // For granules in transit whose frames are there already; ends the transits.
    status place_again(node& device, std::span<granule*> those, bool is_quiet) noexcept {
        XMM_ASSERT(those.size() <= max_batch, "batch too long");
        std::array<va_range, max_batch> ranges;
        std::transform(those.begin(), those.end(), ranges.begin(),
                       [](const granule* one) { return one->va; });
        const status placed =
            contents_.place_again(device, {ranges.data(), those.size()}, is_quiet);
        for (granule* one : those) {
            with(one->lock, [&] {
                if (placed) {
                    note_placed_locked(*one, device);
                }
                one->end_transit_locked();
            });
        }
        return placed;
    }
    // For one in transit: the contents are given up, and it is untouched. Ends the transit.
    status forget(granule& one) noexcept {
        status gone = contents_.forget(one);
        std::lock_guard guard{one.lock};
        if (gone) {
            gone = end_copies_locked(one, false);
        }
        if (gone) {
            gone = discard_locked(one, residency_step::discard, residency::untouched);
        }
        one.end_transit_locked();
        return gone;
    }
    // What lost its mappings with its copies and overlaps the range gets them again: as a launch is about to need them,
    // or somebody has the time. A refusal costs time alone: each page is mapped when a kernel comes upon it.
    void map_in_place(va_range within) noexcept {
        for (va_range one = later_.take(within); !one.is_empty(); one = later_.take(within)) {
            map_now(one);
        }
    }
    // A part of what lost them, wherever it is: as much as takes some 20 ms. False: there is nothing left.
    bool map_some_in_place() noexcept {
        constexpr std::size_t most = std::size_t{512} << 20;
        const va_range one = later_.take({0, SIZE_MAX}, most);
        if (!one.is_empty()) {
            map_now(one);
        }
        return !one.is_empty();
    }
    // Nobody is to map these pages later; those beside them are mapped all the same.
    void forget_mappings(va_range leaving) noexcept {
        for (va_range one = later_.take(leaving); !one.is_empty(); one = later_.take(leaving)) {
            if (one.begin < leaving.begin) {
                map_later({one.begin, leaving.begin - one.begin});
            }
            if (leaving.end() < one.end()) {
                map_later({leaving.end(), one.end() - leaving.end()});
            }
        }
    }
    // Pages of a driver's: where a region's will stay, and devices reach them, unless we place them.
    status keep_on_host(va_range range, const node& host) noexcept {
        return is_steered(host) ? host.driver.advise({&range, 1}, driver_advice::preferred, host.id)
                                : status{};
    }

    // With the page lock: whether a reader there may get a copy of a read-mostly page, the data staying where it is. Of
    // a driver's pages a host always has one, so that it is known where they are once the copies end.
    [[nodiscard]] bool can_copy_locked(granule& one, const node& to) noexcept {
        if (!is_steered(to) || to.is_host || one.current() == residency::duplicated) {
            return true;
        }
        return one.current() == residency::on_host;
    }

protected:
    // A driver that owns the pages has copies while it is told of them; without, one is left: the host's, which is
    // there in any case (see can_copy_locked). What the devices lose had nothing of its own, so nothing is copied.
    status end_copies_locked(granule& one, bool some_stay) noexcept {
        if (one.current() != residency::duplicated) {
            return {};
        }
        status told = tell_end_of_copies(one);
        if (told && some_stay && is_steering()) {
            forget_mappings(one.va);
            node& host = host_of(one);
            told = host.driver.advise({&one.va, 1}, driver_advice::read_mostly, host.id);
        }
        return told;
    }
    status tell_end_of_copies(granule& one) noexcept {
        node& host = host_of(one);
        if (!is_steered(host)) {
            return {};
        }
        const status told =
            host.driver.advise({&one.va, 1}, driver_advice::unset_read_mostly, host.id);
        if (told) {
            map_later(one.va);
        }
        return told;
    }
    void map_later(va_range one) noexcept {
        if (!later_.add(one)) {
            map_now(one);
        }
    }
    void map_now(va_range one) noexcept {
        node& host = space_.at_slot(cpu_accessor);
        static_cast<void>(host.driver.advise({&one, 1}, driver_advice::mapped_in_place, host.id));
    }

    contents contents_;
    later_mappings later_;
};

}  // namespace xmm
