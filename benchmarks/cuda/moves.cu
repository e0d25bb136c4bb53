// SPDX-License-Identifier: Apache-2.0
// will_need and demotion against cudaMemPrefetchAsync and pinned copies: contiguous ranges and every second page of
// 2 MiB, written by the CPU before or not, dirty or with a clean copy on the host, in either mode. Figures are GB/s of
// the bytes meant, with their share of the first line of each block, which is the bound: pinned copies.
//
// Managed memory, UVM's and ours together, is 48 GiB at most at a time.
#include "pattern.hpp"

using namespace cuda_bench;

namespace {

struct bench {
    report::options chosen;
    std::size_t granule;
    moded_space held;
    xmm::space& space = held.space;
    xmm::node_id device = space.devices()[0];
    xmm::queue line = must(space.make_queue(device), "queue");
    cudaStream_t stream = make_stream();
    examiner examine;
    std::uint64_t seed = 0;  // of what was written last
    std::size_t arrived_before = 0;

    bench(const request& asked, std::size_t granule_bytes)
        : chosen{asked.options}, granule{granule_bytes}, held{asked.is_managed} {}

    char* map(const pattern& of, bool is_read_mostly = false) {
        return static_cast<char*>(
            must(space.map(of.span(), {.granule_bytes = granule, .is_read_mostly = is_read_mostly}),
                 "map"));
    }
    void unmap(char* at) { must(space.unmap(at), "unmap"); }

    void bring(xmm::node_id where, const pattern& of, char* at) {
        if (of.every == 1) {
            must(space.advise(where, at, of.bytes, xmm::advice::will_need), "will_need");
            return;
        }
        std::vector<xmm::completion> coming;
        of.for_each_stretch([&](std::size_t offset, std::size_t bytes) {
            coming.push_back(
                must(space.advise_async(where, at + offset, bytes, xmm::advice::will_need),
                     "will_need"));
        });
        for (xmm::completion& one : coming) {
            one.wait();
        }
    }
    // Demotes as pressure does: nobody asks for the pages on the host, so the CPU has no mapping of them after.
    void push_out() {
        limit(0);
        limit(xmm::no_budget);
    }
    // A page that something still holds is `busy`: told, and tried again.
    void limit(std::size_t bytes) {
        xmm::status outcome = space.set_budget(device, bytes);
        for (int tries = 0; outcome.code == xmm::errc::busy && tries < 20; ++tries) {
            const xmm::shortage last = space.last_shortage();
            std::fprintf(stderr, "busy: %zu MiB of the device are used; short of %zu of %zu: %s\n",
                         must(space.usage(device), "usage").used >> 20, last.bytes, last.limit,
                         last.cause);
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            outcome = space.set_budget(device, bytes);
        }
        must(outcome, "set_budget");
    }
    // Launches over the pages that are meant, 512 MiB at a time: fn(stream, first word, words).
    template <class Fn>
    void on_device_by_launch(const pattern& of, char* at, xmm::access who, Fn&& fn) {
        constexpr std::size_t most = 256;
        std::vector<xmm::use> uses;
        for (std::size_t first = 0; first < of.pages(); first += most) {
            const std::size_t pages = std::min(most, of.pages() - first);
            const pattern part{pages * 2_MiB, of.every};
            const xmm::address begin = xmm::to_address(at) + first * of.every * 2_MiB;
            uses.clear();
            part.for_each_stretch([&](std::size_t offset, std::size_t bytes) {
                uses.push_back({{begin + offset, bytes}, who});
            });
            must(xmm::launch(
                     line, uses,
                     [&](xmm::cuda_stream& s) { fn(s, first * page_words, pages * page_words); }),
                 "launch");
        }
        must(line.synchronize(), "synchronize");
    }
    // So the host has no valid copy.
    void write_on_device(const pattern& of, char* at) {
        ++seed;
        on_device_by_launch(
            of, at, xmm::access::write, [&](cudaStream_t s, std::size_t first, std::size_t words) {
                fill_words<<<1024, 256, 0, s>>>(examiner::words(at), first, words, of.every, seed);
            });
    }
    void write_by_cpu(const pattern& of, char* at) { of.fill_by_cpu(at, ++seed); }
    std::size_t wrong_on_device(const pattern& of, char* at) {
        examine.counter() = 0;
        on_device_by_launch(of, at, xmm::access::read,
                            [&](cudaStream_t s, std::size_t first, std::size_t words) {
                                examine.count(of, at, first, words, seed, s);
                            });
        return examine.counter();
    }
    std::size_t wrong_on_host(const pattern& of, const char* at) {
        return of.wrong_by_cpu(at, seed);
    }
    // A hint may be ignored, and what was not moved would count as fast: so what arrived is compared with what should.
    void expect(bool is_in) { arrived_before = arrived(is_in); }
    std::size_t words_that_stayed(const pattern& of, bool is_in) const {
        const std::size_t came = arrived(is_in) - arrived_before;
        return came < of.bytes ? (of.bytes - came) / 8 : 0;
    }
    [[nodiscard]] std::size_t arrived(bool is_in) const {
        std::size_t bytes = 0;
        for (const auto& one : space.statistics()) {
            bytes += (one.usage.node == device) == is_in ? one.counters.bytes_in : 0;
        }
        return bytes;
    }
    void wait() { CUDA_BENCH_MUST(cudaStreamSynchronize(stream)); }
};

// Pinned memory and its copy on the device, in the pieces that are meant.
struct copied {
    bench& b;
    const pattern& of;
    char* host;  // as large as `of` says, of a larger block
    on_device card{of.bytes};

    contender way(bool is_in) {
        return {"pinned copy",
                [this, is_in] {
                    ++b.seed;
                    if (is_in) {
                        plain().fill_by_cpu(host, b.seed);
                    } else {
                        examiner::fill(plain(), card.at, b.seed, b.stream);
                    }
                },
                [this, is_in] {
                    const std::size_t piece = of.every == 1 ? of.bytes : std::size_t{2_MiB};
                    for (std::size_t at = 0; at < of.bytes; at += piece) {
                        CUDA_BENCH_MUST(cudaMemcpyAsync(
                            (is_in ? card.at : host) + at, (is_in ? host : card.at) + at, piece,
                            is_in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, b.stream));
                    }
                    b.wait();
                },
                [this, is_in] {
                    return is_in ? b.examine.count_wrong(plain(), card.at, b.seed, b.stream)
                                 : b.wrong_on_host(plain(), host);
                }};
    }

private:
    [[nodiscard]] pattern plain() const { return {of.bytes}; }
};

// Managed memory that CUDA's own calls move.
struct uvm {
    bench& b;
    const pattern& of;
    bool is_read_mostly = false;
    managed memory{of.span()};

    uvm(bench& with, const pattern& pages, bool is_mostly = false)
        : b{with}, of{pages}, is_read_mostly{is_mostly} {
        advise(is_mostly);
        of.fill_by_cpu(memory.at, 0);
    }
    void advise(bool is_mostly) {
        if (is_mostly) {
            each([&](char* at, std::size_t bytes) {
                CUDA_BENCH_MUST(cudaMemAdvise(at, bytes, cudaMemAdviseSetReadMostly, the_card));
            });
        }
    }
    void drop_copies() {
        each([&](char* at, std::size_t bytes) {
            CUDA_BENCH_MUST(cudaMemAdvise(at, bytes, cudaMemAdviseUnsetReadMostly, the_card));
        });
    }
    void call_by_call(cudaMemLocation where) {
        each([&](char* at, std::size_t bytes) {
            CUDA_BENCH_MUST(cudaMemPrefetchAsync(at, bytes, where, 0, b.stream));
        });
        b.wait();
    }
    void by_batch(cudaMemLocation where) {
        std::vector<void*> at;
        std::vector<std::size_t> bytes;
        each([&](char* one, std::size_t one_bytes) {
            at.push_back(one);
            bytes.push_back(one_bytes);
        });
        std::size_t first = 0;
        CUDA_BENCH_MUST(cudaMemPrefetchBatchAsync(at.data(), bytes.data(), at.size(), &where,
                                                  &first, 1, 0, b.stream));
        b.wait();
    }
    void add_ways(std::vector<contender>& to, bool is_in) {
        const cudaMemLocation there = is_in ? the_card : the_host;
        const auto prepare = [this, is_in] {
            ++b.seed;
            call_by_call(is_in ? the_host : the_card);
            if (is_in) {
                of.fill_by_cpu(memory.at, b.seed);
            } else {
                examiner::fill(of, memory.at, b.seed, b.stream);
            }
        };
        const auto check = [this, is_in] {
            return is_in ? b.examine.count_wrong(of, memory.at, b.seed, b.stream)
                         : b.wrong_on_host(of, memory.at);
        };
        const char* name = of.every == 1 ? "UVM prefetch" : "UVM prefetch, a call a page";
        to.push_back({name, prepare, [this, there] { call_by_call(there); }, check});
        if (of.every != 1) {
            to.push_back(
                {"UVM prefetch, one batch", prepare, [this, there] { by_batch(there); }, check});
        }
    }

private:
    template <class Fn>
    void each(Fn&& fn) {
        of.for_each_stretch(
            [&](std::size_t offset, std::size_t bytes) { fn(memory.at + offset, bytes); });
    }
};

int rounds_for(const bench& b, std::size_t bytes) {
    return std::min(b.chosen.rounds, bytes > 1_GiB ? 3 : 5);
}

void promotion(bench& b, const pattern& of, char* pinned_at, const std::string& title) {
    copied copy{b, of, pinned_at};
    uvm theirs{b, of};
    char* one = b.map(of);
    char* mostly = b.map(of, true);
    std::vector<contender> all{copy.way(true)};
    theirs.add_ways(all, true);
    const auto wrong = [&](char* at) {
        return [&b, &of, at] { return b.words_that_stayed(of, true) + b.wrong_on_device(of, at); };
    };
    all.push_back({"xmm, not touched by the CPU since",
                   [&] {
                       b.bring(b.device, of, one);
                       b.write_on_device(of, one);
                       b.push_out();
                       b.expect(true);
                   },
                   [&] { b.bring(b.device, of, one); }, wrong(one)});
    all.push_back({"xmm, written by the CPU",
                   [&] {
                       b.push_out();
                       b.write_by_cpu(of, one);
                       b.expect(true);
                   },
                   [&] { b.bring(b.device, of, one); }, wrong(one)});
    all.push_back({"xmm, written by the CPU, read-mostly",
                   [&] {
                       b.push_out();
                       b.write_by_cpu(of, mostly);
                       b.expect(true);
                   },
                   [&] { b.bring(b.device, of, mostly); }, wrong(mostly)});
    race("will_need " + title, static_cast<double>(of.bytes), rounds_for(b, of.bytes), all);
    b.unmap(one);
    b.unmap(mostly);
}

void demotion_of_dirty(bench& b, const pattern& of, char* pinned_at, const std::string& title) {
    copied copy{b, of, pinned_at};
    uvm theirs{b, of};
    char* one = b.map(of);
    b.write_by_cpu(of, one);
    std::vector<contender> all{copy.way(false)};
    theirs.add_ways(all, false);
    const auto make_dirty = [&] {
        b.limit(xmm::no_budget);
        b.bring(b.device, of, one);
        b.write_on_device(of, one);
        b.expect(false);
    };
    const auto wrong = [&] {
        const std::size_t stayed = b.words_that_stayed(of, false);
        b.limit(xmm::no_budget);
        return stayed + b.wrong_on_host(of, one);
    };
    all.push_back({"xmm, by a lowered budget", make_dirty, [&] { b.limit(0); }, wrong});
    all.push_back({"xmm, by will_need of the host", make_dirty,
                   [&] { b.bring(xmm::any_host, of, one); }, wrong});
    race("demotion of dirty " + title, static_cast<double>(of.bytes), rounds_for(b, of.bytes), all);
    b.unmap(one);
}

// The host still has what the device has: nothing need be copied.
void demotion_of_clean(bench& b, const pattern& of, char* pinned_at, const std::string& title) {
    copied copy{b, of, pinned_at};
    uvm theirs{b, of, true};
    char* mostly = b.map(of, true);
    std::uint64_t ours = 0;
    std::vector<contender> all{copy.way(false)};
    all.push_back({"UVM, read-mostly, unset",
                   [&] {
                       theirs.advise(true);
                       theirs.call_by_call(the_card);
                   },
                   [&] { theirs.drop_copies(); },
                   [&] { return of.wrong_by_cpu(theirs.memory.at, 0); }});
    all.push_back({"xmm, read-mostly, by a lowered budget",
                   [&] {
                       b.limit(xmm::no_budget);
                       if (ours == 0) {
                           b.write_by_cpu(of, mostly);
                           ours = b.seed;
                       }
                       b.bring(b.device, of, mostly);
                       b.seed = ours;
                       wrong_values += b.wrong_on_device(of, mostly);
                   },
                   [&] { b.limit(0); },
                   [&] {
                       b.limit(xmm::no_budget);
                       return of.wrong_by_cpu(mostly, ours);
                   }});
    race("demotion of clean " + title, static_cast<double>(of.bytes), rounds_for(b, of.bytes), all);
    b.unmap(mostly);
}

}  // namespace

int main(int argc, char** argv) {
    const request asked = read_arguments(argc, argv, "will_need and demotion",
                                         {"contiguous", "scattered", "small", "large"}, true);
    const bool is_short = asked.options.is_short;
    const bool names_layout = asked.names_any({"contiguous", "scattered"});
    const bool names_size = asked.names_any({"small", "large"});
    const auto has = [&](const char* part, bool is_narrowed) {
        return !is_narrowed || asked.names_any({part});
    };
    std::vector<std::size_t> sizes;
    if (is_short) {
        sizes = {4_MiB};
    } else {
        if (has("small", names_size)) {
            sizes = {64_MiB, 256_MiB, 1_GiB};
        }
        if (has("large", names_size)) {
            sizes.push_back(8_GiB);
        }
    }
    const pinned host{sizes.back()};  // the driver takes seconds to make it
    std::printf("mode %s\n", asked.mode());
    const auto all = [&](std::size_t granule, unsigned every,
                         const std::vector<std::size_t>& wanted) {
        bench b{asked, granule};
        std::printf("\n%s, granule %s\n", every == 1 ? "contiguous" : "every second 2 MiB",
                    size_name(granule).c_str());
        report::print_head("");
        for (const std::size_t bytes : wanted) {
            const pattern of{bytes, every};
            const std::string title = size_name(bytes);
            promotion(b, of, host.at, title);
            demotion_of_dirty(b, of, host.at, title);
            demotion_of_clean(b, of, host.at, title);
        }
    };
    if (has("contiguous", names_layout)) {
        all(32_MiB, 1, sizes);
        if (has("small", names_size)) {
            all(2_MiB, 1, {is_short ? 4_MiB : 1_GiB});
        }
    }
    if (has("scattered", names_layout)) {
        all(2_MiB, 2, sizes);
    }
    return verdict();
}
