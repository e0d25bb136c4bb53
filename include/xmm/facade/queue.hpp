// SPDX-License-Identifier: Apache-2.0
// queue.hpp - an ordered line of work on one device, as users hold it.
//
// Model    Owns a queue of the backend; the space that made it must outlive it. Moved, not copied.
// Threads  Any thread may use a queue; two launches at once have no order between them.
// Failure  After its device is lost, every call answers device_lost.
#pragma once

#include <chrono>
#include <thread>
#include <utility>

#include <xmm/concepts/backend_table.hpp>
#include <xmm/mapping/use.hpp>
#include <xmm/os/registry.hpp>

namespace xmm {

class space;
class space_state;

class queue {
public:
    queue(queue&& other) noexcept
        : space_{std::exchange(other.space_, nullptr)},
          uses_{other.uses_},
          driver_{other.driver_},
          node_{other.node_},
          id_{std::exchange(other.id_, queue_id{})},
          at_end_{other.at_end_} {}
    queue& operator=(queue&& other) noexcept {
        queue taken{std::move(other)};
        std::swap(space_, taken.space_);
        std::swap(uses_, taken.uses_);
        std::swap(driver_, taken.driver_);
        std::swap(node_, taken.node_);
        std::swap(id_, taken.id_);
        std::swap(at_end_, taken.at_end_);
        return *this;
    }
    // Waits for the work in it. That cannot be while it is being captured, nor where the driver has no room for a
    // ticket for seconds (no_memory: synchronize_in_turn). Then the heaps are not told that it is over, and frames that
    // its work may use are taken by nobody.
    ~queue() {
        if (id_.value != 0) {
            const status ended = synchronize_in_turn();
            if (ended.code == errc::forked) {
                return;
            }
            const bool is_over = ended || ended.code == errc::device_lost;
            if (is_over) {  // both before the id may be another queue's
                at_end_(*space_, id_);
                uses_->close(id_);
            }
            uses_->watch().remove(id_);
            driver_.queue_destroy(id_);
            if (!is_over) {
                uses_->close(id_);  // no sooner: what was enqueued may run up to here
            }
        }
    }

    // All work in it is done, and what was touched for it is nobody's: see safe_point.
    status close_uses() noexcept {
        const status outcome = synchronize();
        if (outcome || outcome.code == errc::device_lost) {
            uses_->close(id_);
        }
        return outcome;
    }

    [[nodiscard]] node_id node() const noexcept { return node_; }
    [[nodiscard]] queue_id id() const noexcept { return id_; }
    [[nodiscard]] space_state& owner() const noexcept { return *space_; }

    // Reached once everything submitted so far is done.
    [[nodiscard]] result<ticket> record() noexcept {
        const status usable = check();
        return usable ? driver_.record(id_) : result<ticket>{usable};
    }
    // Blocks until everything submitted so far is done.
    status synchronize() noexcept {
        result<ticket> point = record();
        if (!point) {
            return point.error();
        }
        const status outcome = driver_.wait(*point);
        uses_->retire_finished();
        return outcome;
    }
    // Work submitted later waits for the point, which is of the same driver: else invalid_argument.
    status wait_for(ticket point) noexcept {
        const status usable = check();
        const status outcome = usable ? driver_.make_wait(id_, point) : usable;
        if (outcome && uses_->watch().is_on()) {
            name_all();
        }
        return outcome;
    }
    // For tickets of this queue's driver; those of another one, or of a queue that is gone, count as done.
    [[nodiscard]] bool is_done(ticket point) const noexcept {
        return !check() || driver_.is_done(point);
    }
    status wait(ticket point) const noexcept {
        const status usable = check();
        return usable ? driver_.wait(point) : usable;
    }

    // The backend's launcher of that kind, for those who enqueue their own work; null if there is none.
    [[nodiscard]] void* native(const char* kind) const noexcept { return driver_.native(kind); }

private:
    friend class space;
    // at_end is told when all its work is done, before the id is another queue's.
    queue(space_state& owner, use_table& uses, backend_ref driver, node_id node, queue_id id,
          void (*at_end)(space_state&, queue_id) noexcept) noexcept
        : space_{&owner}, uses_{&uses}, driver_{driver}, node_{node}, id_{id}, at_end_{at_end} {
        uses_->watch().add(driver_, node_, id_);
    }

    // What is in it up to now touches no memory, or is named.
    void name_all() noexcept {
        if (result<ticket> point = driver_.record(id_)) {
            uses_->watch().name(*point);
        }
    }
    // Too much may wait in it for one more ticket: some of that will be done soon.
    status synchronize_in_turn() noexcept {
        constexpr unsigned patience = 4096;  // milliseconds
        status outcome = synchronize();
        for (unsigned tries = 0; outcome.code == errc::no_memory && tries < patience; ++tries) {
            std::this_thread::sleep_for(std::chrono::milliseconds{1});
            outcome = synchronize();
        }
        return outcome;
    }
    [[nodiscard]] status check() const noexcept {
        if (id_.value == 0) {
            return fail(errc::invalid_argument, "a moved-from queue");
        }
        return registry::is_forked_child()
                   ? fail(errc::forked, "this is a forked child: the queue is its parent's")
                   : status{};
    }

    space_state* space_;
    use_table* uses_;
    backend_ref driver_;
    node_id node_;
    queue_id id_;
    void (*at_end_)(space_state&, queue_id) noexcept;
};

}  // namespace xmm
