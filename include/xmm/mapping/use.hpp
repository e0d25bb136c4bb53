// SPDX-License-Identifier: Apache-2.0
// use.hpp - which launched work still uses which pages.
//
// Model    A launch names ranges; while it is unfinished, each of their granules counts it in `uses`. A
//          record of the launch remembers ranges and ticket, and takes the counts back once the ticket is
//          reached: when the next launch comes by, or when somebody must wait for a granule. A queue that gave
//          no ticket is asked again until it gives one or is lost. Ranges that are touched, for work that nobody
//          announces, stay in use until their queue is closed (safe_point).
// Threads  Any. The gate guards the list of launches; counts rise under the page lock, so a mover that
//          holds it and reads 0 knows that no unfinished launch names the page.
// Failure  A launch whose record cannot be made waits for its work to finish instead; a touch is refused.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <span>

#include <xmm/concepts/backend_table.hpp>
#include <xmm/mapping/launch_watch.hpp>
#include <xmm/mapping/logical_map.hpp>
#include <xmm/os/crash_message.hpp>

namespace xmm {

// A stretch that a kernel is going to read, write or both.
struct use {
    va_range range;
    access who = access::read_write;
};

// How much work depends on the mappings of the pages it names: a device that takes faults asks again for one
// that was taken away, another one is lost.
enum class use_grip : std::uint8_t { loose, firm };

class use_table {
public:
    explicit use_table(logical_map& map) noexcept : map_{map} {}

    // Counts one granule in; its page lock is held.
    static void mark_locked(granule& one, use_grip grip = use_grip::loose) noexcept {
        // relaxed: ordered by the page lock.
        one.uses.fetch_add(1, std::memory_order_relaxed);
        if (grip == use_grip::firm) {
            one.firm_uses.fetch_add(1, std::memory_order_relaxed);
        }
    }

    // The marks of these ranges last until the ticket is reached.
    void note_launch(backend_ref driver, ticket point, std::span<const use> uses,
                     use_grip grip = use_grip::loose) noexcept {
        watch_.name(point);
        note(driver, point, true, uses, grip);
    }
    // The same for work in a queue that gave no ticket for it: the marks last until it gives one and that is
    // reached, or until the queue is lost or gone.
    void note_launch(backend_ref driver, queue_id line, std::span<const use> uses,
                     use_grip grip = use_grip::loose) noexcept {
        note(driver, {line, 0}, false, uses, grip);
    }

    // The marks last until the queue is closed, whatever it runs meanwhile. no_memory: not noted.
    status note_touched(backend_ref driver, queue_id line, std::span<const use> uses,
                        use_grip grip) noexcept {
        launch_list made;
        for (std::size_t first = 0; first < uses.size(); first += uses_per_record) {
            launch_record* one = make_record(driver, {line, 0}, uses.subspan(first), grip);
            if (one == nullptr) {
                while (launch_record* other = made.pop_front()) {
                    launches_.give_back(other);
                }
                return fail(errc::no_memory, "the host has no memory for what is touched");
            }
            one->end = end_of_use::closed;
            made.push_back(*one);
        }
        watch_.touch(line);
        with(gate_, [&] {
            while (launch_record* one = made.pop_front()) {
                in_flight_.push_back(*one);
            }
        });
        return {};
    }
    // All work of the queue is done: takes back the marks of what was touched for it.
    void close(queue_id line) noexcept {
        watch_.end_touches(line);
        launch_list over;
        with(gate_, [&] {
            in_flight_.for_each([&](launch_record& one) {
                if (one.end == end_of_use::closed && one.point.queue == line) {
                    in_flight_.remove(one);
                    over.push_back(one);
                }
            });
        });
        end_all(over);
    }

    // Takes back the marks of ranges that were never launched.
    void take_back(std::span<const use> uses, use_grip grip = use_grip::loose) noexcept {
        for (const use& one : uses) {
            take_back(one.range, grip);
        }
    }

    // Takes back the marks of all launches that are finished.
    void retire_finished() noexcept {
        launch_list finished;
        launch_list pointless;
        with(gate_, [&] {
            in_flight_.for_each([&](launch_record& one) {
                if (one.end == end_of_use::unknown) {
                    in_flight_.remove(one);
                    pointless.push_back(one);
                } else if (one.end == end_of_use::at_point && one.driver.is_done(one.point)) {
                    in_flight_.remove(one);
                    finished.push_back(one);
                }
            });
        });
        while (launch_record* one = pointless.pop_front()) {
            if (try_point(*one)) {
                with(gate_, [&] { in_flight_.push_back(*one); });
            } else {
                finished.push_back(*one);
            }
        }
        end_all(finished);
    }

    // Returns once no launch with at least that grip names the granule, or the record stands for other addresses
    // than these. Blocks as long as its kernels run.
    void await_unused(granule& wanted, va_range va, use_grip least = use_grip::loose) noexcept {
        for (unsigned rounds = 0;;) {
            retire_finished();
            if (least == use_grip::firm ? !wanted.is_firmly_used() : !wanted.is_used()) {
                return;
            }
            if (!with(wanted.lock, [&] { return wanted.va.contains(va); })) {
                return;
            }
            backend_ref driver;
            ticket point;
            with(gate_, [&] {
                in_flight_.for_each([&](launch_record& one) {
                    for (std::size_t i = 0; i < one.count && !driver &&
                                            one.end == end_of_use::at_point && one.grip >= least;
                         ++i) {
                        if (one.uses[i].range.overlaps(va)) {
                            driver = one.driver;
                            point = one.point;
                        }
                    }
                });
            });
            if (driver) {
                static_cast<void>(driver.wait(point));  // a lost queue is done, too
            } else {
                await_note(++rounds);
            }
        }
    }

    [[nodiscard]] launch_watch& watch() noexcept { return watch_; }

    [[nodiscard]] std::size_t in_flight() const noexcept {
        std::lock_guard guard{gate_};
        return in_flight_.count();
    }

private:
    static constexpr std::size_t uses_per_record = 8;
    // What ends it: a point of its queue, one that is yet to be had, or close().
    enum class end_of_use : std::uint8_t { at_point, unknown, closed };
    struct launch_record {
        list_link link;
        backend_ref driver;
        ticket point;  // only the queue, unless `end` is at_point
        end_of_use end = end_of_use::at_point;
        std::size_t count = 0;
        use_grip grip = use_grip::loose;
        use uses[uses_per_record];
    };
    using launch_list = list<launch_record, &launch_record::link>;

    void note(backend_ref driver, ticket point, bool has_point, std::span<const use> uses,
              use_grip grip) noexcept {
        for (std::size_t first = 0; first < uses.size(); first += uses_per_record) {
            launch_record* one = make_record(driver, point, uses.subspan(first), grip);
            const end_of_use end = has_point ? end_of_use::at_point : end_of_use::unknown;
            if (one == nullptr) {
                launch_record last;
                last.driver = driver;
                last.point = point;
                last.end = end;
                while (last.end == end_of_use::unknown && try_point(last)) {
                    ::usleep(100);
                }
                static_cast<void>(driver.wait(last.point));
                take_back(uses.subspan(first), grip);
                return;
            }
            one->end = end;
            with(gate_, [&] { in_flight_.push_back(*one); });
        }
    }
    // Of as many uses as fit in one; null without memory.
    [[nodiscard]] launch_record* make_record(backend_ref driver, ticket point,
                                             std::span<const use> uses, use_grip grip) noexcept {
        launch_record* one = launches_.make();
        if (one != nullptr) {
            one->driver = driver;
            one->point = point;
            one->count = std::min(uses_per_record, uses.size());
            one->grip = grip;
            std::copy_n(uses.begin(), one->count, one->uses);
        }
        return one;
    }
    void end_all(launch_list& over) noexcept {
        while (launch_record* one = over.pop_front()) {
            take_back({one->uses, one->count}, one->grip);
            launches_.give_back(one);
        }
    }
    // False: there is nothing to wait for, since the queue is lost, or is gone and its work over.
    static bool try_point(launch_record& one) noexcept {
        result<ticket> got = one.driver.record(one.point.queue);
        if (got) {
            one.point = *got;
            one.end = end_of_use::at_point;
        }
        return got || got.code() == errc::no_memory || got.code() == errc::busy;
    }

    // Marked, its record not noted yet, or touched: no point to wait for. If that takes seconds, the launch in the
    // making or the thread that is to call safe_point most likely waits for this very fault, and the program should
    // know.
    static void await_note(unsigned rounds) noexcept {
        ::usleep(rounds < 100 ? 10 : 1000);
        if (rounds == 5000) {
            detail::crash_message{}
                .add("xmm: a page is wanted elsewhere that a launch in the making has named, or a ")
                .add("touch; does the launch's function touch it on the CPU, or does the thread ")
                .add("wait for it that is to reach the safe point?")
                .write();
        }
    }

    void take_back(va_range range, use_grip grip) noexcept {
        for (address at = range.begin; at < range.end();) {
            granule* one = map_.find(at);
            XMM_ASSERT(one != nullptr, "pages in use were unmapped");
            const va_range span = with(one->lock, [&] { return one->va; });
            // release: pairs with the acquire in granule::is_used; the kernel's accesses are over.
            if (grip == use_grip::firm) {
                one->firm_uses.fetch_sub(1, std::memory_order_release);
            }
            one->uses.fetch_sub(1, std::memory_order_release);
            at = span.end();
        }
    }

    logical_map& map_;
    mutable ranked_mutex<lock_rank::gate> gate_;
    launch_list in_flight_;  // guarded by gate_
    slab<launch_record> launches_;
    launch_watch watch_;
};

}  // namespace xmm
