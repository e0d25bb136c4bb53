// SPDX-License-Identifier: Apache-2.0
// containers.cu - containers of thrust, CCCL and RMM on a device's heap, sorted and summed there, and held against the
// CPU. What the headers at hand do not offer is skipped by name; so is what needs a CUDA device where there is none.
//
// Exit     0: all parts that this build has are right; 1: one is wrong; 77: right, but there was no device to run on.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>
#include <numeric>
#include <vector>

#include <thrust/copy.h>
#include <thrust/device_ptr.h>
#include <thrust/device_vector.h>
#include <thrust/mr/allocator.h>
#include <thrust/mr/memory_resource.h>
#include <thrust/reduce.h>
#include <thrust/sort.h>
#include <thrust/system/cuda/execution_policy.h>

#include <xmm/resources/cuda_mr.hpp>
#include <xmm/xmm.hpp>

#if __has_include(<cuda/buffer>)
#include <cuda/buffer>
#define HAS_BUFFER 1
#else
#define HAS_BUFFER 0
#endif

#if __has_include(<rmm/version_config.hpp>)
#include <rmm/version_config.hpp>
#if RMM_VERSION_MAJOR * 100 + RMM_VERSION_MINOR >= 2606
#include <rmm/device_buffer.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/exec_policy.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#define HAS_RMM 1
#endif
#endif
#ifndef HAS_RMM
#define HAS_RMM 0
#endif

namespace {

namespace mr = ::cuda::mr;

using number = std::int32_t;
using counted_heap = xmm::statistics_resource<xmm::heap_resource>;

constexpr std::size_t count = std::size_t{1} << 20;
constexpr std::size_t bytes = count * sizeof(number);

// Neither sorted nor all different.
std::vector<number> some_numbers() {
    std::vector<number> all(count);
    std::uint32_t state = 1;
    for (number& one : all) {
        state = state * 1664525u + 1013904223u;
        one = static_cast<number>(state >> 8);
    }
    return all;
}
std::vector<number> sorted(std::vector<number> all) {
    std::ranges::sort(all);
    return all;
}

// A heap of one device, and a stream of that device which is a queue of the space too.
struct rig {
    xmm::space& space;
    xmm::xpu_malloc& heap;
    xmm::queue& queue;
    cudaStream_t stream;
    std::vector<number> numbers = some_numbers();
    std::vector<number> expected = sorted(numbers);
    std::int64_t sum = std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});

    [[nodiscard]] std::vector<number> read(const number* from) const {
        std::vector<number> all(count);
        (void)cudaMemcpyAsync(all.data(), from, bytes, cudaMemcpyDeviceToHost, stream);
        return cudaStreamSynchronize(stream) == cudaSuccess ? all : std::vector<number>{};
    }
    void write(number* to) const {
        (void)cudaMemcpyAsync(to, numbers.data(), bytes, cudaMemcpyHostToDevice, stream);
    }
};

bool is_right(bool condition, const char* what) {
    if (!condition) {
        std::fprintf(stderr, "wrong: %s\n", what);
    }
    return condition;
}
// Blocks came from it, and all of them are back.
template <class R>
bool is_settled(const xmm::statistics_resource<R>& resource, std::size_t least) {
    const xmm::resource_statistics all = resource.statistics();
    return is_right(all.bytes.peak >= static_cast<std::int64_t>(least),
                    "the memory came from elsewhere") &&
           is_right(all.blocks.current == 0 && all.bytes.current == 0, "memory is left");
}

// ---- without a stream, so on software devices too

#if CCCL_VERSION >= 3001000
template <class... Properties>
using sync_ref = mr::synchronous_resource_ref<Properties...>;
template <class Ref>
void* take_now(Ref from) {
    return from.allocate_sync(bytes, 256);
}
template <class Ref>
void give_back_now(Ref to, void* at) {
    to.deallocate_sync(at, bytes, 256);
}
#else
template <class... Properties>
using sync_ref = mr::resource_ref<Properties...>;
template <class Ref>
void* take_now(Ref from) {
    return from.allocate(bytes, 256);
}
template <class Ref>
void give_back_now(Ref to, void* at) {
    to.deallocate(at, bytes, 256);
}
#endif

bool run_without_stream() {
    xmm::space& space = xmm::default_space();
    const xmm::node_id device = space.devices().front();
    xmm::unified_pool pool{xmm::port_of(space), device};
    xmm::cuda_resource of_both{pool};
    const sync_ref<mr::host_accessible, mr::device_accessible> shared{of_both};
    auto* const all = static_cast<number*>(take_now(shared));
    std::iota(all, all + count, number{1});
    const auto sum = std::accumulate(all, all + count, std::int64_t{0});
    bool is_fine = is_right(sum == std::int64_t{count} * (count + 1) / 2, "numbers of the CPU's");
    give_back_now(shared, all);

    xmm::device_resource pages{xmm::port_of(space), device};
    xmm::statistics_resource counted{pages};
    xmm::cuda_resource of_device{counted};
    const sync_ref<mr::device_accessible> memory{of_device};
    void* const at = take_now(memory);
    is_fine = is_right(counted.statistics().bytes.current == bytes, "the bytes in use") && is_fine;
    give_back_now(memory, at);
    return is_right(counted.statistics().blocks.current == 0, "memory is left") && is_fine;
}

// ---- thrust

// Thrust's containers and temporary memory draw from a class of its own: this one passes on to a resource of ours, in
// the order of one stream.
template <xmm::device_reachable R>
class thrust_resource final : public thrust::mr::memory_resource<thrust::device_ptr<void>> {
public:
    thrust_resource(R& upstream, xmm::stream_ref stream) noexcept
        : upstream_{upstream}, stream_{stream} {}

    pointer do_allocate(std::size_t size, std::size_t alignment) override {
        return pointer{upstream_.allocate(stream_, size, alignment)};
    }
    void do_deallocate(pointer at, std::size_t size, std::size_t alignment) noexcept override {
        upstream_.deallocate(stream_, at.get(), size, alignment);
    }

private:
    R& upstream_;
    xmm::stream_ref stream_;
};

bool run_thrust(rig& on) {
    xmm::heap_resource heap{on.heap, xmm::port_of(on.space).queues()};
    counted_heap counted{heap};
    using resource = thrust_resource<counted_heap>;
    resource memory{counted, on.queue};
    bool is_fine = true;
    {
        using allocator = thrust::mr::allocator<number, resource>;
        thrust::device_vector<number, allocator> all(on.numbers.begin(), on.numbers.end(),
                                                     allocator{&memory});
        const auto policy = thrust::cuda::par(&memory).on(on.stream);
        const std::int64_t sum = thrust::reduce(policy, all.begin(), all.end(), std::int64_t{0});
        thrust::sort(policy, all.begin(), all.end());
        is_fine = is_right(sum == on.sum, "the sum of a device_vector") &&
                  is_right(on.read(thrust::raw_pointer_cast(all.data())) == on.expected,
                           "a sorted device_vector");
        all.resize(2 * count);  // it grows, into the same heap
        is_fine = is_right(on.read(thrust::raw_pointer_cast(all.data())) == on.expected,
                           "a device_vector that has grown") &&
                  is_fine;
    }
    return is_settled(counted, 3 * bytes) && is_fine;
}

// ---- CCCL's references and buffers

#if CCCL_VERSION >= 3001000
using device_ref = mr::resource_ref<mr::device_accessible>;
void* take(device_ref from, ::cuda::stream_ref stream) { return from.allocate(stream, bytes, 256); }
void give_back(device_ref to, ::cuda::stream_ref stream, void* at) {
    to.deallocate(stream, at, bytes, 256);
}
#else
using device_ref = mr::async_resource_ref<mr::device_accessible>;
void* take(device_ref from, ::cuda::stream_ref stream) {
    return from.allocate_async(bytes, 256, stream);
}
void give_back(device_ref to, ::cuda::stream_ref stream, void* at) {
    to.deallocate_async(at, bytes, 256, stream);
}
#endif

bool run_reference(rig& on) {
    xmm::device_resource pages{xmm::port_of(on.space), on.queue.node()};
    xmm::pool_resource pool{pages};
    xmm::statistics_resource counted{pool};
    xmm::cuda_resource handle{counted};
    const device_ref memory{handle};
    const ::cuda::stream_ref stream{on.stream};
    bool is_fine = true;
    for (int round = 0; round < 3; ++round) {
        auto* const all = static_cast<number*>(take(memory, stream));
        on.write(all);
        thrust::sort(thrust::cuda::par.on(on.stream), all, all + count);
        is_fine = is_right(on.read(all) == on.expected, "memory through a reference") && is_fine;
        give_back(memory, stream, all);
    }
    return is_settled(counted, bytes) && is_fine;
}

#if HAS_BUFFER
bool run_buffer(rig& on) {
    xmm::heap_resource heap{on.heap, xmm::port_of(on.space).queues()};
    counted_heap counted{heap};
    xmm::cuda_resource handle{counted};
    const ::cuda::stream_ref stream{on.stream};
    bool is_fine = true;
    {
        ::cuda::buffer<number, mr::device_accessible> all{stream, handle, on.numbers.begin(),
                                                          on.numbers.end()};
        thrust::sort(thrust::cuda::par.on(on.stream), all.data(), all.data() + all.size());
        is_fine = is_right(on.read(all.data()) == on.expected, "a sorted buffer");
        const auto copy = ::cuda::make_buffer(stream, all.memory_resource(), all);
        is_fine = is_right(on.read(copy.data()) == on.expected, "a copied buffer") && is_fine;
        // Its properties are those of the resource.
        const auto sevens = ::cuda::make_buffer<number>(stream, handle, count, number{7});
        const auto sum = thrust::reduce(thrust::cuda::par.on(on.stream), sevens.data(),
                                        sevens.data() + count, std::int64_t{0});
        is_fine = is_right(sum == std::int64_t{7} * count, "the sum of a filled buffer") && is_fine;
    }
    is_fine = is_settled(counted, 3 * bytes) && is_fine;

    // Held by the buffers alone: the pool dies with the last of them.
    xmm::device_resource pages{xmm::port_of(on.space), on.queue.node()};
    auto pool = xmm::make_shared_resource<xmm::pool_resource<xmm::device_resource>>(pages);
    {
        ::cuda::buffer<number, mr::device_accessible> all{stream, pool, on.numbers.begin(),
                                                          on.numbers.end()};
        is_fine =
            is_right(pool.get().reserved_bytes() >= bytes, "a pool without chunks") && is_fine;
        is_fine = is_right(on.read(all.data()) == on.numbers, "a buffer on a pool") && is_fine;
    }
    return is_fine;
}
#endif

// ---- RMM

#if HAS_RMM
bool run_rmm_vector(rig& on) {
    xmm::heap_resource heap{on.heap, xmm::port_of(on.space).queues()};
    counted_heap counted{heap};
    xmm::cuda_resource handle{counted};
    const rmm::device_async_resource_ref memory{handle};
    const ::cuda::stream_ref stream{on.stream};
    bool is_fine = true;
    {
        rmm::device_uvector<number> all{count, stream, handle};
        on.write(all.data());
        const rmm::exec_policy policy{stream, handle};
        const auto sum = thrust::reduce(policy, all.begin(), all.end(), std::int64_t{0});
        thrust::sort(policy, all.begin(), all.end());
        all.resize(2 * count, stream);
        is_fine = is_right(sum == on.sum, "the sum of a device_uvector") &&
                  is_right(on.read(all.data()) == on.expected, "a sorted device_uvector");
        const rmm::device_buffer copy{all.data(), bytes, stream, memory};
        is_fine = is_right(on.read(static_cast<const number*>(copy.data())) == on.expected,
                           "a device_buffer") &&
                  is_fine;
    }
    is_fine = is_settled(counted, 3 * bytes) && is_fine;

    // What is refused reaches the caller of RMM as the bad_alloc that it is, with nothing left behind.
    xmm::limit_resource<counted_heap> limited{counted, bytes / 2};
    try {
        const rmm::device_uvector<number> all{count, stream, xmm::cuda_resource{limited}};
        is_fine = is_right(false, "more than the limit was given");
    } catch (const std::bad_alloc&) {
        is_fine = is_settled(counted, bytes) && is_fine;
    }
    return is_fine;
}

bool run_rmm_pool(rig& on) {
    xmm::heap_resource heap{on.heap, xmm::port_of(on.space).queues()};
    counted_heap counted{heap};
    const ::cuda::stream_ref stream{on.stream};
    constexpr std::size_t initial = std::size_t{32} << 20;
    bool is_fine = true;
    {
        rmm::mr::pool_memory_resource pool{xmm::cuda_resource{counted}, initial};
        rmm::mr::statistics_resource_adaptor statistics{pool};
        {
            rmm::device_uvector<number> all{count, stream, statistics};
            on.write(all.data());
            thrust::sort(rmm::exec_policy{stream, statistics}, all.begin(), all.end());
            is_fine = is_right(on.read(all.data()) == on.expected, "a vector of RMM's pool");
        }
        const auto in_pool = statistics.get_bytes_counter();
        is_fine = is_right(in_pool.value == 0 && in_pool.peak >= static_cast<std::int64_t>(bytes),
                           "the pool's bytes") &&
                  is_right(counted.statistics().bytes.current >= static_cast<std::int64_t>(initial),
                           "the pool's upstream") &&
                  is_fine;
    }
    return is_settled(counted, initial) && is_fine;
}
#endif

// ---- which parts there are

template <class Part>
bool run(const char* name, Part part) {
    bool is_fine = false;
    try {
        is_fine = part();
    } catch (const std::exception& thrown) {
        std::fprintf(stderr, "thrown: %s\n", thrown.what());
    }
    std::printf("%s: %s\n", name, is_fine ? "ok" : "FAILED");
    return is_fine;
}
void report_skipped(const char* part, const char* why) {
    std::printf("%s: skipped, %s\n", part, why);
}

// Null: with a device.
const char* why_no_device() {
    int devices = 0;
    const cudaError_t found = cudaGetDeviceCount(&devices);
    if (found != cudaSuccess) {
        return cudaGetErrorString(found);
    }
    return devices == 0 ? "no CUDA device" : nullptr;
}

bool run_on_device() {
    xmm::space& space = xmm::default_space();
    cudaStream_t stream = nullptr;
    if (const cudaError_t made = cudaStreamCreate(&stream); made != cudaSuccess) {
        return is_right(false, cudaGetErrorString(made));
    }
    bool is_fine = true;
    {
        auto queue = space.adopt_stream(stream);
        if (!queue) {
            return is_right(false, queue.error().why);
        }
        auto heap = space.heap(queue->node());
        if (!heap) {
            return is_right(false, heap.error().why);
        }
        rig on{space, **heap, *queue, stream};
        std::printf("on %s\n", space.describe(queue->node())->name.data());
        is_fine = run("thrust::device_vector", [&] { return run_thrust(on); }) && is_fine;
        is_fine =
            run("cuda::mr references in a stream's order", [&] { return run_reference(on); }) &&
            is_fine;
#if HAS_BUFFER
        is_fine = run("cuda::buffer", [&] { return run_buffer(on); }) && is_fine;
#endif
#if HAS_RMM
        is_fine = run("rmm::device_uvector", [&] { return run_rmm_vector(on); }) && is_fine;
        is_fine = run("rmm::mr::pool_memory_resource", [&] { return run_rmm_pool(on); }) && is_fine;
#endif
    }
    return is_right(cudaStreamDestroy(stream) == cudaSuccess, "the stream at its end") && is_fine;
}

}  // namespace

int main() {
    std::printf("CCCL %d.%d.%d\n", CCCL_MAJOR_VERSION, CCCL_MINOR_VERSION, CCCL_PATCH_VERSION);
    bool is_fine = run("cuda::mr references without a stream", run_without_stream);
    const char* const why_not = why_no_device();
    if (why_not == nullptr) {
        is_fine = run_on_device() && is_fine;
    } else {
        report_skipped("everything that needs a CUDA device", why_not);
    }
#if !HAS_BUFFER
    report_skipped("cuda::buffer", "there is no <cuda/buffer>: it came with CCCL 3.2");
#endif
#if !HAS_RMM
    report_skipped("RMM", "there are no headers of RMM 26.06 or later");
#endif
    if (!is_fine) {
        return 1;
    }
    return why_not == nullptr ? 0 : 77;
}
