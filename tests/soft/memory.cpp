// SPDX-License-Identifier: Apache-2.0
#include "../../backends/soft/memory.hpp"

#include <sys/stat.h>

#include "../core/child.hpp"
#include "../support/sanitizer.hpp"
#include "rig.hpp"

using namespace xmm;
using namespace xmm::test;

namespace {

std::size_t held_bytes(const soft::node_memory& memory) {
    struct stat about {};
    REQUIRE(::fstat(memory.file(), &about) == 0);
    return static_cast<std::size_t>(about.st_blocks) * 512;
}

frame made(soft::node_memory& memory, std::size_t bytes) {
    auto one = memory.create(bytes);
    REQUIRE(one);
    return *one;
}

}  // namespace

TEST_CASE("frames created in a row lie in a row") {
    soft::node_memory memory{node_id{1}, 64_MiB, -1};
    const frame a = made(memory, page_bytes);
    const frame b = made(memory, 8_MiB);
    const frame c = made(memory, page_bytes);
    CHECK(a.standing + a.bytes == b.standing);
    CHECK(b.standing + b.bytes == c.standing);
    CHECK(a.standing % page_bytes == 0);
    CHECK(a.node == node_id{1});
    for (const frame& one : {a, b, c}) {
        CHECK(one);
        CHECK(one.zeroed);
        memory.drop(one);
    }
    CHECK(memory.frame_bytes() == 0);
}

TEST_CASE("a dropped frame gives its memory back and reads zero again") {
    soft::node_memory memory{node_id{1}, page_bytes, -1};
    address first = 0;
    for (int round = 0; round < 3;
         ++round) {  // the window is two pages: the third is the first again
        const frame one = made(memory, page_bytes);
        first = round == 0 ? one.standing : first;
        CHECK((round != 2 || one.standing == first));
        auto* bytes = static_cast<unsigned char*>(to_pointer(one.standing));
        CHECK(std::all_of(bytes, bytes + page_bytes, [](unsigned char byte) { return byte == 0; }));
        std::memset(bytes, 0xff, page_bytes);
        CHECK(held_bytes(memory) == page_bytes);
        memory.drop(one);
        CHECK(held_bytes(memory) == 0);
    }
}

TEST_CASE("the node's size is the limit, all or nothing") {
    soft::node_memory memory{node_id{1}, 10_MiB, -1};
    const frame most = made(memory, 8_MiB);
    CHECK(memory.create(4_MiB).code() == errc::no_memory);
    CHECK(memory.frame_bytes() == 8_MiB);
    const frame rest = made(memory, 2_MiB);
    CHECK(memory.create(2_MiB).code() == errc::no_memory);
    memory.drop(most);
    CHECK(memory.create(10_MiB).code() == errc::no_memory);
    memory.drop(made(memory, 8_MiB));
    memory.drop(rest);
}

TEST_CASE("scattered drops do not fragment") {
    soft::node_memory memory{node_id{1}, 256_MiB, -1};
    std::vector<frame> frames;
    for (int i = 0; i < 128; ++i) {
        frames.push_back(made(memory, page_bytes));
    }
    for (std::size_t i = 0; i < frames.size(); i += 2) {
        memory.drop(frames[i]);
    }
    const frame large = made(memory, 128_MiB);
    CHECK(memory.create(page_bytes).code() == errc::no_memory);
    memory.drop(large);
    for (std::size_t i = 1; i < frames.size(); i += 2) {
        memory.drop(frames[i]);
    }
    memory.drop(made(memory, 256_MiB));
}

TEST_CASE("memory: sizes that address arithmetic does not hold are refused") {
    constexpr std::size_t most = soft::node_memory::largest_bytes;
    for (const std::size_t bytes : {most + 1, std::size_t{1} << 61, std::size_t{1} << 62,
                                    (std::size_t{1} << 62) + 3 * page_bytes, ~std::size_t{0}}) {
        CAPTURE(bytes);
        soft::node_memory memory{node_id{1}, bytes, -1};
        CHECK(memory.state().code == errc::invalid_argument);
        CHECK(std::string_view{memory.state().why}.find("128 TiB") != std::string_view::npos);
        CHECK(memory.create(page_bytes).code() == errc::invalid_argument);

        const node_id device{1}, host{0};
        const soft::device_options one{.bytes = bytes};
        soft::driver driver{{&one, 1}, {&device, 1}, {&host, 1}};
        CHECK(driver.describe(device).code() == errc::invalid_argument);
        CHECK(driver.describe(host));
        soft::driver_options sized;
        sized.host_bytes = {&bytes, 1};
        soft::driver of_host{{}, {}, {&host, 1}, sized};
        CHECK(of_host.describe(host).code() == errc::invalid_argument);
    }
    CHECK(most / (std::size_t{1} << 40) == 128);
    soft::node_memory largest{node_id{1}, most, -1};  // most systems have no such addresses
    CHECK(largest.state().code != errc::invalid_argument);
}

TEST_CASE("memory: a node may be many times the machine's memory, as long as it is not filled") {
    if (has_sanitizer) {
        MESSAGE("skipped: a sanitizer needs address space of its own");
        return;
    }
    soft::node_memory memory{node_id{1}, std::size_t{16} << 40, -1};
    REQUIRE(memory.state());
    CHECK(memory.free_bytes() == std::size_t{16} << 40);
    std::vector<frame> frames;
    for (int i = 0; i < 64; ++i) {  // 32 GiB
        frames.push_back(made(memory, largest_frame_bytes));
    }
    at<int>(frames.back().standing + largest_frame_bytes - sizeof(int)) = 1;
    CHECK(held_bytes(memory) <= page_bytes);
    for (const frame& one : frames) {
        memory.drop(one);
    }
    CHECK(memory.frame_bytes() == 0);
}

TEST_CASE("memory: options beyond a device's clock and page tables are refused") {
    const node_id device{1}, host{0};
    for (const std::uint64_t latency_ns : {std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
        const soft::device_options slow{.bytes = 64_MiB, .link_latency_ns = latency_ns};
        soft::driver driver{{&slow, 1}, {&device, 1}, {&host, 1}};
        CHECK(driver.describe(device).code() == errc::invalid_argument);
        CHECK(driver.frame_create(device, page_bytes).code() == errc::invalid_argument);
        CHECK(driver.describe(host));
    }
    for (const std::size_t count : {254, 255}) {
        const std::vector<soft::device_options> many(count, {.bytes = page_bytes, .units = 1});
        std::vector<node_id> ids;
        for (std::size_t i = 0; i < count; ++i) {
            ids.push_back(node_id{static_cast<int>(i) + 1});
        }
        soft::driver driver{many, ids, {&host, 1}};
        CHECK((driver.describe(host).code() == errc::invalid_argument) == (count == 255));
        CHECK((driver.frame_create(host, page_bytes).code() == errc::invalid_argument) ==
              (count == 255));
    }
}

TEST_CASE("binding works or says why not") {
    soft::node_memory bound{node_id{0}, 16_MiB, 0};
    CHECK((bound.binding().is_ok() || bound.binding().code == errc::unsupported));
    soft::node_memory nowhere{node_id{0}, 16_MiB, 1023};
    CHECK(nowhere.binding().code == errc::unsupported);
    const frame one = made(nowhere, page_bytes);  // tolerated
    at<int>(one.standing) = 1;
    nowhere.drop(one);
}

TEST_CASE("memory: a driver that found no addresses for a node says so when asked about it") {
    if (has_sanitizer) {
        MESSAGE("skipped: a sanitizer needs address space of its own");
        return;
    }
    const ending how = xmm::test::in_child([] {
        const rlimit most{std::size_t{2} << 30, std::size_t{2} << 30};  // a node reserves 16 GiB
        ::setrlimit(RLIMIT_AS, &most);
        const node_id device{1}, host{0};
        const soft::device_options one{.bytes = std::size_t{64} << 30};
        soft::driver driver{{&one, 1}, {&device, 1}, {&host, 1}};
        std::printf("%s\n", name_of(driver.describe(device).code()));
    });
    CHECK(how.text == "no memory\n");
}

TEST_CASE(
    "memory: a limit on the size of files makes the room smaller or is told and sends no signal") {
    const auto described_under = [](std::size_t most_bytes) {
        return xmm::test::in_child([=] {
            const rlimit most{most_bytes, most_bytes};
            ::setrlimit(RLIMIT_FSIZE, &most);
            soft::node_memory memory{node_id{1}, 64_MiB, -1};
            const status outcome = memory.create(page_bytes).error();
            std::printf("%s: %s\n", name_of(outcome.code), outcome.why);
        });
    };
    CHECK(described_under(1_GiB).text.starts_with("ok: "));
    const std::string refused = described_under(1_MiB).text;
    CHECK(refused.starts_with("no memory: "));
    CHECK(refused.find("ulimit -f") != std::string::npos);
}

TEST_CASE("memory: a process without file descriptors left is told so") {
    const std::string refused = xmm::test::in_child([] {
                                    rlimit most{};
                                    ::getrlimit(RLIMIT_NOFILE, &most);
                                    most.rlim_cur = 3;  // the standard ones
                                    ::setrlimit(RLIMIT_NOFILE, &most);
                                    while (::dup(1) >= 0) {
                                    }
                                    soft::node_memory memory{node_id{1}, 64_MiB, -1};
                                    const status outcome = memory.create(page_bytes).error();
                                    std::printf("%s: %s\n", name_of(outcome.code), outcome.why);
                                }).text;
    CHECK(refused.starts_with("no memory: "));
    CHECK(refused.find("ulimit -n") != std::string::npos);
}
