// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/debug_resource.hpp>

#include <csignal>
#include <cstring>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include <xmm/resources/host_resource.hpp>
#include <xmm/resources/unified_pool.hpp>

#include "fake_space.hpp"

using namespace xmm;
using test::fake_space;

namespace {

// Collects what is reported.
struct found_faults {
    std::vector<debug_report> reports;

    static void note(const debug_report& report, void* self) {
        static_cast<found_faults*>(self)->reports.push_back(report);
    }
    [[nodiscard]] debug_options options(std::size_t quarantine_bytes = 1 << 20) {
        return {.quarantine_bytes = quarantine_bytes, .handler = &note, .context = this};
    }
    [[nodiscard]] bool is_only(debug_fault fault) const {
        return reports.size() == 1 && reports[0].fault == fault;
    }
};

// The pool below hands out parts of larger mappings, so a stray write by the test harms nothing else.
struct debug_fixture {
    fake_space space;
    unified_pool pool{space.port()};
    found_faults found;
};

}  // namespace

TEST_CASE_FIXTURE(debug_fixture, "debug_resource: fresh and freed memory carry their patterns") {
    debug_resource debug{pool, found.options()};
    auto* block = static_cast<unsigned char*>(debug.allocate_sync(100));
    CHECK(std::all_of(block, block + 100, [](unsigned char b) { return b == 0xCD; }));
    std::memset(block, 1, 100);
    debug.deallocate_sync(block, 100);
    CHECK(std::all_of(block, block + 100, [](unsigned char b) { return b == 0xDD; }));
    CHECK(found.reports.empty());
}

TEST_CASE_FIXTURE(debug_fixture,
                  "debug_resource: a write beside a block, at each distance within the guard") {
    for (std::ptrdiff_t offset : {-64, -17, -1, 100, 101, 163}) {
        for (bool is_checked : {false, true}) {
            CAPTURE(offset);
            CAPTURE(is_checked);
            found.reports.clear();
            debug_resource debug{pool, found.options()};
            auto* block = static_cast<unsigned char*>(debug.allocate_sync(100));
            block[offset] ^= 1;
            if (is_checked) {
                CHECK(debug.check() == 1);
                CHECK(debug.check() == 0);  // told once
            }
            debug.deallocate_sync(block, 100);
            REQUIRE(found.is_only(offset < 0 ? debug_fault::underrun : debug_fault::overrun));
            CHECK(found.reports[0].offset == offset);
            CHECK(found.reports[0].pointer == block);
            CHECK(found.reports[0].bytes == 100);
            CHECK(found.reports[0].number == 1);
        }
    }
}

TEST_CASE_FIXTURE(debug_fixture,
                  "debug_resource: guards stay where large alignments are asked for") {
    debug_resource debug{pool, found.options()};
    for (std::size_t alignment : {1UL, 32UL, 64UL, 128UL, 4096UL}) {
        CAPTURE(alignment);
        found.reports.clear();
        auto* block = static_cast<unsigned char*>(debug.allocate_sync(10, alignment));
        CHECK(to_address(block) % alignment == 0);
        block[-1] = 0;
        block[10] = 0;
        debug.deallocate_sync(block, 10, alignment);
        REQUIRE(found.reports.size() == 2);
        CHECK(found.reports[0].fault == debug_fault::underrun);
        CHECK(found.reports[1].fault == debug_fault::overrun);
    }
}

TEST_CASE_FIXTURE(debug_fixture, "debug_resource: a write after the block was given back") {
    SUBCASE("found by check") {
        debug_resource debug{pool, found.options()};
        auto* block = static_cast<unsigned char*>(debug.allocate_sync(100));
        debug.deallocate_sync(block, 100);
        block[42] = 0;
        CHECK(debug.check() == 1);
    }
    SUBCASE("found when it leaves the quarantine") {
        debug_resource debug{pool, found.options(1000)};
        auto* block = static_cast<unsigned char*>(debug.allocate_sync(100));
        debug.deallocate_sync(block, 100);
        block[42] = 0;
        for (int i = 0; i < 9; ++i) {
            CHECK(found.reports.empty());
            debug.deallocate_sync(debug.allocate_sync(100), 100);
        }
        debug.deallocate_sync(debug.allocate_sync(100), 100);
    }
    SUBCASE("found when the resource goes") {
        debug_resource debug{pool, found.options()};
        auto* block = static_cast<unsigned char*>(debug.allocate_sync(100));
        debug.deallocate_sync(block, 100);
        block[42] = 0;
    }
    REQUIRE(found.is_only(debug_fault::use_after_free));
    CHECK(found.reports[0].offset == 42);
}

TEST_CASE_FIXTURE(debug_fixture, "debug_resource: given back twice") {
    debug_resource debug{pool, found.options()};
    void* block = debug.allocate_sync(100);
    debug.deallocate_sync(block, 100);
    debug.deallocate_sync(block, 100);
    CHECK(found.is_only(debug_fault::double_free));
}

TEST_CASE_FIXTURE(debug_fixture, "debug_resource: a pointer that was never handed out") {
    debug_resource debug{pool, found.options()};
    auto* block = static_cast<unsigned char*>(debug.allocate_sync(100));
    debug.deallocate_sync(block + 16, 84);
    CHECK(found.is_only(debug_fault::unknown_pointer));
    CHECK(debug.live_count() == 1);
    debug.deallocate_sync(block, 100);
    CHECK(found.reports.size() == 1);
}

TEST_CASE_FIXTURE(debug_fixture, "debug_resource: the wrong size, the wrong alignment") {
    debug_resource debug{pool, found.options()};
    void* block = debug.allocate_sync(100, 32);
    debug.deallocate_sync(block, 101, 32);
    CHECK(found.is_only(debug_fault::wrong_bytes));
    CHECK(found.reports[0].told == 101);
    found.reports.clear();
    block = debug.allocate_sync(100, 32);
    debug.deallocate_sync(block, 100, 16);
    CHECK(found.is_only(debug_fault::wrong_alignment));
    CHECK(found.reports[0].told == 16);
    CHECK(debug.live_count() == 0);
}

TEST_CASE_FIXTURE(debug_fixture, "debug_resource: leaks are told when the resource goes") {
    void* block = nullptr;
    {
        debug_resource debug{pool, found.options()};
        (void)debug.allocate_sync(1);
        block = debug.allocate_sync(7);
        debug.deallocate_sync(debug.allocate_sync(9), 9);
    }
    REQUIRE(found.reports.size() == 2);
    CHECK(found.reports[0].fault == debug_fault::leak);
    CHECK((found.reports[0].pointer == block || found.reports[1].pointer == block));
    found.reports.clear();
    {
        debug_options quiet = found.options();
        quiet.report_leaks = false;
        debug_resource debug{pool, quiet};
        (void)debug.allocate_sync(1);
    }
    CHECK(found.reports.empty());
}

TEST_CASE_FIXTURE(debug_fixture, "debug_resource: the quarantine is bounded") {
    {
        debug_resource debug{pool, found.options(10'000)};
        for (int i = 0; i < 10'000; ++i) {
            debug.deallocate_sync(debug.allocate_sync(1000), 1000);
        }
        CHECK(pool.reserved_bytes() == page_bytes);
    }
    CHECK(found.reports.empty());
}

TEST_CASE_FIXTURE(debug_fixture,
                  "debug_resource: a stream is waited for before its memory is looked at") {
    debug_resource debug{pool, found.options()};
    space.submit(fake_space::queue_a);
    void* block = debug.allocate(space.stream(fake_space::queue_a), 100);
    space.submit(fake_space::queue_a);
    static unsigned char* late = nullptr;
    late = static_cast<unsigned char*>(block);
    const stream_ref writes_late{fake_space::queue_a, &space,
                                 [](void*, queue_id) noexcept -> status {
                                     late[5] = 1;  // the work that the call waits for
                                     return {};
                                 }};
    debug.deallocate(writes_late, block, 100);
    CHECK(debug.check() == 0);
    CHECK(found.reports.empty());
}

TEST_CASE_FIXTURE(debug_fixture,
                  "debug_resource: a stream that cannot say what it has done keeps its bytes") {
    struct line {
        bool is_captured = false;
        [[nodiscard]] static queue_id id() { return queue_id{1}; }
        status synchronize() const {
            return is_captured ? fail(errc::busy, "the queue is being captured") : status{};
        }
    };
    line captured;
    debug_resource debug{pool, found.options()};
    auto* block = static_cast<unsigned char*>(debug.allocate(captured, 100));
    std::memset(block, 1, 100);
    captured.is_captured = true;
    debug.deallocate(captured, block, 100);
    CHECK(std::all_of(block, block + 100, [](unsigned char b) { return b == 1; }));
    CHECK(debug.live_count() == 0);
    CHECK_THROWS_AS((void)debug.allocate(captured, 100), out_of_memory);
    CHECK(debug.live_count() == 0);
    captured.is_captured = false;
    auto* after = static_cast<unsigned char*>(debug.allocate(captured, 100));
    debug.deallocate(captured, after, 100);
    CHECK(found.reports.empty());
}

TEST_CASE_FIXTURE(debug_fixture,
                  "debug_resource: a forked child leaves memory alone that devices reach") {
    memory_resource& base = pool;  // which is known to be for the CPU alone, or for more
    debug_resource<memory_resource> debug{base, found.options()};
    void* block = debug.allocate_sync(10);
    void* old = debug.allocate_sync(10);
    static_cast<unsigned char*>(old)[10] = 1;
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        // A look would find the write.
        const bool is_quiet = debug.check() == 0;
        debug.deallocate_sync(old, 10);
        ::_exit(is_quiet && found.reports.empty() ? 0 : 1);
    }
    int how = -1;
    CHECK(::waitpid(child, &how, 0) == child);
    CHECK(how == 0);
    debug.deallocate_sync(block, 10);
    debug.deallocate_sync(old, 10);
    CHECK(found.is_only(debug_fault::overrun));
}

TEST_CASE("debug_resource: without a handler it prints and aborts") {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
        ::dup2(ends[1], STDERR_FILENO);
        host_resource host;
        debug_resource debug{host};
        auto* block = static_cast<unsigned char*>(debug.allocate_sync(10));
        block[10] = 1;
        ::signal(SIGABRT, SIG_DFL);
        debug.deallocate_sync(block, 10);
        ::_exit(0);
    }
    ::close(ends[1]);
    std::string text(1000, '\0');
    text.resize(
        static_cast<std::size_t>(std::max<ssize_t>(0, ::read(ends[0], text.data(), text.size()))));
    ::close(ends[0]);
    int how = 0;
    ::waitpid(child, &how, 0);
    CHECK(WIFSIGNALED(how));
    CHECK(WTERMSIG(how) == SIGABRT);
    CHECK(text.find("written behind the block") != std::string::npos);
    CHECK(text.find("10 bytes") != std::string::npos);
}
