// SPDX-License-Identifier: Apache-2.0
#include <xmm/os/registry.hpp>

#include <array>
#include <cstddef>
#include <set>
#include <thread>
#include <vector>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <doctest/doctest.h>

#include "child.hpp"

using namespace xmm;
using xmm_test::child_case;
using xmm_test::run_child;

namespace {

std::atomic<int> slow_built{0};

struct slow_object {
    static constexpr const char* registry_key = "test slow/1";
    int value;
    slow_object() {
        ::usleep(20'000);
        slow_built.fetch_add(1);
        value = 7;
    }
};

struct inner_object {
    static constexpr const char* registry_key = "test inner/1";
    int value = 1;
};
struct outer_object {
    static constexpr const char* registry_key = "test outer/1";
    inner_object* inner = &registry::object<inner_object>();
};

struct optional_object {
    static constexpr const char* registry_key = "test optional/1";
    std::array<std::byte, 1 << 20> bytes{};  // more than is mapped already
};

// Nothing can be mapped while it is there.
struct no_more_memory {
    rlimit before{};
    no_more_memory() {
        ::getrlimit(RLIMIT_AS, &before);
        const rlimit none{4096, before.rlim_max};
        ::setrlimit(RLIMIT_AS, &none);
    }
    ~no_more_memory() { ::setrlimit(RLIMIT_AS, &before); }
};

}  // namespace

TEST_CASE("registry: an object that there is no memory for may be asked for again") {
    static_cast<void>(registry::instance());
    optional_object* at = nullptr;
    {
        const no_more_memory while_it_lasts;
        at = registry::try_object<optional_object>();
    }
    CHECK(at == nullptr);
    at = registry::try_object<optional_object>();
    REQUIRE(at != nullptr);
    CHECK(at == &registry::object<optional_object>());
}

TEST_CASE("registry: one instance, found again") {
    CHECK(&registry::instance() == &registry::instance());
    CHECK(registry::instance().pid() == ::getpid());
    CHECK_FALSE(registry::is_forked_child());
}

TEST_CASE("registry: concurrent first calls build an object once") {
    std::vector<std::thread> threads;
    std::vector<slow_object*> seen(8);
    for (slow_object*& mine : seen) {
        threads.emplace_back([&mine] { mine = &registry::object<slow_object>(); });
    }
    for (std::thread& t : threads) {
        t.join();
    }
    CHECK(slow_built == 1);
    for (const slow_object* one : seen) {
        CHECK(one == seen[0]);
        CHECK(one->value == 7);
    }
}

TEST_CASE("registry: an object may need another one while it is built") {
    CHECK(registry::object<outer_object>().inner == &registry::object<inner_object>());
}

TEST_CASE("registry: numbers of a kind are given once, from 1 on") {
    std::vector<std::thread> threads;
    std::vector<std::vector<std::uint32_t>> seen(4);
    for (auto& mine : seen) {
        threads.emplace_back([&mine] {
            for (int i = 0; i < 1000; ++i) {
                mine.push_back(registry::next_number(number_kind::other));
            }
        });
    }
    std::set<std::uint32_t> all;
    for (std::size_t t = 0; t < threads.size(); ++t) {
        threads[t].join();
        all.insert(seen[t].begin(), seen[t].end());
    }
    CHECK(all.size() == 4000);
    CHECK(*all.begin() >= 1);
    const std::uint32_t one = registry::next_number(number_kind::launch);
    CHECK(registry::next_number(number_kind::launch) == one + 1);
}

TEST_CASE("registry: a child of fork knows itself, and finds its parent's objects") {
    registry::object<inner_object>().value = 5;
    const pid_t child = ::fork();
    if (child == 0) {
        const bool is_right = registry::is_forked_child() &&
                              registry::instance().pid() == ::getppid() &&
                              registry::object<inner_object>().value == 5;
        ::_exit(is_right ? 0 : 1);
    }
    int ended = 0;
    REQUIRE(::waitpid(child, &ended, 0) == child);
    CHECK(WIFEXITED(ended));
    CHECK(WEXITSTATUS(ended) == 0);
    CHECK_FALSE(registry::is_forked_child());
}

namespace {

struct small_layout {
    static constexpr const char* registry_key = "test layout/1";
    int value = 0;
};
struct large_layout {
    static constexpr const char* registry_key = "test layout/1";
    int values[100] = {};
};
const child_case other_layout{"registry other layout", [] {
                                  static_cast<void>(registry::object<small_layout>());
                                  static_cast<void>(registry::object<large_layout>());
                                  return 0;
                              }};

struct asks_for_itself {
    static constexpr const char* registry_key = "test itself/1";
    asks_for_itself() { static_cast<void>(registry::object<asks_for_itself>()); }
};
const child_case builds_itself{"registry builds itself", [] {
                                   static_cast<void>(registry::object<asks_for_itself>());
                                   return 0;
                               }};

struct throws {
    static constexpr const char* registry_key = "test throws/1";
    throws() { throw 1; }
};
const child_case constructor_throws{"registry constructor throws", [] {
                                        static_cast<void>(registry::object<throws>());
                                        return 0;
                                    }};

// Puts foreign memory at the first `count` of the registry's addresses.
void take_places(std::size_t count, int protection) {
    for (std::size_t i = 0; i < count; ++i) {
        void* at = to_pointer(detail::registry_places[i]);
        // Places that are not free, or beyond this machine's addresses, are as good as taken.
        void* got = ::mmap(at, 1 << 16, protection,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        XMM_EXPECT(got == at || got == MAP_FAILED);
    }
}
const child_case some_taken{
    "registry some places taken", [] {
        take_places(2, PROT_NONE);
        const address at = to_address(&registry::instance());
        XMM_EXPECT(at != detail::registry_places[0] && at != detail::registry_places[1]);
        XMM_EXPECT(registry::next_number(number_kind::queue) == 1);
        return 0;
    }};
const child_case some_used{
    "registry some places used", [] {
        take_places(3, PROT_READ | PROT_WRITE);
        const address at = to_address(&registry::instance());
        XMM_EXPECT(at != detail::registry_places[0] && at != detail::registry_places[2]);
        return 0;
    }};
const child_case all_taken{"registry all places taken", [] {
                               take_places(std::size(detail::registry_places), PROT_NONE);
                               static_cast<void>(registry::instance());
                               return 0;
                           }};

const child_case other_version{
    "registry other version", [] {
        void* at = to_pointer(detail::registry_places[0]);
        XMM_EXPECT(::mmap(at, 1 << 16, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at);
        std::memcpy(at, "xmrgtry9", 8);
        static_cast<void>(registry::instance());
        return 0;
    }};

// Sandboxes that refuse process_vm_readv.
const child_case sandboxed{
    "registry sandboxed", [] {
        sock_filter program[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        sock_fprog filter{4, program};
        take_places(1, PROT_NONE);
        XMM_EXPECT(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
        XMM_EXPECT(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
        XMM_EXPECT(detail::is_registry_at(0x1000) == false);
        registry& mine = registry::instance();
        XMM_EXPECT(detail::is_registry_at(to_address(&mine)));
        XMM_EXPECT(!detail::is_registry_at(detail::registry_places[0]));
        return 0;
    }};

}  // namespace

TEST_CASE("registry: another layout under the same name aborts with a message") {
    const auto end = run_child("registry other layout");
    CAPTURE(end.errors);
    CHECK(end.signal == SIGABRT);
    CHECK(end.says("\"test layout/1\": shared objects of this process were built from different"));
}

TEST_CASE("registry: an object that needs itself aborts with a message") {
    const auto end = run_child("registry builds itself");
    CAPTURE(end.errors);
    CHECK(end.signal == SIGABRT);
    CHECK(end.says("\"test itself/1\": its constructor asks for itself"));
}

TEST_CASE("registry: a constructor that throws aborts with a message") {
    const auto end = run_child("registry constructor throws");
    CAPTURE(end.errors);
    CHECK(end.signal == SIGABRT);
    CHECK(end.says("\"test throws/1\": its constructor threw"));
}

TEST_CASE("registry: foreign memory at its addresses is passed by") {
    for (const char* name : {"registry some places taken", "registry some places used"}) {
        const auto end = run_child(name);
        CAPTURE(end.errors);
        CHECK(end.exit_code == 0);
    }
}

TEST_CASE("registry: no address left aborts with a message") {
    const auto end = run_child("registry all places taken");
    CAPTURE(end.errors);
    CHECK(end.signal == SIGABRT);
    CHECK(end.says("no well-known address can be mapped"));
}

TEST_CASE("registry: one of another version in the same process aborts with a message") {
    const auto end = run_child("registry other version");
    CAPTURE(end.errors);
    CHECK(end.signal == SIGABRT);
    CHECK(end.says("another shared object of this process has another version of xmm"));
}

TEST_CASE("registry: found without process_vm_readv, too") {
    const auto end = run_child("registry sandboxed");
    CAPTURE(end.errors);
    CHECK(end.exit_code == 0);
}
