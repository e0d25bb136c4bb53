// SPDX-License-Identifier: Apache-2.0
// Memory for CUDA's legacy IPC: its contract, its budget, its handles, and another process that opens them.
#include <xmm/facade/cuda_ipc_resource.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <xmm/facade/launch.hpp>
#include <xmm/resources/pool_resource.hpp>

#include "../contract/resource.hpp"
#include "rig.hpp"

using namespace xmm;
using namespace xmm::literals;

namespace {

static_assert(resource<cuda_ipc_resource> && device_reachable<cuda_ipc_resource>);
static_assert(!host_reachable<cuda_ipc_resource>);
static_assert(std::is_trivially_copyable_v<cuda_ipc_handle>);
static_assert(!std::is_copy_constructible_v<cuda_ipc_mapping>);

// A space of its own over one device, with room for a few pages.
struct ipc_rig {
    std::unique_ptr<cuda::vmm> driver;
    space of;
    node_id device = of.devices()[0];
    test::soft_cuda_controls soft = test::find_soft_cuda();

    explicit ipc_rig(std::size_t budget = 64_MiB, std::uint32_t salt = 91)
        : driver{std::move(test::open_cuda(1, salt).value())},
          of{space::create_on(*driver).value()} {
        CHECK(of.set_budget(device, budget));
        if (soft) {
            soft.reset();
        }
    }
    ~ipc_rig() { CHECK(of.set_budget(device, no_budget)); }
    std::size_t used() { return of.usage(device)->used; }
    // Words of plain device memory, by copies of the driver's own.
    void write(void* to, std::uint64_t value) {
        const cuda::device& on = *driver->device_at(device);
        const cuda::context_scope here{on.calls(), on.context()};
        CHECK(on.calls().call(&cuda::driver_api::memcpy_async, to_address(to), to_address(&value),
                              sizeof value, cuda::CUstream{nullptr}));
        CHECK(on.calls().call(&cuda::driver_api::stream_synchronize, cuda::CUstream{nullptr}));
    }
    std::uint64_t read(const void* from) {
        std::uint64_t value = 0;
        const cuda::device& on = *driver->device_at(device);
        const cuda::context_scope here{on.calls(), on.context()};
        CHECK(on.calls().call(&cuda::driver_api::memcpy_async, to_address(&value), to_address(from),
                              sizeof value, cuda::CUstream{nullptr}));
        CHECK(on.calls().call(&cuda::driver_api::stream_synchronize, cuda::CUstream{nullptr}));
        return value;
    }
};

void* past(void* pointer, std::size_t bytes) { return static_cast<std::byte*>(pointer) + bytes; }

std::string hex_of(const cuda_ipc_handle& one) {
    std::string out;
    const auto* bytes = reinterpret_cast<const unsigned char*>(&one);
    for (std::size_t i = 0; i < sizeof one; ++i) {
        char two[3];
        std::snprintf(two, sizeof two, "%02x", bytes[i]);
        out += two;
    }
    return out;
}
cuda_ipc_handle handle_from(const char* text) {
    cuda_ipc_handle one;
    auto* bytes = reinterpret_cast<unsigned char*>(&one);
    for (std::size_t i = 0; i < sizeof one; ++i) {
        unsigned byte = 0;
        std::sscanf(text + 2 * i, "%2x", &byte);
        bytes[i] = static_cast<unsigned char>(byte);
    }
    return one;
}

constexpr const char* in_child = "XMM_TEST_IPC_HANDLE";

// The case itself, in a process of its own that finds the text in its environment; its exit status.
int run_child(const char* of_cases, const std::string& text) {
    std::vector<std::string> all;
    for (char** one = environ; *one != nullptr; ++one) {
        all.emplace_back(*one);
    }
    all.push_back(std::string{in_child} + "=" + text);
    std::vector<char*> variables;
    for (std::string& one : all) {
        variables.push_back(one.data());
    }
    variables.push_back(nullptr);
    std::string filter = std::string{"-tc="} + of_cases;
    std::string self = "/proc/self/exe";
    char* arguments[] = {self.data(), filter.data(), nullptr};
    pid_t child = 0;
    REQUIRE(::posix_spawn(&child, self.c_str(), nullptr, nullptr, arguments, variables.data()) ==
            0);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

constexpr std::uint64_t done_by_child = 0x6368696c64;

}  // namespace

TEST_CASE("cuda ipc: another process reads and writes a block by its handle") {
    if (test::is_skipped()) {
        return;
    }
    if (const char* text = std::getenv(in_child); text != nullptr) {
        ipc_rig r{64_MiB, 92};
        cuda_ipc_resource memory{r.of, r.device};
        const cuda_ipc_handle handle = handle_from(text);
        const std::size_t before = r.used();
        auto opened = memory.open(handle);
        REQUIRE(opened);
        CHECK(r.used() == before);  // the other process is charged
        CHECK(opened->bytes() == 4_MiB - 1024);
        CHECK(r.read(opened->data()) == 4321);
        // Moved on, it is open once.
        cuda_ipc_mapping kept{std::move(*opened)};
        CHECK_FALSE(*opened);
        CHECK(opened->close().code == errc::invalid_argument);
        r.write(past(kept.data(), 64), done_by_child);
        SUBCASE("closed by hand, a second time without effect") {
            CHECK(kept.close());
            CHECK(kept.data() == nullptr);
            CHECK(kept.bytes() == 0);
            CHECK_FALSE(kept);
            CHECK(kept.close().code == errc::invalid_argument);
        }
        SUBCASE("closed by its owner's end, or by another one that takes its place") {
            kept = cuda_ipc_mapping{};
            CHECK_FALSE(kept);
            auto again = memory.open(handle);
            REQUIRE(again);
            CHECK(r.read(past(again->data(), 64)) == done_by_child);
        }
        SUBCASE("what the driver refuses to close stays open") {
            if (r.soft) {
                CHECK(r.soft.fail("cuIpcCloseMemHandle", 0, 1, cuda::CUDA_ERROR_NOT_SUPPORTED) ==
                      0);
                CHECK(kept.close().code == errc::unsupported);
                CHECK(kept);
                CHECK(r.read(kept.data()) == 4321);
                CHECK(kept.close());
            }
        }
        SUBCASE("an offset outside of the block is refused, and nothing stays mapped") {
            cuda_ipc_handle wild = handle;
            wild.offset = 4_MiB;
            CHECK(memory.open(wild).code() == errc::invalid_argument);
            wild.offset = UINT64_MAX;
            CHECK(memory.open(wild).code() == errc::invalid_argument);
            if (r.soft) {
                CHECK(r.soft.calls("cuIpcOpenMemHandle") - 1 ==
                      r.soft.calls("cuIpcCloseMemHandle"));
            }
        }
        SUBCASE("bytes that are no handle are refused") {
            cuda_ipc_handle wild{};
            CHECK_FALSE(memory.open(wild));
            wild.of_driver.fill(0x5a);
            CHECK_FALSE(memory.open(wild));
        }
        SUBCASE("where its size cannot be asked, the mapping is closed again") {
            if (r.soft) {
                CHECK(r.soft.fail("cuMemGetAddressRange", 0, 1, cuda::CUDA_ERROR_INVALID_VALUE) ==
                      0);
                CHECK(memory.open(handle).code() == errc::invalid_argument);
                CHECK(r.soft.calls("cuIpcOpenMemHandle") - 1 ==
                      r.soft.calls("cuIpcCloseMemHandle"));
                CHECK(r.soft.fail("cuIpcOpenMemHandle", 0, 1, cuda::CUDA_ERROR_MAP_FAILED) == 0);
                CHECK(memory.open(handle).code() == errc::no_memory);
            }
        }
        return;
    }
    ipc_rig r;
    cuda_ipc_resource memory{r.of, r.device};
    void* block = memory.allocate_sync(4_MiB);
    void* meant = past(block, 1024);
    r.write(meant, 4321);
    const auto handle = memory.handle_of(meant);
    REQUIRE(handle);
    CHECK(handle->offset == 1024);
    CHECK(run_child("cuda ipc: another process reads*", hex_of(*handle)) == 0);
    CHECK(r.read(past(meant, 64)) == done_by_child);
    CHECK(r.read(meant) == 4321);
    memory.deallocate_sync(block, 4_MiB);
    CHECK(r.used() == 0);
}

TEST_CASE("cuda ipc: a block that is gone cannot be opened") {
    if (test::is_skipped()) {
        return;
    }
    if (const char* text = std::getenv(in_child); text != nullptr) {
        ipc_rig r{64_MiB, 92};
        CHECK_FALSE(cuda_ipc_resource{r.of, r.device}.open(handle_from(text)));
        return;
    }
    ipc_rig r;
    cuda_ipc_resource memory{r.of, r.device};
    void* block = memory.allocate_sync(2_MiB);
    const auto handle = memory.handle_of(block);
    REQUIRE(handle);
    memory.deallocate_sync(block, 2_MiB);
    CHECK(run_child("cuda ipc: a block that is gone*", hex_of(*handle)) == 0);
}

TEST_CASE("cuda ipc: handles are of this resource's live blocks, and for other processes") {
    if (test::is_skipped()) {
        return;
    }
    ipc_rig r;
    cuda_ipc_resource memory{r.of, r.device};
    cuda_ipc_resource another{r.of, r.device};
    CHECK(memory.handle_of(nullptr).code() == errc::invalid_argument);
    void* block = memory.allocate_sync(3_MiB);  // two pages
    const auto first = memory.handle_of(block);
    const auto last = memory.handle_of(past(block, 4_MiB - 1));
    REQUIRE(first);
    REQUIRE(last);
    CHECK(first->offset == 0);
    CHECK(last->offset == 4_MiB - 1);
    CHECK(first->of_driver == last->of_driver);
    CHECK(memory.handle_of(past(block, 4_MiB)).code() == errc::invalid_argument);
    CHECK(another.handle_of(block).code() == errc::invalid_argument);
    const auto own = memory.open(*first);
    CHECK_FALSE(own);
    CHECK(std::string{own.error().why} == "a process cannot open the handle of its own memory");
    // Neither has unified memory one, nor a heap's.
    void* unified = r.of.map(2_MiB).value();
    CHECK(memory.handle_of(unified).code() == errc::invalid_argument);
    CHECK(r.of.unmap(unified));
    if (r.soft) {
        CHECK(r.soft.fail("cuIpcGetMemHandle", 0, 1, cuda::CUDA_ERROR_NOT_SUPPORTED) == 0);
        CHECK(memory.handle_of(block).code() == errc::unsupported);
        CHECK(memory.handle_of(block));
    }
    memory.deallocate_sync(block, 3_MiB);
    CHECK(memory.handle_of(block).code() == errc::invalid_argument);
}

TEST_CASE("cuda ipc: charged to the budget, which pages make room in and nothing exceeds") {
    if (test::is_skipped()) {
        return;
    }
    ipc_rig r{18_MiB};
    cuda_ipc_resource memory{r.of, r.device};
    auto* pages = static_cast<std::uint64_t*>(r.of.map(12_MiB).value());
    for (std::size_t i = 0; i < 12_MiB / 8; ++i) {
        pages[i] = i;
    }
    REQUIRE(r.of.make_resident(pages, 12_MiB, r.device));
    CHECK(r.used() >= 12_MiB);
    void* one = memory.allocate_sync(8_MiB);  // some pages go
    CHECK(r.used() >= 8_MiB);
    CHECK(r.used() <= 18_MiB);
    CHECK(r.of.residency_of(pages).value() != r.device);
    CHECK(memory.usage().used == r.used());
    // And all others. The limit is somewhat below the budget and may change: the driver's tables are taken off.
    std::vector<void*> rest;
    try {
        while (rest.size() < 10) {
            rest.push_back(memory.allocate_sync(2_MiB));
            CHECK(r.used() <= 18_MiB);
        }
        FAIL("more than the budget was given");
    } catch (const out_of_memory& refused) {
        CHECK(std::string{refused.cause()} == "the node's budget is used up");
        CHECK(refused.used() == 8_MiB + rest.size() * 2_MiB);
        CHECK(refused.used() + 2_MiB > refused.limit());
    }
    CHECK(rest.size() >= 2);
    CHECK(r.of.last_shortage().bytes == 2_MiB);
    CHECK(r.used() == 8_MiB + rest.size() * 2_MiB);
    CHECK(r.of.residency_of(pages + 12_MiB / 8 - 1).value() != r.device);
    // A budget below it is not reached before it goes.
    CHECK(r.of.set_budget(r.device, 10_MiB).code == errc::busy);
    for (void* two : rest) {
        memory.deallocate_sync(two, 2_MiB);
    }
    CHECK(r.of.set_budget(r.device, 12_MiB));
    CHECK_THROWS_AS((void)memory.allocate_sync(1_GiB), out_of_memory);
    memory.deallocate_sync(one, 8_MiB);
    CHECK(r.used() == 0);
    for (std::size_t i = 0; i < 12_MiB / 8; i += 4096) {
        CHECK(pages[i] == i);
    }
    REQUIRE(r.of.unmap(pages));
    CHECK(r.of.is_valid());
    CHECK(r.of.set_budget(r.device, 18_MiB));
    // What nobody gave back goes with the resource.
    {
        cuda_ipc_resource brief{r.of, r.device};
        CHECK(brief.allocate_sync(2_MiB) != nullptr);
        CHECK(r.used() == 2_MiB);
    }
    CHECK(r.used() == 0);
}

TEST_CASE("cuda ipc: blocks given back on a queue go once it has passed that point") {
    if (test::is_skipped()) {
        return;
    }
    ipc_rig r;
    cuda_ipc_resource memory{r.of, r.device};
    queue line = std::move(r.of.make_queue(r.device).value());
    std::atomic<bool> may_go{false};
    REQUIRE(launch(line, {}, [&](cuda_stream& on) {
        return on.owner()
            .call(
                on.queue(),
                [](void* go) noexcept {
                    while (!static_cast<std::atomic<bool>*>(go)->load()) {
                        std::this_thread::yield();
                    }
                },
                &may_go)
            .error();
    }));
    void* block = memory.allocate(line, 2_MiB);
    memory.deallocate(line, block, 2_MiB);
    memory.collect();
    CHECK(r.used() == 2_MiB);
    may_go = true;
    CHECK(line.synchronize());
    memory.collect();
    CHECK(r.used() == 0);
    // What is left goes with the resource.
    {
        cuda_ipc_resource brief{r.of, r.device};
        brief.deallocate(line, brief.allocate(line, 2_MiB), 2_MiB);
    }
    CHECK(r.used() == 0);
}

TEST_CASE("cuda ipc: small blocks through a pool have handles of the chunk") {
    if (test::is_skipped()) {
        return;
    }
    ipc_rig r;
    cuda_ipc_resource memory{r.of, r.device};
    pool_resource<cuda_ipc_resource> pool{memory};
    void* one = pool.allocate_sync(1000);
    void* two = pool.allocate_sync(1000);
    const auto first = memory.handle_of(one);
    const auto second = memory.handle_of(two);
    REQUIRE(first);
    REQUIRE(second);
    CHECK(first->of_driver == second->of_driver);
    CHECK(first->offset != second->offset);
    pool.deallocate_sync(one, 1000);
    pool.deallocate_sync(two, 1000);
}

TEST_CASE("cuda ipc: what the driver refuses leaves memory and budget as they were") {
    if (test::is_skipped()) {
        return;
    }
    ipc_rig r;
    if (!r.soft) {
        MESSAGE("skipped, no software CUDA to refuse calls");
        return;
    }
    cuda_ipc_resource memory{r.of, r.device};
    const std::size_t held = r.soft.held(0);
    REQUIRE(r.soft.fail("cuMemAlloc", 0, 1000, cuda::CUDA_ERROR_OUT_OF_MEMORY) == 0);
    try {
        (void)memory.allocate_sync(2_MiB);
        FAIL("no memory was given");
    } catch (const out_of_memory& refused) {
        CHECK(refused.driver_code() == cuda::CUDA_ERROR_OUT_OF_MEMORY);
    }
    CHECK(r.used() == 0);
    CHECK(r.soft.held(0) == held);
    r.soft.reset();
    // Free frames and pages go for it, where the driver has less than the ledger believes.
    void* unified = r.of.map(4_MiB).value();
    REQUIRE(r.of.make_resident(unified, 4_MiB, r.device));
    REQUIRE(r.soft.fail("cuMemAlloc", 0, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY) == 0);
    void* block = memory.allocate_sync(2_MiB);
    CHECK(r.used() < 6_MiB);
    CHECK(r.soft.calls("cuMemAlloc") == 2);
    CHECK(r.of.unmap(unified));
    // Over the port, since the resource would say so on stderr.
    REQUIRE(r.soft.fail("cuMemFree", 0, 1, cuda::CUDA_ERROR_NOT_SUPPORTED) == 0);
    CHECK(memory.space().unmap(block).code == errc::unsupported);
    CHECK(memory.handle_of(block));
    CHECK(r.used() >= 2_MiB);
    CHECK(memory.space().unmap(block));
    CHECK(memory.space().unmap(block).code == errc::invalid_argument);
    CHECK(memory.space().unmap(past(block, 64)).code == errc::invalid_argument);
    CHECK(memory.space().prefetch(r.device, block, 2_MiB).code == errc::unsupported);
    r.soft.reset();
    CHECK(r.of.set_budget(r.device, 0));  // no free frames
    CHECK(r.soft.held(0) == held);
    CHECK(r.of.set_budget(r.device, 64_MiB));
}

TEST_CASE("cuda ipc: a CUDA device of the space it is, in either mode") {
    if (test::is_skipped()) {
        return;
    }
    ipc_rig r;
    CHECK_THROWS_AS(cuda_ipc_resource(r.of, r.of.hosts()[0]), std::invalid_argument);
    CHECK_THROWS_AS(cuda_ipc_resource(r.of, node_id{4711}), std::invalid_argument);
    space soft = std::move(space::create({.devices = device_kind::soft}).value());
    CHECK_THROWS_AS(cuda_ipc_resource(soft, soft.devices()[0]), std::invalid_argument);
    auto found = cuda::find_devices();
    const std::array ids{node_id{9}};
    const std::array hosts{node_id{0}};
    cuda::vmm_options options;
    options.queue_salt = 93;
    auto managed = cuda::managed::open({found->data(), 1}, ids, hosts, options);
    if (managed) {
        space other = std::move(space::create_on(**managed).value());
        cuda_ipc_resource memory{other, ids[0]};
        void* block = memory.allocate_sync(2_MiB);
        CHECK(other.usage(ids[0])->used == 2_MiB);
        CHECK(memory.handle_of(block));
        memory.deallocate_sync(block, 2_MiB);
        CHECK(other.usage(ids[0])->used == 0);
    }
}

TEST_CASE("cuda ipc: a lost device ends its blocks, and their charge") {
    if (test::is_skipped()) {
        return;
    }
    ipc_rig r;
    if (!r.soft) {
        MESSAGE("skipped, no software CUDA to lose a device of");
        return;
    }
    // In a child: what is lost stays so for the process.
    if (std::getenv(in_child) == nullptr) {
        CHECK(run_child("cuda ipc: a lost device*", "lost") == 0);
        return;
    }
    cuda_ipc_resource memory{r.of, r.device};
    void* block = memory.allocate_sync(2_MiB);
    CHECK(r.used() == 2_MiB);
    REQUIRE(r.soft.break_device(0, cuda::CUDA_ERROR_ILLEGAL_ADDRESS) == 0);
    CHECK(memory.handle_of(block).code() == errc::device_lost);
    memory.deallocate_sync(block, 2_MiB);
    CHECK(r.used() == 0);
    CHECK_THROWS_AS((void)memory.allocate_sync(2_MiB), out_of_memory);
    CHECK(r.used() == 0);
}

TEST_CASE("cuda ipc: blocks are whole pages, at any alignment, and apart") {
    if (test::is_skipped()) {
        return;
    }
    ipc_rig r{224_MiB};
    cuda_ipc_resource memory{r.of, r.device};
    std::vector<test::held_block> blocks;
    for (std::size_t alignment = 1; alignment <= 8_MiB; alignment *= 2) {
        blocks.push_back(
            {memory.allocate_sync(alignment / 2 + 1, alignment), alignment / 2 + 1, alignment, 0});
        CHECK(test::is_aligned(blocks.back().pointer, std::max(alignment, page_bytes)));
        const auto handle = memory.handle_of(blocks.back().pointer);
        REQUIRE(handle);
        CHECK(handle->offset < std::max(alignment, page_bytes));
    }
    CHECK_FALSE(test::overlap_somewhere(blocks));
    CHECK(r.used() >= blocks.size() * page_bytes);
    for (const test::held_block& one : blocks) {
        memory.deallocate_sync(one.pointer, one.bytes, one.alignment);
    }
    CHECK(r.used() == 0);
    CHECK_THROWS_AS((void)memory.allocate_sync(100, 3), std::invalid_argument);
    CHECK_THROWS_AS((void)memory.allocate_sync(SIZE_MAX / 2), out_of_memory);
    memory.deallocate_sync(memory.allocate_sync(0), 0);
    memory.deallocate_sync(nullptr, 100);
    CHECK(r.used() == 0);
}

TEST_CASE("cuda ipc: threads allocate and free at once") {
    if (test::is_skipped()) {
        return;
    }
    ipc_rig r{64_MiB};
    cuda_ipc_resource memory{r.of, r.device};
    std::atomic<int> faults{0};
    std::vector<std::thread> all;
    for (int i = 0; i < 4; ++i) {
        all.emplace_back([&, i] {
            for (int round = 0; round < 100; ++round) {
                void* one = memory.allocate_sync(2_MiB);
                void* two = memory.allocate_sync(static_cast<std::size_t>(1 + i) << 20);
                faults += memory.handle_of(one) && memory.handle_of(two) && one != two ? 0 : 1;
                memory.deallocate_sync(one, 2_MiB);
                faults += memory.handle_of(two) ? 0 : 1;
                memory.deallocate_sync(two, static_cast<std::size_t>(1 + i) << 20);
            }
        });
    }
    for (std::thread& one : all) {
        one.join();
    }
    CHECK(faults == 0);
    CHECK(r.used() == 0);
}

namespace {

// Over a pool, since the suite holds more blocks than a small device has pages.
struct ipc_fixture {
    using resource_type = pool_resource<cuda_ipc_resource>;
    static constexpr std::size_t most_alignment = page_bytes;
    static constexpr std::size_t block_bytes = 20'000;

    ipc_rig rig{224_MiB};
    cuda_ipc_resource memory{rig.of, rig.device};
    resource_type one{memory};
    resource_type different{memory};
    resource_type& resource() { return one; }
    resource_type& equal() { return one; }
    resource_type& other() { return different; }
    std::size_t too_many_bytes() { return std::size_t{1} << 38; }
    std::size_t live() {
        one.release();
        different.release();
        return rig.used();
    }
};

}  // namespace

// By hand, since the suite's own case does not ask whether there is a driver.
TEST_CASE("cuda ipc: the contract of resources, over a pool") {
    if (test::is_skipped()) {
        return;
    }
    test::contract_subject_of<ipc_fixture, device_memory_resource> subject;
    test::check_contract<device_memory_resource>(subject);
}
