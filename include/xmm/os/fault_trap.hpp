// SPDX-License-Identifier: Apache-2.0
// fault_trap.hpp - a CPU access to a missing page, handed to a service thread.
//
// Model    A hole is a stretch of addresses without memory. A touch of it stops the thread: by SIGSEGV,
//          whose handler posts a request and waits, or, where the kernel grants userfaultfd, inside the
//          kernel. A service thread asks the sink that owns the address to map something there; then
//          the access is retried. So the sink runs in ordinary context, while the thread that faulted
//          may hold any lock of the user's or of malloc's.
// Threads  Any. A sink's handle() runs on several service threads at once, and on those that ask(). It must not
//          touch holes, call malloc, or wait for a lock that someone holds while touching one. It may wait for
//          work that takes long, and may itself lead to a fault, only with a long_wait: one service thread is
//          always left for other faults. Without, it answers `deferred`, and the trap asks again.
// Failure  What a sink cannot resolve gets one message on stderr, then the handler that was there before
//          the trap, which usually ends the process. Faults that no sink owns, jumps, and a SIGBUS that stays
//          when the page is there, go to that handler as if the trap were not there.
// Limits   By signals only (no userfaultfd): a system call on a hole gets EFAULT, without a signal; a
//          thread that blocks SIGSEGV is killed by the kernel. In both ways: a handler installed later
//          must chain, or be followed by rearm(); an earlier handler without SA_ONSTACK runs on the
//          alternate stack if the thread has one; a child of fork gets a message, not the memory. A handler of an
//          asynchronous signal that interrupts a call of xmm must not touch a sink's memory: the interrupted thread
//          may own what the fault waits for, and both wait for ever. By signals, a thread that waits here takes none.
// See      signal_chain.hpp, userfaultfd.hpp: the two ways. fault_sinks.hpp: cpu_fault_sink.
#pragma once

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/os/bus_retries.hpp>
#include <xmm/os/conf.hpp>
#include <xmm/os/crash_message.hpp>
#include <xmm/os/fault_requests.hpp>
#include <xmm/os/fault_sinks.hpp>
#include <xmm/os/host_memory.hpp>
#include <xmm/os/registry.hpp>
#include <xmm/os/signal_chain.hpp>
#include <xmm/os/signal_mask.hpp>
#include <xmm/os/userfaultfd.hpp>

namespace xmm {

class fault_trap {
public:
    static constexpr const char* registry_key = "fault_trap/3";

    static fault_trap& instance() { return registry::object<fault_trap>(); }

    fault_trap() noexcept;
    fault_trap(const fault_trap&) = delete;
    fault_trap& operator=(const fault_trap&) = delete;

    // From now on the sink is asked. The first call takes over SIGSEGV and SIGBUS and starts the service
    // threads. no_memory: no thread, or 64 sinks already; forked: in a child of fork.
    status add(cpu_fault_sink sink) noexcept;

    // From return on, no thread is inside the sink of this context, nor will be. Not from handle().
    void remove(void* context) noexcept;

    // Takes the front again after someone installed a handler, which becomes the first to chain to; it
    // may itself chain to the trap. Nothing happens if the trap is in front already.
    status rearm() noexcept;

    // Replaces whatever is mapped in the range, which is whole OS pages, by a hole. Allocates
    // nothing once a sink was added. On failure the range is as before or a hole.
    status make_hole(va_range range) noexcept;

    // Whether holes work by userfaultfd: system calls on them work, and no signal is needed.
    [[nodiscard]] bool has_userfaultfd() noexcept { return start().is_ok() && events_.is_open(); }

    // Whether some sink owns the address. Lock-free.
    [[nodiscard]] bool is_owned(address at) noexcept {
        auto* owner = sinks_.find_owner(at);
        if (owner != nullptr) {
            sinks_.release(*owner);
        }
        return owner != nullptr;
    }

    // While it lives, the thread may wait long. False: it is the last service thread that does not, and must not.
    // Other threads may always.
    class long_wait {
    public:
        long_wait() noexcept
            : trap_{instance()},
              is_counted_{trap_.is_service(::pthread_self())},
              is_granted_{!is_counted_ || trap_.try_wait_long()} {}
        ~long_wait() {
            if (is_counted_ && is_granted_) {
                trap_.long_waits_.fetch_sub(1, std::memory_order_relaxed);  // relaxed: only a count
            }
        }
        long_wait(const long_wait&) = delete;
        long_wait& operator=(const long_wait&) = delete;
        [[nodiscard]] explicit operator bool() const noexcept { return is_granted_; }

    private:
        fault_trap& trap_;
        const bool is_counted_;
        const bool is_granted_;
    };

    // Has the owner of the address serve a touch of it, on the calling thread. `resolved` for plain memory, too.
    [[nodiscard]] cpu_fault_outcome ask(address at, access wanted) noexcept {
        auto* owner = sinks_.find_owner(at);
        if (owner == nullptr) {
            return cpu_fault_outcome::resolved;
        }
        const char* why = "";
        const auto outcome = owner->sink.handle(owner->sink.context, at, wanted, &why);
        sinks_.release(*owner);
        return outcome;
    }

    // Whether the caller is a thread that runs sinks' handle().
    [[nodiscard]] static bool is_service_thread() noexcept {
        return instance().is_service(::pthread_self());
    }

private:
    static constexpr unsigned thread_count =
        65;  // 64 service threads and the reader of userfaultfd

    // How long a deferred fault sleeps: on the thread that faulted, or, of an event, on a service thread.
    static constexpr unsigned deferred_touch_us = 500;
    static constexpr unsigned deferred_event_us = 100;

    enum class answer : std::uint8_t { retry, not_ours, failed };

    struct service_id {
        std::atomic<::pthread_t> thread{};  // (A)
        std::atomic<::pid_t> tid{0};        // (A) 0: unused
    };

    [[nodiscard]] status start() noexcept;
    [[nodiscard]] status start_locked() noexcept;
    [[nodiscard]] bool try_wait_long() noexcept;
    [[nodiscard]] status start_thread_locked(void* (*body)(void*)) noexcept;
    [[nodiscard]] status take_front_locked() noexcept;

    [[nodiscard]] bool is_service(::pthread_t thread) const noexcept;
    [[nodiscard]] bool is_service_tid(::pid_t tid) const noexcept;

    void serve(detail::fault_request& taken) noexcept;
    [[nodiscard]] answer serve_from_handler(address at, access wanted) noexcept;
    void enlist_service_thread() noexcept;
    void serve_forever() noexcept;
    void read_events_forever() noexcept;

    static void on_signal(int signal, siginfo_t* info, void* context) noexcept;
    void handle_signal(int signal, siginfo_t& info, void* context) noexcept;
    [[nodiscard]] bool is_missing_page(int signal, const siginfo_t& info) const noexcept;

    [[nodiscard]] detail::signal_chain& chain_of(int signal) noexcept {
        return signal == SIGSEGV ? segv_chain_ : bus_chain_;
    }

    // The trap as its handler finds it: set by the constructor, in the shared object that stays loaded
    // and whose handler is the one installed.
    static inline std::atomic<fault_trap*> of_handler_{nullptr};

    // (C) constant once built  (L) lock_  (A) atomic
    const detail::signal_chain::handler handler_;  // (C) code of the shared object that stays
    void* (*const serve_body_)(void*);             // (C) the same
    void* (*const read_body_)(void*);              // (C) the same
    std::atomic<bool> is_started_{false};          // (A)
    ranked_mutex<lock_rank::leaf> lock_;  // starting, arming, adding; never taken by a handler
    detail::userfaultfd events_;          // (C) once the handler is installed
    std::atomic<unsigned> service_threads_{0};  // (A) written under L
    std::atomic<unsigned> long_waits_{0};       // (A) service threads that wait long
    detail::signal_chain segv_chain_;           // taking the front: (L)
    detail::signal_chain bus_chain_;            // the same
    detail::bus_retries bus_retries_;           // its own
    detail::sink_table sinks_;                  // adding, hiding: (L)
    detail::request_board requests_;            // its own
    service_id services_[thread_count];         // per field
    std::atomic<unsigned> services_known_{0};   // (A)
};

// --- sinks ---

inline status fault_trap::add(cpu_fault_sink sink) noexcept {
    XMM_ASSERT(sink.owns != nullptr && sink.handle != nullptr, "a sink needs both functions");
    if (const status started = start(); !started) {
        return started;
    }
    return with(lock_, [&] { return sinks_.add_locked(sink); })
               ? status{}
               : fail(errc::no_memory, "too many fault sinks");
}

inline void fault_trap::remove(void* context) noexcept {
    XMM_ASSERT(!is_service(::pthread_self()), "a sink removed from inside a handler");
    if (registry::is_forked_child()) {
        // Whoever held the lock or the slot at the fork is not here to let go of it, nor to be added.
        while (sinks_.hide_locked(context) != nullptr) {
        }
        return;
    }
    while (auto* hidden = with(lock_, [&] { return sinks_.hide_locked(context); })) {
        detail::sink_table::wait_until_free(*hidden);
    }
}

// --- requests ---

inline void fault_trap::serve(detail::fault_request& taken) noexcept {
    const cpu_fault_sink& sink = taken.owner->sink;
    taken.why = "";
    taken.outcome = sink.handle(sink.context, taken.at, taken.wanted, &taken.why);
    if (!taken.is_event) {
        detail::request_board::answer(taken);
        return;
    }
    detail::sink_table::release(*taken.owner);
    if (taken.outcome == cpu_fault_outcome::deferred) {
        ::usleep(deferred_event_us);  // then it faults anew
    }
    if (taken.outcome == cpu_fault_outcome::resolved ||
        taken.outcome == cpu_fault_outcome::deferred) {
        events_.wake(taken.at);
    } else {
        events_.poison(taken.at);  // so the thread gets a signal, and the handler asks and reports
    }
    requests_.give_back(taken);
}

// On the thread that faulted, in its signal handler.
inline fault_trap::answer fault_trap::serve_from_handler(address at, access wanted) noexcept {
    auto* owner = sinks_.find_owner(at);
    if (owner == nullptr) {
        return answer::not_ours;
    }
    detail::crash_message message;
    message.add(wanted == access::write ? "xmm: write to " : "xmm: read of ").add(at);
    if (is_service(::pthread_self())) {
        message.add(" by a fault service thread: a sink must not touch unified memory").write();
        ::abort();
    }
    if (registry::is_forked_child()) {
        detail::sink_table::release(*owner);
        message.add(": unified memory of the parent process; a child of fork cannot use it")
            .write();
        return answer::failed;
    }
    cpu_fault_outcome outcome = cpu_fault_outcome::deferred;
    const char* why = "";
    for (;;) {
        detail::fault_request& mine = requests_.claim();
        mine.at = at;
        mine.wanted = wanted;
        mine.is_event = false;
        mine.owner = owner;
        requests_.post(mine);
        detail::request_board::wait_for_answer(mine);
        outcome = mine.outcome;
        why = mine.why;
        requests_.give_back(mine);
        if (outcome != cpu_fault_outcome::deferred) {
            break;
        }
        ::usleep(deferred_touch_us);  // here it keeps no service thread
    }
    detail::sink_table::release(*owner);
    if (outcome == cpu_fault_outcome::resolved) {
        return answer::retry;
    }
    message.add(": ").add(detail::name_of(outcome));
    if (why != nullptr && why[0] != '\0') {
        message.add(": ").add(std::string_view{why});
    }
    message.write();
    return answer::failed;
}

// --- threads ---

inline bool fault_trap::try_wait_long() noexcept {
    // relaxed, all: counts, and what is waited for is ordered by its own means.
    const unsigned threads = service_threads_.load(std::memory_order_relaxed);
    unsigned waiting = long_waits_.load(std::memory_order_relaxed);
    while (waiting + 1 < threads) {
        if (long_waits_.compare_exchange_weak(waiting, waiting + 1, std::memory_order_relaxed)) {
            return true;
        }
    }
    return false;
}

inline bool fault_trap::is_service(::pthread_t thread) const noexcept {
    // A thread enlists itself, so it finds itself. acquire: pairs with the releases in enlist_service_thread,
    // so that of other threads' entries only whole ones are compared.
    const unsigned known = services_known_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < known && i < thread_count; ++i) {
        if (services_[i].tid.load(std::memory_order_acquire) != 0 &&
            services_[i].thread.load(std::memory_order_relaxed) == thread) {
            return true;
        }
    }
    return false;
}

inline bool fault_trap::is_service_tid(::pid_t tid) const noexcept {
    for (const service_id& one : services_) {
        if (one.tid.load(std::memory_order_acquire) == tid) {
            return true;
        }
    }
    return false;
}

inline void fault_trap::enlist_service_thread() noexcept {
    service_id& mine = services_[services_known_.fetch_add(1, std::memory_order_acq_rel)];
    mine.thread.store(::pthread_self(), std::memory_order_relaxed);
    mine.tid.store(static_cast<::pid_t>(::syscall(SYS_gettid)), std::memory_order_release);
}

inline void fault_trap::serve_forever() noexcept {
    enlist_service_thread();
    // What a checked lock keeps for each thread is there before the first fault: making it may allocate, and who
    // faults may hold a lock of malloc's.
    with(lock_, [] {});
    for (;;) {
        serve(requests_.next());
    }
}

// Reads and hands out, and never runs a sink: so it is there to notice when one touches a hole.
inline void fault_trap::read_events_forever() noexcept {
    enlist_service_thread();
    for (;;) {
        const detail::page_event event = events_.read();
        auto* owner = sinks_.find_owner(event.at);
        if (owner == nullptr) {
            events_.poison(event.at);
            continue;
        }
        if (is_service_tid(event.thread)) {
            detail::crash_message{}
                .add("xmm: access to ")
                .add(event.at)
                .add(" by a fault service thread: a sink must not touch unified memory")
                .write();
            ::abort();
        }
        detail::fault_request& mine = requests_.claim();
        mine.at = event.at;
        mine.wanted = event.wanted;
        mine.is_event = true;
        mine.owner = owner;
        requests_.post(mine);
    }
}

inline status fault_trap::start() noexcept {
    if (registry::is_forked_child()) {
        return fail(errc::forked, "the service threads stayed in the parent process");
    }
    // acquire: pairs with the release below.
    if (is_started_.load(std::memory_order_acquire)) {
        return {};
    }
    return with(lock_, [&] { return start_locked(); });
}

inline status fault_trap::start_locked() noexcept {
    if (is_started_.load(std::memory_order_relaxed)) {
        return {};
    }
    const conf& settings = conf::of_process();
    const auto wanted =
        static_cast<unsigned>(settings.number("service_threads", 4, 1, thread_count - 1));
    for (; service_threads_.load(std::memory_order_relaxed) < wanted;
         service_threads_.fetch_add(1, std::memory_order_relaxed)) {  // relaxed: see try_wait_long
        if (const status made = start_thread_locked(serve_body_); !made) {
            if (service_threads_.load(std::memory_order_relaxed) > 0) {
                break;  // fewer will do
            }
            return made;
        }
    }
    // Before the handler is installed, since that looks at it.
    if (!events_.is_open() && settings.flag("userfaultfd", true) && events_.open() &&
        !start_thread_locked(read_body_)) {
        events_.close();
    }
    if (const status armed = take_front_locked(); !armed) {
        return armed;
    }
    is_started_.store(true, std::memory_order_release);
    return {};
}

inline status fault_trap::start_thread_locked(void* (*body)(void*)) noexcept {
    pthread_attr_t detached;
    if (::pthread_attr_init(&detached) != 0) {
        return fail(errc::no_memory, "no service thread");
    }
    ::pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    const detail::signals_blocked quiet;  // it serves faults and nobody's signals
    pthread_t thread;
    const int error = ::pthread_create(&thread, &detached, body, this);
    ::pthread_attr_destroy(&detached);
    return error == 0 ? status{} : fail(errc::no_memory, "no service thread", error);
}

inline fault_trap::fault_trap() noexcept
    : handler_{&on_signal},
      serve_body_{[](void* self) -> void* {
          static_cast<fault_trap*>(self)->serve_forever();
          return nullptr;
      }},
      read_body_{[](void* self) -> void* {
          static_cast<fault_trap*>(self)->read_events_forever();
          return nullptr;
      }} {
    // release: pairs with the acquire in on_signal.
    of_handler_.store(this, std::memory_order_release);
}

// --- signals ---

inline status fault_trap::rearm() noexcept {
    if (const status started = start(); !started) {
        return started;
    }
    return with(lock_, [&] { return take_front_locked(); });
}

inline status fault_trap::take_front_locked() noexcept {
    const status segv = segv_chain_.take_front(SIGSEGV, handler_);
    return segv ? bus_chain_.take_front(SIGBUS, handler_) : segv;
}

inline void fault_trap::on_signal(int signal, siginfo_t* info, void* context) noexcept {
    const int errno_before = errno;
    of_handler_.load(std::memory_order_acquire)->handle_signal(signal, *info, context);
    errno = errno_before;
}

inline void fault_trap::handle_signal(int signal, siginfo_t& info, void* context) noexcept {
    const auto wanted = detail::wanted_by(*static_cast<const ucontext_t*>(context));
    const address at = to_address(info.si_addr);
    // Poisons are counted before a sink is asked, so that one of later is news.
    const std::uint64_t bus_number =
        signal == SIGBUS ? detail::bus_retries::number_of(at, events_.poisons()) : 0;
    // A sink maps data, so no mapping of its cures a jump there. Called by a handler that we chained to: it has been
    // asked for already.
    const bool is_asked_for = wanted != access::none && is_missing_page(signal, info) &&
                              !detail::signal_chain::is_called_again(info) &&
                              !(signal == SIGBUS && bus_retries_.has(bus_number));
    const answer got = is_asked_for ? serve_from_handler(at, wanted) : answer::not_ours;
    if (got == answer::retry) {
        if (signal == SIGBUS) {
            bus_retries_.note(bus_number);
        }
        return;
    }
    // SIGBUS is our own doing here, by poison: to the program it is the SIGSEGV of any missing page.
    const bool is_poison = got == answer::failed && signal == SIGBUS && events_.is_open();
    if (is_poison) {
        info.si_signo = SIGSEGV;
        info.si_code = SEGV_ACCERR;
    }
    chain_of(info.si_signo).call_earlier(info.si_signo, info, context, !is_poison);
}

// Faults that a mapping can cure. Signals sent by kill() carry no address; protection keys, hardware
// errors and the like are other people's.
inline bool fault_trap::is_missing_page(int signal, const siginfo_t& info) const noexcept {
    if (signal == SIGSEGV) {
        return info.si_code == SEGV_MAPERR || info.si_code == SEGV_ACCERR;
    }
    // Poison comes as a hardware error from kernels that are built for those, else as an address error.
    return info.si_code == BUS_ADRERR || (info.si_code == BUS_MCEERR_AR && events_.is_open());
}

// --- holes ---

inline status fault_trap::make_hole(va_range range) noexcept {
    const std::size_t os_page = os_page_bytes();
    if (range.is_empty() || range.end() < range.begin || range.begin % os_page != 0 ||
        range.bytes % os_page != 0) {
        return fail(errc::invalid_argument, "a hole is whole OS pages");
    }
    if (const status started = start(); !started) {
        return started;
    }
    detail::errno_keeper keep;
    void* at = to_pointer(range.begin);
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (detail::map_quietly(at, range.bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED) {
        return fail(errc::no_memory, "no mapping for a hole: vm.max_map_count is reached", errno);
    }
    // A child of fork would read zeros here, since the kernel drops the registration in it.
    if (!events_.is_open() || ::madvise(at, range.bytes, MADV_DONTFORK) != 0 ||
        !events_.watch(range)) {
        return {};
    }
    // Readable last: a touch before this is a signal, a touch after it an event, none reads zeros. If
    // the kernel refuses, it stays a hole by signals.
    ::mprotect(at, range.bytes, PROT_READ | PROT_WRITE);
    return {};
}

}  // namespace xmm
