// SPDX-License-Identifier: Apache-2.0
#include <xmm/os/fault_trap.hpp>

#include <array>
#include <barrier>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include <sys/wait.h>

#include <doctest/doctest.h>

#include "child.hpp"

using namespace xmm;
using xmm_test::child_case;
using xmm_test::child_end;
using xmm_test::run_child;

namespace {

// A sink that keeps its OS pages in a file and maps the one that is missed; word 0 of a page is its
// number at first.
class store {
public:
    explicit store(std::size_t pages) : pages_{pages} {
        file_ = ::memfd_create("store", MFD_CLOEXEC);
        XMM_EXPECT(::ftruncate(file_, static_cast<off_t>(range_bytes())) == 0);
        for (std::size_t i = 0; i < pages; ++i) {
            const std::uint64_t number = i;
            XMM_EXPECT(::pwrite(file_, &number, sizeof number, static_cast<off_t>(i * os_page_)) ==
                       sizeof number);
        }
        void* at = ::mmap(nullptr, range_bytes(), PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        range_ = {to_address(at), range_bytes()};
        XMM_EXPECT(trap().add(sink()).is_ok());
        XMM_EXPECT(
            trap().rearm().is_ok());  // doctest puts its own handler in front for each test case
        XMM_EXPECT(trap().make_hole(range_).is_ok());
    }
    ~store() {
        trap().remove(this);
        ::munmap(to_pointer(range_.begin), range_.bytes);
        ::close(file_);
    }
    store(const store&) = delete;
    store& operator=(const store&) = delete;

    static fault_trap& trap() { return fault_trap::instance(); }

    [[nodiscard]] volatile std::uint64_t* page(std::size_t i) const {
        return static_cast<volatile std::uint64_t*>(to_pointer(range_.begin + i * os_page_));
    }
    [[nodiscard]] va_range range() const { return range_; }
    [[nodiscard]] va_range page_range(std::size_t i) const {
        return {range_.begin + i * os_page_, os_page_};
    }

    // As if the file were cut short: its mapped pages raise SIGBUS while it is.
    void resize_file(std::size_t bytes) const {
        XMM_EXPECT(::ftruncate(file_, static_cast<off_t>(bytes)) == 0);
    }

    std::atomic<cpu_fault_outcome> outcome{cpu_fault_outcome::resolved};
    std::atomic<const char*> why{""};
    std::atomic<int> failures_left{0};  // this many calls have no memory, whatever the outcome is
    std::atomic<int> calls{0};
    std::atomic<int> inside{0};
    std::atomic<int> most_inside{0};
    std::atomic<unsigned> delay_us{0};
    std::atomic<bool> waits_for_company{false};  // of a second call, at most 20 s
    std::atomic<xmm::access> last_wanted{xmm::access::none};
    std::atomic<address> last_at{0};
    std::atomic<bool> ran_elsewhere{true};  // every call was on a service thread
    std::atomic<bool> touches_itself{false};
    std::atomic<bool> unmaps{false};

private:
    [[nodiscard]] std::size_t range_bytes() const { return pages_ * os_page_; }

    [[nodiscard]] cpu_fault_sink sink() {
        return {this,
                [](void* self, address at) noexcept {
                    return static_cast<store*>(self)->range_.contains(at);
                },
                [](void* self, address at, xmm::access wanted, const char** reason) noexcept {
                    return static_cast<store*>(self)->handle(at, wanted, reason);
                }};
    }
    cpu_fault_outcome handle(address at, xmm::access wanted, const char** reason) noexcept {
        const int now = inside.fetch_add(1) + 1;
        for (int most = most_inside; most < now && !most_inside.compare_exchange_weak(most, now);) {
        }
        calls.fetch_add(1);
        last_wanted = wanted;
        last_at = at;
        if (!fault_trap::is_service_thread()) {
            ran_elsewhere = false;
        }
        for (int ms = 0; waits_for_company && most_inside < 2 && ms < 20'000; ++ms) {
            ::usleep(1000);
        }
        if (delay_us != 0) {
            ::usleep(delay_us);
        }
        const cpu_fault_outcome answer = answer_for(at, reason);
        inside.fetch_sub(1);
        return answer;
    }
    cpu_fault_outcome answer_for(address at, const char** reason) noexcept {
        if (touches_itself) {
            static_cast<void>(*page(0));
        }
        if (unmaps) {
            ::munmap(to_pointer(range_.begin), range_.bytes);
        }
        if (failures_left.load() > 0 && failures_left.fetch_sub(1) > 0) {
            *reason = "none left, for now";
            return cpu_fault_outcome::no_memory;
        }
        if (outcome != cpu_fault_outcome::resolved) {
            *reason = why;
            return outcome;
        }
        const std::size_t offset = align_down(at - range_.begin, os_page_);
        const void* at_page =
            detail::map_quietly(to_pointer(range_.begin + offset), os_page_, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_FIXED, file_, offset);
        XMM_EXPECT(at_page != MAP_FAILED);
        return cpu_fault_outcome::resolved;
    }

    const std::size_t os_page_ = os_page_bytes();
    std::size_t pages_;
    int file_ = -1;
    va_range range_;
};

template <class Fn>
void on_threads(int count, Fn fn) {
    std::vector<std::thread> threads;
    for (int t = 0; t < count; ++t) {
        threads.emplace_back([fn, t] { fn(t); });
    }
    for (std::thread& t : threads) {
        t.join();
    }
}

// A page that nobody serves.
std::atomic<char*> foreign_page{nullptr};
void make_foreign_page() {
    foreign_page = static_cast<char*>(
        ::mmap(nullptr, os_page_bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}
void open_foreign_page() { ::mprotect(foreign_page, os_page_bytes(), PROT_READ | PROT_WRITE); }
void touch_foreign_page() { *static_cast<volatile char*>(foreign_page.load()) = 1; }

}  // namespace

TEST_SUITE("fault_trap in either way") {
    TEST_CASE("fault_trap: says by which way it works") {
        MESSAGE("userfaultfd: " << fault_trap::instance().has_userfaultfd());
        CHECK_FALSE(fault_trap::is_service_thread());
        if (!conf::of_process().flag("userfaultfd", true)) {
            CHECK_FALSE(fault_trap::instance().has_userfaultfd());
        } else if (!fault_trap::instance().has_userfaultfd()) {
            MESSAGE("skipped: userfaultfd is not granted; each test here goes by signals alone");
        }
    }

    TEST_CASE("fault_trap: a touched hole is filled and the access goes on") {
        store s{4};
        CHECK(*s.page(2) == 2);
        CHECK(s.calls == 1);
        CHECK(s.last_wanted == xmm::access::read);
        CHECK(s.last_at == to_address(const_cast<std::uint64_t*>(s.page(2))));
        *s.page(3) = 33;
        CHECK(s.last_wanted == xmm::access::write);
        CHECK(s.calls == 2);
        CHECK(*s.page(3) == 33);
        CHECK(s.ran_elsewhere);
        CHECK(store::trap().make_hole(s.page_range(3)).is_ok());
        CHECK(*s.page(3) == 33);
        CHECK(s.calls == 3);
    }

    TEST_CASE("fault_trap: the address of an access inside a page is exact") {
        store s{2};
        auto* at = reinterpret_cast<volatile char*>(s.page(1)) + 1234;
        CHECK(*at == 0);
        CHECK(s.last_at == to_address(const_cast<char*>(at)));
    }

    TEST_CASE("fault_trap: errno survives a fault") {
        store s{1};
        errno = 71;
        const std::uint64_t value = *s.page(0);
        const int errno_after = errno;
        CHECK(value == 0);
        CHECK(errno_after == 71);
    }

    TEST_CASE("fault_trap: many threads on the same page") {
        store s{16};
        std::atomic<int> wrong{0};
        std::barrier together{8};
        on_threads(8, [&](int) {
            for (std::size_t i = 0; i < 16; ++i) {
                together.arrive_and_wait();
                if (*s.page(i) != i) {
                    ++wrong;
                }
            }
        });
        CHECK(wrong == 0);
        CHECK(s.calls >= 16);
    }

    TEST_CASE("fault_trap: several threads on different pages are served at once") {
        store s{8};
        s.waits_for_company = true;
        std::atomic<int> wrong{0};
        on_threads(4, [&](int t) {
            const auto i = static_cast<std::size_t>(t);
            if (*s.page(i) != i) {
                ++wrong;
            }
        });
        CHECK(wrong == 0);
        CHECK(s.most_inside >= 2);
    }

    TEST_CASE("fault_trap: more threads fault than there are request slots") {
        store s{160};
        s.delay_us = 200;
        std::atomic<int> wrong{0};
        on_threads(160, [&](int t) {
            const auto i = static_cast<std::size_t>(t);
            if (*s.page(i) != i) {
                ++wrong;
            }
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("fault_trap: pages go away and come back under threads that use them") {
        store s{32};
        std::atomic<bool> is_over{false};
        std::atomic<int> wrong{0};
        std::thread taker{[&] {
            for (unsigned i = 0; !is_over; ++i) {
                if (!store::trap().make_hole(s.page_range(i * 7 % 32))) {
                    ++wrong;
                }
            }
        }};
        on_threads(4, [&](int t) {
            // Each thread counts up words of its own, in all pages.
            for (std::uint64_t round = 1; round <= 30; ++round) {
                for (std::size_t i = 0; i < 32; ++i) {
                    volatile std::uint64_t* mine = s.page(i) + 8 + t * 8;
                    if (*mine != round - 1) {
                        ++wrong;
                    }
                    *mine = round;
                }
            }
        });
        is_over = true;
        taker.join();
        CHECK(wrong == 0);
        CHECK(s.ran_elsewhere);
    }

    TEST_CASE("fault_trap: two sinks, each is asked for its own") {
        store a{2};
        store b{2};
        CHECK(*a.page(1) == 1);
        CHECK(*b.page(1) == 1);
        CHECK(*b.page(0) == 0);
        CHECK(a.calls == 1);
        CHECK(b.calls == 2);
    }

    TEST_CASE("fault_trap: remove waits for the handler inside") {
        for (int round = 0; round < 5; ++round) {
            auto s = std::make_unique<store>(1);
            s->delay_us = 20'000;
            std::atomic<std::uint64_t> seen{99};
            std::thread toucher{[&] { seen = *s->page(0); }};
            while (s->inside == 0) {
                ::usleep(100);
            }
            store::trap().remove(s.get());
            CHECK(s->inside == 0);
            CHECK(s->calls == 1);
            toucher.join();
            CHECK(seen == 0);
        }
    }

    TEST_CASE("fault_trap: slots of removed sinks are used again; there are 64") {
        std::vector<std::unique_ptr<store>> many;
        for (int round = 0; round < 3; ++round) {
            many.clear();
            for (int i = 0; i < 64; ++i) {
                many.push_back(std::make_unique<store>(1));
            }
            CHECK(*many.back()->page(0) == 0);
            int context = 0;
            const status full =
                store::trap().add({&context, [](void*, address) noexcept { return false; },
                                   [](void*, address, xmm::access, const char**) noexcept {
                                       return cpu_fault_outcome::refused;
                                   }});
            CHECK(full.code == errc::no_memory);
        }
    }

    TEST_CASE("fault_trap: a hole is whole OS pages") {
        fault_trap& trap = fault_trap::instance();
        const std::size_t os_page = os_page_bytes();
        store s{2};
        const address at = s.range().begin;
        CHECK(*s.page(0) == 0);
        CHECK(trap.make_hole({at, 0}).code == errc::invalid_argument);
        CHECK(trap.make_hole({at + 1, os_page}).code == errc::invalid_argument);
        CHECK(trap.make_hole({at, os_page + 1}).code == errc::invalid_argument);
        CHECK(trap.make_hole({align_down(SIZE_MAX, os_page), 2 * os_page}).code ==
              errc::invalid_argument);
        CHECK(*s.page(0) == 0);
        CHECK(s.calls == 1);
    }

    TEST_CASE("fault_trap: read(2) into a hole") {
        store s{2};
        std::array<int, 2> ends{};
        REQUIRE(::pipe(ends.data()) == 0);
        const char text[] = "through the kernel";
        REQUIRE(::write(ends[1], text, sizeof text) == sizeof text);
        char* to = const_cast<char*>(reinterpret_cast<volatile char*>(s.page(1))) + 64;
        // By its number: a sanitizer's read() would touch the buffer first.
        const long got = ::syscall(SYS_read, ends[0], to, sizeof text);
        if (store::trap().has_userfaultfd()) {
            CHECK(got == sizeof text);
            CHECK(std::memcmp(to, text, sizeof text) == 0);
            CHECK(s.calls == 1);
        } else {
            CHECK(got == -1);
            CHECK(errno == EFAULT);
            CHECK(s.calls == 0);
            *to = 1;  // touched first, it works
            CHECK(::syscall(SYS_read, ends[0], to, sizeof text) == sizeof text);
        }
        ::close(ends[0]);
        ::close(ends[1]);
    }

}  // TEST_SUITE

TEST_CASE("fault_trap: all of that by signals only") {
    const child_end end =
        run_child("", {"XMM_CONF=userfaultfd:off"}, {"--test-suite=fault_trap in either way"});
    CAPTURE(end.errors);
    CHECK(end.exit_code == 0);
}

TEST_CASE("fault_trap: all of that with one service thread, but those that want several") {
    const child_end end =
        run_child("", {"XMM_CONF=service_threads:1"},
                  {"--test-suite=fault_trap in either way", "-tce=*served at once*"});
    CAPTURE(end.errors);
    CHECK(end.exit_code == 0);
}

// --- what kills: children, each in both ways ---

namespace {

// Ends with the status of the child in both ways.
template <class Check>
void in_both_ways(const std::string& name, Check check) {
    for (const char* way : {"XMM_CONF=userfaultfd:on", "XMM_CONF=userfaultfd:off"}) {
        const child_end end = run_child(name.c_str(), {way});
        const std::string asked = way;
        CAPTURE(name);
        CAPTURE(asked);
        CAPTURE(end.errors);
        check(end, std::strcmp(way, "XMM_CONF=userfaultfd:on") == 0 &&
                       fault_trap::instance().has_userfaultfd());
    }
}

void expect_death_by_fault(const child_end& end) {
    // Sanitizers' handlers end the process themselves.
    if (xmm_test::has_sanitizer) {
        CHECK((end.signal != 0 || (end.exit_code != 0 && end.exit_code != 99)));
    } else {
        CHECK(end.signal == SIGSEGV);
    }
}

std::atomic<int> earlier_calls{0};
std::atomic<int> later_calls{0};
std::atomic<bool> is_as_the_kernel_does{false};

void earlier_with_info(int signal, siginfo_t* info, void* context) {
    ++earlier_calls;
    sigset_t mask;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    is_as_the_kernel_does =
        signal == SIGSEGV && info->si_signo == SIGSEGV && info->si_addr == foreign_page &&
        info->si_code == SEGV_ACCERR && context != nullptr && ::sigismember(&mask, SIGSEGV) == 1 &&
        ::sigismember(&mask, SIGUSR1) == 1 && ::sigismember(&mask, SIGUSR2) == 0;
    open_foreign_page();
    errno = 99;
}
void earlier_plain(int signal) {
    ++earlier_calls;
    is_as_the_kernel_does = signal == SIGSEGV;
    open_foreign_page();
}

void install(void (*plain)(int), int flags = 0) {
    struct sigaction action {};
    action.sa_handler = plain;
    action.sa_flags = flags;
    ::sigaction(SIGSEGV, &action, nullptr);
}
void install(void (*with_info)(int, siginfo_t*, void*), int flags = 0) {
    struct sigaction action {};
    action.sa_sigaction = with_info;
    ::sigaddset(&action.sa_mask, SIGUSR1);
    action.sa_flags = flags | SA_SIGINFO;
    ::sigaction(SIGSEGV, &action, nullptr);
}

const child_case chains_with_info{
    "chains with info", [] {
        make_foreign_page();
        install(earlier_with_info);
        const store s{1};
        errno = 17;
        touch_foreign_page();
        XMM_EXPECT(errno == 17);
        XMM_EXPECT(earlier_calls == 1);
        XMM_EXPECT(is_as_the_kernel_does);
        XMM_EXPECT(*s.page(0) == 0);
        XMM_EXPECT(earlier_calls == 1);
        sigset_t mask;
        ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
        XMM_EXPECT(::sigismember(&mask, SIGSEGV) == 0 && ::sigismember(&mask, SIGUSR1) == 0);
        return 0;
    }};
const child_case chains_plain{"chains plain", [] {
                                  make_foreign_page();
                                  install(earlier_plain);
                                  const store s{1};
                                  touch_foreign_page();
                                  XMM_EXPECT(earlier_calls == 1);
                                  XMM_EXPECT(is_as_the_kernel_does);
                                  XMM_EXPECT(*s.page(0) == 0);
                                  return 0;
                              }};
const child_case chains_once{
    "chains once", [] {
        make_foreign_page();
        install(earlier_plain, static_cast<int>(SA_RESETHAND));
        const store s{1};
        touch_foreign_page();
        XMM_EXPECT(earlier_calls == 1);
        make_foreign_page();
        touch_foreign_page();  // the kernel would have gone back to the default
        return 1;
    }};

// An earlier handler that itself touches a hole.
store* of_earlier = nullptr;
const child_case earlier_faults{
    "earlier handler faults", [] {
        make_foreign_page();
        const auto touches = [](int) {
            XMM_EXPECT(*of_earlier->page(0) == 0);
            earlier_plain(SIGSEGV);
        };
        install(touches, SA_NODEFER);  // without, the kernel would kill it for the second SIGSEGV
        store s{1};
        of_earlier = &s;
        touch_foreign_page();
        XMM_EXPECT(earlier_calls == 1);
        XMM_EXPECT(s.calls == 1);
        return 0;
    }};

struct sigaction before_later {};
void later_that_chains(int signal, siginfo_t* info, void* context) {
    ++later_calls;
    before_later.sa_sigaction(signal, info, context);
}
const child_case rearms{
    "rearms", [] {
        make_foreign_page();
        install(earlier_with_info);
        store s{2};
        ::sigaction(SIGSEGV, nullptr, &before_later);
        install(later_that_chains);
        XMM_EXPECT(*s.page(0) == 0);  // by way of the later one, unless by userfaultfd
        XMM_EXPECT(later_calls == (store::trap().has_userfaultfd() ? 0 : 1));
        later_calls = 0;
        for (int i = 0; i < 3; ++i) {
            XMM_EXPECT(store::trap().rearm().is_ok());
        }
        XMM_EXPECT(*s.page(1) == 1);
        XMM_EXPECT(later_calls == 0);
        // The later one comes first, it calls the trap, which goes on to the earlier one.
        touch_foreign_page();
        XMM_EXPECT(later_calls == 1);
        XMM_EXPECT(earlier_calls == 1);
        XMM_EXPECT(is_as_the_kernel_does);
        make_foreign_page();
        touch_foreign_page();
        XMM_EXPECT(later_calls == 2);
        XMM_EXPECT(earlier_calls == 2);
        return 0;
    }};
const child_case rearms_in_order{"rearms in order", [] {
                                     install(earlier_plain);
                                     const store s{1};
                                     // Each of them comes back before one that came after it, more often
                                     // than there is room for handlers.
                                     for (int i = 0; i < 20; ++i) {
                                         install(SIG_DFL);
                                         XMM_EXPECT(store::trap().rearm().is_ok());
                                         install(earlier_plain);
                                         XMM_EXPECT(store::trap().rearm().is_ok());
                                     }
                                     make_foreign_page();
                                     touch_foreign_page();
                                     XMM_EXPECT(earlier_calls == 1);
                                     // Who called us goes on with those before it, in the new order.
                                     ::sigaction(SIGSEGV, nullptr, &before_later);
                                     install(later_that_chains);
                                     XMM_EXPECT(store::trap().rearm().is_ok());
                                     make_foreign_page();
                                     touch_foreign_page();
                                     XMM_EXPECT(later_calls == 1 && earlier_calls == 2);
                                     return 0;
                                 }};
const child_case rearms_once_more{"rearms once more", [] {
                                      install(earlier_plain, static_cast<int>(SA_RESETHAND));
                                      const store s{1};
                                      for (int calls = 1; calls <= 2; ++calls) {
                                          make_foreign_page();
                                          touch_foreign_page();
                                          XMM_EXPECT(earlier_calls == calls);
                                          install(earlier_plain, static_cast<int>(SA_RESETHAND));
                                          XMM_EXPECT(store::trap().rearm().is_ok());
                                      }
                                      return 0;
                                  }};
const child_case rearms_with_flags{"rearms with other flags", [] {
                                       install(earlier_plain, static_cast<int>(SA_RESETHAND));
                                       const store s{1};
                                       for (int i = 0; i < 20; ++i) {
                                           install(earlier_plain, i % 2 == 0 ? 0 : SA_NODEFER);
                                           XMM_EXPECT(store::trap().rearm().is_ok());
                                       }
                                       for (int calls = 1; calls <= 3; ++calls) {
                                           make_foreign_page();
                                           touch_foreign_page();
                                           XMM_EXPECT(earlier_calls == calls);
                                       }
                                       return 0;
                                   }};
const child_case rearm_needed{
    "rearm needed", [] {
        store s{2};
        foreign_page = static_cast<char*>(to_pointer(s.range().begin));
        install([](int) {
            ++later_calls;
            XMM_EXPECT(store::trap().rearm().is_ok());
        });
        XMM_EXPECT(*s.page(0) == 0);
        XMM_EXPECT(later_calls == (store::trap().has_userfaultfd() ? 0 : 1));
        XMM_EXPECT(*s.page(1) == 1);
        XMM_EXPECT(later_calls <= 1);
        return 0;
    }};

const child_case foreign_dies{"foreign fault", [] {
                                  make_foreign_page();
                                  if (!xmm_test::has_sanitizer) {
                                      install(SIG_DFL);
                                  }
                                  const store s{1};
                                  touch_foreign_page();
                                  return 1;
                              }};
const child_case ignored_dies{"foreign fault ignored", [] {
                                  make_foreign_page();
                                  install(SIG_IGN);
                                  const store s{1};
                                  ::kill(::getpid(), SIGSEGV);  // sent: ignored
                                  ::usleep(1000);
                                  std::fprintf(stderr, "still here\n");
                                  touch_foreign_page();  // raised: not even the kernel ignores it
                                  return 1;
                              }};
const child_case sent_dies{"sent signal", [] {
                               install(SIG_DFL);
                               const store s{1};
                               ::raise(SIGSEGV);
                               ::usleep(1000);
                               return 1;
                           }};

const child_case refused{"refused", [] {
                             store s{2};
                             s.outcome = cpu_fault_outcome::refused;
                             s.why = "it is pinned elsewhere";
                             *s.page(1) = 1;
                             return 1;
                         }};
const child_case refused_chains{
    "refused chains", [] {
        foreign_page = nullptr;
        install([](int signal, siginfo_t* info, void*) {
            char* at = static_cast<char*>(info->si_addr);
            // In one write: the death of the process flushes nothing.
            std::fprintf(stderr, "earlier handler: %s at %s\n", signal == SIGSEGV ? "SIGSEGV" : "?",
                         at == foreign_page ? "the page" : "?");
            ::_exit(5);
        });
        store s{2};
        foreign_page = static_cast<char*>(to_pointer(s.page_range(1).begin));
        s.outcome = cpu_fault_outcome::no_memory;
        static_cast<void>(*s.page(1));
        return 1;
    }};
const child_case fails_then_works{
    "fails then works", [] {
        install([](int) { ++earlier_calls; });  // returns, so the access is tried again
        store s{2};
        s.failures_left = 1;
        XMM_EXPECT(*s.page(1) == 1);
        XMM_EXPECT(earlier_calls == (store::trap().has_userfaultfd() ? 0 : 1));
        s.failures_left = 3;
        *s.page(0) = 5;
        XMM_EXPECT(*s.page(0) == 5);
        XMM_EXPECT(store::trap().make_hole(s.range()).is_ok());
        XMM_EXPECT(*s.page(0) == 5 && *s.page(1) == 1);
        // By userfaultfd: poisoned and tried again once more, at the same address.
        for (int i = 0; i < 3; ++i) {
            XMM_EXPECT(store::trap().make_hole(s.range()).is_ok());
            s.failures_left = 1;
            XMM_EXPECT(*s.page(1) == 1);
        }
        return 0;
    }};
const child_case asked{
    "asked", [] {
        store s{2};
        const address at = s.page_range(1).begin + 8;
        for (const auto one : {cpu_fault_outcome::refused, cpu_fault_outcome::no_memory}) {
            s.outcome = one;
            XMM_EXPECT(store::trap().ask(at, xmm::access::write) == one);
        }
        s.outcome = cpu_fault_outcome::resolved;
        XMM_EXPECT(store::trap().ask(at, xmm::access::write) == cpu_fault_outcome::resolved);
        XMM_EXPECT(s.last_at == at && s.last_wanted == xmm::access::write);
        XMM_EXPECT(!s.ran_elsewhere);  // on this thread
        const int calls = s.calls;
        XMM_EXPECT(*s.page(1) == 1 && s.calls == calls);
        // Nobody's: plain memory serves itself.
        XMM_EXPECT(store::trap().ask(to_address(&s), xmm::access::read) ==
                   cpu_fault_outcome::resolved);
        XMM_EXPECT(s.calls == calls);
        return 0;
    }};
// A sink would answer for ever that the page is there.
void jump_to(volatile std::uint64_t* at) {
    ::alarm(10);
    reinterpret_cast<void (*)()>(to_address(const_cast<std::uint64_t*>(at)))();
}
const child_case jumps_into_page{"jumps into a page", [] {
                                     const store s{2};
                                     *s.page(1) = 1;
                                     jump_to(s.page(1));
                                     return 1;
                                 }};
const child_case jumps_into_hole{"jumps into a hole", [] {
                                     const store s{2};
                                     jump_to(s.page(1));
                                     return 1;
                                 }};

const child_case file_cut{"file cut", [] {
                              const store s{2};
                              XMM_EXPECT(*s.page(1) == 1);
                              s.resize_file(0);
                              ::alarm(10);
                              static_cast<void>(*s.page(1));
                              return 1;
                          }};
const store* of_bus_handler = nullptr;
const child_case file_cut_chains{
    "file cut chains", [] {
        struct sigaction action {};
        action.sa_handler = [](int) {
            ++earlier_calls;
            of_bus_handler->resize_file(of_bus_handler->range().bytes);
        };
        ::sigaction(SIGBUS, &action, nullptr);
        const store s{2};
        of_bus_handler = &s;
        XMM_EXPECT(*s.page(1) == 1 && s.calls == 1);
        ::alarm(10);
        for (int round = 1; round <= 3; ++round) {
            s.resize_file(0);
            XMM_EXPECT(*s.page(1) == 0);
            XMM_EXPECT(earlier_calls == round);
            XMM_EXPECT(s.calls == 2);  // once was enough to know
        }
        std::thread{[&] {
            s.resize_file(0);
            XMM_EXPECT(*s.page(1) == 0 && earlier_calls == 4 && s.calls == 3);
        }}.join();
        return 0;
    }};

const child_case refused_system_call{
    "refused system call", [] {
        store s{2};
        s.outcome = cpu_fault_outcome::refused;
        int ends[2];
        XMM_EXPECT(::pipe(ends) == 0);
        XMM_EXPECT(::write(ends[1], "x", 1) == 1);
        XMM_EXPECT(::syscall(SYS_read, ends[0], to_pointer(s.range().begin), 1) == -1);
        XMM_EXPECT(errno == EFAULT || errno == EHWPOISON);
        return 0;
    }};
const child_case unmapped_meanwhile{"unmapped meanwhile", [] {
                                        store s{2};
                                        s.unmaps = true;
                                        s.outcome = cpu_fault_outcome::not_mapped;
                                        static_cast<void>(*s.page(1));
                                        return 1;
                                    }};
const child_case removed{"sink removed", [] {
                             store s{2};
                             store::trap().remove(&s);
                             static_cast<void>(*s.page(1));
                             return 1;
                         }};

const child_case blocked{"blocked signal", [] {
                             store s{1};
                             sigset_t mask;
                             ::sigfillset(&mask);
                             ::pthread_sigmask(SIG_BLOCK, &mask, nullptr);
                             XMM_EXPECT(*s.page(0) == 0);
                             return 0;
                         }};

const child_case service_touches{"service thread touches", [] {
                                     store s{2};
                                     s.touches_itself = true;
                                     static_cast<void>(*s.page(1));
                                     return 1;
                                 }};

const child_case forked_touches{
    "forked child touches", [] {
        store s{2};
        XMM_EXPECT(*s.page(0) == 0);
        const pid_t child = ::fork();
        if (child == 0) {
            if (store::trap()
                    .add({&s, [](void*, address) noexcept { return true; },
                          [](void*, address, xmm::access, const char**) noexcept {
                              return cpu_fault_outcome::resolved;
                          }})
                    .code != errc::forked) {
                ::_exit(98);
            }
            static_cast<void>(*s.page(1));
            ::_exit(97);
        }
        int ended = 0;
        XMM_EXPECT(::waitpid(child, &ended, 0) == child);
        XMM_EXPECT(WIFSIGNALED(ended) || (xmm_test::has_sanitizer && WEXITSTATUS(ended) < 97));
        XMM_EXPECT(*s.page(1) == 1);
        return 0;
    }};

// A child of fork ends in the ordinary way, with destructors, while the parent's threads were inside.
const child_case forked_removes{
    "forked child removes", [] {
        store s{2};
        s.delay_us = 100'000;
        std::thread toucher{[&] { static_cast<void>(*s.page(0)); }};
        while (s.inside == 0) {
            ::usleep(100);
        }
        const pid_t child = ::fork();
        if (child == 0) {
            store::trap().remove(&s);
            static_cast<void>(*s.page(1));  // no sink any more: a plain fault
            ::_exit(97);
        }
        int ended = 0;
        XMM_EXPECT(::waitpid(child, &ended, 0) == child);
        XMM_EXPECT(WIFSIGNALED(ended) || (xmm_test::has_sanitizer && WEXITSTATUS(ended) < 97));
        toucher.join();
        return 0;
    }};

}  // namespace

TEST_CASE("fault_trap: a foreign fault goes to the handler before, as the kernel calls it") {
    for (const char* name : {"chains with info", "chains plain", "earlier handler faults"}) {
        in_both_ways(name, [](const child_end& end, bool) { CHECK(end.exit_code == 0); });
    }
}

TEST_CASE("fault_trap: a handler installed for one signal is called once") {
    in_both_ways("chains once", [](const child_end& end, bool) {
        CHECK(end.exit_code == -1);
        CHECK(end.signal == SIGSEGV);
    });
}

TEST_CASE("fault_trap: rearm takes the front again, and nobody is called twice") {
    for (const char* name : {"rearms", "rearms in order", "rearms once more",
                             "rearms with other flags", "rearm needed"}) {
        in_both_ways(name, [](const child_end& end, bool) { CHECK(end.exit_code == 0); });
    }
}

TEST_CASE("fault_trap: a foreign fault with the default action kills") {
    in_both_ways("foreign fault", [](const child_end& end, bool) {
        expect_death_by_fault(end);
        CHECK_FALSE(end.says("xmm:"));
    });
}

TEST_CASE("fault_trap: a jump into memory of a sink kills as any jump into data does") {
    for (const char* name : {"jumps into a page", "jumps into a hole"}) {
        in_both_ways(name, [](const child_end& end, bool) {
            expect_death_by_fault(end);
            CHECK(end.signal != SIGALRM);
            CHECK_FALSE(end.says("xmm:"));
        });
    }
}

TEST_CASE("fault_trap: a SIGBUS that no mapping cures goes to the handler before") {
    in_both_ways("file cut", [](const child_end& end, bool) {
        CHECK((end.signal == SIGBUS || (xmm_test::has_sanitizer && end.exit_code > 0)));
        CHECK_FALSE(end.says("xmm:"));
    });
    in_both_ways("file cut chains", [](const child_end& end, bool) { CHECK(end.exit_code == 0); });
}

TEST_CASE("fault_trap: ignored and sent signals do what they did") {
    in_both_ways("foreign fault ignored", [](const child_end& end, bool) {
        CHECK(end.signal == SIGSEGV);
        CHECK(end.says("still here"));
    });
    in_both_ways("sent signal", [](const child_end& end, bool) { CHECK(end.signal == SIGSEGV); });
}

TEST_CASE("fault_trap: what a sink refuses is reported, then the process dies as it would have") {
    in_both_ways("refused", [](const child_end& end, bool) {
        expect_death_by_fault(end);
        CHECK(end.says("xmm: write to 0x"));
        CHECK(end.says(": refused: it is pinned elsewhere\n"));
    });
}

TEST_CASE("fault_trap: what a sink refuses goes to the handler before") {
    in_both_ways("refused chains", [](const child_end& end, bool) {
        CHECK(end.exit_code == 5);
        CHECK(end.says("xmm: read of 0x"));
        CHECK(end.says(": no memory\n"));
        CHECK(end.says("earlier handler: SIGSEGV at the page"));
    });
}

TEST_CASE("fault_trap: a refusal is not for ever") {
    in_both_ways("fails then works", [](const child_end& end, bool) { CHECK(end.exit_code == 0); });
}

TEST_CASE("fault_trap: who asks gets the answer that a touch would, and nothing else") {
    in_both_ways("asked", [](const child_end& end, bool) { CHECK(end.exit_code == 0); });
}

TEST_CASE("fault_trap: a refused system call gets an error and hangs nobody") {
    in_both_ways("refused system call",
                 [](const child_end& end, bool) { CHECK(end.exit_code == 0); });
}

TEST_CASE("fault_trap: memory unmapped under a waiting thread leaves nobody waiting") {
    for (const char* name : {"unmapped meanwhile", "sink removed"}) {
        in_both_ways(name, [](const child_end& end, bool) {
            CHECK((end.signal != 0 || (xmm_test::has_sanitizer && end.exit_code != 0)));
            CHECK(end.signal != SIGKILL);
        });
    }
}

TEST_CASE("fault_trap: a blocked SIGSEGV kills, but not with userfaultfd") {
    in_both_ways("blocked signal", [](const child_end& end, bool has_userfaultfd) {
        if (has_userfaultfd) {
            CHECK(end.exit_code == 0);
        } else {
            CHECK(end.signal == SIGSEGV);
        }
    });
}

TEST_CASE("fault_trap: a sink that touches a hole aborts with a message") {
    in_both_ways("service thread touches", [](const child_end& end, bool) {
        CHECK(end.signal == SIGABRT);
        CHECK(end.says("by a fault service thread: a sink must not touch unified memory"));
    });
}

TEST_CASE("fault_trap: a child of fork is refused") {
    in_both_ways("forked child touches", [](const child_end& end, bool) {
        CHECK(end.exit_code == 0);
        CHECK(end.says(": unified memory of the parent process; a child of fork cannot use it"));
    });
}

TEST_CASE("fault_trap: remove in a child of fork waits for nobody") {
    in_both_ways("forked child removes", [](const child_end& end, bool) {
        CHECK(end.exit_code == 0);
        CHECK_FALSE(end.says("xmm:"));
    });
}
