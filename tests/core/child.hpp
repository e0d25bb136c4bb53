// SPDX-License-Identifier: Apache-2.0
// child.hpp - code that is meant to die, in a process of its own.
//
// Model    in_child() forks: for code that may run in a copy of this process. in_fresh_process() starts
//          this program anew on the test case that calls it: for what needs a space of its own, since a
//          forked child can have none. There is_fresh_process() answers true.
#pragma once

#include <doctest/doctest.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace xmm::test {

struct ending {
    int signal = 0;
    int exit_code = 0;
    std::string text;  // stdout and stderr

    // Sanitizers turn a signal into an exit code.
    [[nodiscard]] bool is_crash() const { return signal != 0 || exit_code != 0; }
    [[nodiscard]] bool says(std::string_view part) const {
        return text.find(part) != std::string::npos;
    }
};

namespace detail {

template <class Fn>
ending run_child(Fn&& body) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    std::fflush(nullptr);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const rlimit none{0, 0};
        ::setrlimit(RLIMIT_CORE, &none);
        ::dup2(ends[1], 1);
        ::dup2(ends[1], 2);
        ::close(ends[0]);
        ::close(ends[1]);
        ::alarm(60);  // a hang is a death, too, but not by SIGSEGV
        body();
        std::fflush(nullptr);
        ::_exit(0);
    }
    ::close(ends[1]);
    ending how;
    char some[512];
    for (ssize_t count; (count = ::read(ends[0], some, sizeof some)) > 0;) {
        how.text.append(some, static_cast<std::size_t>(count));
    }
    ::close(ends[0]);
    int state = 0;
    ::waitpid(child, &state, 0);
    how.signal = WIFSIGNALED(state) ? WTERMSIG(state) : 0;
    how.exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : 0;
    CHECK(how.signal != SIGALRM);
    return how;
}

}  // namespace detail

// The body ends, or it returns and the child exits with 0. No doctest assertions inside.
template <class Fn>
ending in_child(Fn&& body) {
    return detail::run_child(body);
}

inline bool is_fresh_process() { return std::getenv("XMM_TEST_FRESH_PROCESS") != nullptr; }

// Runs the calling test case, whose name has no comma, in a new process.
inline ending in_fresh_process() {
    const std::string name = doctest::getContextOptions()->currentTest->m_name;
    REQUIRE_MESSAGE(name.find(',') == std::string::npos, "a filter ends at a comma");
    const std::string filter = "--test-case=" + name;
    return detail::run_child([&] {
        ::setenv("XMM_TEST_FRESH_PROCESS", "1", 1);
        ::execl("/proc/self/exe", "test", filter.c_str(), static_cast<char*>(nullptr));
        ::_exit(127);
    });
}

}  // namespace xmm::test
