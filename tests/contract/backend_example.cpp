// SPDX-License-Identifier: Apache-2.0
// backend_example.cpp - the backend of the examples keeps the contract, too.
#include <doctest/doctest.h>

#define main example_main
#include "../../examples/own_backend.cpp"
#undef main

#include "backend.hpp"

namespace {

struct tiny_fixture {
    tiny::driver driver{64_MiB};

    static bool is_available() { return true; }
    tiny::driver& get() { return driver; }
    xmm::node_id device() { return driver.nodes()[0]; }
    xmm::node_id host() { return xmm::machine_topology().hosts()[0].id; }
    std::uint64_t device_load(xmm::address at) { return *word(at); }
    bool device_store(xmm::address at, std::uint64_t value) {
        std::uint64_t* there = word(at);
        if (there != nullptr) {
            *there = value;
        }
        return there != nullptr;
    }

private:
    std::uint64_t* word(xmm::address at) {
        return reinterpret_cast<std::uint64_t*>(driver.translate(xmm::to_pointer(at)));
    }
};

}  // namespace

TEST_CASE_TEMPLATE("the backend of the examples keeps the contract", F, tiny_fixture) {
    xmm::contract::check_backend<F>();
}
