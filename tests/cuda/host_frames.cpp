// SPDX-License-Identifier: Apache-2.0
// Host frames that are shared memory of our own: where they can be seen, by whom, and what is left when the kernel or
// the driver refuses. Refusals of the driver need one that refuses on request; those of the kernel are a filter's.
#include "../../backends/cuda/host_frames.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rig.hpp"

namespace {

using namespace xmm;
using test::can_read;
using test::can_write;
using test::cuda_rig;
using test::page_of;

// A rig is made first, since only a driver that was opened knows.
bool is_skipped(const cuda_rig& r) {
    if (!r.b.has_own_host_frames()) {
        const status why = r.b.why_no_own_host_frames();
        MESSAGE("skipped, host frames are the driver's handles: ", std::string{why.why}, " (",
                why.driver_code, ")");
    }
    return !r.b.has_own_host_frames();
}
#define XMM_NEEDS_OWN_FRAMES(r)                \
    if (test::is_skipped() || is_skipped(r)) { \
        return;                                \
    }
bool is_soft_skipped(const cuda_rig& r) {
    if (!r.soft) {
        MESSAGE("skipped: this driver does not fail on request");
    }
    return !r.soft;
}

std::uint64_t& word_at(address at) { return *static_cast<std::uint64_t*>(to_pointer(at)); }

// Runs fn on a thread that the kernel refuses this system call.
template <class Fn>
void without(long call, Fn&& fn) {
    bool is_filtered = false;
    std::thread one{[&] {
        std::array<sock_filter, 4> code{{
            {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
            {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, static_cast<std::uint32_t>(call)},
            {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
            {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
        }};
        const sock_fprog program{code.size(), code.data()};
        is_filtered = ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
                      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
        if (is_filtered) {
            fn();
        }
    }};
    one.join();
    if (!is_filtered) {
        MESSAGE("skipped: the kernel takes no filters");
    }
}

}  // namespace

TEST_CASE("host frames: fresh ones read as zero, and are the CPU's at their standing addresses") {
    if (test::is_skipped()) {
        return;
    }
    cuda_rig r;
    XMM_NEEDS_OWN_FRAMES(r)
    CHECK(r.b.why_no_own_host_frames());
    CHECK(r.b.describe(r.device)->able.has(ability::host_frames));
    CHECK_FALSE(r.b.describe(r.host)->is_lowering_dear);
    CHECK(std::string{r.b.describe(r.host)->name.data()} == "host memory 0, shared memory");
    for (int round = 0; round < 2; ++round) {  // the second one gets addresses that were used
        const frame f = r.create(r.host, 3);
        CHECK(f.zeroed);
        bool is_zero = true;
        for (std::size_t at = 0; at < f.bytes; at += 8) {
            is_zero = is_zero && word_at(f.standing + at) == 0;
            word_at(f.standing + at) = at + 1;
        }
        CHECK(is_zero);
        r.b.frame_drop(f);
    }
}

TEST_CASE("host frames: contents survive every way that they are seen") {
    if (test::is_skipped()) {
        return;
    }
    cuda_rig r;
    XMM_NEEDS_OWN_FRAMES(r)
    constexpr std::size_t pages = 2;
    constexpr std::size_t bytes = pages * page_bytes;
    const va_range va = r.reserve(pages);
    const va_range second = r.reserve(pages);
    const frame ours = r.create(r.host, pages);
    const frame theirs = r.create(r.device, pages);
    const address last = va.end() - 8;

    REQUIRE(r.enter(r.host, va, ours, access::read_write));
    for (std::size_t at = 0; at < bytes; at += 8) {
        word_at(va.begin + at) = at;
    }
    const piece in{{theirs.standing, bytes}, {ours.standing, bytes}};
    REQUIRE(r.b.wait(r.b.memcpy(r.queue, {&in, 1}).value()));
    REQUIRE(r.clear(r.host, va));
    REQUIRE(r.enter_soon(r.device, va, theirs, access::read_write));
    CHECK(r.load(last) == bytes - 8);
    CHECK(r.store(last, 77));
    const piece out{{ours.standing, bytes}, {theirs.standing, bytes}};
    REQUIRE(r.b.wait(r.b.memcpy(r.queue, {&out, 1}).value()));
    REQUIRE(r.clear(r.device, va));
    REQUIRE(r.enter(r.host, va, ours, access::read));
    CHECK(word_at(last) == 77);
    CHECK(word_at(va.begin + 8) == 8);
    CHECK_FALSE(can_write(va.begin));

    // In place for a device, with the CPU and without it, and at another address.
    REQUIRE(r.enter_soon(r.device, va, ours, access::read_write));
    CHECK(r.load(last) == 77);
    CHECK(r.store(last, 78));
    CHECK(word_at(last) == 78);
    REQUIRE(r.clear(r.host, va));
    CHECK_FALSE(can_read(va.begin));
    CHECK(r.store(last, 79));
    REQUIRE(r.clear(r.device, va));
    CHECK(word_at(ours.standing + bytes - 8) == 79);
    REQUIRE(r.enter(r.host, second, ours, access::read_write));
    CHECK(word_at(second.end() - 8) == 79);
    CHECK_FALSE(can_read(va.begin));
    REQUIRE(r.clear(r.host, second));
    r.b.va_release(va);
    r.b.va_release(second);
    r.b.frame_drop(ours);
    r.b.frame_drop(theirs);
}

TEST_CASE("host frames: one may be seen at two addresses, each with its own access") {
    if (test::is_skipped()) {
        return;
    }
    cuda_rig r;
    XMM_NEEDS_OWN_FRAMES(r)
    const va_range va = r.reserve(3);
    const frame f = r.create(r.host);
    REQUIRE(r.enter(r.host, page_of(va, 0), f, access::read_write));
    REQUIRE(r.enter(r.host, page_of(va, 2), f, access::read));
    word_at(va.begin) = 5;
    CHECK(word_at(page_of(va, 2).begin) == 5);
    CHECK_FALSE(can_write(page_of(va, 2).begin));
    REQUIRE(r.clear(r.host, page_of(va, 0)));
    CHECK_FALSE(can_read(va.begin));
    CHECK(word_at(page_of(va, 2).begin) == 5);
    REQUIRE(r.enter_soon(r.device, page_of(va, 1), f, access::read_write));
    CHECK(r.load(page_of(va, 1).begin) == 5);
    CHECK(r.store(page_of(va, 1).begin, 6));
    CHECK(word_at(page_of(va, 2).begin) == 6);
    REQUIRE(r.clear(r.device, va));
    REQUIRE(r.clear(r.host, va));
    REQUIRE(r.enter(r.host, page_of(va, 1), f, access::read));
    CHECK(word_at(page_of(va, 1).begin) == 6);
    REQUIRE(r.clear(r.host, va));
    r.b.va_release(va);
    r.b.frame_drop(f);
}

TEST_CASE(
    "host frames: the CPU sees one frame and a device another, whoever comes and goes first") {
    if (test::is_skipped()) {
        return;
    }
    cuda_rig r;
    XMM_NEEDS_OWN_FRAMES(r)
    if (!r.b.describe(r.device)->able.has(ability::split_cpu_view)) {
        MESSAGE("skipped: this driver has one view for all");
        return;
    }
    const va_range va = r.reserve(1);
    const frame ours = r.create(r.host);
    const frame more = r.create(r.host);
    const frame theirs = r.create(r.device);
    r.fill(ours.standing, 1, page_bytes);
    r.fill(theirs.standing, 2, page_bytes);
    r.fill(more.standing, 3, page_bytes);

    for (const bool is_cpu_first : {true, false}) {
        CAPTURE(is_cpu_first);
        const auto cpu_comes = [&] { return r.enter(r.host, va, ours, access::read).is_ok(); };
        const auto device_comes = [&] {
            return r.enter_soon(r.device, va, theirs, access::read_write).is_ok();
        };
        REQUIRE((is_cpu_first ? cpu_comes() : device_comes()));
        REQUIRE((is_cpu_first ? device_comes() : cpu_comes()));
        CHECK(r.load(va.begin) == 2);
        CHECK(word_at(va.begin) == 1);
        CHECK_FALSE(can_write(va.begin));
        CHECK(r.store(va.begin + 8, 9));
        CHECK(word_at(va.begin + 8) == 1);
        REQUIRE(r.enter(r.host, va, more, access::read_write));  // the CPU goes on alone
        CHECK(word_at(va.begin) == 3);
        word_at(va.begin + 8) = 4;
        CHECK(r.load(va.begin + 8) == 9);
        REQUIRE(r.enter(r.host, va, ours, access::read));
        REQUIRE(r.clear(is_cpu_first ? r.host : r.device, va));
        if (is_cpu_first) {
            CHECK_FALSE(can_read(va.begin));
            CHECK(r.load(va.begin) == 2);
        } else {
            CHECK(word_at(va.begin) == 1);
        }
        REQUIRE(r.clear(is_cpu_first ? r.device : r.host, va));
        CHECK_FALSE(can_read(va.begin));
    }
    // A device that changes over to the CPU's frame, and back.
    REQUIRE(r.enter_soon(r.device, va, theirs, access::read_write));
    REQUIRE(r.enter(r.host, va, ours, access::read));
    REQUIRE(r.enter_soon(r.device, va, ours, access::read));
    CHECK(r.load(va.begin) == 1);
    CHECK(word_at(va.begin) == 1);
    CHECK_FALSE(can_write(va.begin));
    CHECK(r.enter(r.host, va, more, access::read).code == errc::busy);
    CHECK(word_at(va.begin) == 1);
    REQUIRE(r.enter_soon(r.device, va, theirs, access::read));
    CHECK(r.load(va.begin) == 2);
    CHECK(word_at(va.begin) == 1);
    CHECK(r.enter(r.device, va, more, access::read).code ==
          errc::busy);  // the CPU's is in its place
    CHECK(r.load(va.begin) == 2);
    REQUIRE(r.clear(r.host, va));
    REQUIRE(r.enter_soon(r.device, va, more, access::read));
    CHECK(r.load(va.begin) == 3);
    REQUIRE(r.enter_soon(r.device, va, ours, access::read));
    CHECK(r.load(va.begin) == 1);
    REQUIRE(r.clear(r.device, va));
    r.b.va_release(va);
    for (const frame& one : {ours, more, theirs}) {
        r.b.frame_drop(one);
    }
}

TEST_CASE("host frames: two devices see one frame, or the second is refused") {
    if (test::is_skipped()) {
        return;
    }
    cuda_rig r{2};
    XMM_NEEDS_OWN_FRAMES(r)
    if (r.b.nodes().size() < 2) {
        MESSAGE("skipped: one device only");
        return;
    }
    const node_id other{2};
    const queue_id line = *r.b.queue_create(other, queue_priority::normal);
    const va_range va = r.reserve(1);
    const frame ours = r.create(r.host);
    const frame theirs = r.create(other);
    r.fill(ours.standing, 1, page_bytes);
    r.fill(theirs.standing, 2, page_bytes);
    REQUIRE(r.enter_soon(r.device, va, ours, access::read));
    CHECK(r.enter(other, va, theirs, access::read).code == errc::busy);
    REQUIRE(r.enter_soon(other, va, ours, access::read_write));
    CHECK(r.load(va.begin) == 1);
    CHECK(r.load(va.begin, line) == 1);
    REQUIRE(r.clear(r.device, va));
    CHECK(r.load(va.begin, line) == 1);
    REQUIRE(r.enter_soon(other, va, theirs, access::read));  // alone there it may change
    CHECK(r.load(va.begin, line) == 2);
    CHECK(r.enter(r.device, va, ours, access::read).code == errc::busy);
    CHECK(r.load(va.begin, line) == 2);
    REQUIRE(r.clear(other, va));
    r.b.queue_destroy(line);
    r.b.va_release(va);
    r.b.frame_drop(ours);
    r.b.frame_drop(theirs);
}

TEST_CASE("host frames: a batch, own frames beside a device's") {
    if (test::is_skipped()) {
        return;
    }
    cuda_rig r;
    XMM_NEEDS_OWN_FRAMES(r)
    const va_range va = r.reserve(8);
    std::vector<frame> frames;
    std::vector<run> runs;
    for (std::size_t i = 0; i < 8; ++i) {
        frames.push_back(r.create(i % 4 == 3 ? r.host : r.device));
        r.fill(frames[i].standing, 100 + i, page_bytes);
        runs.push_back({page_of(va, i), frames[i], access::read_write});
    }
    const auto entered = r.b.pmap_enter(r.device, runs);
    CHECK(entered.done == 8);
    REQUIRE(entered);
    for (std::size_t i = 0; i < 8; ++i) {
        CHECK(r.load(page_of(va, i).begin) == 100 + i);
    }
    CHECK(r.b.pmap_enter(r.device, runs).done == 8);  // again: nothing happens
    REQUIRE(r.enter(r.host, page_of(va, 7), frames[7], access::read_write));
    const auto before = r.soft ? r.soft.calls("cuMemUnmap") : 0;
    const va_range halves[] = {{va.begin, 4 * page_bytes}, {page_of(va, 4).begin, 4 * page_bytes}};
    const progress cleared = r.b.pmap_clear(r.device, halves);
    CHECK(cleared.done == 2);
    if (r.soft) {
        CHECK(r.soft.calls("cuMemUnmap") - before ==
              2);  // around page 3, whose frame is none of the driver's
    }
    CHECK(word_at(page_of(va, 7).begin) == 107);
    CHECK_FALSE(can_read(page_of(va, 3).begin));
    REQUIRE(r.clear(any_host, va));
    r.b.va_release(va);
    for (const frame& one : frames) {
        r.b.frame_drop(one);
    }
}

TEST_CASE("host frames: copies and zeroes go over several in a row, one call each") {
    if (test::is_skipped()) {
        return;
    }
    cuda_rig r;
    XMM_NEEDS_OWN_FRAMES(r)
    const frame a = r.create(r.host);
    const frame b = r.create(r.host);
    const frame there = r.create(r.device, 2);
    const bool is_row = b.standing == a.standing + page_bytes;
    CHECK(is_row);
    r.fill(a.standing, 1, page_bytes);
    r.fill(b.standing, 2, page_bytes);
    const piece in[] = {{{there.standing, page_bytes}, {a.standing, page_bytes}},
                        {{there.standing + page_bytes, page_bytes}, {b.standing, page_bytes}}};
    REQUIRE(r.b.wait(r.b.memcpy(r.queue, in).value()));
    const va_range both[] = {{a.standing, page_bytes}, {b.standing, page_bytes}};
    REQUIRE(r.b.wait(r.b.zero(r.queue, both).value()));
    CHECK(word_at(a.standing) + word_at(b.standing) == 0);
    const piece out[] = {{in[0].from, in[0].to}, {in[1].from, in[1].to}};
    REQUIRE(r.b.wait(r.b.memcpy(r.queue, out).value()));
    CHECK(word_at(a.standing + page_bytes - 8) == 1);
    CHECK(word_at(b.standing) == 2);
    // As one it is refused: what the above would be, were it not kept apart.
    const piece whole{{there.standing, 2 * page_bytes}, {a.standing, 2 * page_bytes}};
    CHECK(r.b.memcpy(r.queue, {&whole, 1}).code() == errc::invalid_argument);
    r.b.frame_drop(a);
    r.b.frame_drop(b);
    r.b.frame_drop(there);
}

TEST_CASE("host frames: they come and go under the hands of CPU threads, and no write is lost") {
    if (test::is_skipped()) {
        return;
    }
    cuda_rig r;
    XMM_NEEDS_OWN_FRAMES(r)
    const va_range va = r.reserve(1);
    const std::array<frame, 2> frames{r.create(r.host), r.create(r.host)};
    for (const frame& one : frames) {
        word_at(one.standing + 8) = one.standing;  // who it is
    }
    // Who misses tries again until it is there.
    static std::atomic<std::uint64_t> missed;
    missed = 0;
    struct sigaction catching {};
    struct sigaction before {};
    catching.sa_handler = [](int) {
        missed.fetch_add(1);
        ::sched_yield();
    };
    ::sigaction(SIGSEGV, &catching, &before);
    std::atomic<bool> is_over{false};
    std::atomic<std::uint64_t> added{0};
    std::atomic<std::uint64_t> strange{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) {
        threads.emplace_back([&] {
            auto* words = static_cast<std::uint64_t*>(to_pointer(va.begin));
            while (!is_over.load()) {
                std::atomic_ref{words[0]}.fetch_add(1);
                added.fetch_add(1);
                const std::uint64_t who = std::atomic_ref{words[1]}.load();
                strange.fetch_add(who == frames[0].standing || who == frames[1].standing ? 0 : 1);
            }
        });
    }
    int failures = 0;
    for (int i = 0; i < 2000; ++i) {
        const frame& one = frames[static_cast<std::size_t>(i % 2)];
        failures += r.enter(r.host, va, one, access::read_write) ? 0 : 1;
        std::this_thread::yield();
        failures += i % 8 != 0 || r.enter(r.host, va, one, access::read) ? 0 : 1;
        failures += i % 4 == 3 || r.clear(r.host, va) ? 0 : 1;  // sometimes straight to the other
    }
    failures += r.enter(r.host, va, frames[0], access::read_write) ? 0 : 1;
    is_over = true;
    for (std::thread& one : threads) {
        one.join();
    }
    ::sigaction(SIGSEGV, &before, nullptr);
    CHECK(failures == 0);
    CHECK(strange == 0);
    CHECK(missed > 0);
    const std::uint64_t all = word_at(frames[0].standing) + word_at(frames[1].standing);
    CHECK(all == added);
    REQUIRE(r.clear(r.host, va));
    r.b.va_release(va);
    for (const frame& one : frames) {
        r.b.frame_drop(one);
    }
}

TEST_CASE("host frames: what is dropped is the host's again, and no mapping is left of it") {
    if (test::is_skipped()) {
        return;
    }
    cuda_rig r;
    XMM_NEEDS_OWN_FRAMES(r)
    CHECK(r.b.bytes_in_use(r.host) == 0);
    const va_range va = r.reserve(16);
    const frame theirs = r.create(r.device);
    std::size_t mappings = 0;
    for (int round = 0; round < 20; ++round) {
        std::vector<frame> frames;
        std::vector<run> runs;
        for (std::size_t i = 0; i < 8; ++i) {
            frames.push_back(r.create(r.host, i % 2 + 1));
            const va_range here{page_of(va, 2 * i).begin, frames[i].bytes};
            runs.push_back({here, frames[i], access::read_write});
        }
        CHECK(r.b.bytes_in_use(r.host) == 12 * page_bytes);
        REQUIRE(r.b.pmap_enter(r.host, runs));
        REQUIRE(r.b.pmap_enter(r.device, {runs.data(), 2}));
        word_at(va.begin) = 1;
        REQUIRE(r.clear(r.host, va));
        REQUIRE(r.clear(r.device, va));
        for (const frame& one : frames) {
            r.b.frame_drop(one);
        }
        CHECK(r.b.bytes_in_use(r.host) == 0);
        if (round == 9) {
            mappings = map_count();
        }
    }
    CHECK(map_count() <= mappings + 2);  // a thread's stack may have come
    r.b.va_release(va);
    r.b.frame_drop(theirs);
}

TEST_CASE("host frames: a child has none of them, and changes nothing") {
    if (test::is_skipped()) {
        return;
    }
    cuda_rig r;
    XMM_NEEDS_OWN_FRAMES(r)
    const va_range va = r.reserve(1);
    const frame f = r.create(r.host);
    REQUIRE(r.enter(r.host, va, f, access::read_write));
    word_at(va.begin) = 5;
    const pid_t child = ::fork();
    if (child == 0) {
        const bool has_one = is_mapped({va.begin, 4096}) || is_mapped({f.standing, 4096}) ||
                             is_mapped({f.handle, 4096});
        ::_exit(has_one ? 1 : 0);
    }
    int how = -1;
    CHECK(::waitpid(child, &how, 0) == child);
    CHECK(how == 0);
    CHECK(word_at(va.begin) == 5);
    REQUIRE(r.clear(r.host, va));
    r.b.va_release(va);
    r.b.frame_drop(f);
}

TEST_CASE("host frames: where they do not work, host frames are the driver's, and it is said why") {
    if (test::is_skipped()) {
        return;
    }
    const auto check = [](const cuda::vmm& b) {
        CHECK_FALSE(b.has_own_host_frames());
        CHECK_FALSE(b.why_no_own_host_frames());
        CHECK(b.describe(node_id{0})->is_lowering_dear);
        CHECK(std::string{b.describe(node_id{0})->name.data()} ==
              "host memory 0, the driver's handles");
        CHECK_FALSE(b.describe(node_id{1})->able.has(ability::split_cpu_view));
        CHECK(b.bytes_in_use(node_id{0}) == 0);
    };
    const auto uses = [](cuda::vmm& b) {
        if (!b.describe(node_id{1})->able.has(ability::host_frames)) {
            return;
        }
        const va_range va = b.va_examine({0, page_bytes}, page_bytes).value();
        const frame f = b.frame_create(node_id{0}, page_bytes).value();
        const run one{va, f, access::read_write};
        REQUIRE(b.pmap_enter(node_id{0}, {&one, 1}));
        word_at(va.begin) = 1;
        REQUIRE(b.pmap_clear(node_id{0}, {&va, 1}));
        b.va_release(va);
        b.frame_drop(f);
    };
    SUBCASE("a kernel that moves no mappings") {
        if (is_skipped(cuda_rig{})) {
            return;
        }
        const std::size_t mappings = map_count();
        without(SYS_mremap, [&] {
            auto opened = test::open_cuda(1);
            REQUIRE(opened);
            check(**opened);
            CHECK((*opened)->why_no_own_host_frames().driver_code == EPERM);
            uses(**opened);
        });
        CHECK(map_count() <=
              mappings + 16);  // the windows are gone; what a thread and the driver keep is little
    }
    SUBCASE("a kernel that takes no advice") {
        if (!test::find_soft_cuda()) {
            MESSAGE("skipped: a driver may need it, too");
            return;
        }
        without(SYS_madvise, [&] {
            auto opened = test::open_cuda(1);
            REQUIRE(opened);
            check(**opened);
            uses(**opened);
        });
    }
    SUBCASE("a driver that locks no pages") {
        cuda_rig r;
        if (is_skipped(r) || is_soft_skipped(r)) {
            return;
        }
        for (const unsigned skip : {0u, 1u}) {  // where it stands, and where it is seen
            CAPTURE(skip);
            r.soft.fail("cuMemHostRegister", skip, 1, cuda::CUDA_ERROR_NOT_SUPPORTED);
            auto opened = test::open_cuda(1, 2);
            REQUIRE(opened);
            check(**opened);
            CHECK((*opened)->why_no_own_host_frames().driver_code ==
                  static_cast<int>(cuda::CUDA_ERROR_NOT_SUPPORTED));
            uses(**opened);
        }
        r.soft.reset();
    }
    SUBCASE("a device that sees page-locked memory elsewhere") {
        cuda_rig r;
        if (is_soft_skipped(r)) {
            return;
        }
        constexpr unsigned which =
            cuda::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
        r.soft.attribute(0, which, 0);
        auto opened = test::open_cuda(1, 2);
        r.soft.attribute(0, which, 1);
        REQUIRE(opened);
        check(**opened);
        uses(**opened);
    }
}

TEST_CASE(
    "host frames: one that leaves a device at work holds up nobody, and gives its place up later") {
    if (test::is_skipped()) {
        return;
    }
    cuda_rig r;
    XMM_NEEDS_OWN_FRAMES(r)
    const va_range all = r.reserve(2);
    const va_range first = page_of(all, 0);
    const va_range va = page_of(all, 1);
    const va_range other_va = r.reserve(1);
    const frame ours = r.create(r.host);
    const frame more = r.create(r.host);
    const frame theirs = r.create(r.device);
    r.fill(ours.standing, 1, page_bytes);
    r.fill(theirs.standing, 2, page_bytes);
    r.fill(more.standing, 3, page_bytes);
    REQUIRE(r.enter_soon(r.device, va, ours, access::read_write));
    REQUIRE(r.enter_soon(r.device, other_va, more, access::read_write));
    REQUIRE(r.enter(r.host, va, ours, access::read));

    std::atomic<bool> may_go{false};
    auto held = r.b.call(
        r.queue,
        [](void* go) noexcept {
            while (!static_cast<std::atomic<bool>*>(go)->load()) {
                std::this_thread::yield();
            }
        },
        &may_go);
    REQUIRE(held);
    REQUIRE(r.clear(r.device, va));
    REQUIRE(r.clear(r.device, other_va));
    if (r.soft) {  // another driver may not wait for a host function
        CHECK(r.enter(r.device, va, theirs, access::read).code == errc::busy);
        CHECK(r.enter(r.device, va, ours, access::read).code == errc::busy);
        const frame beside = r.create(r.device);
        const run both[] = {{first, beside, access::read}, {va, theirs, access::read}};
        const progress some = r.b.pmap_enter(r.device, both);
        CHECK(some.done == 1);
        CHECK(some.outcome.code == errc::busy);
        CHECK(r.clear(r.device, first));
        r.b.frame_drop(beside);
    }
    CHECK(word_at(va.begin) == 1);
    REQUIRE(r.enter(r.host, va, more, access::read));  // the CPU may have another one there
    CHECK(word_at(va.begin) == 3);
    REQUIRE(r.enter(r.host, va, ours, access::read_write));  // the CPU stays what it is
    word_at(va.begin) = 4;
    REQUIRE(r.clear(r.host, va));
    r.b.va_release(other_va);
    const frame dropped = r.create(r.host);
    r.b.frame_drop(dropped);
    may_go = true;
    REQUIRE(r.b.wait(*held));

    REQUIRE(r.enter_soon(r.device, va, theirs, access::read));
    CHECK(r.load(va.begin) == 2);
    REQUIRE(r.enter(r.host, va, ours, access::read));
    CHECK(word_at(va.begin) == 4);
    REQUIRE(r.clear(r.device, va));
    REQUIRE(r.clear(r.host, va));
    CHECK(r.b.bytes_in_use(r.host) == 2 * page_bytes);  // which waits for what leaves
    auto again =
        r.b.va_examine(other_va, page_bytes);  // its addresses are the driver's to give once more
    REQUIRE(again);
    r.b.va_release(*again);
    r.b.va_release(all);
    for (const frame& one : {ours, more, theirs}) {
        r.b.frame_drop(one);
    }
}

TEST_CASE("host frames: a driver with one view for all still has them, and refuses a second view") {
    if (test::is_skipped()) {
        return;
    }
    cuda_rig r;
    if (is_skipped(r) || is_soft_skipped(r)) {
        return;
    }
    r.soft.fail("cuMemUnmap", 0, 1, cuda::CUDA_ERROR_INVALID_VALUE);
    auto opened = test::open_cuda(1, 2);
    REQUIRE(opened);
    cuda::vmm& b = **opened;
    CHECK(b.has_own_host_frames());
    CHECK_FALSE(b.describe(r.device)->able.has(ability::split_cpu_view));
    const va_range va = b.va_examine({0, page_bytes}, page_bytes).value();
    const frame ours = b.frame_create(r.host, page_bytes).value();
    const frame theirs = b.frame_create(r.device, page_bytes).value();
    const run host_run{va, ours, access::read_write};
    const run device_run{va, theirs, access::read_write};
    REQUIRE(b.pmap_enter(r.host, {&host_run, 1}));
    word_at(va.begin) = 3;
    CHECK(b.pmap_enter(r.device, {&device_run, 1}).outcome.code == errc::busy);
    CHECK(word_at(va.begin) == 3);
    REQUIRE(b.pmap_enter(r.device, {&host_run, 1}));
    CHECK(b.pmap_enter(r.device, {&device_run, 1}).outcome.code == errc::busy);
    REQUIRE(b.pmap_clear(r.host, {&va, 1}));
    REQUIRE(b.pmap_enter(r.device, {&device_run, 1}));
    CHECK(b.pmap_enter(r.host, {&host_run, 1}).outcome.code == errc::busy);
    REQUIRE(b.pmap_clear(r.device, {&va, 1}));
    REQUIRE(b.pmap_enter(r.host, {&host_run, 1}));
    CHECK(word_at(va.begin) == 3);
    REQUIRE(b.pmap_clear(r.host, {&va, 1}));
    b.va_release(va);
    b.frame_drop(ours);
    b.frame_drop(theirs);
}

TEST_CASE("host frames: each refusal of the driver leaves all as it was") {
    if (test::is_skipped()) {
        return;
    }
    cuda_rig r;
    if (is_skipped(r) || is_soft_skipped(r)) {
        return;
    }
    const auto refuse = [&](const char* name) {
        (void)r.b.bytes_in_use(
            r.host);  // waits for frames that are being dropped: they would be refused
        REQUIRE(r.soft.fail(name, 0, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY) == cuda::CUDA_SUCCESS);
    };
    const va_range va = r.reserve(1);
    const frame ours = r.create(r.host);
    const frame more = r.create(r.host);
    const frame theirs = r.create(r.device);
    r.fill(ours.standing, 1, page_bytes);
    r.fill(theirs.standing, 2, page_bytes);
    r.fill(more.standing, 3, page_bytes);
    SUBCASE("a frame") {
        const std::size_t before = r.b.bytes_in_use(r.host);
        refuse("cuMemHostRegister");
        CHECK(r.b.frame_create(r.host, page_bytes).code() == errc::no_memory);
        CHECK(r.b.bytes_in_use(r.host) == before);
        const frame again = r.create(r.host);
        refuse("cuMemHostUnregister");
        r.b.frame_drop(again);
        CHECK(r.b.bytes_in_use(r.host) == before + page_bytes);  // the driver has it still
        const frame other = r.create(r.host);
        CHECK(other.standing != again.standing);
        r.b.frame_drop(other);
    }
    SUBCASE("a device where nobody is") {
        refuse("cuMemHostRegister");
        CHECK(r.enter(r.device, va, ours, access::read).code == errc::no_memory);
        CHECK_FALSE(can_read(va.begin));
        REQUIRE(r.enter(r.host, va, more, access::read));  // the place is free
        CHECK(word_at(va.begin) == 3);
    }
    SUBCASE("a device beside the CPU") {
        REQUIRE(r.enter(r.host, va, ours, access::read));
        refuse("cuMemHostRegister");
        CHECK(r.enter(r.device, va, ours, access::read).code == errc::no_memory);
        CHECK(word_at(va.begin) == 1);
        CHECK_FALSE(can_write(va.begin));
        REQUIRE(r.enter_soon(r.device, va, ours, access::read));
        CHECK_FALSE(can_write(va.begin));
    }
    SUBCASE("a device that would change to a host frame") {
        REQUIRE(r.enter_soon(r.device, va, theirs, access::read_write));
        refuse("cuMemHostRegister");
        CHECK(r.enter(r.device, va, ours, access::read).code == errc::no_memory);
        CHECK(r.load(va.begin) == 2);
        CHECK(r.store(va.begin, 4));
        CHECK_FALSE(can_read(va.begin));
    }
    SUBCASE("a device that would change from a host frame") {
        REQUIRE(r.enter_soon(r.device, va, ours, access::read_write));
        for (const char* name : {"cuMemMap", "cuMemSetAccess", "cuMemHostUnregister"}) {
            CAPTURE(name);
            refuse(name);
            CHECK(r.enter(r.device, va, theirs, access::read).code == errc::no_memory);
            CHECK(r.load(va.begin) == 1);
            refuse(name);
            if (std::string{name} == "cuMemHostUnregister") {
                CHECK(r.enter(r.device, va, more, access::read).code == errc::no_memory);
                CHECK(r.load(va.begin) == 1);
            }
            r.soft.reset();
        }
    }
    SUBCASE("a device that leaves") {
        REQUIRE(r.enter_soon(r.device, va, ours, access::read_write));
        refuse("cuMemHostUnregister");
        const status left = r.clear(r.device, va);
        if (!left) {
            CHECK(left.code == errc::no_memory);
            CHECK(r.load(va.begin) == 1);
            REQUIRE(r.clear(r.device, va));
        } else {  // the refusal came late, and is for who comes next
            CHECK(r.enter_soon(r.device, va, theirs, access::read).code == errc::no_memory);
        }
        REQUIRE(r.enter_soon(r.device, va, theirs, access::read));
        CHECK(r.load(va.begin) == 2);
    }
    r.soft.reset();
    REQUIRE(r.clear(r.device, va));
    REQUIRE(r.clear(r.host, va));
    r.b.va_release(va);
    for (const frame& one : {ours, more, theirs}) {
        r.b.frame_drop(one);
    }
}

TEST_CASE("host frames: each refusal of the kernel leaves all as it was") {
    if (test::is_skipped()) {
        return;
    }
    cuda_rig r;
    XMM_NEEDS_OWN_FRAMES(r)
    const va_range va = r.reserve(1);
    const frame ours = r.create(r.host);
    const frame more = r.create(r.host);
    r.fill(ours.standing, 1, page_bytes);
    r.fill(more.standing, 3, page_bytes);
    SUBCASE("the CPU where nobody is") {
        without(SYS_mremap, [&] {
            const status refused = r.enter(r.host, va, ours, access::read);
            CHECK(refused.code == errc::no_memory);
            CHECK(refused.driver_code == EPERM);
        });
        CHECK_FALSE(can_read(va.begin));
        REQUIRE(r.enter(r.host, va, ours, access::read));
        CHECK(word_at(va.begin) == 1);
    }
    SUBCASE("the CPU that would change to another frame, or leave") {
        REQUIRE(r.enter(r.host, va, ours, access::read));
        without(SYS_mremap, [&] {
            CHECK(r.enter(r.host, va, more, access::read_write).code == errc::no_memory);
            CHECK(r.clear(r.host, va).code == errc::no_memory);
        });
        CHECK(word_at(va.begin) == 1);
        CHECK_FALSE(can_write(va.begin));
    }
    SUBCASE("the CPU's access") {
        REQUIRE(r.enter(r.host, va, ours, access::read_write));
        without(SYS_mprotect, [&] {
            CHECK(r.enter(r.host, va, ours, access::read).code == errc::no_memory);
            CHECK(r.clear(r.host, va).code == errc::no_memory);
        });
        CHECK(can_write(va.begin));
        REQUIRE(r.clear(r.host, va));
        without(SYS_mprotect,
                [&] { CHECK(r.enter(r.host, va, ours, access::read).code == errc::no_memory); });
        CHECK_FALSE(can_read(va.begin));
        REQUIRE(r.enter(r.host, va, more, access::read));  // the place is free
        CHECK(word_at(va.begin) == 3);
    }
    SUBCASE("a device where nobody is") {
        without(SYS_mremap,
                [&] { CHECK(r.enter(r.device, va, ours, access::read).code == errc::no_memory); });
        REQUIRE(r.enter_soon(r.device, va, ours, access::read));
        CHECK(r.load(va.begin) == 1);
    }
    SUBCASE("a twin that cannot go home once its last device has left goes later") {
        REQUIRE(r.enter_soon(r.device, va, ours, access::read));
        without(SYS_mremap, [&] { CHECK(r.clear(r.device, va)); });
        CHECK_FALSE(can_read(va.begin));
        REQUIRE(r.enter(r.host, va, more, access::read));
        CHECK(word_at(va.begin) == 3);
        REQUIRE(r.clear(r.host, va));
        REQUIRE(r.enter_soon(r.device, va, ours, access::read));
        without(SYS_mremap, [&] { CHECK(r.clear(r.device, va)); });
    }
    SUBCASE("a frame") {
        const std::size_t before = r.b.bytes_in_use(r.host);
        without(SYS_madvise, [&] { CHECK_FALSE(r.b.frame_create(r.host, page_bytes)); });
        CHECK(r.b.bytes_in_use(r.host) == before);
        const frame again = r.create(r.host);
        r.b.frame_drop(again);
    }
    REQUIRE(r.clear(r.device, va));
    REQUIRE(r.clear(r.host, va));
    r.b.va_release(va);
    for (const frame& one : {ours, more}) {
        r.b.frame_drop(one);
    }
}
