// SPDX-License-Identifier: Apache-2.0
#include <xmm/placement/policies.hpp>

#include <string>

#include <doctest/doctest.h>

using namespace xmm;

TEST_CASE("policies: found by name, each with its answer") {
    for (const char* name : stock_policy_names) {
        policy_ref found;
        REQUIRE(find_stock_policy(name, found));
        CHECK(std::string{found.name()} == name);
    }
    policy_ref found;
    REQUIRE(find_stock_policy("first_touch", found));
    CHECK(found.choose({node_id{1}, access::read, page_bytes, true}) ==
          placement_choice::on_device);
    REQUIRE(find_stock_policy("mapped", found));
    CHECK(found.choose({node_id{1}, access::write, page_bytes, true}) ==
          placement_choice::in_place);
    CHECK(!find_stock_policy("", found));
    CHECK(!find_stock_policy("Mapped", found));
    CHECK(std::string{found.name()} == "mapped");  // as before
}

namespace {

struct silent {
    static const char* name() noexcept { return "silent"; }
};
struct throwing : silent {
    placement_choice choose(const device_touch&) { return placement_choice::in_place; }
};
static_assert(!policy<silent> && !policy<throwing>);

}  // namespace
