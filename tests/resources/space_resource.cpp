// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/space_resource.hpp>

#include <atomic>
#include <csignal>
#include <cstring>

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "fake_space.hpp"

using namespace xmm;
using namespace xmm::literals;
using test::fake_space;

namespace {

[[nodiscard]] bool is_in_memory(void* begin, std::size_t bytes) {
    const auto os_page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> pages(bytes / os_page);
    return ::mincore(begin, bytes, pages.data()) == 0 &&
           std::ranges::all_of(pages, [](unsigned char page) { return (page & 1) != 0; });
}

// Host memory whose first touch is looked at: which signals does the thread take?
struct watched_pages {
    static constexpr std::size_t bytes = std::size_t{8} << 20;
    static inline void* pages = nullptr;
    static inline std::atomic<int> helpers{0};
    static inline std::atomic<int> open_helpers{0};
    static inline pid_t first_thread = 0;

    static void on_touch(int, siginfo_t* about, void* context) {
        const address at = align_down(to_address(about->si_addr), page_bytes);
        const auto& mask = static_cast<ucontext_t*>(context)->uc_sigmask;
        if (::gettid() != first_thread) {
            ++helpers;
            open_helpers += ::sigismember(&mask, SIGUSR1) == 1 ? 0 : 1;
        }
        ::mprotect(to_pointer(at), page_bytes, PROT_READ | PROT_WRITE);
    }
    static space_port port() {
        static constexpr space_table functions{
            .map = [](void*, const page_request& wanted) noexcept -> result<void*> {
                CHECK(wanted.bytes == bytes);
                return pages;
            },
            .unmap = [](void*, void*) noexcept -> status { return {}; },
            .prefetch = [](void*, node_id, void*, std::size_t) noexcept -> status { return {}; },
            .usage = [](void*, node_id) noexcept -> resource_usage { return {}; },
            .reach_of = [](void*, node_id) noexcept { return reach::host; },
            .queues =
                {
                    .record = [](void*, queue_id) noexcept -> result<ticket> { return ticket{}; },
                    .is_done = [](void*, ticket) noexcept { return true; },
                    .wait = [](void*, ticket) noexcept -> status { return {}; },
                }};
        return {&pages, functions};
    }
};

}  // namespace

TEST_CASE("space_resource: what is asked of the space") {
    fake_space space;
    unified_resource unified{space.port(), fake_space::device, 4_MiB};
    CHECK(unified.node() == fake_space::device);
    void* pointer = unified.allocate_sync(100, 16);
    CHECK(space.last_request().bytes == 100);
    CHECK(space.last_request().alignment == page_bytes);
    CHECK(space.last_request().granule_bytes == 4_MiB);
    CHECK(space.last_request().preferred == fake_space::device);
    CHECK(space.last_request().fixed == no_node);
    unified.deallocate_sync(pointer, 100, 16);

    pointer = unified.allocate_sync(100, 8_MiB);
    CHECK(space.last_request().alignment == 8_MiB);
    unified.deallocate_sync(pointer, 100, 8_MiB);

    CHECK(unified_resource{space.port()}.node() == any_host);

    device_resource device{space.port(), fake_space::device};
    pointer = device.allocate_sync(5_MiB);
    CHECK(space.last_request().fixed == fake_space::device);
    CHECK(space.last_request().preferred == no_node);
    CHECK(device.usage().used == 6_MiB);
    device.deallocate_sync(pointer, 5_MiB);
    CHECK(device.usage().used == 0);
}

TEST_CASE("space_resource: a node that does not fit is refused at once") {
    fake_space space;
    CHECK_THROWS_AS((unified_resource{space.port(), node_id{9}}), std::invalid_argument);
    CHECK_THROWS_AS((device_resource{space.port(), fake_space::host}), std::invalid_argument);
    CHECK_THROWS_AS((device_resource{space.port(), node_id{9}}), std::invalid_argument);
    CHECK_THROWS_AS((pinned_resource{space.port(), fake_space::device}), std::invalid_argument);
    CHECK_NOTHROW((pinned_resource{space.port(), any_host}));
    CHECK_THROWS_AS((unified_resource{space_port{}}), std::invalid_argument);
    CHECK_THROWS_AS((device_resource{space_port{}, fake_space::device}), std::invalid_argument);
}

TEST_CASE("space_resource: given back on a queue, pages go once the queue has passed") {
    fake_space space;
    unified_resource unified{space.port()};
    const stream_ref a = space.stream(fake_space::queue_a);
    const stream_ref b = space.stream(fake_space::queue_b);
    void* first = unified.allocate(a, 100);
    void* second = unified.allocate(b, 100);
    space.submit(fake_space::queue_a);
    space.submit(fake_space::queue_b);
    unified.deallocate(a, first, 100);
    unified.deallocate(b, second, 100);
    CHECK(space.live_blocks() == 2);
    static_cast<char*>(first)[99] = 1;  // work of the queue may still do that

    SUBCASE("collect takes what is free, in whatever order the queues come to it") {
        unified.collect();
        CHECK(space.live_blocks() == 2);
        space.complete(fake_space::queue_b);
        unified.collect();
        CHECK(space.live_blocks() == 1);
        space.complete(fake_space::queue_a);
        unified.collect();
        CHECK(space.live_blocks() == 0);
    }
    SUBCASE("so does the next request") {
        space.complete(fake_space::queue_a);
        void* next = unified.allocate_sync(100);
        CHECK(space.live_blocks() == 2);
        unified.deallocate_sync(next, 100);
        CHECK(space.live_blocks() == 1);
    }
    SUBCASE("the resource takes the rest along when it goes") {
        {
            unified_resource other{space.port()};
            other.deallocate(a, unified.allocate_sync(100), 100);
            CHECK(space.live_blocks() == 3);
        }
        CHECK(space.live_blocks() == 2);
        CHECK(space.counted().waits == 1);
    }
}

TEST_CASE("space_resource: given back while the queue cannot say, pages stay until it has") {
    fake_space space;
    unified_resource unified{space.port()};
    const stream_ref a = space.stream(fake_space::queue_a);
    void* block = unified.allocate(a, 100);
    space.submit(fake_space::queue_a);
    space.capture(fake_space::queue_a);
    unified.deallocate(a, block, 100);
    unified.collect();
    CHECK(space.live_blocks() == 1);
    static_cast<char*>(block)[99] = 1;  // work of the queue may still do that
    space.capture(fake_space::queue_a, false);
    unified.collect();
    CHECK(space.live_blocks() == 1);  // known now, and not over
    SUBCASE("the queue passes") {
        space.complete(fake_space::queue_a);
        unified.collect();
        CHECK(space.live_blocks() == 0);
        CHECK(space.counted().waits == 0);
    }
    SUBCASE("a stream of another space is waited for, or the block stays") {
        static int asked = 0;
        asked = 0;
        const stream_ref other{queue_id{99}, nullptr, [](void*, queue_id) noexcept -> status {
                                   ++asked;
                                   return fail(errc::busy, "being captured");
                               }};
        unified.deallocate(other, unified.allocate_sync(100), 100);
        CHECK(asked > 1);
        CHECK(space.live_blocks() == 2);
    }
}

TEST_CASE("space_resource: of a queue that ends before it can say, the pages stay") {
    fake_space space;
    {
        unified_resource unified{space.port()};
        const stream_ref a = space.stream(fake_space::queue_a);
        void* block = unified.allocate(a, 100);
        space.submit(fake_space::queue_a);
        space.capture(fake_space::queue_a);
        unified.deallocate(a, block, 100);
        space.capture(fake_space::queue_a, false);
        space.lose(fake_space::queue_a);
        unified.collect();
        CHECK(space.live_blocks() == 1);
        static_cast<char*>(block)[99] = 1;
    }
    CHECK(space.live_blocks() == 1);
}

TEST_CASE("space_resource: a queue at work is asked once a call, whatever waits for it") {
    fake_space space{std::size_t{2} << 30};
    unified_resource unified{space.port()};
    const stream_ref a = space.stream(fake_space::queue_a);
    const stream_ref b = space.stream(fake_space::queue_b);
    constexpr std::size_t count = 200;
    std::vector<void*> blocks;
    for (std::size_t i = 0; i < count; ++i) {
        blocks.push_back(unified.allocate(i % 2 == 0 ? a : b, 1));
    }
    space.submit(fake_space::queue_a);
    space.submit(fake_space::queue_b);
    for (std::size_t i = 0; i < count; ++i) {
        unified.deallocate(i % 2 == 0 ? a : b, blocks[i], 1);
    }
    CHECK(space.counted().questions <= 4 * count);
    space.complete(fake_space::queue_b);
    unified.collect();
    CHECK(space.live_blocks() == count / 2);
    space.complete(fake_space::queue_a);
    unified.collect();
    CHECK(space.live_blocks() == 0);
}

TEST_CASE("space_resource: before a request fails, queues are waited for") {
    fake_space space{4 * page_bytes};
    unified_resource unified{space.port()};
    const stream_ref a = space.stream(fake_space::queue_a);
    void* first = unified.allocate(a, 3 * page_bytes);
    space.submit(fake_space::queue_a);
    unified.deallocate(a, first, 3 * page_bytes);
    void* second = unified.allocate_sync(2 * page_bytes);
    CHECK(space.counted().waits == 1);
    CHECK(space.live_blocks() == 1);
    unified.deallocate_sync(second, 2 * page_bytes);
}

TEST_CASE("space_resource: threads give back on queues while others ask") {
    fake_space space{64 * page_bytes};
    unified_resource unified{space.port()};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            const queue_id queue = t % 2 == 0 ? fake_space::queue_a : fake_space::queue_b;
            for (int i = 0; i < 200; ++i) {
                void* pointer = unified.allocate(space.stream(queue), 100);
                *static_cast<int*>(pointer) = i;
                space.submit(queue);
                unified.deallocate(space.stream(queue), pointer, 100);
                if (i % 7 == t) {
                    space.complete(queue);
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    space.complete(fake_space::queue_a);
    space.complete(fake_space::queue_b);
    unified.collect();
    CHECK(space.live_blocks() == 0);
}

TEST_CASE("space_resource: on a stream that is no queue of the space, the call waits") {
    fake_space space;
    unified_resource unified{space.port()};
    void* pointer = unified.allocate_sync(100);
    static int waits = 0;
    waits = 0;
    const stream_ref foreign{queue_id{}, &space, [](void* self, queue_id) noexcept -> status {
                                 CHECK(static_cast<fake_space*>(self)->live_blocks() == 1);
                                 ++waits;
                                 return {};
                             }};
    unified.deallocate(foreign, pointer, 100);
    CHECK(waits == 1);
    CHECK(space.live_blocks() == 0);

    // A queue that the space does not know is waited for as well.
    pointer = unified.allocate_sync(100);
    const stream_ref unknown{queue_id{99}, &space, [](void*, queue_id) noexcept -> status {
                                 ++waits;
                                 return fail(errc::device_lost, "gone");
                             }};
    unified.deallocate(unknown, pointer, 100);
    CHECK(waits == 2);
    CHECK(space.live_blocks() == 0);
}

TEST_CASE("space_resource: a block that the space keeps is not lost from sight") {
    fake_space space;
    unified_resource unified{space.port()};
    void* pointer = unified.allocate_sync(100);
    space.refuse_unmaps(true);
    unified.deallocate_sync(pointer, 100);  // says so on stderr, does not throw
    CHECK(space.live_blocks() == 1);
    space.refuse_unmaps(false);
    unified.deallocate_sync(pointer, 100);
    CHECK(space.live_blocks() == 0);
}

TEST_CASE(
    "pinned_resource: all pages exist when allocate returns, whatever the number of threads") {
    fake_space space;
    for (unsigned threads : {0U, 1U, 3U, 100U}) {
        CAPTURE(threads);
        pinned_resource pinned{space.port(), fake_space::host, {.touch = true, .threads = threads}};
        const std::size_t bytes = 9_MiB;
        void* pointer = pinned.allocate_sync(bytes);
        CHECK(is_in_memory(pointer, bytes));
        pinned.deallocate_sync(pointer, bytes);
    }
    pinned_resource lazy{space.port(), fake_space::host, {.touch = false}};
    void* pointer = lazy.allocate_sync(9_MiB);
    CHECK_FALSE(is_in_memory(pointer, 9_MiB));
    lazy.deallocate_sync(pointer, 9_MiB);
}

TEST_CASE("pinned_resource: the threads that touch pages are nobody's signal handlers") {
    const std::size_t length = watched_pages::bytes + page_bytes;
    void* raw = ::mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(raw != MAP_FAILED);
    watched_pages::pages = to_pointer(align_up(to_address(raw), page_bytes));
    watched_pages::first_thread = ::gettid();
    struct sigaction watching {};
    struct sigaction before {};
    watching.sa_sigaction = &watched_pages::on_touch;
    watching.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSEGV, &watching, &before);
    {
        pinned_resource pinned{watched_pages::port(), fake_space::host, {.threads = 4}};
        void* pointer = pinned.allocate_sync(watched_pages::bytes);
        pinned.deallocate_sync(pointer, watched_pages::bytes);
    }
    ::sigaction(SIGSEGV, &before, nullptr);
    ::munmap(raw, length);
    CHECK(watched_pages::helpers > 0);
    CHECK(watched_pages::open_helpers == 0);
}

TEST_CASE("space_resource: resources of one space and kind are equal, of different kinds are not") {
    fake_space space;
    unified_resource unified{space.port()};
    pinned_resource pinned{space.port(), fake_space::host};
    pinned_resource any{space.port()};
    device_resource device{space.port(), fake_space::device};
    CHECK_FALSE(unified.is_equal(static_cast<const resource_base&>(device)));
    CHECK_FALSE(device.is_equal(static_cast<const resource_base&>(unified)));
    CHECK_FALSE(static_cast<const memory_resource&>(unified) == pinned);
    CHECK_FALSE(pinned == any);
}
