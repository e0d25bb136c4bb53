// SPDX-License-Identifier: Apache-2.0
// signal_chain.hpp - a signal handler in front of those that were there before.
//
// Model    The chain of one signal: our handler, then whoever was in front when we took the front, latest
//          first. A handler that we call may itself call us; the mark that we leave in its siginfo_t
//          tells us to go on with the one before it.
// Threads  take_front: the owner's lock. call_earlier: any, async-signal-safe.
// Failure  The default action is the end of the chain.
// Limits   An earlier handler without SA_ONSTACK runs on the alternate stack if the thread has one.
#pragma once

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/os/signal_mask.hpp>

namespace xmm::detail {

// What the access that raised the signal wanted; a write where the processor does not tell. None of both: it fetched
// an instruction.
[[nodiscard]] inline access wanted_by(const ucontext_t& context) noexcept {
#if defined(__x86_64__)
    constexpr greg_t write_bit = 2;
    constexpr greg_t fetch_bit = 16;
    const greg_t error = context.uc_mcontext.gregs[REG_ERR];
    if ((error & fetch_bit) != 0) {
        return access::none;
    }
    return (error & write_bit) != 0 ? access::write : access::read;
#elif defined(__aarch64__)
    // Records {magic, bytes} follow each other; the one with this magic holds the syndrome register.
    constexpr std::uint32_t esr_magic = 0x45535201;
    const auto* at = reinterpret_cast<const unsigned char*>(context.uc_mcontext.__reserved);
    const auto* const end = at + sizeof context.uc_mcontext.__reserved;
    while (end - at >= 16) {
        std::uint32_t head[2];
        std::memcpy(head, at, sizeof head);
        if (head[0] == esr_magic) {
            std::uint64_t esr = 0;
            std::memcpy(&esr, at + 8, sizeof esr);
            const std::uint64_t kind = esr >> 26 & 0x3f;
            if (kind == 0x20 || kind == 0x21) {
                return access::none;
            }
            const bool is_data_abort = kind == 0x24 || kind == 0x25;
            const bool is_write = is_data_abort && (esr >> 6 & 1) != 0;
            return is_write ? access::write : access::read;
        }
        if (head[0] == 0 || head[1] < 8) {
            break;
        }
        at += head[1];
    }
    return access::write;
#endif
}

class signal_chain {
public:
    using handler = void (*)(int, siginfo_t*, void*) noexcept;

    // Installs `ours` unless it is in front already, and notes who was.
    status take_front(int signal, handler ours) noexcept;

    // Whether the chain called our handler with this, and not the kernel.
    [[nodiscard]] static bool is_called_again(const siginfo_t& info) noexcept {
        return mark_of(info).magic == mark::right_magic;
    }

    // Calls the handler that was there before, as the kernel would have: its mask, its arguments.
    // `repeats`: whether the fault raises the signal again when we return, so that the default action
    // can hit the access itself.
    void call_earlier(int signal, siginfo_t& info, void* context, bool repeats) noexcept;

private:
    static constexpr unsigned capacity = 15;  // four bits each, and a 0 at the end

    // In the tail of siginfo_t, which the kernel hands over zeroed and which handlers that chain pass on.
    struct mark {
        static constexpr std::uint64_t right_magic = 0x6b72616d6d6d7821;
        std::uint64_t magic;
        std::uint64_t number;  // of the handler that was called
    };

    [[nodiscard]] static mark mark_of(const siginfo_t& info) noexcept {
        mark found;
        std::memcpy(&found, tail_of(info), sizeof found);
        return found;
    }
    static void set_mark(siginfo_t& info, mark to) noexcept {
        std::memcpy(const_cast<unsigned char*>(tail_of(info)), &to, sizeof to);
    }
    static const unsigned char* tail_of(const siginfo_t& info) noexcept {
        return reinterpret_cast<const unsigned char*>(&info) + sizeof info - sizeof(mark);
    }
    // The same function: noted twice where it was installed with different flags, and once in the order.
    [[nodiscard]] bool is_same(std::uint64_t one, std::uint64_t other) const noexcept {
        return earlier_[one - 1].sa_sigaction == earlier_[other - 1].sa_sigaction;
    }
    // The same, but for `number`, which comes first.
    [[nodiscard]] std::uint64_t with_first(std::uint64_t order, unsigned number) const noexcept {
        std::uint64_t moved = number;
        for (unsigned shift = 4; order != 0; order >>= 4) {
            if (!is_same(order & 15, number)) {
                moved |= (order & 15) << shift;
                shift += 4;
            }
        }
        return moved;
    }
    // Who comes after `number`; 0: nobody.
    [[nodiscard]] unsigned after(std::uint64_t order, std::uint64_t number) const noexcept {
        while (order != 0 && !is_same(order & 15, number)) {
            order >>= 4;
        }
        return static_cast<unsigned>(order >> 4 & 15);
    }
    [[nodiscard]] static bool is_alike(const struct sigaction& one,
                                       const struct sigaction& other) noexcept {
        bool is_same_mask = true;
        for (int signal = 1; signal < NSIG; ++signal) {
            is_same_mask = is_same_mask && ::sigismember(&one.sa_mask, signal) ==
                                               ::sigismember(&other.sa_mask, signal);
        }
        return one.sa_sigaction == other.sa_sigaction && one.sa_flags == other.sa_flags &&
               is_same_mask;
    }
    static void die_of(int signal, siginfo_t& info, bool repeats) noexcept;
    static sigset_t mask_for(int signal, const struct sigaction& action,
                             const void* context) noexcept;

    // (C) constant once in the order  (A) atomic  (O) the owner's lock. Handler number n is in place n - 1; the order
    // is of numbers, four bits each, who is called first lowest.
    std::array<struct sigaction, capacity> earlier_{};    // (C)
    std::array<std::atomic<bool>, capacity> is_spent_{};  // (A) SA_RESETHAND, and used
    unsigned count_ = 0;                                  // (O)
    std::atomic<std::uint64_t> order_{0};                 // (A)
};

// Notes who is in front before taking its place: our handler may run at once.
inline status signal_chain::take_front(int signal, handler ours) noexcept {
    struct sigaction front {};
    ::sigaction(signal, nullptr, &front);
    if ((front.sa_flags & SA_SIGINFO) != 0 && front.sa_sigaction == ours) {
        return {};
    }
    unsigned at = 0;
    while (at < count_ && !is_alike(earlier_[at], front)) {
        ++at;
    }
    if (at == count_) {
        if (count_ == capacity) {
            return fail(errc::no_memory, "too many signal handlers were installed in front");
        }
        earlier_[count_++] = front;
    }
    // relaxed, both: written here only, by one caller at a time; of the flag, see call_earlier.
    is_spent_[at].store(false, std::memory_order_relaxed);
    const std::uint64_t order = order_.load(std::memory_order_relaxed);
    // release: pairs with the acquire in call_earlier.
    order_.store(with_first(order, at + 1), std::memory_order_release);
    struct sigaction mine {};
    mine.sa_sigaction = ours;
    mine.sa_mask = asynchronous_signals();
    // NODEFER: a handler that we chain to may itself raise the signal, for us to serve.
    mine.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    if (::sigaction(signal, &mine, nullptr) != 0) {
        return fail(errc::unsupported, "the kernel refuses a signal handler", errno);
    }
    return {};
}

inline void signal_chain::call_earlier(int signal, siginfo_t& info, void* context,
                                       bool repeats) noexcept {
    const mark before = mark_of(info);
    // acquire: pairs with the release in take_front; who is in the order is noted.
    const std::uint64_t order = order_.load(std::memory_order_acquire);
    const unsigned next = before.magic == mark::right_magic ? after(order, before.number)
                                                            : static_cast<unsigned>(order & 15);
    if (next == 0) {
        die_of(signal, info, repeats);
        return;
    }
    const struct sigaction& action = earlier_[next - 1];
    const bool is_once =
        (static_cast<unsigned>(action.sa_flags) & static_cast<unsigned>(SA_RESETHAND)) != 0;
    // relaxed: the flag only says who was first.
    const bool is_spent = is_once && is_spent_[next - 1].exchange(true, std::memory_order_relaxed);
    if (action.sa_handler == SIG_IGN && info.si_code <= 0) {
        return;  // sent by a process, and ignored; the kernel lets no fault be ignored
    }
    if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN || is_spent) {
        die_of(signal, info, repeats);
        return;
    }
    const sigset_t mask = mask_for(signal, action, context);
    sigset_t mask_before;
    ::pthread_sigmask(SIG_SETMASK, &mask, &mask_before);
    set_mark(info, {mark::right_magic, next});
    if ((action.sa_flags & SA_SIGINFO) != 0) {
        action.sa_sigaction(signal, &info, context);
    } else {
        action.sa_handler(signal);
    }
    set_mark(info, before);
    ::pthread_sigmask(SIG_SETMASK, &mask_before, nullptr);
}

// What the kernel would have blocked during that handler.
inline sigset_t signal_chain::mask_for(int signal, const struct sigaction& action,
                                       const void* context) noexcept {
    sigset_t mask = static_cast<const ucontext_t*>(context)->uc_sigmask;
    for (int other = 1; other < NSIG; ++other) {
        if (::sigismember(&action.sa_mask, other) == 1) {
            ::sigaddset(&mask, other);
        }
    }
    if ((action.sa_flags & SA_NODEFER) == 0) {
        ::sigaddset(&mask, signal);
    }
    return mask;
}

// A fault that repeats hits the access itself when we return: the better core dump. Otherwise the signal
// is sent again, with what it told.
inline void signal_chain::die_of(int signal, siginfo_t& info, bool repeats) noexcept {
    struct sigaction action {};
    action.sa_handler = SIG_DFL;
    ::sigaction(signal, &action, nullptr);
    if (repeats && info.si_code > 0) {
        return;
    }
    sigset_t mask;
    ::sigemptyset(&mask);
    ::sigaddset(&mask, signal);
    ::pthread_sigmask(SIG_UNBLOCK, &mask, nullptr);
    ::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), ::syscall(SYS_gettid), signal, &info);
}

}  // namespace xmm::detail
