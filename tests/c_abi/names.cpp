// SPDX-License-Identifier: Apache-2.0
// names.cpp - what xmm.h says that a node is called, where its vendor's name is not as the structure would have it.
#include <xmm.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <xmm/facade/default_space.hpp>

using namespace xmm;

namespace {

constexpr std::size_t room = sizeof(xmm_node_description::name) - 1;

// A software device by any name.
class named_device : public soft::driver {
public:
    named_device(const std::string& name, node_id number, const std::vector<node_id>& hosts)
        : soft::driver{std::vector<soft::device_options>(1), std::vector<node_id>{number}, hosts},
          name_{name} {}
    [[nodiscard]] result<node_description> describe(node_id node) const noexcept {
        result<node_description> about = soft::driver::describe(node);
        if (about) {
            about->name = {};
            name_.copy(about->name.data(), about->name.size() - 1);
        }
        return about;
    }

private:
    const std::string name_;
};

// What xmm.h makes of it. The default space keeps its devices until the process ends.
std::string name_in_c(const std::string& given) {
    std::vector<node_id> hosts;
    for (const host_node& one : machine_topology().hosts()) {
        hosts.push_back(one.id);
    }
    const node_id number = register_device_node("named device");
    REQUIRE(default_space().attach(*new named_device{given, number, hosts}));
    xmm_node_description about;
    std::memset(&about, 0x5a, sizeof about);
    about.struct_size = sizeof about;
    REQUIRE(xmm_describe_node(number.value, &about) == XMM_OK);
    REQUIRE(std::count(about.name, about.name + sizeof about.name, '\0') > 0);
    return about.name;
}

}  // namespace

// A space has room for few devices.
TEST_CASE("names of nodes are cut where a character ends") {
    const std::string e_acute = "\xc3\xa9";
    const std::string most(room - 2, 'x');
    CHECK(name_in_c("H200 " + e_acute) == "H200 " + e_acute);
    CHECK(name_in_c(most + e_acute + "x") == most + e_acute);
    CHECK(name_in_c(most + "x" + e_acute) == most + "x");
    CHECK(name_in_c(most + "\xf0\x9f\x98\x80") == most);
}

TEST_CASE("names of nodes are UTF-8 whatever a driver says") {
    const std::string unknown = "\xef\xbf\xbd";
    CHECK(name_in_c("caf\xe9 \xff") == "caf" + unknown + " " + unknown);
    CHECK(name_in_c(std::string(room - 2, 'x') + "\xff") == std::string(room - 2, 'x'));
}
