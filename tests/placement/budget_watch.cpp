// SPDX-License-Identifier: Apache-2.0
#include <xmm/placement/budget_watch.hpp>

#include <pthread.h>

#include <cstdlib>
#include <new>

#include "../facade/rig.hpp"
#include "../mapping/paper_driver.hpp"

using namespace xmm;
using namespace xmm::test;

namespace {

thread_local bool is_out_of_memory = false;

}  // namespace

// Those of this program, so that a case can have none left.
void* operator new(std::size_t bytes) {
    void* made = is_out_of_memory ? nullptr : std::malloc(bytes);
    if (made == nullptr) {
        throw std::bad_alloc{};
    }
    return made;
}
// Of the same kind: a sanitizer looks whether what is freed was had so.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
    return is_out_of_memory ? nullptr : std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

// False if it takes longer than any test should.
template <class Fn>
bool await(Fn&& is_so) {
    for (int i = 0; i < 5000 && !is_so(); ++i) {
        nap(2);
    }
    return is_so();
}

// A device of 32 MiB, of which 4 MiB are kept free for others.
struct shared_rig : rig {
    shared_rig()
        : rig{[] {
              soft::device_options one = device_of(32_MiB);
              one.headroom_bytes = 4_MiB;
              return std::vector{one};
          }()} {}
    soft::driver& driver() { return *of().state().own_driver; }
    // As another process that tries again when it gets less than it wants. How much it got in the end.
    std::size_t take(std::size_t bytes) {
        std::size_t got = 0;
        await([&] {
            got += driver().take_bytes(device(), bytes - got);
            return got == bytes;
        });
        return got;
    }
};

// A device to watch, which has no threads of its own.
struct watched_paper : paper_driver {
    result<node_description> describe(node_id node) noexcept {
        auto about = paper_driver::describe(node);
        about->headroom_bytes = 4_MiB;
        return about;
    }
    result<std::size_t> free_bytes(node_id) noexcept {
        ++looks;
        if (book == nullptr || looks > takes) {
            return bytes_each - taken;
        }
        // Somebody creates a frame just now.
        const ledger::change under_way{*book};
        taken += 8_MiB;
        CHECK(book->try_reserve(8_MiB));
        return bytes_each - taken;
    }
    ledger* book = nullptr;
    unsigned looks = 0;
    unsigned takes = 0;
    std::size_t taken = 0;
};

}  // namespace

TEST_CASE("budget: a headroom stays free") {
    shared_rig r;
    CHECK(r.usage(r.device()).limit == 28_MiB);
    auto* data = r.map(32_MiB);
    r.fill_on_device<std::uint64_t>(data, 32_MiB, 1);
    CHECK(r.usage(r.device()).used == 28_MiB);
    CHECK(count_wrong<std::uint64_t>(data, 32_MiB, 1) == 0);
}

TEST_CASE("budget: what others take is given way to, and used again once they are gone") {
    shared_rig r;
    auto* data = r.map(24_MiB);
    r.fill_on_device<std::uint64_t>(data, 24_MiB, 1);
    REQUIRE(r.usage(r.device()).used == 24_MiB);
    CHECK(r.take(20_MiB) == 20_MiB);  // 8 are free at first
    CHECK(await([&] { return r.usage(r.device()).used <= 8_MiB; }));
    CHECK(await([&] { return r.usage(r.device()).limit == 8_MiB; }));
    CHECK(r.state(data) == residency::on_host);
    CHECK(count_wrong<std::uint64_t>(data, 24_MiB, 1) == 0);
    r.fill_on_device<std::uint64_t>(data, 24_MiB, 2);
    CHECK(r.usage(r.device()).used <= 8_MiB);
    r.driver().give_bytes(r.device(), 20_MiB);
    CHECK(await([&] { return r.usage(r.device()).limit == 28_MiB; }));
    CHECK(count_wrong<std::uint64_t>(data, 24_MiB, 2) == 0);
    CHECK(r.of().is_valid());
}

TEST_CASE("budget: what is pinned stays, whoever asks") {
    shared_rig r;
    auto* data = r.map(8_MiB);
    REQUIRE(r.of().advise(r.device(), data, 4_MiB, advice::pin));
    CHECK(r.take(28_MiB) == 28_MiB);
    CHECK(await([&] { return r.usage(r.device()).limit == 0; }));
    nap(250);
    CHECK(r.usage(r.device()).used == 4_MiB);
    CHECK(r.state(data) == residency::on_device);
    REQUIRE(r.of().advise(r.device(), data, 4_MiB, advice::unpin));
    CHECK(await([&] { return r.usage(r.device()).used == 0; }));
}

TEST_CASE("budget: idle frames of a heap go as well") {
    shared_rig r;
    xpu_malloc& heap = *r.of().heap(r.device()).value();
    void* block = heap.allocate({.bytes = 20_MiB, .queue = r.line().id()}).value();
    REQUIRE(heap.deallocate(block, r.line().id()));
    REQUIRE(r.line().synchronize());
    REQUIRE(r.usage(r.device()).used >= 20_MiB);
    CHECK(r.take(28_MiB) == 28_MiB);
    CHECK(await([&] { return r.usage(r.device()).used == 0; }));
}

TEST_CASE("budget: memory that goes between two looks is missed by nobody") {
    shared_rig r;
    REQUIRE(r.driver().take_bytes(r.device(), 30_MiB) == 30_MiB);
    auto* data = r.map(8_MiB);
    // Maybe before the next look: then the driver refuses, and pages make way.
    r.fill_on_device<std::uint64_t>(data, 8_MiB, 3);
    CHECK(r.usage(r.device()).used <= 2_MiB);
    CHECK(count_wrong<std::uint64_t>(data, 8_MiB, 3) == 0);
}

TEST_CASE("budget: a set budget and what others leave both limit") {
    shared_rig r;
    REQUIRE(r.of().set_budget(r.device(), 6_MiB));
    CHECK(r.usage(r.device()).limit == 6_MiB);
    CHECK(r.take(26_MiB) == 26_MiB);
    CHECK(await([&] { return r.usage(r.device()).limit == 2_MiB; }));
    r.driver().give_bytes(r.device(), 26_MiB);
    CHECK(await([&] { return r.usage(r.device()).limit == 6_MiB; }));
    REQUIRE(r.of().set_budget(r.device(), no_budget));
}

TEST_CASE("budget: where no thread is to be had a device is attached all the same") {
    watched_paper paper;
    paper.ids = {register_device_node("paper")};
    rig r;
    pthread_attr_t usual, huge;
    REQUIRE(::pthread_getattr_default_np(&usual) == 0);
    REQUIRE(::pthread_attr_init(&huge) == 0);
    REQUIRE(::pthread_attr_setstacksize(&huge, std::size_t{1} << 50) == 0);
    REQUIRE(::pthread_setattr_default_np(&huge) == 0);
    const status attached = r.of().attach(paper);
    REQUIRE(::pthread_setattr_default_np(&usual) == 0);
    CHECK(attached);
    CHECK(r.of().devices().size() == 2);
    CHECK(r.usage(paper.ids[0]).limit == paper.bytes_each - 4_MiB);
    CHECK(r.of().attach(paper).code == errc::busy);
}

TEST_CASE("budget: what is created while the driver is asked is ours all the same") {
    watched_paper paper;
    paper.ids = {register_device_node("paper")};
    rig r;
    REQUIRE(r.of().attach(paper));
    auto& engine = r.of().state().engine;
    engine.budgets.stop();  // no looks but ours
    xmm::node& device = *r.of().state().core.find_node(paper.ids[0]);
    paper.book = device.book;
    paper.looks = 0;
    paper.takes = 2;
    CHECK(engine.budgets.measure(device));
    CHECK(paper.looks == 3);
    CHECK(device.book->used() == 16_MiB);
    CHECK(device.book->capacity() == paper.bytes_each - 4_MiB);
    // Who creates without pause holds nobody up.
    const std::size_t capacity = 512_MiB;
    device.book->set_capacity(capacity);
    paper.looks = 0;
    paper.takes = 100;
    paper.bytes_each = 1_GiB;
    CHECK(engine.budgets.measure(device));
    CHECK(paper.looks < 10);
    CHECK(device.book->capacity() == capacity);  // no guess
    device.book->release(paper.taken);
}

TEST_CASE("budget: a frame on its way is not taken for one that is ours and free") {
    watched_paper paper;
    paper.ids = {register_device_node("paper")};
    rig r;
    REQUIRE(r.of().attach(paper));
    auto& engine = r.of().state().engine;
    engine.budgets.stop();  // no looks but ours
    xmm::node& device = *r.of().state().core.find_node(paper.ids[0]);
    const std::size_t capacity = device.book->capacity();
    REQUIRE(capacity == paper.bytes_each - 4_MiB);
    paper.taken = 20_MiB;  // somebody else's
    {
        const ledger::change under_way{*device.book};
        REQUIRE(device.book->try_reserve(8_MiB));  // and the driver has not been asked yet
        CHECK(engine.budgets.measure(device));
        CHECK(device.book->capacity() == capacity);
        paper.taken += 8_MiB;
    }
    CHECK(engine.budgets.measure(device));
    CHECK(device.book->capacity() == capacity - 20_MiB);
    // One that goes, and comes, between the looks leaves as many bytes charged as before.
    struct passing : watched_paper {
        result<std::size_t> free_bytes(node_id) noexcept {
            if (looks++ < 3) {
                const ledger::change under_way{*book};
                CHECK(book->try_reserve(8_MiB));
                book->release(8_MiB);
                return bytes_each;  // without anybody's
            }
            return bytes_each - taken;
        }
    };
    passing other;
    other.ids = {register_device_node("paper")};
    other.looks = 3;
    REQUIRE(r.of().attach(other));
    engine.budgets.stop();
    xmm::node& second = *r.of().state().core.find_node(other.ids[0]);
    other.book = second.book;
    other.looks = 0;
    other.taken = 12_MiB;
    CHECK(engine.budgets.measure(second));
    CHECK(other.looks == 4);
    CHECK(second.book->capacity() == capacity - 12_MiB);
    device.book->release(8_MiB);
}

TEST_CASE("budget: where a thread's record cannot be had it is as where the thread cannot") {
    rig r{{device_of(512_MiB)}};
    auto& engine = r.of().state().engine;
    xmm::node& device = *r.of().state().core.find_node(r.device());
    REQUIRE(device.book->try_reserve(400_MiB));
    device.book->set_budget(2_MiB);
    is_out_of_memory = true;
    const bool is_below = engine.frames.shrink_to_limit(device);
    is_out_of_memory = false;
    CHECK(!is_below);
    device.book->release(400_MiB);
    device.book->set_budget(no_budget);

    shared_rig watched;
    auto& state = watched.of().state();
    budget_watch second{state.core, state.engine.moves, state.engine.frames};
    is_out_of_memory = true;
    second.start();
    is_out_of_memory = false;
    second.stop();
    CHECK(watched.usage(watched.device()).limit == 28_MiB);
}
