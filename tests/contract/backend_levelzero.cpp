// SPDX-License-Identifier: Apache-2.0
// The contract on whatever Level Zero drivers the loader finds: a real one, or the software one of the tests.
#include "../../backends/levelzero/launcher.hpp"

#include <string>

#include "../levelzero/host_kernel.hpp"
#include "../support/faulty_backend.hpp"
#include "backend.hpp"

namespace {

using namespace xmm;

// The driver with that number, of those with devices; none: not here.
struct levelzero_fixture {
    static std::size_t count() {
        auto found = levelzero::find_drivers();
        return found ? found->size() : 0;
    }
    static bool is_available(std::size_t number) {
        auto found = levelzero::find_drivers();
        if (!found) {
            const status why = found.error();
            MESSAGE("Level Zero: ", std::string{why.why}, " (", why.driver_code, ")");
        }
        return count() > number && has_addresses(number);
    }
    // Drivers of before 2023 map nothing, and what the contract asks for cannot be asked of them.
    static bool has_addresses(std::size_t number) {
        const std::array devices{node_id{1}};
        const std::array hosts{node_id{0}};
        auto made = levelzero::vmm::open((*levelzero::find_drivers()).at(number), devices, hosts);
        REQUIRE(made);
        if (!(*made)->has_virtual_memory()) {
            MESSAGE("Level Zero: this driver has no virtual memory");
        }
        return (*made)->has_virtual_memory();
    }
    static bool is_available() { return is_available(0); }

    explicit levelzero_fixture(std::size_t number = 0) {
        const std::array devices{node_id{1}};
        const std::array hosts{node_id{0}};
        const std::array bytes{std::size_t{1} << 30};
        auto made = levelzero::vmm::open((*levelzero::find_drivers()).at(number), devices, hosts,
                                         {.host_numa = {}, .host_bytes = bytes, .queue_salt = 1});
        REQUIRE(made);
        opened = std::move(*made);
    }
    levelzero::vmm& get() { return *opened; }
    node_id device() const { return node_id{1}; }
    node_id host() const { return node_id{0}; }

    std::unique_ptr<levelzero::vmm> opened;
};

struct second_levelzero : levelzero_fixture {
    static bool is_available() { return levelzero_fixture::is_available(1); }
    second_levelzero() : levelzero_fixture{1} {}
};
// On the software driver, which runs host functions as kernels.
struct levelzero_with_kernels : levelzero_fixture {
    static bool is_available() {
        return levelzero_fixture::is_available() &&
               test::find_soft_ze(levelzero::find_drivers()->at(0).handle) != nullptr;
    }
    levelzero_with_kernels() : queue{*get().queue_create(device(), queue_priority::normal)} {}
    ~levelzero_with_kernels() { get().queue_destroy(queue); }

    std::uint64_t device_load(address at) {
        std::uint64_t value = 0;
        CHECK(words.load({get(), queue}, at, value));
        return value;
    }
    bool device_store(address at, std::uint64_t value) {
        return words.store({get(), queue}, at, value).is_ok();
    }

    queue_id queue;
    test::levelzero_words words;
};
// The wrapper keeps the contract too, as long as it has no plan.
struct wrapped_levelzero : levelzero_fixture {
    test::faulty_backend<levelzero::vmm> wrapper{levelzero_fixture::get()};
    auto& get() { return wrapper; }
};

}  // namespace

TEST_CASE_TEMPLATE("the contract of a backend, Level Zero", F, levelzero_fixture,
                   levelzero_with_kernels, second_levelzero, wrapped_levelzero) {
    contract::check_backend<F>();
}
