// SPDX-License-Identifier: Apache-2.0
// backend_example.cpp - the backend of the examples keeps the contract, too.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#define main example_main
#include "../../examples/own_backend.cpp"
#undef main

#include "backend.hpp"

namespace {

thread_local bool has_no_memory = false;

struct tiny_fixture {
    tiny::driver driver{64_MiB};

    static bool is_available() { return true; }
    tiny::driver& get() { return driver; }
    xmm::node_id device() { return driver.nodes()[0]; }
    xmm::node_id host() { return xmm::machine_topology().hosts()[0].id; }
    std::uint64_t device_load(xmm::address at) { return *word(at); }
    bool device_store(xmm::address at, std::uint64_t value) {
        std::uint64_t* there = word(at);
        if (there != nullptr) {
            *there = value;
        }
        return there != nullptr;
    }

private:
    std::uint64_t* word(xmm::address at) {
        return reinterpret_cast<std::uint64_t*>(driver.translate(xmm::to_pointer(at)));
    }
};

}  // namespace

void* operator new(std::size_t bytes) {
    void* made = has_no_memory ? nullptr : std::malloc(bytes);
    return made != nullptr ? made : throw std::bad_alloc{};
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
    return has_no_memory ? nullptr : std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* pointer) noexcept { std::free(pointer); }
[[gnu::noinline]] void operator delete(void* pointer, std::size_t) noexcept { std::free(pointer); }

TEST_CASE_TEMPLATE("the backend of the examples keeps the contract", F, tiny_fixture) {
    xmm::contract::check_backend<F>();
}

TEST_CASE("the backend of the examples says so where the program has no memory") {
    using namespace xmm;
    tiny_fixture f;
    tiny::driver& driver = f.get();
    auto backing = driver.frame_create(f.device(), page_bytes);
    REQUIRE(backing);
    const run one{{page_bytes, page_bytes}, *backing, access::read_write};
    has_no_memory = true;
    const errc proposal = driver.va_examine({0, page_bytes}, page_bytes).code();
    const errc claim = driver.va_examine({page_bytes, page_bytes}, page_bytes).code();
    const errc line = driver.queue_create(f.device(), queue_priority::normal).code();
    const progress entered = driver.pmap_enter(f.device(), {&one, 1});
    has_no_memory = false;
    CHECK(proposal == errc::no_memory);
    CHECK(claim == errc::no_memory);
    CHECK(line == errc::no_memory);
    CHECK(entered.done == 0);
    CHECK(entered.outcome.code == errc::no_memory);
    CHECK(driver.translate(to_pointer(page_bytes)) == nullptr);
    CHECK(driver.va_examine({page_bytes, page_bytes}, page_bytes));  // nothing was left behind
    driver.va_release({page_bytes, page_bytes});
    driver.frame_drop(*backing);
}

TEST_CASE(
    "beside the backend of the examples a queue of another driver's is known for what it is") {
    using namespace xmm;
    tiny::driver first{16_MiB};
    tiny::driver third{16_MiB};
    soft::device_options options{.bytes = 16_MiB};
    auto second = xmm::detail::make_soft_driver({options}, machine_topology());
    REQUIRE(second);
    auto made = space::create_on(first);
    REQUIRE(made);
    REQUIRE(made->attach(**second));
    REQUIRE(made->attach(third));
    auto line = made->make_queue((*second)->nodes()[0]);
    REQUIRE(line);
    std::atomic<bool> may_end{false};
    auto point = soft::stream{**second, line->id()}.run([&] {
        while (!may_end.load(std::memory_order_acquire)) {
            std::this_thread::yield();
        }
    });
    REQUIRE(point);
    const queue_port queues = port_of(*made).queues();
    CHECK(!queues.is_done(*point));
    may_end.store(true, std::memory_order_release);
    CHECK(queues.wait(*point));
    CHECK(queues.is_done(*point));
    CHECK(queues.record({0xffffff01}).code() == errc::invalid_argument);
}
