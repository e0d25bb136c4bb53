// SPDX-License-Identifier: Apache-2.0
// CPU-only work on unified memory against plain memory, in OS pages and in huge pages, and on plain memory with and
// without a space in the process. Ratios come from the same run, the two kinds in turn.
#include <xmm/xmm.hpp>

#include <memory>
#include <random>
#include <string>

#include <sys/mman.h>

#include "support/report.hpp"

using namespace xmm::literals;

namespace {

// Not inlined: both kinds of memory are worked on by the same instructions.
[[gnu::noinline]] std::uint64_t sequential_read(const std::uint64_t* words, std::size_t count) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
        sum += words[i];
    }
    return sum;
}
[[gnu::noinline]] std::uint64_t sequential_update(std::uint64_t* words, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        words[i] = words[i] * 3 + i;
    }
    return words[count / 2];
}
[[gnu::noinline]] std::uint64_t random_read(const std::uint64_t* words, std::size_t count) {
    std::minstd_rand random{7};
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < count / 16; ++i) {
        sum += words[(std::uint64_t{random()} * count) >> 31];
    }
    return sum;
}
std::uint64_t sink = 0;

// What mmap gives: in the pages that the system gives by itself, or in huge ones as far as it has any.
class plain_memory {
public:
    plain_memory(std::size_t bytes, bool is_huge) : bytes_{bytes + xmm::page_bytes} {
        raw_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (raw_ == MAP_FAILED) {
            std::exit(1);
        }
        begin_ = xmm::to_pointer(xmm::align_up(xmm::to_address(raw_), xmm::page_bytes));
        if (is_huge) {
            static_cast<void>(::madvise(begin_, bytes, MADV_HUGEPAGE));
        }
    }
    ~plain_memory() { ::munmap(raw_, bytes_); }
    plain_memory(const plain_memory&) = delete;
    plain_memory& operator=(const plain_memory&) = delete;

    [[nodiscard]] void* data() const { return begin_; }

private:
    std::size_t bytes_;
    void* raw_;
    void* begin_;
};

template <class A, class B>
report::figure ratio(int rounds, A&& a, B&& b) {
    std::vector<double> samples;
    for (int i = 0; i <= rounds; ++i) {
        const report::stopwatch first;
        a();
        const double seconds_a = first.seconds();
        const report::stopwatch second;
        b();
        if (i > 0) {
            samples.push_back(seconds_a / second.seconds());
        }
    }
    const report::figure all = report::summarise(samples);
    report::expect(all, 0, 10);
    return all;
}

}  // namespace

int main(int argc, char** argv) {
    report::options chosen{.is_short = false, .rounds = 15};
    if (!report::parse(argc, argv, "CPU-only work on unified memory", chosen)) {
        return 2;
    }
    const std::size_t bytes = chosen.is_short ? 16_MiB : 512_MiB;
    const std::size_t count = bytes / 8;
    auto made = xmm::space::create_soft({{.bytes = 64_MiB}});
    auto space = std::make_unique<xmm::space>(std::move(*made));
    auto* unified = static_cast<std::uint64_t*>(space->map(bytes).value());
    std::memset(unified, 1, bytes);

    report::print_head("time on unified / time on plain memory; goal <= 1.02");
    const auto touch_first = [](xmm::space& all, std::size_t size) {
        void* fresh = all.map(size).value();
        std::memset(fresh, 1, size);
        static_cast<void>(all.unmap(fresh).is_ok());
    };
    const auto touch_plain = [](std::size_t size, bool is_huge) {
        const plain_memory fresh{size, is_huge};
        std::memset(fresh.data(), 1, size);
    };
    for (const bool is_huge : {false, true}) {
        const std::string against = is_huge ? ", against huge pages" : "";
        const char* goal = is_huge ? "control" : "";
        const plain_memory memory{bytes, is_huge};
        auto* plain = static_cast<std::uint64_t*>(memory.data());
        std::memset(plain, 1, bytes);
        report::print("sequential read" + against,
                      ratio(
                          chosen.rounds, [&] { sink += sequential_read(unified, count); },
                          [&] { sink += sequential_read(plain, count); }),
                      goal);
        report::print("sequential update" + against,
                      ratio(
                          chosen.rounds, [&] { sink += sequential_update(unified, count); },
                          [&] { sink += sequential_update(plain, count); }),
                      goal);
        report::print("random read" + against,
                      ratio(
                          chosen.rounds, [&] { sink += random_read(unified, count); },
                          [&] { sink += random_read(plain, count); }),
                      goal);
        for (const auto& [name, size] : {std::pair{"map, first touch, unmap, 1/4", bytes / 4},
                                         std::pair{"map, first touch, unmap", bytes}}) {
            report::print(name + against,
                          ratio(
                              chosen.rounds, [&, size = size] { touch_first(*space, size); },
                              [&, size = size] { touch_plain(size, is_huge); }),
                          goal);
        }
    }
    // No frame was there before, so every page comes from the kernel.
    const auto new_space = [&] {
        auto other = xmm::space::create_soft({{.bytes = 64_MiB}});
        touch_first(*other, bytes);
    };
    report::print("the same in a new space, with its making",
                  ratio(chosen.rounds, new_space, [&] { touch_plain(bytes, false); }), "no goal");

    // Memory that xmm does not manage: allocation, faults and walks with a space there and without.
    const auto foreign = [&] {
        const report::stopwatch watch;
        for (int i = 0; i < 8; ++i) {
            std::vector<std::uint64_t> own(count / 32);
            sink += sequential_update(own.data(), own.size());
        }
        return watch.seconds();
    };
    std::vector<double> with;
    std::vector<double> without;
    static_cast<void>(space->unmap(unified).is_ok());
    // Which of the two comes first alternates: the second finds warmer memory.
    foreign();
    for (int i = 0; i < 2 * chosen.rounds; ++i) {
        const bool is_there = (i + 1) / 2 % 2 == 0;
        if (!is_there) {
            space.reset();
        } else if (!space) {
            auto again = xmm::space::create_soft({{.bytes = 64_MiB}});
            space = std::make_unique<xmm::space>(std::move(*again));
        }
        (is_there ? with : without).push_back(foreign());
    }
    std::vector<double> ratios;
    for (std::size_t i = 0; i < with.size(); ++i) {
        ratios.push_back(with[i] / without[i]);
    }
    report::print("plain memory: with a space / without one", report::summarise(ratios),
                  "goal 1.00");
    report::expect(report::summarise(ratios), 0, 5);
    return sink == 0 ? 1 : report::verdict();
}
