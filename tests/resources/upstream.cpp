// SPDX-License-Identifier: Apache-2.0
// upstream.cpp - a type that satisfies the concept `resource`, and has nothing beyond it, in everything that wraps one.
#include <xmm/resources/upstream.hpp>

#include <cstdio>
#include <cstring>
#include <map>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <xmm/resources/adaptors/aligned_resource.hpp>
#include <xmm/resources/adaptors/binning_resource.hpp>
#include <xmm/resources/adaptors/failure_callback_resource.hpp>
#include <xmm/resources/adaptors/limit_resource.hpp>
#include <xmm/resources/adaptors/logging_resource.hpp>
#include <xmm/resources/adaptors/prefetch_resource.hpp>
#include <xmm/resources/adaptors/statistics_resource.hpp>
#include <xmm/resources/adaptors/thread_cache_resource.hpp>
#include <xmm/resources/adaptors/thread_safe_resource.hpp>
#include <xmm/resources/adaptors/tracking_resource.hpp>
#include <xmm/resources/allocator.hpp>
#include <xmm/resources/cuda_mr.hpp>
#include <xmm/resources/debug_resource.hpp>
#include <xmm/resources/host_resource.hpp>
#include <xmm/resources/pool_resource.hpp>
#include <xmm/resources/shared_resource.hpp>
#include <xmm/resources/space_resource.hpp>

#include "fake_space.hpp"

using namespace xmm;
using test::fake_space;

namespace {

// What the concept asks for and no more: neither is_equal, usage, queues nor a base. Equal where the drawer is.
template <reach Who>
struct bare_resource {
    static constexpr reach static_reach = Who;
    int drawer = 0;
    std::size_t live = 0;
    std::size_t last_alignment = 0;

    explicit bare_resource(int which = 0) noexcept : drawer{which} {}
    void* allocate(stream_ref, std::size_t bytes, std::size_t alignment) {
        ++live;
        last_alignment = alignment;
        return ::operator new(bytes, std::align_val_t{alignment});
    }
    void deallocate(stream_ref, void* at, std::size_t, std::size_t alignment) noexcept {
        --live;
        ::operator delete(at, std::align_val_t{alignment});
    }
    void* allocate_sync(std::size_t bytes, std::size_t alignment) {
        return allocate({}, bytes, alignment);
    }
    void deallocate_sync(void* at, std::size_t bytes, std::size_t alignment) noexcept {
        deallocate({}, at, bytes, alignment);
    }
    [[nodiscard]] node_id node() const noexcept { return node_id{0}; }
    [[nodiscard]] reach reachable_by() const noexcept { return Who; }
    bool operator==(const bare_resource& other) const { return drawer == other.drawer; }
};

using bare = bare_resource<reach::host>;
using bare_device = bare_resource<reach::device>;
using bare_unreached = bare_resource<reach::none>;
static_assert(resource<bare> && resource<bare_device> && resource<bare_unreached>);
static_assert(!reports_usage<bare> && !knows_queues<bare>);
static_assert(reports_usage<host_resource> && knows_queues<host_resource>);
static_assert(reports_usage<statistics_resource<bare>>);

struct no_resource {};

// All that wrap one refuse what is none, so that a program can ask.
template <template <class> class Wrapper, class R>
concept wraps = requires { typename Wrapper<R>; };
template <class R>
using allocator_of_ints = allocator<int, R>;

template <template <class> class... Wrappers>
struct list_of_wrappers {
    template <class R>
    static constexpr bool accept = (wraps<Wrappers, R> && ...);
    template <class R>
    static constexpr bool refuse = (!wraps<Wrappers, R> && ...);
};
using wrappers = list_of_wrappers<aligned_resource, binning_resource, failure_callback_resource,
                                  limit_resource, logging_resource, prefetch_resource,
                                  statistics_resource, thread_cache_resource, thread_safe_resource,
                                  tracking_resource, allocator_of_ints, shared_resource>;
static_assert(wrappers::accept<bare> && wrappers::accept<bare_device>);
static_assert(wrappers::accept<bare_unreached> && wrappers::accept<memory_resource>);
static_assert(wrappers::refuse<no_resource> && wrappers::refuse<int>);

// The CPU looks into what debug_resource hands out.
static_assert(wraps<debug_resource, bare> && wraps<debug_resource, host_resource>);
static_assert(!wraps<debug_resource, bare_device> && !wraps<debug_resource, bare_unreached>);
static_assert(!wraps<debug_resource, device_resource> && !wraps<debug_resource, no_resource>);

// A bin is one of ours, and reached like the upstream.
template <class Bin>
concept is_bin = requires(binning_resource<bare>& bins, Bin& bin) { bins.add_bin(64, bin); };
static_assert(is_bin<host_resource> && is_bin<statistics_resource<bare>>);
static_assert(!is_bin<bare> && !is_bin<device_resource> && !is_bin<no_resource>);

// Blocks of all sizes, one of no bytes among them, directly and, where the CPU reaches it, through std::pmr.
template <class R>
void draw(R& from) {
    static_assert(resource<R>);
    const queue_id none{};
    const stream_ref stream{none, nullptr, [](void*, queue_id) noexcept { return status{}; }};
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{24}, std::size_t{5000}}) {
        void* now = from.allocate_sync(bytes, 64);
        void* ordered = from.allocate(stream, bytes, 64);
        CHECK(to_address(now) % 64 == 0);
        CHECK(to_address(ordered) % 64 == 0);
        from.deallocate(stream, ordered, bytes, 64);
        from.deallocate_sync(now, bytes, 64);
    }
    if constexpr (includes(R::static_reach, reach::host)) {
        std::pmr::map<int, std::pmr::string> names{&from};
        names[1] = "a name that is too long for a string's own bytes";
        CHECK(names.size() == 1);
    }
}

// The vector draws from it, moves with it, and compares its allocator.
template <class Allocator>
void fill_and_assign(const Allocator& here, const Allocator& there) {
    std::vector<int, Allocator> a(1000, here);
    std::vector<int, Allocator> b(there);
    std::iota(a.begin(), a.end(), 0);
    b = a;
    CHECK(b == a);
    CHECK(b.get_allocator() == there);
    b = std::move(a);
    CHECK(b.size() == 1000);
    CHECK(b.get_allocator() == here);
}

template <class R>
void draw_through_adaptors(R& mine, R& same, R& other) {
    const auto no_room = [](std::size_t, void*) { return false; };
    {
        aligned_resource one{mine, 4096}, like_it{same, 4096}, unlike{other, 4096};
        draw(one);
        CHECK(mine.last_alignment == 4096);
        CHECK(one == like_it);
        CHECK_FALSE(one == unlike);
    }
    {
        failure_callback_resource one{mine, no_room}, like_it{same, no_room},
            unlike{other, no_room};
        draw(one);
        CHECK(one == like_it);
        CHECK_FALSE(one == unlike);
    }
    {
        fake_space space;
        prefetch_resource one{mine, space.port(), fake_space::device};
        prefetch_resource like_it{same, space.port(), fake_space::device};
        prefetch_resource unlike{other, space.port(), fake_space::device};
        draw(one);
        CHECK(one == like_it);
        CHECK_FALSE(one == unlike);
    }
    binning_resource bins{mine};
    statistics_resource small{mine};
    bins.add_bin(64, small);
    draw(bins);
    CHECK(small.statistics().bytes.total > 0);

    limit_resource limited{mine, 1 << 20};
    draw(limited);
    CHECK(limited.usage().limit == 1 << 20);
    CHECK_THROWS_AS((void)limited.allocate_sync(2 << 20), out_of_memory);

    logging_resource logged{mine, "/dev/null"};
    draw(logged);
    {
        thread_cache_resource cached{mine};
        draw(cached);
    }
    thread_safe_resource guarded{mine};
    draw(guarded);
    tracking_resource tracked{mine};
    draw(tracked);
    CHECK(tracked.live_count() == 0);

    statistics_resource counted{tracked};  // a stack
    draw(counted);
    CHECK(counted.usage().used == 0);
    CHECK(counted.usage().limit == 0);
    CHECK_FALSE(static_cast<bool>(counted.queues()));
    CHECK(mine.live == 0);
}

}  // namespace

TEST_CASE("upstream: a bare resource works in every adaptor that accepts it") {
    SUBCASE("reached by the CPU") {
        bare mine, same, other{1};
        draw_through_adaptors(mine, same, other);
        debug_resource checked{mine};
        draw(checked);
    }
    SUBCASE("reached by devices alone") {
        bare_device mine, same, other{1};
        draw_through_adaptors(mine, same, other);
        CHECK(mine.last_alignment >= device_alignment);
    }
}

TEST_CASE("upstream: a pool cuts up the chunks of a bare resource") {
    bare mine{1};
    {
        pool_resource pool{mine, {.chunk_bytes = 64 << 10}};
        fake_space space;
        const stream_ref a =
            space.stream(fake_space::queue_a);  // a queue that the resource knows nothing of
        void* one = pool.allocate(a, 1000);
        std::memset(one, 1, 1000);
        pool.deallocate(a, one, 1000);
        CHECK(pool.allocate_sync(1000) == one);
        pool.deallocate_sync(one, 1000);
        CHECK(mine.live == 1);
        CHECK(pool.usage().used == 0);
    }
    CHECK(mine.live == 0);
}

TEST_CASE("upstream: what a bare resource throws comes through a pool as it is") {
    struct too_dear : std::bad_alloc {};
    struct dear_resource : bare {
        void* allocate(stream_ref, std::size_t, std::size_t) { throw too_dear{}; }
        void* allocate_sync(std::size_t, std::size_t) { throw too_dear{}; }
    };
    static_assert(resource<dear_resource>);
    dear_resource mine;
    pool_resource pool{mine, {.chunk_bytes = 64 << 10}};
    CHECK_THROWS_AS((void)pool.allocate_sync(1000), too_dear);
    CHECK_THROWS_AS((void)pool.allocate_sync(1 << 20), too_dear);
}

TEST_CASE("upstream: a bare resource works in an allocator") {
    bare mine, same, other{1};
    const allocator<int, bare> here{mine};
    CHECK(here == allocator<long, bare>{same});
    CHECK(here != allocator<int, bare>{other});
    fill_and_assign(here, allocator<int, bare>{other});
    CHECK(mine.live == 0);
    CHECK(other.live == 0);
}

TEST_CASE(
    "upstream: a bare resource works in a shared handle, and that in allocators and adaptors") {
    const auto mine = make_shared_resource<bare>();
    const auto other = make_shared_resource<bare>(1);
    CHECK(mine == make_shared_resource<bare>());
    CHECK(mine != other);
    using of_int = allocator<int, shared_resource<bare>>;
    fill_and_assign(of_int{mine}, of_int{other});
    CHECK(mine.get().live == 0);

    shared_resource<bare> handle = mine;
    statistics_resource counted{handle};
    draw(counted);
    CHECK(counted.usage().used == 0);
}

TEST_CASE("upstream: a shared handle tells what its resource tells") {
    fake_space space;
    auto held = make_shared_resource<unified_resource>(space.port());
    static_assert(reports_usage<decltype(held)> && knows_queues<decltype(held)>);
    statistics_resource counted{held};
    void* block = counted.allocate_sync(1000);
    CHECK(counted.usage().used == held.get().usage().used);
    CHECK(counted.usage().used > 0);
    CHECK(static_cast<bool>(counted.queues()));
    counted.deallocate_sync(block, 1000);
}

#if XMM_HAS_CUDA_MR
TEST_CASE("upstream: a bare resource works in CCCL's handle, and that in allocators and adaptors") {
    bare mine, same, other{1};
    cuda_resource here{mine}, there{other};
    static_assert(resource<cuda_resource<bare>>);
    CHECK(here == cuda_resource{same});
    CHECK(here != there);
    using of_int = allocator<int, cuda_resource<bare>>;
    fill_and_assign(of_int{here}, of_int{there});
    const auto shared = make_shared_resource<cuda_resource<bare>>(mine);
    CHECK(shared == make_shared_resource<cuda_resource<bare>>(same));
    aligned_resource wide{here, 4096};
    draw(wide);
    CHECK(mine.live == 0);
}
#endif
