// SPDX-License-Identifier: Apache-2.0
#include <xmm/core/status.hpp>

#include <memory>
#include <string>

#include <doctest/doctest.h>

#include "child.hpp"

using namespace xmm;

TEST_CASE("status: ok unless it says otherwise") {
    static_assert(status{}.is_ok() && status{});
    constexpr status failure = fail(errc::busy, "because", 11);
    static_assert(!failure && failure.code == errc::busy && failure.driver_code == 11);
    CHECK(std::string{failure.why} == "because");
}

TEST_CASE("status: each code has a name of its own") {
    for (unsigned a = 0; a <= static_cast<unsigned>(errc::forked); ++a) {
        CHECK(std::string{name_of(static_cast<errc>(a))} != "?");
        for (unsigned b = 0; b < a; ++b) {
            CHECK(std::string{name_of(static_cast<errc>(a))} != name_of(static_cast<errc>(b)));
        }
    }
}

TEST_CASE("result: holds a value or a failure") {
    result<int> good{42};
    REQUIRE(good);
    CHECK(*good == 42);
    CHECK(good.error().is_ok());
    CHECK(good.code() == errc::ok);
    result<int> bad{fail(errc::no_memory, "none")};
    CHECK(!bad);
    CHECK(bad.code() == errc::no_memory);
    CHECK(std::move(bad).value_or(7) == 7);
    CHECK(std::move(good).value_or(7) == 42);
}

TEST_CASE("result: destroys what it holds once and moves what cannot be copied") {
    auto counted = std::make_shared<int>(1);
    {
        result<std::shared_ptr<int>> first{counted};
        result<std::shared_ptr<int>> second{std::move(first)};
        CHECK(counted.use_count() == 2);
        CHECK(second->get() == counted.get());
        std::shared_ptr<int> out = std::move(second).value();
        CHECK(counted.use_count() == 2);
    }
    CHECK(counted.use_count() == 1);
    result<std::unique_ptr<int>> unique{std::make_unique<int>(5)};
    CHECK(*std::move(unique).value() == 5);
}

TEST_CASE("result: taking the value of a failure ends the program with the reason") {
    const auto how = test::in_child([] {
        result<int> bad{fail(errc::device_lost, "the card fell off")};
        std::printf("%d", *bad);
    });
    CHECK(how.is_crash());
    CHECK(how.says("the card fell off"));
    CHECK(how.says("value() of a failed result"));
    CHECK(how.says("(device lost)"));
    const result<int> constant{7};
    CHECK(*constant == 7);
    CHECK(constant.value() == 7);
}

#if XMM_CHECKS
TEST_CASE("assertion: prints the reason and ends the program") {
    const auto how = test::in_child([] { XMM_ASSERT(1 + 1 == 3, "sums are off"); });
    CHECK(how.signal == SIGABRT);
    CHECK(how.says("sums are off"));
    CHECK(how.says("status.cpp"));
}
#endif
