// SPDX-License-Identifier: Apache-2.0
#include <xmm/facade/api.hpp>

#include "../core/child.hpp"
#include "../support/sanitizer.hpp"
#include "rig.hpp"

using namespace xmm;
using namespace xmm::test;

TEST_CASE("api: the gm* functions are the default space's") {
    auto where = gmmap(4_MiB, {.granule_bytes = 2_MiB});
    REQUIRE(where);
    auto* data = static_cast<std::uint64_t*>(*where);
    CHECK(default_space().contains(data));
    CHECK(&default_space() == &default_space());
    fill<std::uint64_t>(data, 4_MiB, 1);
    REQUIRE(!default_space().devices().empty());
    const node_id device = default_space().devices()[0];
    REQUIRE(gmadvise(device, data, 4_MiB, advice::will_need));
    CHECK(default_space().residency_of(data).value() == device);
    std::vector<std::uint64_t> plain(4_MiB / 8);
    REQUIRE(gmemcpy(plain.data(), data, 4_MiB));
    CHECK(count_wrong<std::uint64_t>(plain.data(), 4_MiB, 1) == 0);
    auto line = default_space().make_queue(device);
    REQUIRE(line);
    auto point = gmemcpy(*line, data, plain.data() + 1, 8);
    REQUIRE(point);
    REQUIRE(line->wait(*point));
    REQUIRE(gmadvise(any_host, data, 4_MiB, advice::will_need));
    CHECK(data[0] == 2);
    CHECK(gmadvise(device, &plain, 8, advice::cold).code == errc::not_mapped);
    REQUIRE(gmunmap(data));
    CHECK(gmunmap(data).code == errc::not_mapped);
    CHECK(default_space().is_valid());
}

TEST_CASE("api: in a forked child without a space the gm* functions answer: forked") {
    if (!is_fresh_process()) {
        const ending how = in_fresh_process();
        CAPTURE(how.text);
        CHECK(!how.is_crash());
        return;
    }
    static_cast<void>(machine_topology());  // the parent has used xmm, but has no default space
    const ending child = in_child([] {
        char bytes[8] = {};
        const errc codes[] = {gmmap(2_MiB).code(), gmunmap(bytes).code,
                              gmadvise(any_host, bytes, 8, advice::cold).code,
                              gmemcpy(bytes, bytes + 4, 4).code};
        for (errc one : codes) {
            std::puts(name_of(one));
        }
    });
    CAPTURE(child.text);
    CHECK(!child.is_crash());
    CHECK(child.text == "forked child\nforked child\nforked child\nforked child\n");
    auto where = gmmap(2_MiB);
    REQUIRE(where);
    CHECK(gmunmap(*where));
}

TEST_CASE("api: a space has a device - none asked for is one and a message") {
    if (!is_fresh_process()) {
        const char* before = std::getenv("XMM_CONF");
        const std::string kept = before != nullptr ? before : "";
        ::setenv("XMM_CONF", "cuda:off,soft_devices:0", 1);
        const ending how = in_fresh_process();
        ::setenv("XMM_CONF", kept.c_str(), 1);
        CAPTURE(how.text);
        CHECK(!how.is_crash());
        CHECK(how.says("XMM_CONF: soft_devices:0: expected a number from 1 to 8"));
        return;
    }
    auto where = gmmap(2_MiB);
    REQUIRE(where);
    CHECK(default_space().devices().size() == 1);
    CHECK(gmunmap(*where));
}

TEST_CASE("api: that there was no default space once is forgotten") {
    if (has_sanitizer) {
        MESSAGE("skipped: a sanitizer needs files of its own");
        return;
    }
    if (!is_fresh_process()) {
        const ending how = in_fresh_process();
        CAPTURE(how.text);
        CHECK(!how.is_crash());
        return;
    }
    static_cast<void>(machine_topology());
    rlimit files{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
    const rlimit none{3, files.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);  // memory of software devices is in files
    CHECK(gmmap(2_MiB).code() == errc::no_memory);
    CHECK(!xmm::detail::try_default_space());
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &files) == 0);
    auto where = gmmap(2_MiB);
    REQUIRE(where);
    static_cast<char*>(*where)[0] = 1;
    CHECK(gmunmap(*where));
}
