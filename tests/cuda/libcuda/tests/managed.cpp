// SPDX-License-Identifier: Apache-2.0
// The software driver: managed memory.
#include "rig.hpp"

#include <cstring>

using namespace libcuda_test;

namespace {

struct managed_memory {
    explicit managed_memory(std::size_t bytes_) : bytes{bytes_} {
        MUST(cu().mem_alloc_managed(&at, bytes, CU_MEM_ATTACH_GLOBAL));
    }
    managed_memory(const managed_memory&) = delete;
    ~managed_memory() { OK(cu().mem_free(at)); }
    char* cpu(std::size_t offset = 0) const { return reinterpret_cast<char*>(at + offset); }
    void prefetch(std::size_t offset, std::size_t size, CUmemLocation to, CUstream s) const {
        MUST(cu().mem_prefetch_async(at + offset, size, to, 0, s));
        MUST(cu().stream_synchronize(s));
    }
    int home(std::size_t index) const { return soft().residency(at + index * page); }

    CUdeviceptr at = 0;
    std::size_t bytes;
};
constexpr CUmemLocation host_place{CU_MEM_LOCATION_TYPE_HOST, 0};
constexpr CUmemLocation device_place{CU_MEM_LOCATION_TYPE_DEVICE, 0};

template <class T>
T range_attribute(CUmem_range_attribute which, CUdeviceptr at, std::size_t bytes) {
    T value{};
    MUST(cu().mem_range_get_attribute(&value, sizeof value, which, at, bytes));
    return value;
}

}  // namespace

TEST_CASE("managed memory moves by prefetch, and the CPU always reaches it") {
    NEEDS_SOFT_CUDA();
    rig r;
    const CUstream s = r.make_stream();
    const managed_memory m{8 * page};
    CHECK(m.at % page == 0);
    std::memset(m.cpu(), 7, 4 * page);
    CHECK(m.home(0) == -2);
    m.prefetch(0, 6 * page, device_place, s);
    CHECK(m.home(0) == 0);
    CHECK(m.home(5) == 0);
    CHECK(m.home(6) == -2);
    CHECK(soft().held(0) == 6 * page);
    CHECK(soft().count("managed prefetched") == 6);
    CHECK(soft().count("bytes to device") == 4 * page);  // what nobody wrote does not travel
    CHECK(m.cpu()[page] == 7);
    std::size_t free = 0, total = 0;
    OK(cu().mem_get_info(&free, &total));
    CHECK(total - free == 6 * page);
    m.prefetch(page, 1, host_place, s);  // a byte of it: the whole page
    CHECK(m.home(1) == -1);
    CHECK(soft().held(0) == 5 * page);
    CHECK(range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, m.at, page) == 0);
    CHECK(range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, m.at + page, page) ==
          -1);
    CHECK(range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, m.at, 2 * page) ==
          -2);
    CHECK(range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, m.at, page) ==
          CU_MEM_LOCATION_TYPE_DEVICE);

    CHECK(cu().mem_prefetch_async(m.at, 9 * page, device_place, 0, s) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_prefetch_async(m.at, page, CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, 5}, 0,
                                  s) == CUDA_ERROR_INVALID_DEVICE);
    CUdeviceptr plain = 0;
    MUST(cu().mem_alloc(&plain, page));
    CHECK(cu().mem_prefetch_async(plain, page, device_place, 0, s) == CUDA_ERROR_INVALID_VALUE);
    OK(cu().mem_free(plain));

    // The older interface, as dlsym finds it.
    using old_prefetch = CUresult(CUdeviceptr, std::size_t, CUdevice, CUstream);
    OK(lib().symbol<old_prefetch>("cuMemPrefetchAsync")(m.at, 2 * page, 1, s));
    OK(cu().stream_synchronize(s));
    CHECK(m.home(0) == 1);
    CHECK(m.home(1) == 1);
}

TEST_CASE("kernels move managed memory as the advice says") {
    NEEDS_SOFT_CUDA();
    rig r;
    const CUstream s = r.make_stream();
    const managed_memory m{4 * page};
    kernel_body reads = [&](soft_cuda::accessor& memory) { (void)memory.load<int>(m.at); };
    kernel_body writes = [&](soft_cuda::accessor& memory) { memory.store(m.at, 3); };
    const auto run = [&](kernel_body& body) {
        MUST(launch(s, body));
        MUST(cu().stream_synchronize(s));
    };
    SUBCASE("without advice it comes") {
        run(writes);
        CHECK(m.home(0) == 0);
        CHECK(soft().count("managed faults") == 1);
        run(writes);
        CHECK(soft().count("managed faults") == 1);
        CHECK(*reinterpret_cast<int*>(m.cpu()) == 3);
    }
    SUBCASE("preferred at the host it stays there, a first touch too") {
        OK(cu().mem_advise(m.at, page, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host_place));
        CHECK(range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, m.at, page) == -1);
        run(writes);
        CHECK(m.home(0) == -1);
        CHECK(soft().count("managed remote accesses") == 1);
        // Prefetched it is on the device, and stays.
        m.prefetch(0, page, device_place, s);
        run(writes);
        CHECK(m.home(0) == 0);
        CHECK(soft().count("managed faults") == 0);
        OK(cu().mem_advise(m.at, page, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, host_place));
        CHECK(range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, m.at, page) == -2);
    }
    SUBCASE("read-mostly, there are copies until somebody writes") {
        std::memset(m.cpu(), 1, page);
        m.prefetch(0, page, host_place, s);
        OK(cu().mem_advise(m.at, page, CU_MEM_ADVISE_SET_READ_MOSTLY, device_place));
        CHECK(range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, m.at, page) == 1);
        CHECK(range_attribute<int>(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, m.at, 2 * page) == 0);
        m.prefetch(0, page, device_place, s);
        CHECK(m.home(0) == -1);
        CHECK(soft().count("managed duplicated") == 1);
        CHECK(soft().held(0) == page);
        const auto sent = soft().count("bytes to host");
        run(reads);
        CHECK(soft().count("managed faults") == 0);
        m.prefetch(0, page, host_place, s);  // drops the copy, moves nothing
        CHECK(soft().count("bytes to host") == sent);
        CHECK(soft().held(0) == 0);
        run(reads);
        CHECK(soft().count("managed duplicated") == 2);
        run(writes);
        CHECK(m.home(0) == 0);
        CHECK(soft().held(0) == page);
    }
    SUBCASE("unset, copies are dropped") {
        m.prefetch(0, page, host_place, s);
        OK(cu().mem_advise(m.at, page, CU_MEM_ADVISE_SET_READ_MOSTLY, device_place));
        m.prefetch(0, page, device_place, s);
        OK(cu().mem_advise(m.at, page, CU_MEM_ADVISE_UNSET_READ_MOSTLY, device_place));
        CHECK(soft().held(0) == 0);
    }
    SUBCASE("accessed by") {
        OK(cu().mem_advise(m.at, page, CU_MEM_ADVISE_SET_ACCESSED_BY, device_place));
        OK(cu().mem_advise(m.at, page, CU_MEM_ADVISE_SET_ACCESSED_BY, host_place));
        int who[3] = {};
        OK(cu().mem_range_get_attribute(who, sizeof who, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, m.at,
                                        page));
        CHECK(who[0] == 0);
        CHECK(who[1] == -1);
        CHECK(who[2] == -2);
        m.prefetch(0, page, host_place, s);
        run(reads);
        CHECK(m.home(0) == -1);
    }
    CHECK(cu().mem_advise(m.at, page, static_cast<CUmem_advise>(77), host_place) ==
          CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_advise(m.at, 5 * page, CU_MEM_ADVISE_SET_READ_MOSTLY, host_place) ==
          CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("managed memory in batches, and what is discarded is gone") {
    NEEDS_SOFT_CUDA();
    rig r;
    const CUstream s = r.make_stream();
    const managed_memory m{6 * page};
    std::memset(m.cpu(), 5, 6 * page);
    CUdeviceptr at[] = {m.at, m.at + 2 * page, m.at + 5 * page};
    std::size_t bytes[] = {page, page, page};
    CUmemLocation places[] = {device_place, {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    std::size_t first_of[] = {0, 2};
    OK(cu().mem_prefetch_batch_async(at, bytes, 3, places, first_of, 2, 0, s));
    OK(cu().stream_synchronize(s));
    CHECK(m.home(0) == 0);
    CHECK(m.home(2) == 0);
    CHECK(m.home(5) == 1);
    CHECK(m.home(1) == -2);
    CHECK(cu().mem_prefetch_batch_async(at, bytes, 3, places, first_of, 2, 0, nullptr) ==
          CUDA_ERROR_INVALID_VALUE);
    CHECK(cu().mem_prefetch_batch_async(at, bytes, 0, places, first_of, 2, 0, s) ==
          CUDA_ERROR_INVALID_VALUE);
    first_of[1] = 3;
    CHECK(cu().mem_prefetch_batch_async(at, bytes, 3, places, first_of, 2, 0, s) ==
          CUDA_ERROR_INVALID_VALUE);

    bytes[0] = 2 * page - 4096;  // a page and a part: only the whole one
    OK(cu().mem_discard_batch_async(at, bytes, 1, 0, s));
    OK(cu().stream_synchronize(s));
    CHECK(soft().count("managed discarded") == 1);
    CHECK(m.cpu()[0] != 5);
    CHECK(m.cpu(page)[0] == 5);
    const auto sent = soft().count("bytes to host");
    m.prefetch(0, page, host_place, s);
    CHECK(soft().count("bytes to host") == sent);
}

TEST_CASE("a full device sends managed memory home, and counts it") {
    NEEDS_SOFT_CUDA();
    rig r;
    const CUstream s = r.make_stream();
    const managed_memory m{40 * page};
    m.prefetch(0, 32 * page, device_place, s);  // all that it has
    CHECK(soft().count("managed evictions") == 0);
    m.prefetch(32 * page, 2 * page, device_place, s);
    CHECK(soft().count("managed evictions") == 2);
    CHECK(m.home(0) == -1);  // the oldest
    CHECK(m.home(33) == 0);
    CUdeviceptr plain = 0;
    MUST(cu().mem_alloc(&plain, 4 * page));
    CHECK(soft().count("managed evictions") == 6);
    OK(soft().take(0, 20 * page));
    CHECK(soft().count("managed evictions") == 26);
    CHECK(soft().take(0, 29 * page) == CUDA_ERROR_OUT_OF_MEMORY);  // what is plain does not yield
    OK(soft().take(0, 0));
    OK(cu().mem_free(plain));
}
