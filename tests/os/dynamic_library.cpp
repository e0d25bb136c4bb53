// SPDX-License-Identifier: Apache-2.0
#include <xmm/os/dynamic_library.hpp>

#include <utility>

#include <doctest/doctest.h>

using xmm::dynamic_library;
using xmm::errc;

TEST_CASE("dynamic_library: the first name that exists is opened, its symbols are found") {
    auto opened = dynamic_library::open({"libno-such-thing.so.9", "libm.so.6"});
    REQUIRE(opened.has_value());
    auto cosine = opened->find<double(double)>("cos");
    REQUIRE(cosine.has_value());
    CHECK((*cosine)(0.0) == 1.0);
    CHECK(opened->find<double(double)>("no_such_symbol").code() == errc::unsupported);
}

TEST_CASE("dynamic_library: a missing library is unsupported") {
    CHECK(dynamic_library::open("libno-such-thing.so.9").code() == errc::unsupported);
    CHECK(dynamic_library::open({}).code() == errc::unsupported);
}

TEST_CASE("dynamic_library: moved from and closed, it finds nothing") {
    auto opened = dynamic_library::open("libm.so.6");
    REQUIRE(opened.has_value());
    dynamic_library kept = std::move(*opened);
    CHECK_FALSE(opened->is_open());
    CHECK(opened->find<double(double)>("cos").code() == errc::unsupported);
    CHECK(kept.is_open());
    kept.close();
    CHECK_FALSE(kept.is_open());
    kept.close();
    CHECK(kept.find<double(double)>("cos").code() == errc::unsupported);
}

TEST_CASE("dynamic_library: it stays loaded after the object is gone") {
    // A library that this program does not use otherwise.
    const char* name = "libBrokenLocale.so.1";
    if (::dlopen(name, RTLD_LAZY | RTLD_NOLOAD) != nullptr) {
        MESSAGE("loaded before, nothing to see");
        return;
    }
    { REQUIRE(dynamic_library::open(name).has_value()); }
    void* still = ::dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    CHECK(still != nullptr);
    if (still != nullptr) {
        ::dlclose(still);
    }
}
