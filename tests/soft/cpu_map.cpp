// SPDX-License-Identifier: Apache-2.0
#include "../../backends/soft/cpu_map.hpp"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <csignal>
#include <fstream>
#include <string>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "../support/sanitizer.hpp"
#include "rig.hpp"

using namespace xmm;
using namespace xmm::test;

namespace {

sigjmp_buf escape;

// Whether the access raises SIGSEGV in this thread.
bool faults(address where, bool is_write) {
    struct sigaction mine {};
    struct sigaction before {};
    mine.sa_handler = [](int) { siglongjmp(escape, 1); };
    ::sigaction(SIGSEGV, &mine, &before);
    const bool did = sigsetjmp(escape, 1) != 0;
    if (!did) {
        auto* byte = static_cast<volatile unsigned char*>(to_pointer(where));
        const unsigned char value = *byte;
        if (is_write) {
            *byte = value;
        }
    }
    ::sigaction(SIGSEGV, &before, nullptr);
    return did;
}

// The process's mappings that touch the range.
int mapping_count(va_range range) {
    std::ifstream maps{"/proc/self/maps"};
    int count = 0;
    for (std::string line; std::getline(maps, line);) {
        const auto dash = line.find('-');
        const address begin = std::stoull(line.substr(0, dash), nullptr, 16);
        const address end = std::stoull(line.substr(dash + 1), nullptr, 16);
        count += range.overlaps({begin, end - begin}) ? 1 : 0;
    }
    return count;
}

}  // namespace

TEST_CASE("the CPU sees a host frame with its access and no more") {
    rig r;
    const va_range range = r.reserve(2 * page_bytes);
    CHECK(faults(range.begin, false));
    const frame one = r.create(rig::host);
    r.enter(rig::host, range.begin, one, access::read);
    CHECK_FALSE(faults(range.begin, false));
    CHECK(faults(range.begin, true));
    at<int>(one.standing) = 42;
    CHECK(at<int>(range.begin) == 42);
    r.enter(rig::host, range.begin, one);
    at<int>(range.begin) = 43;
    CHECK(at<int>(one.standing) == 43);
    r.enter(rig::host, range.begin, one, access::read);
    CHECK(faults(range.begin, true));
    CHECK(faults(range.begin + page_bytes, false));
    r.clear(rig::host, {range.begin, page_bytes});
    CHECK(faults(range.begin, false));
    CHECK(at<int>(one.standing) == 43);
}

TEST_CASE("a device-resident page has no CPU mapping") {
    rig r;
    const va_range range = r.reserve(page_bytes);
    const frame one = r.create(rig::near);
    r.enter(rig::near, range.begin, one);
    CHECK(faults(range.begin, false));
    CHECK(faults(range.begin, true));
    const run wrong{range, one, access::read};
    const progress refused = r.driver.pmap_enter(rig::host, {&wrong, 1});
    CHECK(refused.done == 0);
    CHECK(refused.outcome.code == errc::unsupported);
    CHECK(faults(range.begin, false));
}

TEST_CASE("neighbours become one mapping, and a batch undoes only what was done") {
    rig r;
    const va_range range = r.reserve(4 * page_bytes);
    std::vector<run> runs;
    for (int i = 0; i < 3; ++i) {
        runs.push_back(
            {{range.begin + i * page_bytes, page_bytes}, r.create(rig::host), access::read_write});
    }
    CHECK(r.driver.pmap_enter(any_host, runs).done == 3);
    CHECK(mapping_count({range.begin, 3 * page_bytes}) == 1);
    runs.push_back(
        {{range.begin + 3 * page_bytes, page_bytes}, r.create(rig::near), access::read_write});
    const progress some = r.driver.pmap_enter(rig::host, runs);
    CHECK(some.done == 3);
    CHECK(some.outcome.code == errc::unsupported);
    at<int>(range.begin + 2 * page_bytes) = 5;
    CHECK(at<int>(runs[2].backing.standing) == 5);
    r.clear(rig::host, range);
    r.clear(rig::host, range);  // clearing what is clear changes nothing
    CHECK(mapping_count(range) == 1);
}

TEST_CASE("another frame takes the place of the one before") {
    rig r;
    const va_range range = r.reserve(page_bytes);
    const frame a = r.create(rig::host);
    const frame b = r.create(rig::host);
    r.enter(rig::host, range.begin, a);
    at<int>(range.begin) = 1;
    r.enter(rig::host, range.begin, b);
    CHECK(at<int>(range.begin) == 0);
    at<int>(range.begin) = 2;
    CHECK(at<int>(a.standing) == 1);
    CHECK(at<int>(b.standing) == 2);
}

TEST_CASE("one frame at two addresses") {
    rig r;
    const va_range range = r.reserve(2 * page_bytes);
    const frame one = r.create(rig::host);
    r.enter(rig::host, range.begin, one);
    r.enter(rig::host, range.begin + page_bytes, one);
    at<int>(range.begin + 4096) = 9;
    CHECK(at<int>(range.begin + page_bytes + 4096) == 9);
}

TEST_CASE("holes are made by the function given, and its failure is told") {
    struct trap {
        int calls = 0;
        bool refuses = false;
    } trap;
    soft::driver_options options;
    options.hole_context = &trap;
    options.make_hole = [](void* context, va_range range) noexcept {
        auto& self = *static_cast<struct trap*>(context);
        ++self.calls;
        return self.refuses ? fail(errc::no_memory, "refused")
                            : soft::make_plain_hole(nullptr, range);
    };
    rig r{{}, options};
    const va_range range = r.reserve(3 * page_bytes);
    CHECK(trap.calls == 1);  // a fresh reservation is a hole too
    const frame one = r.create(rig::host);
    r.enter(rig::host, range.begin, one);
    r.enter(rig::host, range.begin + 2 * page_bytes, one);
    const va_range both[] = {{range.begin, page_bytes}, {range.begin + 2 * page_bytes, page_bytes}};
    // Where a hole is refused, what is there is closed.
    trap.refuses = true;
    CHECK(r.driver.pmap_clear(rig::host, both).done == 2);
    CHECK(trap.calls == 3);
    CHECK(faults(range.begin, false));
    CHECK(faults(range.begin + 2 * page_bytes, false));
    // It is no mapping any more, and another may come.
    CHECK(r.driver.pmap_clear(rig::host, both).done == 2);
    CHECK(trap.calls == 3);
    r.enter(rig::host, range.begin, one);
    CHECK_FALSE(faults(range.begin, true));
    CHECK(r.driver.va_examine({0, page_bytes}, page_bytes).code() == errc::no_memory);
    CHECK(trap.calls == 4);
    trap.refuses = false;
    CHECK(r.driver.pmap_clear(rig::host, both).done == 2);
    CHECK(trap.calls == 5);
    CHECK(faults(range.begin, false));
}

TEST_CASE("a forked child has none of it") {
    rig r;
    const va_range range = r.reserve(page_bytes);
    const frame one = r.create(rig::host);
    r.enter(rig::host, range.begin, one);
    for (address where : {range.begin, one.standing}) {
        const pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            ::signal(SIGSEGV, SIG_DFL);
            (void)*static_cast<volatile int*>(to_pointer(where));
            ::_exit(0);
        }
        int how = 0;
        REQUIRE(::waitpid(child, &how, 0) == child);
        CHECK(WIFSIGNALED(how));
        CHECK(WTERMSIG(how) == SIGSEGV);
    }
}

TEST_CASE("what the CPU enters with its contents costs no fault of the kernel's page by page") {
    if (has_sanitizer) {
        MESSAGE("skipped: a sanitizer's own memory is touched for the first time with it");
        return;
    }
    rig r;
    constexpr std::size_t bytes = 4 * page_bytes;
    const va_range range = r.reserve(bytes);
    frame one = r.create(rig::host, bytes);
    std::memset(to_pointer(one.standing), 1, bytes);
    one.zeroed = false;
    r.enter(rig::host, range.begin, one);
    rusage before{};
    rusage after{};
    ::getrusage(RUSAGE_THREAD, &before);
    for (std::size_t i = 0; i < bytes; i += 4096) {
        at<char>(range.begin + i) = 2;
    }
    ::getrusage(RUSAGE_THREAD, &after);
    CHECK(after.ru_minflt - before.ru_minflt < 512);  // of 2048
}

TEST_CASE("a very large fresh frame takes no memory before it is touched") {
    rig r;
    constexpr std::size_t bytes = 32 * page_bytes;
    const va_range range = r.reserve(bytes);
    const frame one = r.create(rig::host, bytes);
    REQUIRE(one.zeroed);
    r.enter(rig::host, range.begin, one);
    at<char>(range.begin) = 2;
    std::array<unsigned char, bytes / 4096> is_there{};
    REQUIRE(::mincore(to_pointer(range.begin), bytes, is_there.data()) == 0);
    CHECK(std::count_if(is_there.begin(), is_there.end(), [](auto c) { return (c & 1) != 0; }) <=
          static_cast<int>(page_bytes / 4096));
}
