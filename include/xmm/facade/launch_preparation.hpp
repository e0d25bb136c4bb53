// SPDX-License-Identifier: Apache-2.0
// launch_preparation.hpp - the pages of work that is about to be enqueued: mapped where they must be, and marked.
//
// Model    With a firm grip every page gets a mapping for the device and is marked under the same lock, so
//          that it stays; with a loose one it is only marked. The marks are taken back unless handed over.
//          Where a driver owns the pages, those that were placed on the device are placed once more in the order of
//          the queue, since the CPU may have taken some unseen. That costs a twentieth of a copy for what is there
//          still (measured: docs/results/h200.md), so a page is passed over if it was placed less than a copy's time
//          ago, of all that the launch has there. What the CPU took in that time is read over the link meanwhile.
// Threads  One thread an object. Firm preparations of one space come one after another: the caller sees to it.
// Failure  All or nothing.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include <xmm/facade/space_state.hpp>

namespace xmm::detail {

// Marks the pages of all ranges as used; takes the marks back unless they are handed over.
class launch_preparation {
public:
    // A kernel's: a device that takes faults can ask again for a mapping that it lost.
    [[nodiscard]] static use_grip grip_of(const node& on) noexcept {
        return on.can(ability::device_faults) ? use_grip::loose : use_grip::firm;
    }

    // A kernel's accesses are its device's own; a copy reaches what other devices alone have.
    launch_preparation(space_state& state, node& on, std::span<const use> uses, use_grip grip,
                       bool is_kernel = true) noexcept
        : state_{state}, on_{on}, uses_{uses}, grip_{grip}, is_kernel_{is_kernel} {}
    launch_preparation(const launch_preparation&) = delete;
    launch_preparation& operator=(const launch_preparation&) = delete;
    ~launch_preparation() {
        if (!is_handed_over_) {
            state_.core.uses().take_back(uses_.first(whole_), grip_);
            if (!part_.is_empty()) {
                const use part{part_, access::none};
                state_.core.uses().take_back({&part, 1}, grip_);
            }
        }
    }

    status prepare() noexcept {
        if (is_steered(on_)) {
            // What another device is done with need not be used over the link.
            state_.core.uses().retire_finished();
        }
        for (const use& one : uses_) {
            if (status marked = mark(one); !marked) {
                return marked;
            }
            ++whole_;
            part_ = {};
            state_.engine.moves.map_in_place(one.range);  // what stays on the host is used there
        }
        return {};
    }
    // After prepare(), with a firm grip. What follows in the queue finds the pages there. On a failure nothing of it is
    // on its way any more, so that the marks may go.
    status place(queue_id line) noexcept {
        if (!is_steered(on_)) {
            return {};
        }
        const status placed = place_all(line);
        if (!placed) {
            if (auto point = on_.driver.record(line)) {
                static_cast<void>(on_.driver.wait(*point));
            }
        }
        return placed;
    }
    // The marks last until the ticket is reached. Without one, until the queue gives one after all: what is in it
    // runs; only of a lost one nothing does, and they end here.
    void hand_over(queue_id line, result<ticket> point) noexcept {
        if (point) {
            state_.core.uses().note_launch(on_.driver, *point, uses_, grip_);
        } else if (point.code() != errc::device_lost) {
            state_.core.uses().note_launch(on_.driver, line, uses_, grip_);
        }
        is_handed_over_ = point || point.code() != errc::device_lost;
    }

    // The marks last until the queue's safe point.
    status hand_over_touched(queue_id line) noexcept {
        const status noted = state_.core.uses().note_touched(on_.driver, line, uses_, grip_);
        is_handed_over_ = noted.is_ok();
        return noted;
    }

private:
    // Ranges for one call of the driver, grown as long as they lie in a row.
    struct stretches {
        std::array<va_range, 32> ranges;
        std::size_t count = 0;

        bool try_add(va_range next) noexcept {
            if (count > 0 && ranges[count - 1].end() == next.begin) {
                ranges[count - 1].bytes += next.bytes;
                return true;
            }
            if (count == ranges.size()) {
                return false;
            }
            ranges[count++] = next;
            return true;
        }
        status place(const node& on, queue_id line) noexcept {
            if (count == 0) {
                return {};
            }
            return on.driver.place(line, {ranges.data(), std::exchange(count, 0)}, on.id).error();
        }
    };

    status place_all(queue_id line) noexcept {
        const std::uint64_t pause_ns = copy_ns(bytes_here_);
        stretches found;
        for (const use& one : uses_) {
            for (address at = one.range.begin; at < one.range.end();) {
                va_range span;
                bool is_due = false;
                state_.core.with_granule(at, [&](granule& page) {
                    span = page.va;  // marked, so it is there
                    is_due = page.frames[on_.slot] != nullptr &&
                             steered_pages::is_due_locked(page, on_, pause_ns);
                });
                if (is_due && !found.try_add(span)) {
                    if (status placed = place_and_note(found, line); !placed) {
                        return placed;
                    }
                    static_cast<void>(found.try_add(span));
                }
                at = span.end();
            }
        }
        return place_and_note(found, line);
    }
    status place_and_note(stretches& found, queue_id line) noexcept {
        const stretches told = found;
        if (const status placed = found.place(on_, line); !placed) {
            return placed;
        }
        for (std::size_t i = 0; i < told.count; ++i) {
            for (address at = told.ranges[i].begin; at < told.ranges[i].end();) {
                state_.core.with_granule(at, [&](granule& page) {
                    at = page.va.end();  // marked, so it is there
                    if (page.frames[on_.slot] != nullptr) {
                        steered_pages::note_placed_locked(page, on_);
                    }
                });
            }
        }
        return {};
    }

    // How long the link needs for so many bytes; 0: not known.
    std::uint64_t copy_ns(std::size_t bytes) const noexcept {
        const std::uint64_t rate = on_.about.link_in_bytes_per_second;
        constexpr double longest = 1e18;  // a user may say any rate
        return rate == 0
                   ? 0
                   : static_cast<std::uint64_t>(std::min(
                         longest, 1e9 * static_cast<double>(bytes) / static_cast<double>(rate)));
    }

    status mark(const use& one) noexcept {
        const bool must_map = grip_ == use_grip::firm;
        for (address at = one.range.begin; at < one.range.end();) {
            address after = 0;
            bool is_marked = false;
            bool is_elsewhere = false;
            access who = one.who;
            if (!state_.core.with_granule(at, [&](granule& page) {
                    who = must_map ? all_access(page.va) : who;
                    is_elsewhere = is_kernel_ && !must_map && is_fixed_elsewhere_locked(page, who);
                    if (is_elsewhere) {
                        return;
                    }
                    if (!must_map ||
                        (!page.is_moving() && covers(page.mapped[on_.accessor()], who))) {
                        use_table::mark_locked(page, grip_);
                        bytes_here_ += page.frames[on_.slot] != nullptr ? page.va.bytes : 0;
                        after = page.va.end();
                        is_marked = true;
                    }
                })) {
                return fail(errc::not_mapped, "the range was unmapped meanwhile");
            }
            if (is_elsewhere) {
                return fail(errc::busy, fault_handler::device_only);
            }
            if (is_marked) {
                at = after;
                part_ = {one.range.begin, at - one.range.begin};
            } else if (status mapped = map_page(at, who); !mapped) {
                return mapped;
            }
        }
        return {};
    }
    // What no fault of the device can bring: with a firm grip, map_page finds it out.
    bool is_fixed_elsewhere_locked(const granule& page, access who) const noexcept {
        return page.is_fixed && page.home != no_slot && page.home != on_.slot &&
               !state_.core.at_slot(page.home).is_host && !covers(page.mapped[on_.accessor()], who);
    }
    // What all uses together want of a granule. A mark of this launch for less would keep the page as it
    // is, and the use that wants more would wait for this launch itself.
    access all_access(va_range va) const noexcept {
        access all = access::none;
        for (const use& one : uses_) {
            all = one.range.overlaps(va) ? all | one.who : all;
        }
        return all;
    }
    status map_page(address at, access who) noexcept {
        granule* page = state_.core.find(at);
        if (page != nullptr) {
            page->await_rest();
        }
        return state_.engine.faults.handle(on_, at, who);
    }

    space_state& state_;
    node& on_;
    std::span<const use> uses_;
    const use_grip grip_;
    const bool is_kernel_;
    std::size_t whole_ = 0;       // uses that are marked as a whole
    va_range part_;               // marked part of the next one
    std::size_t bytes_here_ = 0;  // marked, and framed on the device; twice, what two uses name
    bool is_handed_over_ = false;
};

}  // namespace xmm::detail
