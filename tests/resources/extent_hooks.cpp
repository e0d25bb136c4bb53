// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/extent_hooks.hpp>

#include <xmm/resources/device_frames.hpp>

#include <doctest/doctest.h>

#include <random>
#include <utility>
#include <vector>

#include "trap_port.hpp"

using namespace xmm::literals;

namespace {

// Calls the table as jemalloc does.
struct hooks_rig {
    trap_port port;
    xmm::device_frames frames{port};
    xmm::extent_hooks<xmm::device_frames> hooks{frames, xmm::queue_id{1}};
    xmm::jemalloc_hooks* table = hooks.table();

    // Slots in use: what can be given back is given back first.
    std::size_t used() {
        frames.trim(0);
        return port.frame_bytes() / 2_MiB;
    }
    char* alloc(std::size_t bytes, std::size_t alignment = 4096) {
        bool zero = false;
        bool commit = false;
        void* at = table->alloc(table, nullptr, bytes, alignment, &zero, &commit, 7);
        CHECK(!zero);
        CHECK(!commit);
        return static_cast<char*>(at);
    }
    bool commit(char* at, std::size_t bytes, std::size_t offset = 0) {
        return !table->commit(table, at, bytes + offset, offset, bytes, 7);
    }
    bool decommit(char* at, std::size_t bytes, std::size_t offset = 0) {
        return !table->decommit(table, at, bytes + offset, offset, bytes, 7);
    }
};

}  // namespace

TEST_SUITE("extent_hooks") {
    TEST_CASE("an extent has no frame before it is committed, nor after") {
        hooks_rig r;
        char* at = r.alloc(5_MiB);
        REQUIRE(at != nullptr);
        CHECK(r.used() == 0);
        CHECK(r.hooks.contains(xmm::to_address(at)));
        CHECK(!r.hooks.contains(xmm::to_address(&r)));
        CHECK(r.commit(at, 5_MiB));
        CHECK(r.used() == 3);
        CHECK(r.hooks.committed_bytes() == 5_MiB);
        CHECK(r.hooks.slot_count() == 3);
        CHECK(r.decommit(at, 5_MiB));
        CHECK(r.used() == 0);
        CHECK(r.hooks.committed_bytes() == 0);
        CHECK(r.hooks.is_valid());
        CHECK(r.port.mistakes() == 0);
    }

    TEST_CASE("extents lie side by side and share a slot") {
        hooks_rig r;
        char* first = r.alloc(2_MiB + 512_KiB);
        char* second = r.alloc(3_MiB);
        CHECK(second == first + 2_MiB + 512_KiB);
        CHECK(r.commit(first, 2_MiB + 512_KiB));
        CHECK(r.used() == 2);
        CHECK(r.commit(second, 64_KiB));
        CHECK(r.used() == 2);
        // Committed apart and decommitted together, as after a merge; and the other way round.
        CHECK(r.commit(second + 64_KiB, 64_KiB));
        CHECK(r.decommit(second, 128_KiB));
        CHECK(r.used() == 2);
        CHECK(r.decommit(first + 2_MiB, 512_KiB));
        CHECK(r.used() == 1);
        CHECK(r.decommit(first, 2_MiB));
        CHECK(r.used() == 0);
        CHECK(r.hooks.is_valid());
        CHECK(r.port.mistakes() == 0);
    }

    TEST_CASE("commit and decommit honour the offset") {
        hooks_rig r;
        char* at = r.alloc(8_MiB);
        CHECK(r.commit(at, 4_KiB, 6_MiB));
        CHECK(r.port.has_frames(xmm::to_address(at + 6_MiB), 4_KiB));
        CHECK(!r.port.has_frames(xmm::to_address(at), 4_KiB));
        CHECK(r.decommit(at, 4_KiB, 6_MiB));
        CHECK(r.used() == 0);
    }

    TEST_CASE("what is asked for with zeros, committed, or at an address is refused") {
        hooks_rig r;
        bool zero = true;
        bool commit = false;
        CHECK(r.table->alloc(r.table, nullptr, 2_MiB, 4096, &zero, &commit, 0) == nullptr);
        zero = false;
        commit = true;
        CHECK(r.table->alloc(r.table, nullptr, 2_MiB, 4096, &zero, &commit, 0) == nullptr);
        commit = false;
        CHECK(r.table->alloc(r.table, &zero, 2_MiB, 4096, &zero, &commit, 0) == nullptr);
        CHECK(r.port.reserved_bytes() == 0);
    }

    TEST_CASE(
        "addresses are kept: deallocation is refused, and extents of two reservations do not "
        "merge") {
        hooks_rig r;
        char* first = r.alloc(40_MiB);
        char* second = r.alloc(40_MiB);
        char* third = r.alloc(4_MiB);
        CHECK(r.port.reserved_bytes() == 192_MiB);
        CHECK(r.table->dalloc(r.table, first, 40_MiB, false, 7));
        CHECK(!r.table->split(r.table, first, 40_MiB, 8_MiB, 32_MiB, false, 7));
        CHECK(!r.table->merge(r.table, first, 8_MiB, first + 8_MiB, 32_MiB, false, 7));
        CHECK(r.table->merge(r.table, first, 40_MiB, second, 40_MiB, false, 7));
        CHECK(!r.table->merge(r.table, second, 40_MiB, third, 4_MiB, false, 7));
        CHECK((r.table->purge_lazy == nullptr));
        CHECK((r.table->purge_forced == nullptr));
    }

    TEST_CASE("larger than any reservation, and larger alignments") {
        hooks_rig r;
        char* big = r.alloc(300_MiB);
        REQUIRE(big != nullptr);
        CHECK(r.commit(big, 300_MiB));
        CHECK(r.used() == 150);
        char* aligned = r.alloc(4_KiB, 16_MiB);
        REQUIRE(aligned != nullptr);
        CHECK(xmm::to_address(aligned) % 16_MiB == 0);
        CHECK(r.decommit(big, 300_MiB));
    }

    TEST_CASE("without a frame nothing changes, and no addresses are used up") {
        hooks_rig r;
        char* at = r.alloc(4_MiB);
        REQUIRE(r.commit(at, 1_MiB));
        r.port.most_bytes = 2_MiB;
        CHECK(!r.commit(at + 1_MiB, 3_MiB));
        CHECK(r.hooks.last_failure().code == xmm::errc::no_memory);
        CHECK(r.hooks.committed_bytes() == 1_MiB);
        CHECK(r.used() == 1);
        const std::size_t reserved = r.hooks.reserved_bytes();
        for (int i = 0; i < 100; ++i) {
            CHECK(r.alloc(60_MiB) == nullptr);
        }
        CHECK(r.hooks.reserved_bytes() == reserved);
        // In a slot that has its frame there is still room.
        CHECK(r.commit(at + 1_MiB, 1_MiB));
        // Once there are frames again, addresses are handed out again.
        r.port.most_bytes = 20_MiB;
        char* more = r.alloc(2_MiB);
        CHECK(more != nullptr);
        CHECK(r.commit(more, 2_MiB));
        CHECK(r.hooks.last_failure().is_ok());
        CHECK(r.decommit(more, 2_MiB));
        CHECK(r.decommit(at, 2_MiB));
        CHECK(r.hooks.is_valid());
        CHECK(r.port.mistakes() == 0);
    }

    TEST_CASE("no address space is a failure with its reason") {
        hooks_rig r;
        r.port.fail_reserve = true;
        CHECK(r.alloc(2_MiB) == nullptr);
        CHECK(r.hooks.last_failure().code == xmm::errc::no_memory);
        r.port.fail_reserve = false;
        CHECK(r.alloc(2_MiB) != nullptr);
    }

    TEST_CASE("a committed extent that is destroyed gives its frames back") {
        hooks_rig r;
        char* at = r.alloc(4_MiB);
        CHECK(r.commit(at, 4_MiB));
        r.table->destroy(r.table, at, 2_MiB, true, 7);
        CHECK(r.used() == 1);
        r.table->destroy(r.table, at + 2_MiB, 2_MiB, true, 7);
        CHECK(r.used() == 0);
        r.table->destroy(r.table, at, 4_MiB, false, 7);
        CHECK(r.used() == 0);
    }

    TEST_CASE("any order of commits and decommits keeps the books") {
        hooks_rig r;
        std::mt19937 random{1};
        constexpr std::size_t unit = 64_KiB;
        constexpr std::size_t units = 40_MiB / unit;
        char* base = r.alloc(units * unit);
        REQUIRE(base != nullptr);
        std::vector<bool> committed(units);
        int failures = 0;
        for (int step = 0; step < 20000; ++step) {
            // A run of units of one state turns into the other.
            const std::size_t first = random() % units;
            std::size_t count = 1;
            const std::size_t most = 1 + random() % 80;
            while (count < most && first + count < units &&
                   committed[first + count] == committed[first]) {
                ++count;
            }
            r.port.most_bytes = random() % 2 == 0 ? r.port.frame_bytes() : SIZE_MAX;
            r.port.fail_map = random() % 8 == 0;
            const bool want = !committed[first];
            const bool done = want ? r.commit(base + first * unit, count * unit)
                                   : r.decommit(base + first * unit, count * unit);
            failures += done ? 0 : 1;
            if (done) {
                for (std::size_t i = first; i < first + count; ++i) {
                    committed[i] = want;
                }
            }
            std::size_t slots = 0;
            std::size_t bytes = 0;
            for (std::size_t slot = 0; slot < 20; ++slot) {
                std::size_t in_slot = 0;
                for (std::size_t i = slot * 32; i < slot * 32 + 32; ++i) {
                    in_slot += committed[i] ? unit : 0;
                }
                slots += in_slot != 0 ? 1 : 0;
                bytes += in_slot;
            }
            if (step % 64 == 0) {
                REQUIRE(r.used() == slots);
                REQUIRE(r.hooks.is_valid());
                REQUIRE(r.frames.is_valid());
            }
            REQUIRE(r.hooks.slot_count() == slots);
            REQUIRE(r.hooks.committed_bytes() == bytes);
        }
        CHECK(failures > 50);
        CHECK(r.hooks.is_valid());
        CHECK(r.port.mistakes() == 0);
        for (std::size_t i = 0; i < units; ++i) {
            if (committed[i]) {
                r.decommit(base + i * unit, unit);
            }
        }
        CHECK(r.used() == 0);
    }
}
