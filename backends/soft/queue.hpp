// SPDX-License-Identifier: Apache-2.0
// queue.hpp - work in order: copies, zeroing, waits, host calls, kernels; one worker thread each.
//
// Model    A call becomes a chain of operations, one per piece, and a ticket: the count of calls so
//          far. The worker takes one operation after the other and publishes the ticket of each call
//          that is over. A slot outlives its queues, and its count goes on, so that asking for the
//          ticket of a queue that is gone is harmless.
// Threads  Any. The lock guards the chain: rank backend_queue; the worker holds it to take, never to do.
// Failure  Submission draws on a reserve of addresses and allocates nothing; no_memory when a million
//          operations wait. After a lost kernel or device operations are skipped: device_lost.
#pragma once

#include <atomic>
#include <cstring>
#include <optional>
#include <thread>

#include <xmm/os/host_memory.hpp>
#include <xmm/os/huge_pages.hpp>

#include "compute.hpp"

namespace xmm::soft {

struct operation {
    enum class kind : std::uint8_t { copy, zero, await, call, launch, nothing };

    kind what = kind::nothing;
    bool is_first = false;  // of its call
    bool is_last = false;
    operation* after = nullptr;
    std::uint64_t asked_at = 0;  // when it was submitted
    va_range to;                 // copy, zero
    address from = 0;
    ticket point;  // await
    void (*fn)(void*) noexcept = nullptr;
    void* context = nullptr;
    kernel* body = nullptr;
};

// Operations for one queue; addresses for many, memory for as many as ever waited at once.
class operation_slab {
public:
    operation_slab() = default;
    ~operation_slab() {
        if (all_ != nullptr) {
            ::munmap(static_cast<void*>(all_), bytes);
        }
    }
    operation_slab(const operation_slab&) = delete;
    operation_slab& operator=(const operation_slab&) = delete;

    [[nodiscard]] status open() noexcept {
        if (all_ == nullptr) {
            void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (at == MAP_FAILED) {
                return fail(errc::no_memory, "no address space for a queue", errno);
            }
            all_ = static_cast<operation*>(at);
        }
        return {};
    }
    [[nodiscard]] bool has(std::size_t wanted) const noexcept { return wanted <= count - taken_; }
    [[nodiscard]] operation* take() noexcept {
        ++taken_;
        operation* one = free_;
        if (one != nullptr) {
            free_ = one->after;
        } else {
            one = all_ + fresh_++;
        }
        return ::new (static_cast<void*>(one)) operation;
    }
    void give(operation* one) noexcept {
        --taken_;
        one->after = free_;
        free_ = one;
    }

private:
    static constexpr std::size_t count = std::size_t{1} << 20;
    static constexpr std::size_t bytes = count * sizeof(operation);

    operation* all_ = nullptr;
    operation* free_ = nullptr;
    std::size_t fresh_ = 0;
    std::size_t taken_ = 0;
};

class queue {
public:
    // What a queue needs of its driver.
    struct surroundings {
        void* driver;
        device* (*device_at)(void* driver, address at) noexcept;  // nullptr: host memory
        bool (*owns)(void* driver, address at) noexcept;          // whether it is a frame's
        void (*await)(void* driver, ticket point) noexcept;       // returns when it is reached
    };

    [[nodiscard]] bool is_open() const noexcept { return worker_.joinable(); }
    [[nodiscard]] device& on() const noexcept { return *device_; }

    [[nodiscard]] status open(queue_id id, queue_priority priority, device& on, compute_pool& pool,
                              surroundings around) noexcept {
        if (const status outcome = slab_.open(); !outcome) {
            return outcome;
        }
        id_ = id, priority_ = priority, device_ = &on, pool_ = &pool, around_ = around;
        is_closing_ = false;
        lost_from_.store(never, std::memory_order_relaxed);  // the new worker starts after
        try {
            const xmm::detail::signals_blocked quiet;
            worker_ = std::thread{[this] { work(); }};
        } catch (const std::exception&) {
            return fail(errc::no_memory, "no thread for a queue", EAGAIN);
        }
        return {};
    }

    // Returns when all submitted work is over.
    void close() noexcept {
        with(lock_, [&] { is_closing_ = true; });
        ring();
        worker_.join();
    }

    // Submits one call of `count` operations; fill(i, operation&) sets what each does.
    template <class Fill>
    [[nodiscard]] result<ticket> submit(std::size_t count, Fill&& fill) noexcept {
        std::uint64_t value = 0;
        {
            std::lock_guard hold{lock_};
            if (is_lost()) {
                return fail(errc::device_lost, "the queue or its device is lost");
            }
            if (!slab_.has(count)) {
                return fail(errc::no_memory, "too much work waits in one queue");
            }
            const std::uint64_t now = now_ns();
            for (std::size_t i = 0; i < count; ++i) {
                operation* one = slab_.take();
                one->asked_at = now;
                one->is_first = i == 0;
                one->is_last = i + 1 == count;
                fill(i, *one);
                *(newest_ == nullptr ? &oldest_ : &newest_->after) = one;
                newest_ = one;
            }
            value = ++submitted_;
        }
        ring();
        return ticket{id_, value};
    }
    [[nodiscard]] result<ticket> record() noexcept {
        std::lock_guard hold{lock_};
        if (is_lost()) {
            return fail(errc::device_lost, "the queue or its device is lost");
        }
        return ticket{id_, submitted_};
    }

    [[nodiscard]] bool is_submitted(std::uint64_t value) noexcept {
        std::lock_guard hold{lock_};
        return value <= submitted_;
    }
    // acquire: pairs with the release in `finish`; who sees the ticket reached sees the work.
    [[nodiscard]] bool is_done(std::uint64_t value) const noexcept {
        return finished_.load(std::memory_order_acquire) >= value;
    }
    [[nodiscard]] status wait(std::uint64_t value) noexcept {
        if (!is_done(value) && !is_submitted(value)) {
            return fail(errc::invalid_argument, "a ticket that was never given");
        }
        waiters_.fetch_add(1, std::memory_order_seq_cst);
        while (true) {
            const std::uint32_t seen = finishes_.load(std::memory_order_seq_cst);
            if (is_done(value)) {
                break;
            }
            detail::futex_wait(finishes_, seen);
        }
        waiters_.fetch_sub(1, std::memory_order_relaxed);  // only costs a wake too many
        // relaxed: the worker set it before it published the ticket.
        return value < lost_from_.load(std::memory_order_relaxed)
                   ? status{}
                   : fail(errc::device_lost, "the work was lost with its queue or device");
    }

private:
    static constexpr std::uint64_t never = ~std::uint64_t{0};

    [[nodiscard]] bool is_lost() const noexcept {
        // relaxed: nothing but the fact is read. What is submitted just before it is known the worker loses.
        return device_->is_lost() || lost_from_.load(std::memory_order_relaxed) != never;
    }
    void ring() noexcept {
        bell_.fetch_add(1, std::memory_order_release);  // release: pairs with the acquire in `next`
        detail::futex_wake(bell_, 1);
    }

    // Waits for an operation; nullptr when the queue closes and nothing is left.
    [[nodiscard]] operation* next() noexcept {
        while (true) {
            // acquire: pairs with the release in `ring`; what it rang for is on the list when the lock is had.
            const std::uint32_t seen = bell_.load(std::memory_order_acquire);
            bool is_closing = false;
            operation* one = with(lock_, [&] {
                is_closing = is_closing_;
                operation* first = oldest_;
                if (first != nullptr) {
                    oldest_ = first->after;
                    newest_ = oldest_ == nullptr ? nullptr : newest_;
                }
                return first;
            });
            if (one != nullptr || is_closing) {
                return one;
            }
            detail::futex_wait(bell_, seen);
        }
    }

    void work() noexcept {
        ::pthread_setname_np(::pthread_self(), "xmm-soft-queue");
        sleep_precisely();
        // relaxed: only the worker writes it, and the slot's worker before this one was joined.
        std::uint64_t value = finished_.load(std::memory_order_relaxed) + 1;
        while (operation* one = next()) {
            // A host call is made in any case: its caller may have to free something there.
            if (!is_lost() || one->what == operation::kind::call) {
                if (!perform(*one) || device_->is_lost()) {
                    lose(value);
                }
            } else {
                lose(value);
            }
            if (one->body != nullptr) {
                one->body->destroy(*one->body);
            }
            if (one->is_last) {
                finish(value++);
            }
            with(lock_, [&] { slab_.give(one); });
        }
    }
    void lose(std::uint64_t value) noexcept {
        // relaxed: `finish` publishes it.
        if (lost_from_.load(std::memory_order_relaxed) == never) {
            lost_from_.store(value, std::memory_order_relaxed);
        }
    }
    void finish(std::uint64_t value) noexcept {
        // release: pairs with the acquire in is_done.
        finished_.store(value, std::memory_order_release);
        finishes_.fetch_add(1, std::memory_order_seq_cst);
        // seq_cst on both sides: either the waiter sees the new count or we see the waiter.
        if (waiters_.load(std::memory_order_seq_cst) != 0) {
            detail::futex_wake_all(finishes_);
        }
    }

    [[nodiscard]] bool perform(operation& one) noexcept {
        if (one.what == operation::kind::copy) {
            move_bytes(one);
            return true;
        }
        const bool is_kept = perform_here(one);
        ready_at_ = now_ns();
        return is_kept;
    }
    [[nodiscard]] bool perform_here(operation& one) noexcept {
        using enum operation::kind;
        switch (one.what) {
            case zero:
                if (!make_present(one.to)) {
                    static_cast<void>(xmm::detail::populate(one.to, access::read_write));
                }
                std::memset(to_pointer(one.to.begin), 0, one.to.bytes);
                return true;
            case await: around_.await(around_.driver, one.point); return true;
            case call: one.fn(one.context); return true;
            case launch: return pool_->execute(*one.body);
            default: return true;
        }
    }

    // Whole pages of frames that have no memory yet get huge pages: sooner, and for a copy not in the link's time.
    // False: something else, and left as it is.
    bool make_present(va_range to) const noexcept {
        if (to.begin % page_bytes != 0 || to.bytes % page_bytes != 0 ||
            !around_.owns(around_.driver, to.begin)) {
            return false;
        }
        xmm::detail::populate_huge(to);
        return true;
    }
    void move_bytes(const operation& one) noexcept {
        device* source = around_.device_at(around_.driver, one.from);
        device* target = around_.device_at(around_.driver, one.to.begin);
        static_cast<void>(make_present(one.to));
        // Within one device nothing crosses the link.
        lane* out = source != nullptr && source != target ? &source->out() : nullptr;
        lane* in = target != nullptr && source != target ? &target->in() : nullptr;
        lane* paced_out = out != nullptr && out->is_paced() ? out : nullptr;
        lane* paced_in = in != nullptr && in->is_paced() ? in : nullptr;
        if (one.is_first) {
            passed_at_ = 0, latency_ns_ = 0;
        }
        for (device* end : {source, target}) {
            if (end != nullptr && source != target) {
                latency_ns_ = std::max(latency_ns_, end->options().link_latency_ns);
            }
        }
        const lane::passage whole_out{paced_out, priority_};
        const lane::passage whole_in{paced_in, priority_};
        // Once what stood in the queue before it was over, it waited for the link alone.
        std::uint64_t asked_at = std::max(one.asked_at, ready_at_);
        for (std::size_t done = 0; done < one.to.bytes;) {
            std::size_t some = one.to.bytes - done;
            for (lane* way : {out, in}) {
                some = way == nullptr ? some : std::min(some, way->slice_bytes());
            }
            for (lane* way : {out, in}) {
                if (way != nullptr) {
                    way->count(some);
                }
            }
            std::uint64_t passed = 0;
            if (paced_out != nullptr && paced_in != nullptr) {
                passed = lane::enter(*paced_out, *paced_in, priority_, some, asked_at);
            } else if (lane* only = paced_out != nullptr ? paced_out : paced_in) {
                passed = only->enter(priority_, some, asked_at);
            }
            std::memcpy(to_pointer(one.to.begin + done), to_pointer(one.from + done), some);
            sleep_until(passed);
            for (lane* way : {paced_out, paced_in}) {
                if (way != nullptr) {
                    way->leave();
                }
            }
            passed_at_ = std::max(passed_at_, passed);
            asked_at = passed_at_;
            done += some;
        }
        ready_at_ = passed_at_ != 0 ? passed_at_ : now_ns();
        if (one.is_last && latency_ns_ != 0) {
            ready_at_ += latency_ns_;
            sleep_until(ready_at_);
        }
    }

    queue_id id_;  // (C) while open, as are the next four
    queue_priority priority_ = queue_priority::normal;
    device* device_ = nullptr;
    compute_pool* pool_ = nullptr;
    surroundings around_{};
    std::thread worker_;

    ranked_mutex<lock_rank::backend_queue> lock_;
    operation_slab slab_;  // under lock_, as are the next four
    operation* oldest_ = nullptr;
    operation* newest_ = nullptr;
    std::uint64_t submitted_ =
        0;  // never reset: tickets of earlier queues of the slot stay reached
    bool is_closing_ = false;

    detail::futex_word bell_{0};
    detail::futex_word finishes_{0};
    detail::futex_word waiters_{0};
    std::atomic<std::uint64_t> finished_{0};
    std::atomic<std::uint64_t> lost_from_{never};
    std::uint64_t passed_at_ = 0;  // the worker's, for the call at hand, as is the next
    std::uint64_t latency_ns_ = 0;
    std::uint64_t ready_at_ = 0;  // the worker's: when the operation before was over
};

}  // namespace xmm::soft
