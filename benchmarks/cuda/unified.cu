// SPDX-License-Identifier: Apache-2.0
// Unified pointers on a CUDA device against what CUDA offers: copies, and the CPU's own touch. moves.cu has the rest.
// Figures are GB/s with their share of the first line of each block, which is the bound: pinned copies.
#include "pattern.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

using namespace cuda_bench;

namespace {

struct bench {
    report::options chosen;
    std::size_t granule;
    xmm::space space = must(xmm::space::create(), "space");
    xmm::node_id device = space.devices()[0];
    xmm::queue line = must(space.make_queue(device), "queue");
    cudaStream_t stream = make_stream();
    examiner examine;

    bench(report::options options, std::size_t granule_bytes)
        : chosen{options}, granule{granule_bytes} {}
    char* map(std::size_t bytes) {
        return static_cast<char*>(must(space.map(bytes, {.granule_bytes = granule}), "map"));
    }
    void bring(xmm::node_id where, char* at, std::size_t bytes) {
        must(space.advise(where, at, bytes, xmm::advice::will_need), "will_need");
    }
    // Written by the device: so the host has no valid copy.
    void write_on_device(char* at, std::size_t bytes, std::uint64_t seed) {
        must(xmm::launch(line, {xmm::writes(at, bytes)},
                         [&](xmm::cuda_stream& s) {
                             fill_words<<<1024, 256, 0, s>>>(examiner::words(at), 0, bytes / 8, 1,
                                                             seed);
                         }),
             "launch");
        must(line.synchronize(), "synchronize");
    }
    std::size_t wrong_on_device(const char* at, std::size_t bytes, std::uint64_t seed) {
        examine.counter() = 0;
        must(xmm::launch(
                 line, {xmm::reads(at, bytes)},
                 [&](xmm::cuda_stream& s) { examine.count({bytes}, at, 0, bytes / 8, seed, s); }),
             "launch");
        must(line.synchronize(), "synchronize");
        return examine.counter();
    }
};

constexpr std::uint64_t original = 1;
constexpr std::uint64_t wiped = 2;

void copies(bench& b, std::size_t bytes) {
    const pattern all{bytes};
    pinned host{bytes};
    on_device card{bytes};
    std::unique_ptr<char[]> plain{new char[bytes]};
    char* near_cpu = b.map(bytes);
    char* near_card = b.map(bytes);
    const int rounds = bytes >= 1_GiB ? 5 : b.chosen.rounds;
    const auto wait = [&] { CUDA_BENCH_MUST(cudaStreamSynchronize(b.stream)); };
    const auto wipe_card = [&] { examiner::fill(all, card.at, wiped, b.stream); };
    const auto wrong_on_card = [&] {
        return b.examine.count_wrong(all, card.at, original, b.stream);
    };
    const auto pinned_in = [&] {
        CUDA_BENCH_MUST(cudaMemcpyAsync(card.at, host.at, bytes, cudaMemcpyHostToDevice, b.stream));
        wait();
    };
    const auto pinned_out = [&] {
        CUDA_BENCH_MUST(cudaMemcpyAsync(host.at, card.at, bytes, cudaMemcpyDeviceToHost, b.stream));
        wait();
    };
    const auto ours_in = [&] { must(b.space.copy(near_card, near_cpu, bytes), "copy"); };
    const auto ours_out = [&] { must(b.space.copy(near_cpu, near_card, bytes), "copy"); };
    for (char* one : {host.at, plain.get(), near_cpu}) {
        all.fill_by_cpu(one, original);
    }
    race("H2D " + size_name(bytes), static_cast<double>(bytes), rounds,
         {{"pinned cudaMemcpyAsync", wipe_card, pinned_in, wrong_on_card},
          {"pageable cudaMemcpy", wipe_card,
           [&] {
               CUDA_BENCH_MUST(cudaMemcpy(card.at, plain.get(), bytes, cudaMemcpyHostToDevice));
               // It may return while the last bytes are on their way; the check's stream does not wait for them.
               CUDA_BENCH_MUST(cudaDeviceSynchronize());
           },
           wrong_on_card},
          {"gmemcpy, both resident", [&] { b.write_on_device(near_card, bytes, wiped); }, ours_in,
           [&] { return b.wrong_on_device(near_card, bytes, original); }}});
    // Right after one like it, so that neither side's code is cold: what is left is the copy.
    const auto twice = [](const std::function<void()>& prepare, const std::function<void()>& copy) {
        return [=] {
            prepare();
            copy();
        };
    };
    race("H2D in a row " + size_name(bytes), static_cast<double>(bytes), rounds,
         {{"pinned cudaMemcpyAsync", twice(wipe_card, pinned_in), pinned_in, wrong_on_card},
          {"gmemcpy, both resident",
           twice([&] { b.write_on_device(near_card, bytes, wiped); }, ours_in), ours_in,
           [&] { return b.wrong_on_device(near_card, bytes, original); }}});
    examiner::fill(all, card.at, original, b.stream);
    race("D2H in a row " + size_name(bytes), static_cast<double>(bytes), rounds,
         {{"pinned cudaMemcpyAsync", twice([&] { all.fill_by_cpu(host.at, wiped); }, pinned_out),
           pinned_out, [&] { return all.wrong_by_cpu(host.at, original); }},
          {"gmemcpy, both resident", twice([&] { all.fill_by_cpu(near_cpu, wiped); }, ours_out),
           ours_out, [&] { return all.wrong_by_cpu(near_cpu, original); }}});
    race(
        "D2H " + size_name(bytes), static_cast<double>(bytes), rounds,
        {{"pinned cudaMemcpyAsync", [&] { all.fill_by_cpu(host.at, wiped); }, pinned_out,
          [&] { return all.wrong_by_cpu(host.at, original); }},
         {"pageable cudaMemcpy", [&] { all.fill_by_cpu(plain.get(), wiped); },
          [&] { CUDA_BENCH_MUST(cudaMemcpy(plain.get(), card.at, bytes, cudaMemcpyDeviceToHost)); },
          [&] { return all.wrong_by_cpu(plain.get(), original); }},
         {"gmemcpy, both resident", [&] { all.fill_by_cpu(near_cpu, wiped); }, ours_out,
          [&] { return all.wrong_by_cpu(near_cpu, original); }}});
    // The destination has no frame yet, and prefers the device.
    char* fresh = nullptr;
    race("H2D " + size_name(bytes), static_cast<double>(bytes), rounds,
         {{"pinned cudaMemcpyAsync", wipe_card, pinned_in, wrong_on_card},
          {"gmemcpy, destination without frames",
           [&] {
               if (fresh != nullptr) {
                   must(b.space.unmap(fresh), "unmap");
               }
               fresh = static_cast<char*>(must(
                   b.space.map(bytes, {.granule_bytes = b.granule, .preferred = b.device}), "map"));
           },
           [&] { must(b.space.copy(fresh, near_cpu, bytes), "copy"); },
           [&] { return b.wrong_on_device(fresh, bytes, original); }}});
    for (char* one : {fresh, near_cpu, near_card}) {
        must(b.space.unmap(one), "unmap");
    }
}

// Latency of one touch, and a walk over all of it, by the CPU.
void touches(bench& b, std::size_t bytes) {
    char* one = b.map(bytes);
    managed uvm{bytes};
    std::unique_ptr<char[]> plain{new char[bytes]};
    std::memset(plain.get(), 1, bytes);
    volatile std::uint64_t sink = 0;
    const auto walk = [&](const char* at) {
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < bytes; i += 8) {
            std::uint64_t value;
            std::memcpy(&value, at + i, 8);
            sum += value;
        }
        sink = sink + sum;
    };
    std::vector<double> ours;
    std::vector<double> theirs;
    for (int round = 0; round <= b.chosen.rounds; ++round) {
        b.bring(b.device, one, bytes);
        b.write_on_device(one, bytes, 4);
        prefetch(uvm.at, bytes, the_card, b.stream);
        for (std::size_t at = 0; at < std::min(bytes, 8 * b.granule); at += b.granule) {
            const report::stopwatch watch;
            sink = sink + static_cast<unsigned char>(one[at]);
            const double us = watch.seconds() * 1e6;
            const report::stopwatch uvm_watch;
            sink = sink + static_cast<unsigned char>(uvm.at[at]);
            const double uvm_us = uvm_watch.seconds() * 1e6;
            if (round > 0) {
                ours.push_back(us);
                theirs.push_back(uvm_us);
            }
        }
    }
    report::print("CPU touch of a device page, granule " + size_name(b.granule) + ", xmm",
                  report::summarise(ours), "us");
    report::print("CPU touch of a device page, UVM", report::summarise(theirs), "us");
    race("CPU walk " + size_name(bytes), static_cast<double>(bytes), 3,
         {{"host memory", {}, [&] { walk(plain.get()); }},
          {"xmm, host-resident",
           [&] {
               b.bring(xmm::any_host, one, bytes);
               walk(one);
           },
           [&] { walk(one); }},
          {"xmm, device-resident",
           [&] {
               b.bring(b.device, one, bytes);
               b.write_on_device(one, bytes, 5);
           },
           [&] { walk(one); }},
          {"UVM, device-resident", [&] { prefetch(uvm.at, bytes, the_card, b.stream); },
           [&] { walk(uvm.at); }}});
    wrong_values += pattern{bytes}.wrong_by_cpu(one, 5);
    must(b.space.unmap(one), "unmap");
}

}  // namespace

int main(int argc, char** argv) {
    const request asked =
        read_arguments(argc, argv, "unified pointers on a CUDA device", {"copies", "touches"});
    const report::options& chosen = asked.options;
    using sizes = std::vector<std::size_t>;
    for (const std::size_t granule : {32_MiB, 2_MiB}) {
        bench b{chosen, granule};
        std::printf("\ngranule %s\n", size_name(granule).c_str());
        report::print_head("");
        sizes copied = granule == 2_MiB
                           ? sizes{256_MiB, 1_GiB}
                           : sizes{64_KiB, 1_MiB, 16_MiB, 64_MiB, 256_MiB, 1_GiB, 4_GiB};
        if (chosen.is_short) {
            copied = {4_MiB};
        }
        for (const std::size_t bytes : copied) {
            if (asked.has("copies")) {
                copies(b, bytes);
            }
        }
        if (asked.has("touches")) {
            touches(b, chosen.is_short ? 4_MiB : 1_GiB);
        }
    }
    return verdict();
}
