// SPDX-License-Identifier: Apache-2.0
// child.hpp - test code that runs in a process of its own: it may die, and starts with a fresh registry.
//
// Model    A child_case runs, before main, in a process started with XMM_TEST_CHILD set to its name, and
//          ends it with its return value. run_child starts such a process from this executable.
#pragma once

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <poll.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/sanitizer.hpp"

namespace xmm_test {

struct child_case {
    child_case(const char* name, int (*body)()) {
        const char* asked = std::getenv("XMM_TEST_CHILD");
        if (asked != nullptr && std::strcmp(asked, name) == 0) {
            const rlimit no_core{0, 0};
            ::setrlimit(RLIMIT_CORE, &no_core);
            const int code = body();
            std::fflush(nullptr);
            ::_exit(code);
        }
    }
};

struct child_end {
    int exit_code = -1;  // -1: died by a signal
    int signal = 0;
    std::string errors;  // what it wrote, to stdout too

    [[nodiscard]] bool says(const char* text) const {
        return errors.find(text) != std::string::npos;
    }
};

// `name` empty: runs the executable's own main with the arguments.
inline child_end run_child(const char* name, std::vector<std::string> environment = {},
                           std::vector<std::string> arguments = {}) {
    for (char** entry = environ; *entry != nullptr; ++entry) {
        if (std::strncmp(*entry, "XMM_", 4) != 0) {
            environment.emplace_back(*entry);
        }
    }
    if (name[0] != '\0') {
        environment.push_back(std::string{"XMM_TEST_CHILD="} + name);
    }
    arguments.insert(arguments.begin(), "/proc/self/exe");
    std::vector<char*> env;
    for (std::string& entry : environment) {
        env.push_back(entry.data());
    }
    env.push_back(nullptr);
    std::vector<char*> args;
    for (std::string& entry : arguments) {
        args.push_back(entry.data());
    }
    args.push_back(nullptr);

    std::array<int, 2> ends{};
    child_end result;
    if (::pipe(ends.data()) != 0) {
        return result;
    }
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    ::posix_spawn_file_actions_addclose(&actions, ends[0]);
    ::posix_spawn_file_actions_addclose(&actions, ends[1]);
    pid_t pid = 0;
    const int error =
        ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, args.data(), env.data());
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (error == 0) {
        std::array<char, 4096> buffer{};
        pollfd wait{ends[0], POLLIN, 0};
        // A child that hangs fails its test instead of hanging it.
        while (::poll(&wait, 1, 60'000) > 0) {
            const ssize_t got = ::read(ends[0], buffer.data(), buffer.size());
            if (got <= 0) {
                wait.fd = -1;
                break;
            }
            result.errors.append(buffer.data(), static_cast<std::size_t>(got));
        }
        if (wait.fd != -1) {
            result.errors += "\n[killed after 60 s of silence]";
            ::kill(pid, SIGKILL);
        }
        int ended = 0;
        ::waitpid(pid, &ended, 0);
        result.exit_code = WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
        result.signal = WIFSIGNALED(ended) ? WTERMSIG(ended) : 0;
    }
    ::close(ends[0]);
    return result;
}

// In children, where doctest does not run: names the line and ends the process.
#define XMM_EXPECT(condition)                                                            \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            ::_exit(99);                                                                 \
        }                                                                                \
    } while (false)

using xmm::test::has_sanitizer;

}  // namespace xmm_test
