// SPDX-License-Identifier: Apache-2.0
#include <xmm/mapping/residency.hpp>

#include <string>

#include <doctest/doctest.h>

using namespace xmm;

namespace {

constexpr residency all_states[] = {residency::released, residency::untouched, residency::on_host,
                                    residency::on_device, residency::duplicated};

// Where a step may lead from a state, as a row of letters in the order of the enum: "r u h d D".
std::string targets(residency from, residency_step step) {
    std::string found;
    for (residency to : all_states) {
        if (is_legal(from, step, to)) {
            found += "ruhdD"[static_cast<unsigned>(to)];
        }
    }
    return found;
}

}  // namespace

TEST_CASE("residency: the legal steps, all of them") {
    struct row {
        residency_step step;
        const char* from[5];  // released, untouched, on_host, on_device, duplicated
    };
    const row table[] = {
        {residency_step::map, {"u", "", "", "", ""}},
        {residency_step::first_touch, {"", "hd", "", "", ""}},
        {residency_step::move, {"", "", "hd", "hd", ""}},
        {residency_step::duplicate, {"", "", "D", "D", "D"}},
        {residency_step::collapse, {"", "", "", "", "hd"}},
        {residency_step::discard, {"", "u", "u", "u", "u"}},
        {residency_step::unmap, {"", "r", "r", "r", "r"}},
    };
    for (const row& one : table) {
        for (unsigned i = 0; i < 5; ++i) {
            CAPTURE(static_cast<int>(one.step));
            CAPTURE(name_of(all_states[i]));
            CHECK(targets(all_states[i], one.step) == one.from[i]);
        }
    }
}

TEST_CASE("residency: names, and what counts as resident") {
    static_assert(is_resident(residency::on_host) && is_resident(residency::on_device) &&
                  is_resident(residency::duplicated));
    static_assert(!is_resident(residency::released) && !is_resident(residency::untouched));
    for (residency one : all_states) {
        CHECK(std::string{name_of(one)} != "?");
    }
}
