// SPDX-License-Identifier: Apache-2.0
// The contract on CUDA's managed memory, on whatever driver is found: a real one, or a software one.
#include "../../backends/cuda/managed.hpp"

#include <string>

#include "../support/cuda_managed.hpp"
#include "steering.hpp"

namespace {

using namespace xmm;

struct managed_fixture {
    static bool is_available() {
        const status state = test::managed_state();
        if (!state) {
            MESSAGE("CUDA: ", std::string{state.why}, " (", state.driver_code, ")");
        }
        return state.is_ok();
    }

    managed_fixture() : opened{test::open_managed(1)} {
        REQUIRE(opened);
        queue = *get().queue_create(device(), queue_priority::normal);
        word = test::cuda_word_mover::make_word(*get().native()->device_of(queue));
        REQUIRE(word != nullptr);
    }
    ~managed_fixture() {
        test::cuda_word_mover::drop_word(*get().native()->device_of(queue), word);
        get().queue_destroy(queue);
    }
    cuda::managed& get() { return **opened; }
    node_id device() const { return node_id{1}; }
    node_id host() const { return node_id{0}; }

    std::uint64_t device_load(address at) {
        CHECK(move(to_address(word), at));
        return *word;
    }
    bool device_store(address at, std::uint64_t value) {
        *word = value;
        return move(at, to_address(word));
    }

private:
    bool move(address to, address from) {
        const cuda::stream line{*get().native(), queue};
        return mover.move(line, to, from) && line.synchronize();
    }

    result<std::unique_ptr<cuda::managed>> opened;
    test::cuda_word_mover mover;
    queue_id queue;
    std::uint64_t* word = nullptr;
};

}  // namespace

TEST_CASE_TEMPLATE("the contract of a backend, CUDA managed", F, managed_fixture) {
    contract::check_backend<F>();
    contract::check_steering<F>();
}
