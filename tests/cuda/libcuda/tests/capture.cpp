// SPDX-License-Identifier: Apache-2.0
// The software driver: captures, what they allow and what breaks them.
#include "rig.hpp"

#include <thread>

using namespace libcuda_test;

namespace {

using begin_capture = CUresult(CUstream, CUstreamCaptureMode);
using end_capture = CUresult(CUstream, soft_cuda::CUgraph*);
using graph_nodes = CUresult(soft_cuda::CUgraph, void**, std::size_t*);
using graph_destroy = CUresult(soft_cuda::CUgraph);
using graph_instantiate = CUresult(soft_cuda::CUgraphExec*, soft_cuda::CUgraph, unsigned long long);
using graph_launch = CUresult(soft_cuda::CUgraphExec, CUstream);
using exec_destroy = CUresult(soft_cuda::CUgraphExec);

struct capture_calls {
    begin_capture* begin = lib().proc<begin_capture>("cuStreamBeginCapture", 10010);
    end_capture* end = lib().proc<end_capture>("cuStreamEndCapture", 10000);
    graph_nodes* nodes = lib().proc<graph_nodes>("cuGraphGetNodes", 10000);
    graph_destroy* destroy = lib().proc<graph_destroy>("cuGraphDestroy", 10000);
    graph_instantiate* instantiate =
        lib().proc<graph_instantiate>("cuGraphInstantiateWithFlags", 11040);
    graph_launch* launch = lib().proc<graph_launch>("cuGraphLaunch", 10000);
    exec_destroy* drop = lib().proc<exec_destroy>("cuGraphExecDestroy", 10000);
};

CUstreamCaptureStatus capture_status(CUstream of) {
    auto status = CU_STREAM_CAPTURE_STATUS_NONE;
    MUST(cu().stream_is_capturing(of, &status));
    return status;
}

}  // namespace

TEST_CASE("a capture records work, over streams that it forks into, and runs it when launched") {
    NEEDS_SOFT_CUDA();
    rig r;
    const capture_calls graph;
    const CUstream s = r.make_stream(), side = r.make_stream();
    const CUevent fork = r.make_event(), join = r.make_event();
    int count = 0;
    kernel_body counts = [&](soft_cuda::accessor&) { ++count; };
    MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(graph.begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(capture_status(s) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(launch(s, counts));
    OK(cu().event_record(fork, s));
    OK(cu().stream_wait_event(side, fork, 0));
    CHECK(capture_status(side) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(launch(side, counts));
    soft_cuda::CUgraph made = nullptr;
    SUBCASE("joined") {
        OK(cu().event_record(join, side));
        OK(cu().stream_wait_event(s, join, 0));
        OK(launch(s, counts));
        OK(graph.end(s, &made));
        REQUIRE(made != nullptr);
        std::size_t nodes = 0;
        OK(graph.nodes(made, nullptr, &nodes));
        CHECK(nodes == 3);
        CHECK(count == 0);
        soft_cuda::CUgraphExec exec = nullptr;
        OK(graph.instantiate(&exec, made, 0));
        OK(graph.destroy(made));
        OK(graph.launch(exec, s));
        OK(graph.launch(exec, s));
        OK(cu().stream_synchronize(s));
        CHECK(count == 6);
        OK(graph.drop(exec));
        // The events stay marked as captured, until they are recorded anew.
        CHECK(cu().event_query(join) == CUDA_ERROR_CAPTURED_EVENT);
        OK(cu().event_record(join, s));
        OK(cu().event_synchronize(join));
    }
    SUBCASE("not joined") {
        CHECK(graph.end(s, &made) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
        CHECK(made == nullptr);
        CHECK(count == 0);
    }
    SUBCASE("ended elsewhere") {
        CHECK(graph.end(side, &made) == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        CHECK(graph.end(s, &made) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    SUBCASE("ended by another thread") {
        std::thread{[&] {
            MUST(cu().ctx_push_current(r.context));
            CHECK(graph.end(s, &made) == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }}.join();
        OK(cu().event_record(join, side));
        OK(cu().stream_wait_event(s, join, 0));
        OK(graph.end(s, &made));
        OK(graph.destroy(made));
    }
    CHECK(capture_status(s) == CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK(capture_status(side) == CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK(graph.end(s, &made) == CUDA_ERROR_ILLEGAL_STATE);
}

TEST_CASE("what breaks a capture") {
    NEEDS_SOFT_CUDA();
    rig r;
    const capture_calls graph;
    const CUstream s = r.make_stream(), other = r.make_stream();
    CUstream blocking = nullptr;
    MUST(cu().stream_create_with_priority(&blocking, CU_STREAM_DEFAULT, 0));
    const CUevent before = r.make_event(), inside = r.make_event();
    OK(cu().event_record(before, other));
    CUdeviceptr at = 0;
    CUdeviceptr managed = 0;
    MUST(cu().mem_alloc_managed(&managed, page, CU_MEM_ATTACH_GLOBAL));
    auto mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    CUstream captures = s;

    SUBCASE("a query of the stream") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_RELAXED));
        CHECK(cu().stream_query(s) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    SUBCASE("waiting for the stream") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_RELAXED));
        CHECK(cu().stream_synchronize(s) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    SUBCASE("a query of a captured event") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_RELAXED));
        OK(cu().event_record(inside, s));
        CHECK(cu().event_query(inside) == CUDA_ERROR_CAPTURED_EVENT);
    }
    SUBCASE("an allocation") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        CHECK(cu().mem_alloc(&at, 64) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    SUBCASE("a query of another event") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
        CHECK(cu().event_query(before) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    SUBCASE("another thread's allocation") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
        std::thread{[&] {
            MUST(cu().ctx_push_current(r.context));
            CHECK(cu().mem_alloc(&at, 64) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }}.join();
    }
    SUBCASE("waiting for work that is not captured") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_RELAXED));
        CHECK(cu().stream_wait_event(s, before, 0) == CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    }
    SUBCASE("the legacy stream, beside a blocking one") {
        captures = blocking;
        MUST(graph.begin(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
        auto status = CU_STREAM_CAPTURE_STATUS_NONE;
        CHECK(cu().stream_is_capturing(nullptr, &status) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        CHECK(capture_status(blocking) == CU_STREAM_CAPTURE_STATUS_ACTIVE);  // only asked
        CHECK(cu().memset_d8_async(managed, 0, 1, nullptr) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    SUBCASE("a prefetch") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_RELAXED));
        CHECK(cu().mem_prefetch_async(managed, page, CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                      0, s) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    CHECK(capture_status(captures) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    CHECK(soft().count("captures invalidated") == 1);
    kernel_body nothing = [](soft_cuda::accessor&) {};
    CHECK(launch(captures, nothing) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    soft_cuda::CUgraph made = nullptr;
    CHECK(graph.end(captures, &made) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(made == nullptr);
    OK(launch(captures, nothing));
    OK(cu().stream_synchronize(captures));
    OK(cu().thread_exchange_stream_capture_mode(&mode));
    CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    OK(cu().mem_free(managed));
}

TEST_CASE("what a capture allows") {
    NEEDS_SOFT_CUDA();
    rig r;
    const capture_calls graph;
    const CUstream s = r.make_stream(), other = r.make_stream();
    CUdeviceptr at = 0;
    soft_cuda::CUgraph made = nullptr;
    auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    SUBCASE("anything, from a thread in relaxed mode") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
        OK(cu().thread_exchange_stream_capture_mode(&mode));
        CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
        OK(cu().mem_alloc(&at, 64));
        OK(cu().mem_free(at));
        {
            range where{page};
            where.map(CU_MEM_LOCATION_TYPE_DEVICE, 0, page);
        }
        OK(cu().stream_synchronize(other));
        OK(cu().thread_exchange_stream_capture_mode(&mode));
    }
    SUBCASE("anything, in a relaxed capture") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_RELAXED));
        OK(cu().mem_alloc(&at, 64));
        OK(cu().mem_free(at));
    }
    SUBCASE("another thread's calls, in a capture of its own thread") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        std::thread{[&] {
            MUST(cu().ctx_push_current(r.context));
            OK(cu().mem_alloc(&at, 64));
            OK(cu().mem_free(at));
        }}.join();
    }
    kernel_body nothing = [](soft_cuda::accessor&) {};
    SUBCASE("work in other streams, events made and recorded there") {
        MUST(graph.begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
        OK(launch(other, nothing));
        OK(cu().event_record(r.make_event(), other));
        std::size_t free = 0, total = 0;
        OK(cu().mem_get_info(&free, &total));
    }
    CHECK(capture_status(s) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(graph.end(s, &made));
    OK(graph.destroy(made));
    CHECK(soft().count("captures invalidated") == 0);
    OK(cu().stream_synchronize(other));
    mode = static_cast<CUstreamCaptureMode>(3);
    CHECK(cu().thread_exchange_stream_capture_mode(&mode) == CUDA_ERROR_INVALID_VALUE);
}
