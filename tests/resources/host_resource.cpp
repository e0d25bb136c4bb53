// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/host_resource.hpp>

#include <cstring>

#include <doctest/doctest.h>

using namespace xmm;
using namespace xmm::literals;

namespace {

// The policy of the mapping at an address: MPOL_* or -1 where the kernel does not say.
[[nodiscard]] int policy_at(void* pointer) {
    constexpr unsigned long of_address = 2;  // MPOL_F_ADDR
    int mode = -1;
    return ::syscall(SYS_get_mempolicy, &mode, nullptr, 0, pointer, of_address) == 0 ? mode : -1;
}
[[nodiscard]] bool can_place() {
    unsigned long mask[16] = {1};
    void* probe = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const bool works = ::syscall(SYS_mbind, probe, 4096, 1, mask, 1025, 0) == 0;
    ::munmap(probe, 4096);
    return works;
}

}  // namespace

TEST_CASE("host_resource: large blocks carry the policy of their node" *
          doctest::skip(!can_place())) {
    host_resource bound{node_id{0}};
    void* pointer = bound.allocate_sync(1_MiB);
    CHECK(policy_at(pointer) == 1);  // MPOL_PREFERRED
    std::memset(pointer, 1, 1_MiB);
    bound.deallocate_sync(pointer, 1_MiB);

    host_resource anywhere;
    pointer = anywhere.allocate_sync(1_MiB);
    CHECK(policy_at(pointer) == 0);  // MPOL_DEFAULT
    anywhere.deallocate_sync(pointer, 1_MiB);
}

TEST_CASE("interleave_resource: blocks are spread" * doctest::skip(!can_place())) {
    const std::array nodes{node_id{0}};
    interleave_resource spread{nodes};
    for (std::size_t bytes : {std::size_t{1}, 100_KiB, 3_MiB}) {
        void* pointer = spread.allocate_sync(bytes);
        CHECK(policy_at(pointer) == 3);  // MPOL_INTERLEAVE
        std::memset(pointer, 1, bytes);
        spread.deallocate_sync(pointer, bytes);
    }
}

TEST_CASE("host_resource: nodes that the kernel does not have still give memory") {
    host_resource nowhere{node_id{1000}};
    host_resource beyond{node_id{1 << 20}};
    const std::array nodes{node_id{500}, node_id{-1}, node_id{-2}};
    interleave_resource spread{nodes};
    for (memory_resource* one :
         std::initializer_list<memory_resource*>{&nowhere, &beyond, &spread}) {
        void* pointer = one->allocate_sync(2_MiB);
        std::memset(pointer, 1, 2_MiB);
        one->deallocate_sync(pointer, 2_MiB);
    }
}

TEST_CASE("host_resource: a mapping is trimmed to what was asked") {
    host_resource host;
    void* pointer = host.allocate_sync(2_MiB, 16_MiB);
    CHECK(to_address(pointer) % 16_MiB == 0);
    unsigned char resident = 0;
    CHECK(::mincore(pointer, 1, &resident) == 0);
    // Nothing of ours is left behind after the block goes.
    host.deallocate_sync(pointer, 2_MiB, 16_MiB);
    CHECK(::mincore(pointer, 1, &resident) != 0);
    CHECK(errno == ENOMEM);
}

TEST_CASE("host_resource: given back on a stream, waits for it") {
    host_resource host;
    static int waits = 0;
    waits = 0;
    const stream_ref stream{queue_id{3}, nullptr, [](void*, queue_id) noexcept -> status {
                                ++waits;
                                return {};
                            }};
    void* small = host.allocate(stream, 100);
    void* large = host.allocate(stream, 1_MiB);
    CHECK(waits == 0);
    host.deallocate(stream, small, 100);
    host.deallocate(stream, large, 1_MiB);
    CHECK(waits == 2);
}

TEST_CASE("host_resource: given back on a stream that cannot say how far it is, a block stays") {
    host_resource host;
    interleave_resource spread{{}};
    const stream_ref captured{queue_id{3}, nullptr, [](void*, queue_id) noexcept -> status {
                                  return fail(errc::busy, "being captured");
                              }};
    for (memory_resource* one : std::initializer_list<memory_resource*>{&host, &spread}) {
        void* block = one->allocate_sync(1_MiB);
        std::memset(block, 1, 1_MiB);
        one->deallocate(captured, block, 1_MiB);
        unsigned char resident = 0;
        CHECK(::mincore(block, 1, &resident) == 0);
        one->deallocate_sync(block, 1_MiB);
    }
}
