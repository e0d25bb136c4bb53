// SPDX-License-Identifier: Apache-2.0
// What beats the driver at moving managed memory? Ways out of a device for pages that it has written, and ways in for
// pages of 2 MiB that lie apart; each leaves the same bytes at the same addresses, on the other side. All are checked
// word by word. 2 GiB of managed memory in all.
//
// Most ways are of one kind: the bytes are carried by something fast (the copy engine, a kernel, threads), while the
// driver only gives the pages a place on the other side, since their contents are discarded before. Whoever discards
// has copied them before, in the order of the stream, and nobody else touches the range: access beside a discard is
// undefined.
//
// "there" is the share of pages that were on the side where they should be before the check: on the host by
// /proc/self/pagemap, which shows a page of a device's as absent.
#include "pattern.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <functional>
#include <optional>
#include <span>

using namespace cuda_bench;

namespace {

// Scattered to one block and back, or the other way: each page of `pages` at `every`-th place.
__global__ void gather(std::uint64_t* block, const std::uint64_t* range, std::size_t first,
                       std::size_t count, unsigned every) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x) {
        block[first + i] = range[word_at(first + i, every)];
    }
}
__global__ void scatter(std::uint64_t* range, const std::uint64_t* block, std::size_t first,
                        std::size_t count, unsigned every) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x) {
        range[word_at(first + i, every)] = block[first + i];
    }
}

// Which pages the CPU has: one look for each 2 MiB.
class pagemap {
public:
    pagemap() : file_{::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)} {}
    ~pagemap() { ::close(file_); }
    pagemap(const pagemap&) = delete;
    pagemap& operator=(const pagemap&) = delete;
    // nothing: the system does not say.
    [[nodiscard]] std::optional<bool> has(const char* at) const {
        std::uint64_t entry = 0;
        const auto where = static_cast<off_t>(reinterpret_cast<std::uintptr_t>(at) / 4096 * 8);
        if (::pread(file_, &entry, sizeof entry, where) != sizeof entry) {
            return std::nullopt;
        }
        return (entry >> 63) != 0;
    }

private:
    int file_;
};

constexpr cudaMemLocation the_nearest_host{cudaMemLocationTypeHostNumaCurrent, 0};
constexpr cudaMemLocation the_first_numa_node{cudaMemLocationTypeHostNuma, 0};

struct piece {
    char* at;
    std::size_t bytes;
    std::size_t in_block;  // where its copy lies in a block that has no gaps
};

struct bench {
    bool is_short;
    std::size_t bytes = is_short ? 4_MiB : 1_GiB;  // moved by each way
    managed memory{2 * bytes};
    pinned staging{bytes};
    on_device scratch{bytes};
    std::vector<cudaStream_t> streams;
    pagemap seen;
    examiner examine;
    std::uint64_t seed = 0;

    explicit bench(bool is_short_round) : is_short{is_short_round} {
        for (int i = 0; i < 8; ++i) {
            streams.push_back(make_stream());
        }
        // Pieces are whole pages of the driver's, so that whoever discards one touches no other.
        if (reinterpret_cast<std::uintptr_t>(memory.at) % 2_MiB != 0) {
            std::fprintf(stderr, "managed memory is not aligned to 2 MiB here\n");
            std::exit(1);
        }
    }
    [[nodiscard]] cudaStream_t first() const { return streams[0]; }
    static void wait(cudaStream_t stream) { CUDA_BENCH_MUST(cudaStreamSynchronize(stream)); }

    // What the mode `managed` says of all its memory; without it the driver goes by its own mind.
    void advise(bool is_advised) {
        const auto tell = [&](cudaMemoryAdvise what, cudaMemLocation where) {
            CUDA_BENCH_MUST(cudaMemAdvise(memory.at, 2 * bytes, what, where));
        };
        if (is_advised) {
            tell(cudaMemAdviseSetPreferredLocation, the_host);
            tell(cudaMemAdviseSetAccessedBy, the_card);
        } else {
            tell(cudaMemAdviseUnsetPreferredLocation, the_host);
            tell(cudaMemAdviseUnsetAccessedBy, the_card);
        }
    }
    // The pages of a pattern in pieces; those of a scattered one end with their page.
    [[nodiscard]] std::vector<piece> cut(const pattern& of, std::size_t piece_bytes) const {
        std::vector<piece> all;
        std::size_t in_block = 0;
        of.for_each_stretch([&](std::size_t offset, std::size_t stretch) {
            for (std::size_t done = 0; done < stretch; done += piece_bytes) {
                const std::size_t here = std::min(piece_bytes, stretch - done);
                all.push_back({memory.at + offset + done, here, in_block});
                in_block += here;
            }
        });
        return all;
    }
    // -1: it cannot be told.
    [[nodiscard]] double share_on_host(const pattern& of) const {
        std::size_t there = 0;
        for (std::size_t page = 0; page < of.pages(); ++page) {
            const auto one = seen.has(memory.at + page * of.every * 2_MiB + 4096);
            if (!one) {
                return -1;
            }
            there += *one ? 1 : 0;
        }
        return static_cast<double>(there) / static_cast<double>(of.pages());
    }

    // ---- the driver's calls

    void prefetch_each(std::span<const piece> some, cudaMemLocation to, cudaStream_t on) const {
        for (const piece& one : some) {
            CUDA_BENCH_MUST(cudaMemPrefetchAsync(one.at, one.bytes, to, 0, on));
        }
    }
    enum class batch { prefetch, discard, discard_and_prefetch };
    static void call_batch(batch what, std::span<const piece> some, cudaMemLocation to,
                           cudaStream_t on) {
        std::vector<void*> at;
        std::vector<std::size_t> sizes;
        for (const piece& one : some) {
            at.push_back(one.at);
            sizes.push_back(one.bytes);
        }
        std::size_t first_of = 0;
        switch (what) {
            case batch::prefetch:
                CUDA_BENCH_MUST(cudaMemPrefetchBatchAsync(at.data(), sizes.data(), at.size(), &to,
                                                          &first_of, 1, 0, on));
                break;
            case batch::discard:
                CUDA_BENCH_MUST(
                    cudaMemDiscardBatchAsync(at.data(), sizes.data(), at.size(), 0, on));
                break;
            case batch::discard_and_prefetch:
                CUDA_BENCH_MUST(cudaMemDiscardAndPrefetchBatchAsync(
                    at.data(), sizes.data(), at.size(), &to, &first_of, 1, 0, on));
                break;
        }
    }

    // ---- carrying bytes between the range and a block without gaps

    static void copy_each(std::span<const piece> some, char* block, bool is_into_block,
                          cudaStream_t on) {
        for (const piece& one : some) {
            char* there = block + one.in_block;
            CUDA_BENCH_MUST(cudaMemcpyAsync(is_into_block ? there : one.at,
                                            is_into_block ? one.at : there, one.bytes,
                                            cudaMemcpyDefault, on));
        }
    }
    void gather_by_kernel(const pattern& of, char* block, cudaStream_t on) const {
        gather<<<1024, 256, 0, on>>>(examiner::words(block), examiner::words(memory.at), 0,
                                     of.words(), of.every);
    }
    void scatter_by_kernel(const pattern& of, const char* block, cudaStream_t on) const {
        scatter<<<1024, 256, 0, on>>>(examiner::words(memory.at), examiner::words(block), 0,
                                      of.words(), of.every);
    }
    static void copy_by_cpu(std::span<const piece> some, char* block, bool is_into_block,
                            unsigned threads) {
        const std::size_t share = (some.size() + threads - 1) / threads;
        std::vector<std::thread> workers;
        for (std::size_t begin = 0; begin < some.size(); begin += share) {
            workers.emplace_back(
                [=, part = some.subspan(begin, std::min(share, some.size() - begin))] {
                    for (const piece& one : part) {
                        char* there = block + one.in_block;
                        std::memcpy(is_into_block ? there : one.at, is_into_block ? one.at : there,
                                    one.bytes);
                    }
                });
        }
        for (std::thread& one : workers) {
            one.join();
        }
    }
    // fn(stream, pieces of the thread) on each of some threads, which have a stream of their own; waits for all.
    template <class Fn>
    void by_threads(std::span<const piece> some, unsigned threads, Fn&& fn) const {
        const std::size_t share = (some.size() + threads - 1) / threads;
        std::vector<std::thread> workers;
        for (unsigned i = 0; i * share < some.size(); ++i) {
            workers.emplace_back([&, i] {
                CUDA_BENCH_MUST(cudaSetDevice(0));
                fn(streams[i], some.subspan(i * share, std::min(share, some.size() - i * share)));
                wait(streams[i]);
            });
        }
        for (std::thread& one : workers) {
            one.join();
        }
    }
};

// Ways, with what each of them left where.
struct table {
    bench& b;
    const char* title;
    bool is_out;  // to the host
    std::vector<contender> all{};
    std::vector<double> there{};  // by way: the least share of pages that were where they should be

    // `is_whole`: what the way leaves is right. Some only show what a part of others takes.
    void add(const std::string& name, const pattern& of, std::function<void()> run,
             bool is_advised = true, bool is_whole = true) {
        const std::size_t place = all.size();
        there.push_back(1);
        all.push_back({name,
                       [this, of, is_advised] {
                           b.advise(is_advised);
                           ++b.seed;
                           for (const piece& one : b.cut(of, of.bytes)) {
                               CUDA_BENCH_MUST(cudaMemPrefetchAsync(
                                   one.at, one.bytes, is_out ? the_card : the_host, 0, b.first()));
                           }
                           bench::wait(b.first());
                           if (is_out) {
                               examiner::fill(of, b.memory.at, b.seed, b.first());
                           } else {
                               of.fill_by_cpu(b.memory.at, b.seed);
                           }
                       },
                       std::move(run),
                       is_whole ? std::function<std::size_t()>{[this, of, place] {
                           const double on_host = b.share_on_host(of);
                           const double right = on_host < 0 ? -1 : is_out ? on_host : 1 - on_host;
                           there[place] = std::min(there[place], right);
                           return is_out
                                      ? of.wrong_by_cpu(b.memory.at, b.seed)
                                      : b.examine.count_wrong(of, b.memory.at, b.seed, b.first());
                       }}
                                : nullptr});
    }
    void measure(int rounds) {
        std::printf("\n%s, %s each\n", title, size_name(b.bytes).c_str());
        report::print_head("");
        race(is_out ? "out" : "in", static_cast<double>(b.bytes), rounds, all);
        for (std::size_t i = 0; i < all.size(); ++i) {
            if (all[i].check && there[i] != 1) {
                const std::string percent = std::to_string(static_cast<int>(100 * there[i])) + " %";
                std::printf("there: %s: %s\n", all[i].name.c_str(),
                            there[i] < 0 ? "unknown" : percent.c_str());
            }
        }
    }
};

using batch = bench::batch;

void walk(char* at, std::size_t bytes, unsigned threads) {
    in_parallel(
        bytes,
        [&](std::size_t begin, std::size_t end) {
            for (std::size_t i = begin; i < end; i += 64) {
                static_cast<void>(*static_cast<volatile char*>(at + i));
            }
        },
        threads);
}

// Dirty pages of the device, in a row, to the host.
void ways_out(bench& b, int rounds) {
    const pattern of{b.bytes};
    const auto whole = b.cut(of, of.bytes);
    const auto by_2_mib = b.cut(of, 2_MiB);
    const auto by_32_mib = b.cut(of, 32_MiB);
    table ways{b, "out: pages in a row that the device has written", true};
    const cudaStream_t on = b.first();
    const auto prefetch_all = [&b, on](const std::vector<piece>& some, cudaMemLocation to) {
        return [&b, on, &some, to] {
            b.prefetch_each(some, to, on);
            bench::wait(on);
        };
    };
    ways.add("the driver's prefetch, one call", of, prefetch_all(whole, the_host));
    ways.add("the same, without advice", of, prefetch_all(whole, the_host), false);
    ways.add("the same, to NUMA node 0", of, prefetch_all(whole, the_first_numa_node));
    ways.add("the same, to the nearest NUMA node", of, prefetch_all(whole, the_nearest_host));
    std::vector<std::vector<piece>> cuts;
    const std::initializer_list<std::size_t> piece_sizes{64_KiB, 512_KiB, 2_MiB, 8_MiB, 32_MiB};
    cuts.reserve(piece_sizes.size());
    for (const std::size_t piece_bytes : piece_sizes) {
        cuts.push_back(b.cut(of, piece_bytes));
        ways.add("prefetch, a call for each " + size_name(piece_bytes), of,
                 prefetch_all(cuts.back(), the_host));
    }
    ways.add("prefetch, 2 MiB each, one batch", of, [&] {
        bench::call_batch(batch::prefetch, by_2_mib, the_host, on);
        bench::wait(on);
    });
    for (const unsigned threads : {2U, 4U}) {
        ways.add("prefetch, 32 MiB a call, " + std::to_string(threads) + " threads", of,
                 [&, threads] {
                     b.by_threads(by_32_mib, threads,
                                  [&](cudaStream_t own, std::span<const piece> some) {
                                      b.prefetch_each(some, the_host, own);
                                  });
                 });
    }
    for (const unsigned threads : {1U, 8U}) {
        ways.add("the CPU's faults, " + std::to_string(threads) + " threads", of,
                 [&, threads] { walk(b.memory.at, of.bytes, threads); });
    }
    ways.add(
        "the CPU's faults, 8 threads, no advice", of, [&] { walk(b.memory.at, of.bytes, 8); },
        false);

    // What the parts take by themselves.
    ways.add(
        "(part: DMA to staging)", of,
        [&] {
            bench::copy_each(whole, b.staging.at, true, on);
            bench::wait(on);
        },
        true, false);
    ways.add(
        "(part: discard)", of,
        [&] {
            bench::call_batch(batch::discard, whole, the_host, on);
            bench::wait(on);
        },
        true, false);
    ways.add(
        "(part: discard and prefetch)", of,
        [&] {
            bench::call_batch(batch::discard_and_prefetch, whole, the_host, on);
            bench::wait(on);
        },
        true, false);
    ways.add(
        "(part: discard and prefetch, 2 MiB each)", of,
        [&] {
            bench::call_batch(batch::discard_and_prefetch, by_2_mib, the_host, on);
            bench::wait(on);
        },
        true, false);

    for (const unsigned threads : {1U, 4U, 8U}) {
        ways.add("DMA to staging, discard + prefetch, filled by " + std::to_string(threads), of,
                 [&, threads] {
                     bench::copy_each(whole, b.staging.at, true, on);
                     bench::call_batch(batch::discard_and_prefetch, whole, the_host, on);
                     bench::wait(on);
                     bench::copy_by_cpu(by_2_mib, b.staging.at, false, threads);
                 });
    }
    ways.add("the same, discard and prefetch apart, 8", of, [&] {
        bench::copy_each(whole, b.staging.at, true, on);
        bench::call_batch(batch::discard, whole, the_host, on);
        b.prefetch_each(whole, the_host, on);
        bench::wait(on);
        bench::copy_by_cpu(by_2_mib, b.staging.at, false, 8);
    });
    for (const unsigned threads : {1U, 4U, 8U}) {
        ways.add("DMA to staging, discard, first touch by " + std::to_string(threads), of,
                 [&, threads] {
                     bench::copy_each(whole, b.staging.at, true, on);
                     bench::call_batch(batch::discard, whole, the_host, on);
                     bench::wait(on);
                     bench::copy_by_cpu(by_2_mib, b.staging.at, false, threads);
                 });
    }
    ways.add("a kernel to staging, discard + prefetch, 8", of, [&] {
        b.gather_by_kernel(of, b.staging.at, on);
        bench::call_batch(batch::discard_and_prefetch, whole, the_host, on);
        bench::wait(on);
        bench::copy_by_cpu(by_2_mib, b.staging.at, false, 8);
    });
    // Each thread has one piece under way: the steps of different pieces overlap.
    const auto piped = [&b](std::span<const piece> some, unsigned threads) {
        return [&b, some, threads] {
            b.by_threads(some, threads, [&](cudaStream_t own, std::span<const piece> mine) {
                for (const piece& one : mine) {
                    bench::copy_each({&one, 1}, b.staging.at, true, own);
                    bench::call_batch(batch::discard_and_prefetch, {&one, 1}, the_host, own);
                    bench::wait(own);
                    std::memcpy(one.at, b.staging.at + one.in_block, one.bytes);
                }
            });
        };
    };
    for (const unsigned threads : {2U, 4U, 8U}) {
        ways.add("the same by DMA, 32 MiB at a time, piped by " + std::to_string(threads), of,
                 piped(by_32_mib, threads));
    }
    ways.add("the same by DMA, 2 MiB at a time, piped by 4", of, piped(by_2_mib, 4));
    // Without the CPU: the device keeps a copy for a moment, and writes it to the pages on the host.
    ways.add("copy on the device, discard + prefetch, DMA back", of, [&] {
        bench::copy_each(whole, b.scratch.at, true, on);
        bench::call_batch(batch::discard_and_prefetch, whole, the_host, on);
        bench::copy_each(whole, b.scratch.at, false, on);
        bench::wait(on);
    });
    ways.add("copy on the device, discard + prefetch, a kernel", of, [&] {
        bench::copy_each(whole, b.scratch.at, true, on);
        bench::call_batch(batch::discard_and_prefetch, whole, the_host, on);
        b.scatter_by_kernel(of, b.scratch.at, on);
        bench::wait(on);
    });
    // As above; pieces of 32 MiB overlap.
    for (const unsigned threads : {2U, 4U}) {
        ways.add("the same by DMA, 32 MiB at a time, piped, " + std::to_string(threads), of,
                 [&, threads] {
                     b.by_threads(by_32_mib, threads,
                                  [&](cudaStream_t own, std::span<const piece> mine) {
                                      for (const piece& one : mine) {
                                          const std::span<const piece> alone{&one, 1};
                                          bench::copy_each(alone, b.scratch.at, true, own);
                                          bench::call_batch(batch::discard_and_prefetch, alone,
                                                            the_host, own);
                                          bench::copy_each(alone, b.scratch.at, false, own);
                                      }
                                  });
                 });
    }
    ways.measure(rounds);
}

// Dirty pages of the device that lie apart, to the host.
void ways_out_scattered(bench& b, int rounds) {
    const pattern of{b.bytes, 2};
    const auto pages = b.cut(of, 2_MiB);
    table ways{b, "out: every second 2 MiB", true};
    const cudaStream_t on = b.first();
    ways.add("the driver's prefetch, a call a page", of, [&] {
        b.prefetch_each(pages, the_host, on);
        bench::wait(on);
    });
    ways.add("prefetch, one batch", of, [&] {
        bench::call_batch(batch::prefetch, pages, the_host, on);
        bench::wait(on);
    });
    ways.add("DMA to staging, discard + prefetch, filled by 8", of, [&] {
        bench::copy_each(pages, b.staging.at, true, on);
        bench::call_batch(batch::discard_and_prefetch, pages, the_host, on);
        bench::wait(on);
        bench::copy_by_cpu(pages, b.staging.at, false, 8);
    });
    ways.add("copy on the device, discard + prefetch, DMA back", of, [&] {
        bench::copy_each(pages, b.scratch.at, true, on);
        bench::call_batch(batch::discard_and_prefetch, pages, the_host, on);
        bench::copy_each(pages, b.scratch.at, false, on);
        bench::wait(on);
    });
    ways.measure(rounds);
}

// Pages of the host that lie apart, to the device.
void ways_in(bench& b, int rounds) {
    const pattern of{b.bytes, 2};
    const auto pages = b.cut(of, 2_MiB);
    table ways{b, "in: every second 2 MiB that the CPU has written", false};
    const cudaStream_t on = b.first();
    ways.add("the driver's prefetch, a call a page", of, [&] {
        b.prefetch_each(pages, the_card, on);
        bench::wait(on);
    });
    ways.add(
        "the same, without advice", of,
        [&] {
            b.prefetch_each(pages, the_card, on);
            bench::wait(on);
        },
        false);
    ways.add("prefetch, one batch", of, [&] {
        bench::call_batch(batch::prefetch, pages, the_card, on);
        bench::wait(on);
    });
    for (const unsigned threads : {2U, 4U}) {
        ways.add(
            "prefetch, a batch each, " + std::to_string(threads) + " threads", of, [&, threads] {
                b.by_threads(pages, threads, [&](cudaStream_t own, std::span<const piece> some) {
                    bench::call_batch(batch::prefetch, some, the_card, own);
                });
            });
    }
    ways.add(
        "(part: discard and prefetch)", of,
        [&] {
            bench::call_batch(batch::discard_and_prefetch, pages, the_card, on);
            bench::wait(on);
        },
        true, false);
    ways.add(
        "(part: a kernel reads the host's pages)", of,
        [&] {
            b.gather_by_kernel(of, b.scratch.at, on);
            bench::wait(on);
        },
        true, false);
    ways.add(
        "(part: DMA reads the host's pages)", of,
        [&] {
            bench::copy_each(pages, b.scratch.at, true, on);
            bench::wait(on);
        },
        true, false);
    // The CPU copies to staging, the pages get places on the device, the bytes follow.
    ways.add("staged by 8, discard + prefetch, DMA", of, [&] {
        bench::copy_by_cpu(pages, b.staging.at, true, 8);
        bench::call_batch(batch::discard_and_prefetch, pages, the_card, on);
        bench::copy_each(pages, b.staging.at, false, on);
        bench::wait(on);
    });
    ways.add("staged by 8, discard + prefetch, a kernel", of, [&] {
        bench::copy_by_cpu(pages, b.staging.at, true, 8);
        bench::call_batch(batch::discard_and_prefetch, pages, the_card, on);
        b.scatter_by_kernel(of, b.staging.at, on);
        bench::wait(on);
    });
    // Without the CPU: the device reads the pages where they are, then they get places, then it copies.
    ways.add("a kernel reads, discard + prefetch, a kernel", of, [&] {
        b.gather_by_kernel(of, b.scratch.at, on);
        bench::call_batch(batch::discard_and_prefetch, pages, the_card, on);
        b.scatter_by_kernel(of, b.scratch.at, on);
        bench::wait(on);
    });
    ways.add("DMA reads, discard + prefetch, a kernel", of, [&] {
        bench::copy_each(pages, b.scratch.at, true, on);
        bench::call_batch(batch::discard_and_prefetch, pages, the_card, on);
        b.scatter_by_kernel(of, b.scratch.at, on);
        bench::wait(on);
    });
    for (const unsigned threads : {2U, 4U}) {
        ways.add(
            "the same by DMA, 16 pages at a time, piped, " + std::to_string(threads), of,
            [&, threads] {
                b.by_threads(pages, threads, [&](cudaStream_t own, std::span<const piece> mine) {
                    for (std::size_t i = 0; i < mine.size(); i += 16) {
                        const auto some =
                            mine.subspan(i, std::min<std::size_t>(16, mine.size() - i));
                        bench::copy_each(some, b.scratch.at, true, own);
                        bench::call_batch(batch::discard_and_prefetch, some, the_card, own);
                        bench::copy_each(some, b.scratch.at, false, own);
                    }
                });
            });
    }
    ways.measure(rounds);
}

}  // namespace

int main(int argc, char** argv) {
    const request asked =
        read_arguments(argc, argv, "ways to move managed memory", {"out", "out_scattered", "in"});
    int version = 0;
    CUDA_BENCH_MUST(cudaDriverGetVersion(&version));
    if (version < 13000) {
        std::printf("skipped: this driver discards nothing and knows no batches (%d)\n", version);
        return 77;
    }
    bench b{asked.options.is_short};
    const int rounds = std::min(asked.options.rounds, 3);
    if (asked.has("out")) {
        ways_out(b, rounds);
    }
    if (asked.has("out_scattered")) {
        ways_out_scattered(b, rounds);
    }
    if (asked.has("in")) {
        ways_in(b, rounds);
    }
    return verdict();
}
