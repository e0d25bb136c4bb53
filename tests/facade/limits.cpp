// SPDX-License-Identifier: Apache-2.0
// Machines that refuse something: NUMA calls, mappings, address space. Each in a process of its own.
#include <xmm/xmm.hpp>

#include <cstddef>
#include <fstream>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "tests/core/child.hpp"
#include "tests/facade/rig.hpp"
#include "tests/support/sanitizer.hpp"

using namespace xmm;
using namespace xmm::test;

namespace {

// As a container without SYS_NICE does.
bool refuse_numa_calls() {
    const auto jump_if = [](unsigned call, std::uint8_t hit) {
        return sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, hit, 0);
    };
    sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        jump_if(SYS_mbind, 3),
        jump_if(SYS_set_mempolicy, 2),
        jump_if(SYS_get_mempolicy, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    };
    const sock_fprog all{std::size(rules), rules};
    return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) == 0;
}

// Uses up mappings until about `left` are left. False if that is not possible here.
bool eat_maps(std::size_t left) {
    const std::size_t limit = map_limit();
    if (limit > 200000 || limit < map_count() + left + 100) {
        return false;
    }
    const std::size_t count = limit - map_count() - left;
    const std::size_t page = os_page_bytes();
    void* at = ::mmap(nullptr, count * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                      -1, 0);
    if (at == MAP_FAILED) {
        return false;
    }
    // Every second page differs from its neighbours.
    for (std::size_t i = 1; i < count; i += 2) {
        if (::mprotect(static_cast<std::byte*>(at) + i * page, page, PROT_READ) != 0) {
            return false;
        }
    }
    return true;
}

// Says here, where it counts, that the process that ran the test case skipped it. False: it did not.
bool repeat_skip(const ending& how) {
    constexpr std::string_view before = "MESSAGE: ";
    const std::size_t found = how.text.find(std::string{before} + "skipped: ");
    if (found == std::string::npos) {
        return false;
    }
    const std::size_t at = found + before.size();
    MESSAGE(how.text.substr(at, how.text.find('\n', at) - at));
    return true;
}

// Writes on host and device in turn and compares; true if every word is right.
bool works(rig& r, std::uint64_t* data, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes / 8; ++i) {
        data[i] = 5 + i;
    }
    bool all = r.count_wrong_on_device<std::uint64_t>(data, bytes, 5) == 0;
    r.fill_on_device<std::uint64_t>(data, bytes, 9);
    for (std::size_t i = 0; i < bytes / 8; ++i) {
        all = all && data[i] == 9 + i;
    }
    return all && r.of().is_valid();
}

}  // namespace

TEST_CASE("limits: refused NUMA calls leave memory unbound and say so") {
    if (!is_fresh_process()) {
        const ending how = in_fresh_process();
        CAPTURE(how.text);
        CHECK(!how.is_crash());
        return;
    }
    REQUIRE(refuse_numa_calls());
    rig r;
    CHECK(machine_topology().limits().is_numa_refused);
    CHECK(!machine_topology().hosts()[0].can_bind);
    CHECK(works(r, r.map(16_MiB), 16_MiB));
    host_resource plain{r.host()};
    void* some = plain.allocate(1_MiB);
    std::memset(some, 1, 1_MiB);
    plain.deallocate(some, 1_MiB);
}

TEST_CASE("limits: with few mappings left kernels go on and no byte is lost") {
    if (has_sanitizer) {
        MESSAGE("skipped: a sanitizer needs mappings and address space of its own");
        return;
    }
    if (!is_fresh_process()) {
        const ending how = in_fresh_process();
        CAPTURE(how.text);
        CHECK(!how.is_crash());
        repeat_skip(how);
        return;
    }
    rig r{{device_of(64_MiB)}};
    auto* data = r.map(64_MiB);
    for (std::size_t i = 0; i < 64_MiB / 8; i += 512) {
        data[i] = i;
    }
    if (!eat_maps(12)) {
        MESSAGE("skipped: vm.max_map_count cannot be reached here");
        return;
    }
    // Every second page is wanted on the device: more holes than there are mappings left.
    std::size_t wrong = 0;
    for (std::size_t page = 0; page < 32; page += 2) {
        auto* at = page_of(data, page);
        const device_view<std::uint64_t> view{at, 2_MiB / 8};
        auto point = launch(r.line(), {reads_writes(at, 2_MiB)}, [&](soft::stream& s) {
            return s.run([view, &wrong, first = page * 2_MiB / 8] {
                for (std::size_t i = 0; i < view.size(); i += 512) {
                    wrong += view.load(i) != first + i ? 1 : 0;
                    view.store(i, first + i + 1);
                }
            });
        });
        REQUIRE(point);
        REQUIRE(r.line().synchronize());
    }
    CHECK(wrong == 0);
    CHECK(r.of().is_valid());
    // Back to the host as a whole: holes go, mappings are won back.
    CHECK(r.of().make_resident(data, 64_MiB, any_host));
    for (std::size_t i = 0; i < 64_MiB / 8; i += 512) {
        wrong += data[i] != i + (i / (2_MiB / 8) % 2 == 0 ? 1 : 0) ? 1 : 0;
    }
    CHECK(wrong == 0);
}

TEST_CASE("limits: a first touch that no mapping is left for says so") {
    if (has_sanitizer) {
        MESSAGE("skipped: a sanitizer needs mappings and address space of its own");
        return;
    }
    if (!is_fresh_process()) {
        const ending how = in_fresh_process();
        CAPTURE(how.text);
        if (!repeat_skip(how)) {
            CHECK(how.is_crash());
            CHECK(how.text.find("vm.max_map_count") != std::string::npos);
            CHECK(how.text.find("mappings in use") != std::string::npos);
            CHECK(how.text.find("has no room for") == std::string::npos);
        }
        return;
    }
    rig r{{device_of(64_MiB)}};
    auto* data = r.map(64_MiB);
    data[0] = 1;
    if (!eat_maps(12)) {
        MESSAGE("skipped: vm.max_map_count cannot be reached here");
        return;
    }
    for (std::size_t page = 2; page < 32; page += 2) {
        *page_of(data, page) = page;
    }
}

TEST_CASE("limits: heaps give frames back and spaces end without a mapping left") {
    if (has_sanitizer) {
        MESSAGE("skipped: a sanitizer needs mappings and address space of its own");
        return;
    }
    if (!is_fresh_process()) {
        const ending how = in_fresh_process();
        CAPTURE(how.text);
        CHECK(!how.is_crash());
        repeat_skip(how);
        CHECK(how.text.find("is left as it is") == std::string::npos);
        return;
    }
    auto one = std::make_unique<rig>(std::vector{device_of(64_MiB)});
    // Neighbours in one mapping, and pages apart: what is cleared first would part the former.
    auto* data = one->map(64_MiB);
    for (std::size_t page = 0; page < 16; ++page) {
        *page_of(data, page) = page;
    }
    for (std::size_t page = 16; page < 32; page += 2) {
        *page_of(data, page) = page;
    }
    xpu_malloc& heap = *one->of().heap(one->host()).value();
    std::vector<void*> blocks;
    for (std::size_t i = 0; i < 16; ++i) {
        blocks.push_back(heap.allocate({.bytes = 2_MiB}).value());
        std::memset(blocks.back(), 1, 2_MiB);
    }
    if (!eat_maps(0)) {
        MESSAGE("skipped: vm.max_map_count cannot be reached here");
        return;
    }
    for (std::size_t i = 0; i < 16; i += 2) {
        CHECK(heap.deallocate(blocks[i]));
    }
    const std::size_t before = heap.frames().counts().reserved_bytes;
    CHECK(heap.trim() == 16_MiB);
    CHECK(heap.frames().counts().reserved_bytes == before - 16_MiB);
    // What is still there is whole, and what cannot be mapped is refused.
    for (std::size_t i = 1; i < 16; i += 2) {
        CHECK(static_cast<char*>(blocks[i])[1_MiB] == 1);
    }
    std::vector<void*> more;
    for (std::size_t i = 0; i < 16; ++i) {
        result<void*> got = heap.allocate({.bytes = 2_MiB});
        if (!got) {
            CHECK(got.code() == errc::no_memory);
            CHECK(std::string{got.error().why}.find("vm.max_map_count") != std::string::npos);
            break;
        }
        std::memset(*got, 2, 2_MiB);
        more.push_back(*got);
    }
    for (void* at : more) {
        CHECK(heap.deallocate(at));
    }
    CHECK(one->of().is_valid());
    CHECK(one->of().unmap(data));
    one.reset();
}

TEST_CASE("limits: little address space is a clear refusal") {
    if (has_sanitizer) {
        MESSAGE("skipped: a sanitizer needs mappings and address space of its own");
        return;
    }
    if (!is_fresh_process()) {
        const ending how = in_fresh_process();
        CAPTURE(how.text);
        CHECK(!how.is_crash());
        repeat_skip(how);
        return;
    }
    rig r;
    auto* data = r.map(8_MiB);
    // As much as there is now, and a little.
    std::size_t os_pages = 0;
    std::ifstream{"/proc/self/statm"} >> os_pages;
    const std::size_t bytes = os_pages * os_page_bytes() + 512_MiB;
    const rlimit little{bytes, bytes};
    if (os_pages == 0 || ::setrlimit(RLIMIT_AS, &little) != 0) {
        MESSAGE("skipped: address space cannot be limited here");
        return;
    }
    auto refused = r.of().map(8_GiB);
    CHECK(refused.code() == errc::no_memory);
    CHECK(works(r, data, 8_MiB));
}
