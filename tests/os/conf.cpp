// SPDX-License-Identifier: Apache-2.0
#include <xmm/os/conf.hpp>

#include <string>

#include <doctest/doctest.h>

#include "child.hpp"

using xmm::conf;
using xmm_test::child_case;
using xmm_test::run_child;

TEST_CASE("conf: nothing set means defaults") {
    for (const char* text : {static_cast<const char*>(nullptr), "", " ", ",;, ;"}) {
        const conf c{text};
        CHECK(c.flag("userfaultfd", true));
        CHECK_FALSE(c.flag("userfaultfd", false));
        CHECK(c.number("service_threads", 4) == 4);
        CHECK(c.text("userfaultfd", "neither") == "neither");
    }
}

TEST_CASE("conf: entries, separators, blanks, the later one wins") {
    const conf c{" userfaultfd : off ; service_threads:7,service_threads:8 "};
    CHECK_FALSE(c.flag("userfaultfd", true));
    CHECK(c.number("service_threads", 4, 1, 64) == 8);
    CHECK(c.text("service_threads", "") == "8");
}

TEST_CASE("conf: flags") {
    for (const char* yes : {"on", "true", "yes", "1"}) {
        const std::string text = std::string{"userfaultfd:"} + yes;
        CHECK(conf{text.c_str()}.flag("userfaultfd", false));
    }
    for (const char* no : {"off", "false", "no", "0"}) {
        const std::string text = std::string{"userfaultfd:"} + no;
        CHECK_FALSE(conf{text.c_str()}.flag("userfaultfd", true));
    }
}

namespace {

std::size_t bytes_of(const char* value) {
    const std::string text = std::string{"service_threads:"} + value;
    return conf{text.c_str()}.bytes("service_threads", 77);
}

}  // namespace

TEST_CASE("conf: byte sizes") {
    CHECK(bytes_of("0") == 0);
    CHECK(bytes_of("65536") == 65536);
    CHECK(bytes_of("65536B") == 65536);
    CHECK(bytes_of("64K") == 65536);
    CHECK(bytes_of("64k") == 65536);
    CHECK(bytes_of("64KiB") == 65536);
    CHECK(bytes_of("2M") == std::size_t{2} << 20);
    CHECK(bytes_of("2 MB") == std::size_t{2} << 20);
    CHECK(bytes_of("3G") == std::size_t{3} << 30);
    CHECK(bytes_of("1T") == std::size_t{1} << 40);
}

TEST_CASE("conf: a malformed size keeps the default") {
    for (const char* bad :
         {"", "K", "-1", "1.5G", "1X", "1KK", "1GiBs", "99999999999999999999", "99999999999G"}) {
        CAPTURE(bad);
        CHECK(bytes_of(bad) == 77);
    }
}

TEST_CASE("conf: a size below the least is raised to it, one that says nothing is the default") {
    const std::size_t least = std::size_t{16} << 20;
    CHECK(conf{"soft_bytes:0"}.bytes("soft_bytes", 77, least) == least);
    CHECK(conf{"soft_bytes:16M"}.bytes("soft_bytes", 77, least) == least);
    CHECK(conf{"soft_bytes:17M"}.bytes("soft_bytes", 77, least) == std::size_t{17} << 20);
    CHECK(conf{"soft_bytes:many"}.bytes("soft_bytes", 77, least) == 77);
}

TEST_CASE("conf: a malformed or excessive number keeps the default") {
    for (const char* bad : {"", "x", "4x", "-4", "65", "0", "18446744073709551616"}) {
        const std::string text = std::string{"service_threads:"} + bad;
        CAPTURE(text);
        CHECK(conf{text.c_str()}.number("service_threads", 4, 1, 64) == 4);
    }
    CHECK(conf{"service_threads:18446744073709551615"}.number("service_threads", 4) == UINT64_MAX);
}

TEST_CASE("conf: too long a text is cut, not overrun") {
    std::string text(10'000, ',');
    text.replace(0, 17, "service_threads:8");
    text += "userfaultfd:off";
    const conf c{text.c_str()};
    CHECK(c.number("service_threads", 4) == 8);
    CHECK(c.flag("userfaultfd", true));
}

namespace {

const child_case reads_environment{
    "conf environment", [] {
        XMM_EXPECT(&conf::of_process() == &conf::of_process());
        XMM_EXPECT(!conf::of_process().flag("userfaultfd", true));
        XMM_EXPECT(conf::of_process().number("service_threads", 4) == 4);
        XMM_EXPECT(conf::of_process().bytes("soft_bytes", std::size_t{1} << 30,
                                            std::size_t{16} << 20) == std::size_t{16} << 20);
        XMM_EXPECT(conf::of_process().bytes("soft_bytes", std::size_t{1} << 30,
                                            std::size_t{16} << 20) == std::size_t{16} << 20);
        return 0;
    }};

std::size_t count_of(const std::string& text, const char* what) {
    std::size_t count = 0;
    for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; ++at) {
        ++count;
    }
    return count;
}

}  // namespace

TEST_CASE("conf: XMM_CONF is read, and each mistake is named once") {
    const auto end =
        run_child("conf environment",
                  {"XMM_CONF=userfaultfd:off,colour:blue;service_threads:many,soft_devices=2,"
                   "soft_bytes:1M"});
    CAPTURE(end.errors);
    CHECK(end.exit_code == 0);
    CHECK(count_of(end.errors, "unknown key \"colour\"; known are userfaultfd") == 1);
    CHECK(count_of(end.errors,
                   "service_threads:many: expected a number from 0 to 18446744073709551615") == 1);
    CHECK(count_of(end.errors,
                   "soft_bytes:1M: expected bytes from 16M, as 32M or 2G; the least is taken") ==
          1);
    CHECK(count_of(end.errors, "\"soft_devices=2\" is passed over: an entry is key:value") == 1);
}
