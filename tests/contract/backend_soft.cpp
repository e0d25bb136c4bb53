// SPDX-License-Identifier: Apache-2.0
#include "../../backends/soft/launcher.hpp"

#include "../support/faulty_backend.hpp"
#include "backend.hpp"

namespace {

using namespace xmm;

struct soft_fixture {
    static bool is_available() { return true; }
    static constexpr bool may_lose_device = true;

    explicit soft_fixture(bool faults)
        : options{.bytes = std::size_t{64} << 20, .faults = faults},
          driver{{&options, 1}, std::array{node_id{1}}, std::array{node_id{0}}} {}
    soft::driver& get() { return driver; }
    node_id device() const { return node_id{1}; }
    node_id host() const { return node_id{0}; }

    std::uint64_t device_load(address at) {
        std::uint64_t value = 0;
        CHECK(run([&] {
            value = device_view{static_cast<const std::uint64_t*>(to_pointer(at)), 1}[0];
        }));
        return value;
    }
    bool device_store(address at, std::uint64_t value) {
        return run([&] { device_view{static_cast<std::uint64_t*>(to_pointer(at)), 1}[0] = value; });
    }

    soft::device_options options;
    soft::driver driver;

private:
    template <class Fn>
    bool run(Fn fn) {  // on a queue of its own, which may be lost
        const queue_id queue = *driver.queue_create(device(), queue_priority::normal);
        auto point = soft::stream{driver, queue}.run(fn);
        const bool done = point && driver.wait(*point).is_ok();
        driver.queue_destroy(queue);
        return done;
    }
};

struct soft_with_faults : soft_fixture {
    soft_with_faults() : soft_fixture{true} {}
};
struct soft_without_faults : soft_fixture {
    soft_without_faults() : soft_fixture{false} {}
};
// The wrapper keeps the contract too, as long as it has no plan.
struct wrapped_soft : soft_with_faults {
    test::faulty_backend<soft::driver> wrapper{driver};
    auto& get() { return wrapper; }
};

}  // namespace

TEST_CASE_TEMPLATE("the contract of a backend", F, soft_with_faults, soft_without_faults,
                   wrapped_soft) {
    contract::check_backend<F>();
}
