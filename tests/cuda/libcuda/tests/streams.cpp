// SPDX-License-Identifier: Apache-2.0
// The software driver: streams, events, host functions, threads.
#include "rig.hpp"

#include <atomic>
#include <thread>
#include <vector>

using namespace libcuda_test;

TEST_CASE("streams run by themselves, in order each, and wait for events of others") {
    NEEDS_SOFT_CUDA();
    rig r;
    const CUstream one = r.make_stream(), two = r.make_stream();
    const CUevent marked = r.make_event();
    CHECK(cu().event_query(marked) == CUDA_SUCCESS);  // never recorded
    OK(cu().stream_wait_event(two, marked, 0));
    std::vector<int> order;  // the streams take turns
    gate held;
    kernel_body first = [&](soft_cuda::accessor&) { order.push_back(1); };
    kernel_body second = [&](soft_cuda::accessor&) { order.push_back(2); };
    OK(launch(one, held.body));
    OK(launch(one, first));
    OK(cu().event_record(marked, one));
    OK(cu().stream_wait_event(two, marked, 0));
    OK(launch(two, second));
    CHECK(cu().stream_query(one) == CUDA_ERROR_NOT_READY);
    CHECK(cu().stream_query(two) == CUDA_ERROR_NOT_READY);
    CHECK(cu().event_query(marked) == CUDA_ERROR_NOT_READY);
    held.is_open = true;
    OK(cu().event_synchronize(marked));
    OK(cu().stream_synchronize(two));
    OK(cu().event_query(marked));
    CHECK(order == std::vector{1, 2});

    OK(cu().event_destroy(marked));
    CHECK(cu().event_query(marked) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cu().event_record(marked, one) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cu().stream_wait_event(one, marked, 0) == CUDA_ERROR_INVALID_HANDLE);
    OK(cu().stream_destroy(one));
    CHECK(cu().stream_query(one) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cu().stream_destroy(one) == CUDA_ERROR_INVALID_HANDLE);

    // Destroyed with work in it: that still runs.
    gate later;
    std::atomic<bool> has_run{false};
    kernel_body runs = [&](soft_cuda::accessor&) { has_run = true; };
    OK(launch(two, later.body));
    OK(launch(two, runs));
    OK(cu().stream_destroy(two));
    CHECK(!has_run);
    later.is_open = true;
    for (int i = 0; i < 2000 && !has_run; ++i) {
        std::this_thread::sleep_for(1ms);
    }
    CHECK(has_run);
}

TEST_CASE("work of a destroyed stream is over when the context is") {
    NEEDS_SOFT_CUDA();
    CUdeviceptr at = 0;
    {
        const rig r;
        OK(soft().link(0, 100'000'000));
        void* host = nullptr;
        MUST(cu().mem_alloc(&at, page));
        MUST(cu().mem_host_alloc(&host, page, 0));
        const CUstream s = r.make_stream();
        OK(cu().memcpy_async(at, reinterpret_cast<CUdeviceptr>(host), page, s));  // 20 ms
        OK(cu().stream_destroy(s));
    }
    // Were it not, it would miss its memory now, and end the context that comes after.
    const rig r;
    std::this_thread::sleep_for(30ms);
    std::size_t free = 0, total = 0;
    OK(cu().mem_get_info(&free, &total));
}

TEST_CASE("streams have priorities, contexts and devices") {
    NEEDS_SOFT_CUDA();
    rig r;
    int least = 9, greatest = 9, priority = 9;
    OK(cu().ctx_get_stream_priority_range(&least, &greatest));
    CHECK(least == 0);
    CHECK(greatest == -5);
    CUstream s = nullptr;
    MUST(cu().stream_create_with_priority(&s, CU_STREAM_NON_BLOCKING, -40));
    OK(cu().stream_get_priority(s, &priority));
    CHECK(priority == greatest);
    CUcontext of = nullptr;
    OK(cu().stream_get_ctx(s, &of));
    CHECK(of == r.context);
    CHECK(cu().stream_create_with_priority(&s, 7, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().stream_create_with_priority(nullptr, 0, 0) == CUDA_ERROR_INVALID_VALUE);
    int not_a_stream = 0;
    CHECK(cu().stream_query(reinterpret_cast<CUstream>(&not_a_stream)) ==
          CUDA_ERROR_INVALID_HANDLE);

    const rig other{1};
    // Events and kernels belong to their context; waiting and copying do not.
    const CUevent there = other.make_event();
    CHECK(cu().event_record(there, s) == CUDA_ERROR_INVALID_HANDLE);
    kernel_body nothing = [](soft_cuda::accessor&) {};
    CHECK(launch(s, nothing) == CUDA_ERROR_INVALID_HANDLE);
    OK(cu().event_record(there, nullptr));
    OK(cu().stream_wait_event(s, there, 0));
    OK(cu().stream_synchronize(s));
}

TEST_CASE("host functions run in order and may not call the driver") {
    NEEDS_SOFT_CUDA();
    rig r;
    const CUstream s = r.make_stream();
    struct seen {
        CUresult call = CUDA_SUCCESS, name = CUDA_ERROR_UNKNOWN;
        bool has_run = false;
    } saw;
    gate held;
    OK(launch(s, held.body));
    OK(cu().launch_host_func(
        s,
        [](void* of) {
            auto& mine = *static_cast<seen*>(of);
            int count = 0;
            const char* text = nullptr;
            mine.call = cu().device_get_count(&count);
            mine.name = cu().get_error_name(CUDA_SUCCESS, &text);
            mine.has_run = true;
        },
        &saw));
    CHECK(cu().stream_query(s) == CUDA_ERROR_NOT_READY);
    held.is_open = true;
    OK(cu().stream_synchronize(s));
    CHECK(saw.has_run);
    CHECK(saw.call == CUDA_ERROR_NOT_PERMITTED);
    CHECK(saw.name == CUDA_SUCCESS);
    CHECK(cu().launch_host_func(s, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("the legacy stream waits for blocking streams, they for it, others for neither") {
    NEEDS_SOFT_CUDA();
    rig r;
    CUstream blocking = nullptr;
    MUST(cu().stream_create_with_priority(&blocking, CU_STREAM_DEFAULT, 0));
    const CUstream free_one = r.make_stream();
    std::vector<int> order;
    gate held;
    kernel_body first = [&](soft_cuda::accessor&) { order.push_back(1); };
    kernel_body second = [&](soft_cuda::accessor&) { order.push_back(2); };
    kernel_body third = [&](soft_cuda::accessor&) { order.push_back(3); };
    std::atomic<bool> has_run{false};
    kernel_body aside = [&](soft_cuda::accessor&) { has_run = true; };
    OK(launch(blocking, held.body));
    OK(launch(blocking, first));
    OK(launch(nullptr, second));
    OK(launch(blocking, third));
    OK(launch(free_one, aside));
    OK(cu().stream_synchronize(free_one));
    CHECK(has_run);
    CHECK(cu().stream_query(nullptr) == CUDA_ERROR_NOT_READY);
    held.is_open = true;
    OK(cu().stream_synchronize(blocking));
    CHECK(order == std::vector{1, 2, 3});
    OK(cu().stream_query(nullptr));
}

TEST_CASE("each thread has a default stream of its own, for those who ask for it") {
    NEEDS_SOFT_CUDA();
    const auto own = reinterpret_cast<CUstream>(stream_per_thread);
    for (int round = 0; round < 2; ++round) {  // the second in a fresh context
        const rig r;
        gate held;
        OK(launch(own, held.body));
        CHECK(cu().stream_query(own) == CUDA_ERROR_NOT_READY);
        std::thread{[&] {
            MUST(cu().ctx_push_current(r.context));
            std::atomic<bool> has_run{false};
            kernel_body runs = [&](soft_cuda::accessor&) { has_run = true; };
            OK(cu().stream_query(own));  // another one
            OK(launch(own, runs));
            OK(cu().stream_synchronize(own));
            CHECK(has_run);
        }}.join();
        CHECK(cu().stream_query(nullptr) == CUDA_ERROR_NOT_READY);  // it is a blocking one
        held.is_open = true;
        OK(cu().stream_synchronize(own));
    }
}

TEST_CASE("many threads at once") {
    NEEDS_SOFT_CUDA();
    const rig r;
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; ++number) {
        threads.emplace_back([&, number] {
            wrong += cu().ctx_push_current(r.context) == CUDA_SUCCESS ? 0 : 1;
            CUstream s = nullptr;
            CUevent done = nullptr;
            wrong += cu().stream_create_with_priority(&s, number % 2, 0) == CUDA_SUCCESS ? 0 : 1;
            wrong += cu().event_create(&done, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS ? 0 : 1;
            const auto asked = properties(
                number < 2 ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
            const CUmemAccessDesc who = to_device();
            for (int round = 0; round < 20; ++round) {
                CUmemGenericAllocationHandle handle = 0;
                CUdeviceptr at = 0;
                wrong += cu().mem_create(&handle, page, &asked, 0) == CUDA_SUCCESS ? 0 : 1;
                wrong += cu().mem_address_reserve(&at, page, 0, 0, 0) == CUDA_SUCCESS ? 0 : 1;
                wrong += cu().mem_map(at, page, 0, handle, 0) == CUDA_SUCCESS ? 0 : 1;
                wrong += cu().mem_set_access(at, page, &who, 1) == CUDA_SUCCESS ? 0 : 1;
                const auto value = static_cast<unsigned>(number * 1000 + round);
                wrong += cu().memset_d32_async(at, value, 1024, s) == CUDA_SUCCESS ? 0 : 1;
                unsigned got = 0;
                kernel_body reads = [&](soft_cuda::accessor& memory) {
                    got = memory.load<unsigned>(at + 4092);
                };
                wrong += launch(s, reads) == CUDA_SUCCESS ? 0 : 1;
                wrong += cu().event_record(done, s) == CUDA_SUCCESS ? 0 : 1;
                wrong += cu().event_synchronize(done) == CUDA_SUCCESS ? 0 : 1;
                wrong += got == value ? 0 : 1;
                wrong += cu().mem_unmap(at, page) == CUDA_SUCCESS ? 0 : 1;
                wrong += cu().mem_address_free(at, page) == CUDA_SUCCESS ? 0 : 1;
                wrong += cu().mem_release(handle) == CUDA_SUCCESS ? 0 : 1;
            }
            wrong += cu().stream_destroy(s) == CUDA_SUCCESS ? 0 : 1;
            wrong += cu().event_destroy(done) == CUDA_SUCCESS ? 0 : 1;
        });
    }
    for (auto& one : threads) {
        one.join();
    }
    CHECK(wrong == 0);
}
