// SPDX-License-Identifier: Apache-2.0
// The contract on whatever CUDA driver is found: a real one, or a software one that the loader finds first.
#include "../../backends/cuda/launcher.hpp"

#include <string>

#include "../support/cuda_device.hpp"
#include "../support/faulty_backend.hpp"
#include "backend.hpp"

namespace {

using namespace xmm;

struct cuda_fixture {
    static bool is_available() {
        const status state = test::cuda_state();
        if (!state) {
            MESSAGE("CUDA: ", std::string{state.why}, " (", state.driver_code, ")");
        }
        return state.is_ok();
    }

    explicit cuda_fixture(bool has_host_handles = false)
        : opened{test::open_cuda(1, 1, has_host_handles)} {
        REQUIRE(opened);
        queue = *get().queue_create(device(), queue_priority::normal);
        word = test::cuda_word_mover::make_word(*get().device_of(queue));
        REQUIRE(word != nullptr);
    }
    ~cuda_fixture() {
        test::cuda_word_mover::drop_word(*get().device_of(queue), word);
        get().queue_destroy(queue);
    }
    cuda::vmm& get() { return **opened; }
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
        const cuda::stream line{get(), queue};
        return mover.move(line, to, from) && line.synchronize();
    }

    result<std::unique_ptr<cuda::vmm>> opened;
    test::cuda_word_mover mover;
    queue_id queue;
    std::uint64_t* word = nullptr;
};

// Host frames as the driver's handles.
struct cuda_handles : cuda_fixture {
    cuda_handles() : cuda_fixture{true} { CHECK_FALSE(get().has_own_host_frames()); }
};

// The wrapper keeps the contract too, as long as it has no plan.
struct wrapped_cuda : cuda_fixture {
    test::faulty_backend<cuda::vmm> wrapper{cuda_fixture::get()};
    auto& get() { return wrapper; }
};

}  // namespace

TEST_CASE_TEMPLATE("the contract of a backend, CUDA", F, cuda_fixture, cuda_handles, wrapped_cuda) {
    contract::check_backend<F>();
}
