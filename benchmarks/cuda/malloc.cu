// SPDX-License-Identifier: Apache-2.0
// ns a malloc + free pair on device memory: xmm's heap, cudaMallocAsync from a pool that keeps what it has, a pool of
// RMM's kind, cudaMalloc. Same run, in turn. `batches`: 32 blocks are taken, then given back. Blocks that are held at
// once are checked, once a size: none overlaps another, and the device can write each of them.
#include "rig.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <utility>

using namespace cuda_bench;

namespace {

template <class Take, class Give>
double ns_per_pair(std::size_t batch, std::size_t pairs, Take&& take, Give&& give) {
    std::vector<void*> blocks(batch);
    const auto round = [&] {
        for (void*& one : blocks) {
            one = take();
        }
        for (void* one : blocks) {
            give(one);
        }
    };
    round();
    round();
    const report::stopwatch watch;
    for (std::size_t done = 0; done < pairs; done += batch) {
        round();
    }
    return watch.seconds() * 1e9 / static_cast<double>(std::max(pairs, batch));
}

// A model of the pools that RMM has: free blocks of each stream in a list by address, the best fit found by a look at
// all of them, neighbours of one chunk merged as they come back, an event recorded with each block that is given back
// so that another stream may take it, one mutex. It grows by chunks of cudaMalloc and gives nothing back before
// its end.
class pool_model {
public:
    static constexpr std::size_t alignment = 256;

    explicit pool_model(std::size_t first_chunk, cudaStream_t stream) {
        line& mine = line_of(stream);
        mine.insert(grow(first_chunk));
    }
    ~pool_model() {
        for (auto& [stream, one] : lines_) {
            cudaEventDestroy(one.event);
        }
        for (char* chunk : chunks_) {
            cudaFree(chunk);
        }
    }
    pool_model(const pool_model&) = delete;
    pool_model& operator=(const pool_model&) = delete;

    void* allocate(std::size_t bytes, cudaStream_t stream) {
        std::lock_guard guard{lock_};
        bytes = xmm::align_up(bytes, alignment);
        line& mine = line_of(stream);
        block found = mine.take(bytes);
        for (auto other = lines_.begin(); found.bytes == 0 && other != lines_.end(); ++other) {
            if (&other->second == &mine) {
                continue;
            }
            // All that the other stream has, and this one waits for it.
            CUDA_BENCH_MUST(cudaStreamWaitEvent(stream, other->second.event, 0));
            for (const block& one : std::exchange(other->second.blocks, {})) {
                mine.insert(one);
            }
            found = mine.take(bytes);
        }
        if (found.bytes == 0) {
            found = grow(std::max(bytes, held_));
        }
        if (found.bytes > bytes) {
            mine.insert({found.at + bytes, found.bytes - bytes, false});
        }
        return found.at;
    }
    void deallocate(void* at, std::size_t bytes, cudaStream_t stream) {
        std::lock_guard guard{lock_};
        line& mine = line_of(stream);
        CUDA_BENCH_MUST(cudaEventRecord(mine.event, stream));
        auto* begin = static_cast<char*>(at);
        const bool is_head = std::binary_search(chunks_.begin(), chunks_.end(), begin);
        mine.insert({begin, xmm::align_up(bytes, alignment), is_head});
    }

private:
    struct block {
        char* at = nullptr;
        std::size_t bytes = 0;
        bool is_head = false;  // the first of a chunk: merged with nothing before it
    };
    struct line {
        cudaEvent_t event = nullptr;
        std::list<block> blocks;

        void insert(block one) {
            const auto next = std::find_if(blocks.begin(), blocks.end(),
                                           [&](const block& other) { return other.at > one.at; });
            if (next != blocks.end() && one.at + one.bytes == next->at && !next->is_head) {
                next->at = one.at;
                next->bytes += one.bytes;
                next->is_head = one.is_head;
                merge_with_previous(next);
            } else {
                merge_with_previous(blocks.insert(next, one));
            }
        }
        block take(std::size_t bytes) {
            auto best = blocks.end();
            for (auto one = blocks.begin(); one != blocks.end(); ++one) {
                if (one->bytes >= bytes && (best == blocks.end() || one->bytes < best->bytes)) {
                    best = one;
                }
            }
            if (best == blocks.end()) {
                return {};
            }
            const block found = *best;
            blocks.erase(best);
            return found;
        }

    private:
        void merge_with_previous(std::list<block>::iterator one) {
            if (one == blocks.begin() || one->is_head) {
                return;
            }
            const auto before = std::prev(one);
            if (before->at + before->bytes == one->at) {
                before->bytes += one->bytes;
                blocks.erase(one);
            }
        }
    };

    line& line_of(cudaStream_t stream) {
        const auto [found, is_new] = lines_.try_emplace(stream);
        if (is_new) {
            CUDA_BENCH_MUST(cudaEventCreateWithFlags(&found->second.event, cudaEventDisableTiming));
        }
        return found->second;
    }
    block grow(std::size_t bytes) {
        char* at = nullptr;
        CUDA_BENCH_MUST(cudaMalloc(&at, bytes));
        chunks_.insert(std::upper_bound(chunks_.begin(), chunks_.end(), at), at);
        held_ += bytes;
        return {at, bytes, true};
    }

    std::mutex lock_;
    std::map<cudaStream_t, line> lines_;
    std::vector<char*> chunks_;  // by address
    std::size_t held_ = 0;
};

// Takes a batch, has the device write each block's first and last word, reads them back, gives the batch back.
template <class Take, class Give>
void check_blocks(std::size_t batch, std::size_t bytes, cudaStream_t stream, Take&& take,
                  Give&& give) {
    std::vector<char*> blocks(batch);
    for (char*& one : blocks) {
        one = static_cast<char*>(take());
    }
    const auto ends = [&](char* one) { return std::array{one, one + bytes - 8}; };
    std::uint64_t value = 0;
    for (char* one : blocks) {
        for (char* end : ends(one)) {
            ++value;
            CUDA_BENCH_MUST(cudaMemcpyAsync(end, &value, 8, cudaMemcpyHostToDevice, stream));
            CUDA_BENCH_MUST(cudaStreamSynchronize(stream));
        }
    }
    value = 0;
    for (char* one : blocks) {
        for (char* end : ends(one)) {
            std::uint64_t got = 0;
            CUDA_BENCH_MUST(cudaMemcpyAsync(&got, end, 8, cudaMemcpyDeviceToHost, stream));
            CUDA_BENCH_MUST(cudaStreamSynchronize(stream));
            wrong_values += got != ++value ? 1 : 0;
        }
    }
    for (char* one : blocks) {
        give(one);
    }
}

}  // namespace

int main(int argc, char** argv) {
    const request asked =
        read_arguments(argc, argv, "ns a malloc + free pair on device memory", {});
    const report::options& chosen = asked.options;
    auto space = must(xmm::space::create(), "space");
    const xmm::node_id device = space.devices()[0];
    xmm::xpu_malloc& heap = *must(space.heap(device), "heap");
    xmm::queue line = must(space.make_queue(device), "queue");
    cudaStream_t stream = make_stream();
    cudaMemPool_t pool = nullptr;
    CUDA_BENCH_MUST(cudaDeviceGetDefaultMemPool(&pool, 0));
    std::uint64_t all = UINT64_MAX;
    CUDA_BENCH_MUST(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
    pool_model model{chosen.is_short ? 16_MiB : 10_GiB, stream};
    for (const std::size_t batch : {std::size_t{1}, std::size_t{32}}) {
        std::printf("\n%s\n", batch == 1 ? "pairs" : "batches of 32");
        report::print_head("ns a pair");
        for (const std::size_t bytes :
             {std::size_t{64}, 4_KiB, 32_KiB, 256_KiB, 2_MiB, 20_MiB, 200_MiB, 1_GiB}) {
            if (bytes * batch > (chosen.is_short ? 8_MiB : 8_GiB)) {
                continue;
            }
            const std::size_t pairs = chosen.is_short ? 32 : bytes <= 32_KiB ? 100'000 : 20'000;
            const auto take = [&] {
                return must(heap.allocate({.bytes = bytes, .queue = line.id()}), "malloc");
            };
            const auto give = [&](void* one) { must(heap.deallocate(one, line.id()), "free"); };
            const auto take_async = [&] {
                void* at = nullptr;
                CUDA_BENCH_MUST(cudaMallocAsync(&at, bytes, stream));
                return at;
            };
            const auto give_async = [&](void* one) { CUDA_BENCH_MUST(cudaFreeAsync(one, stream)); };
            const auto take_model = [&] { return model.allocate(bytes, stream); };
            const auto give_model = [&](void* one) { model.deallocate(one, bytes, stream); };
            std::vector<double> ours;
            std::vector<double> async;
            std::vector<double> modelled;
            std::vector<double> plain;
            for (int round = 0; round < chosen.rounds; ++round) {
                ours.push_back(ns_per_pair(batch, pairs, take, give));
                async.push_back(ns_per_pair(batch, std::min<std::size_t>(pairs, 5'000), take_async,
                                            give_async));
                CUDA_BENCH_MUST(cudaStreamSynchronize(stream));
                modelled.push_back(ns_per_pair(batch, std::min<std::size_t>(pairs, 5'000),
                                               take_model, give_model));
                CUDA_BENCH_MUST(cudaStreamSynchronize(stream));
                plain.push_back(ns_per_pair(
                    batch, batch == 1 ? 20 : 32,
                    [&] {
                        void* at = nullptr;
                        CUDA_BENCH_MUST(cudaMalloc(&at, bytes));
                        return at;
                    },
                    [&](void* one) { CUDA_BENCH_MUST(cudaFree(one)); }));
            }
            check_blocks(batch, bytes, stream, take, give);
            check_blocks(batch, bytes, stream, take_async, give_async);
            check_blocks(batch, bytes, stream, take_model, give_model);
            CUDA_BENCH_MUST(cudaStreamSynchronize(stream));
            const std::string size = size_name(bytes);
            report::print(size + ", xmm", report::summarise(ours));
            report::print(size + ", cudaMallocAsync", report::summarise(async));
            report::print(size + ", pool of RMM's kind (model)", report::summarise(modelled));
            report::print(size + ", cudaMalloc", report::summarise(plain));
            std::fflush(stdout);
        }
    }
    return verdict();
}
