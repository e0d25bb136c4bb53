// SPDX-License-Identifier: Apache-2.0
// Random reads by a kernel of unified memory that lies on the host, and of a range of which two thirds lie on the
// device; in either mode, beside what CUDA offers there: pinned memory that is mapped (vmm), managed memory that
// prefers the host (managed). Each value that is read is checked by the kernel.
#include "rig.hpp"

#include <sys/mman.h>

#include <utility>

using namespace cuda_bench;

namespace {

__host__ __device__ constexpr std::uint32_t word_of(std::size_t at) {
    return static_cast<std::uint32_t>(at * 2654435761u + (at >> 32));
}

void fill(char* to, std::size_t first, std::size_t bytes) {
    in_parallel(
        bytes,
        [&](std::size_t begin, std::size_t end) {
            auto* words = reinterpret_cast<std::uint32_t*>(to);
            for (std::size_t i = begin / 4; i < end / 4; ++i) {
                words[i] = word_of(first + i);
            }
        },
        16);
}

// Each group of lanes reads whole records at random places; a warp holds 32 / lanes groups. The first `split` records
// are at `low`, the others at `high`.
template <unsigned lanes>
__global__ void read_random(const std::uint32_t* low, const std::uint32_t* high, std::size_t split,
                            std::size_t records, std::size_t reads_per_group,
                            unsigned long long* wrong) {
    const std::size_t thread = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
    const std::size_t group = thread / lanes;
    const unsigned lane = thread % lanes;
    std::uint64_t state = group * 0x9E3779B97F4A7C15u + 1;
    unsigned long long mine = 0;
    for (std::size_t i = 0; i < reads_per_group; ++i) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        const std::size_t record = state % records;
        const std::uint32_t got =
            record < split ? low[record * lanes + lane] : high[(record - split) * lanes + lane];
        mine += got != word_of(record * lanes + lane) ? 1 : 0;
    }
    if (mine != 0) {
        atomicAdd(wrong, mine);
    }
}

// Page-locked memory in huge pages: the driver's own takes a second for each GiB and a half.
struct page_locked {
    explicit page_locked(std::size_t wanted) : bytes{wanted + 2_MiB} {
        all = static_cast<char*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        if (all == MAP_FAILED) {
            std::fprintf(stderr, "no host memory\n");
            std::exit(1);
        }
        at = reinterpret_cast<char*>(xmm::align_up(reinterpret_cast<std::uintptr_t>(all), 2_MiB));
        ::madvise(at, wanted, MADV_HUGEPAGE);
        fill(at, 0, wanted);
        CUDA_BENCH_MUST(cudaHostRegister(at, wanted, cudaHostRegisterDefault));
    }
    ~page_locked() {
        cudaHostUnregister(at);
        ::munmap(all, bytes);
    }
    page_locked(const page_locked&) = delete;
    page_locked& operator=(const page_locked&) = delete;
    std::size_t bytes;
    char* all;
    char* at;
};

struct bench {
    const request& asked;
    moded_space held{asked.is_managed};
    xmm::space& space = held.space;
    xmm::node_id device = space.devices()[0];
    xmm::queue line = must(space.make_queue(device), "queue");
    cudaStream_t stream = make_stream();
    cudaEvent_t before = nullptr;
    cudaEvent_t after = nullptr;
    unsigned long long* wrong = nullptr;

    explicit bench(const request& what) : asked{what} {
        CUDA_BENCH_MUST(cudaEventCreate(&before));
        CUDA_BENCH_MUST(cudaEventCreate(&after));
        CUDA_BENCH_MUST(cudaMallocHost(&wrong, sizeof *wrong));
        *wrong = 0;
    }

    struct memory {
        const char* low;
        const char* high;  // the bytes behind the first `split`
        std::size_t split;
        std::size_t bytes;
    };
    // Returns the bytes that it reads.
    template <unsigned lanes>
    double read(const memory& from, cudaStream_t on) {
        constexpr std::size_t record_bytes = 4 * lanes;
        const unsigned blocks = asked.options.is_short ? 8 : 132 * 8;
        const unsigned threads = 256;
        const std::size_t groups = std::size_t{blocks} * threads / lanes;
        const std::size_t wanted = asked.options.is_short ? 256_KiB : lanes == 32 ? 2_GiB : 512_MiB;
        const std::size_t reads = std::max<std::size_t>(wanted / record_bytes / groups, 1);
        CUDA_BENCH_MUST(cudaEventRecord(before, on));
        read_random<lanes><<<blocks, threads, 0, on>>>(
            reinterpret_cast<const std::uint32_t*>(from.low),
            reinterpret_cast<const std::uint32_t*>(from.high), from.split / record_bytes,
            from.bytes / record_bytes, reads, wrong);
        CUDA_BENCH_MUST(cudaEventRecord(after, on));
        return static_cast<double>(groups * reads * record_bytes);
    }
    double kernel_seconds() {
        float ms = 0;
        CUDA_BENCH_MUST(cudaEventElapsedTime(&ms, before, after));
        return ms / 1e3;
    }
    // The kernel's own time, theirs and ours, and ours with all that a launch does before.
    template <unsigned lanes>
    void rate(const std::string& title, const char* peer_name, const memory& peer,
              const memory& ours) {
        double bytes = 0;
        const auto theirs_run = [&] {
            bytes = read<lanes>(peer, stream);
            CUDA_BENCH_MUST(cudaStreamSynchronize(stream));
        };
        const auto ours_run = [&] {
            must(xmm::launch(line, {xmm::reads(ours.low, ours.bytes)},
                             [&](xmm::cuda_stream& s) { bytes = read<lanes>(ours, s); }),
                 "launch");
            must(line.synchronize(), "synchronize");
        };
        const auto by_events = [&] { return kernel_seconds(); };
        const auto check = [&] { return static_cast<std::size_t>(std::exchange(*wrong, 0)); };
        theirs_run();  // also says how many bytes one run reads
        race(title, bytes, std::min(asked.options.rounds, 5),
             {{peer_name, {}, theirs_run, check, by_events},
              {"xmm", {}, ours_run, check, by_events},
              {"xmm, launch and all", {}, ours_run, check}});
    }
    template <unsigned lanes>
    void rates_of(const std::string& where, const char* peer_name, const memory& peer,
                  const memory& ours) {
        rate<lanes>(std::to_string(4 * lanes) + " B, " + where + ", " + size_name(ours.bytes),
                    peer_name, peer, ours);
    }
    void both(const std::string& where, const char* peer_name, const memory& peer,
              const memory& ours) {
        rates_of<32>(where, peer_name, peer, ours);
        rates_of<8>(where, peer_name, peer, ours);
    }
    void pin(xmm::node_id where, char* at, std::size_t bytes) {
        must(space.advise(where, at, bytes, xmm::advice::pin), "pin");
    }
    void unpin(char* at, std::size_t bytes) {
        must(space.advise(xmm::any_host, at, bytes, xmm::advice::unpin), "unpin");
    }

    // Pages stay where they are: they are pinned there.
    void run(std::size_t bytes) {
        char* at = static_cast<char*>(must(space.map(bytes), "map"));
        fill(at, 0, bytes);
        const std::size_t third = xmm::align_down(bytes / 3, 32_MiB);
        std::unique_ptr<page_locked> locked;
        std::unique_ptr<managed> uvm;
        const char* name = asked.is_managed ? "UVM that prefers the host" : "pinned, mapped";
        if (asked.is_managed) {
            uvm = std::make_unique<managed>(bytes);
            CUDA_BENCH_MUST(
                cudaMemAdvise(uvm->at, bytes, cudaMemAdviseSetPreferredLocation, the_host));
            CUDA_BENCH_MUST(cudaMemAdvise(uvm->at, bytes, cudaMemAdviseSetAccessedBy, the_card));
            fill(uvm->at, 0, bytes);
        } else {
            locked = std::make_unique<page_locked>(bytes);
        }
        char* theirs = uvm != nullptr ? uvm->at : locked->at;
        pin(xmm::any_host, at, bytes);
        both("host-resident", name, {theirs, theirs + third, third, bytes},
             {at, at + third, third, bytes});
        unpin(at, bytes);
        pin(xmm::any_host, at, third);
        pin(device, at + third, bytes - third);
        std::unique_ptr<on_device> card;
        if (uvm != nullptr) {
            prefetch(theirs + third, bytes - third, the_card, stream);
        } else {
            card = std::make_unique<on_device>(bytes - third);
            CUDA_BENCH_MUST(
                cudaMemcpy(card->at, theirs + third, bytes - third, cudaMemcpyHostToDevice));
        }
        both("a third host-resident", asked.is_managed ? name : "pinned, mapped, and device memory",
             {theirs, card != nullptr ? card->at : theirs + third, third, bytes},
             {at, at + third, third, bytes});
        unpin(at, third);
        unpin(at + third, bytes - third);
        must(space.unmap(at), "unmap");
    }
};

}  // namespace

int main(int argc, char** argv) {
    const request asked = read_arguments(argc, argv, "random reads of mapped memory", {}, true);
    bench b{asked};
    std::printf("mode %s\n", asked.mode());
    report::print_head("");
    for (const std::size_t bytes : asked.options.is_short
                                       ? std::vector<std::size_t>{96_MiB}
                                       : std::vector<std::size_t>{1_GiB, 8_GiB, 24_GiB}) {
        b.run(bytes);
    }
    return verdict();
}
