// SPDX-License-Identifier: Apache-2.0
// signal_mask.hpp - threads of ours that are nobody's signal handlers.
//
// Model    A new thread inherits the mask of who starts it. What a thread raises by what it executes stays
//          open: a blocked SIGSEGV would end the process where the fault trap could serve it.
// Threads  Per thread, as the mask is.
#pragma once

#include <csignal>
#include <initializer_list>

#include <pthread.h>

namespace xmm::detail {

// All signals but those that a thread raises by what it executes.
[[nodiscard]] inline sigset_t asynchronous_signals() noexcept {
    sigset_t set;
    ::sigfillset(&set);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) {
        ::sigdelset(&set, own);
    }
    return set;
}

// Lives while threads are started.
class signals_blocked {
public:
    signals_blocked() noexcept {
        const sigset_t blocked = asynchronous_signals();
        ::pthread_sigmask(SIG_BLOCK, &blocked, &before_);
    }
    ~signals_blocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    signals_blocked(const signals_blocked&) = delete;
    signals_blocked& operator=(const signals_blocked&) = delete;

private:
    sigset_t before_;
};

}  // namespace xmm::detail
