// SPDX-License-Identifier: Apache-2.0
// Eight threads fault, launch, advise, copy, map and unmap over two devices; every byte is verified and
// every record checked. XMM_STRESS_SECONDS sets how long (30).
#include <xmm/xmm.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

using namespace xmm::literals;

namespace {

constexpr std::size_t slot_bytes = 64_KiB;
constexpr std::size_t slot_words = slot_bytes / sizeof(std::uint64_t);
constexpr unsigned thread_count = 8;

// A pattern that no two seeds share in any word.
std::uint64_t word_of(std::uint64_t seed, std::size_t i) { return seed * 0x9e3779b97f4a7c15u + i; }

void fill(std::span<std::uint64_t> words, std::uint64_t seed, std::size_t first = 0) {
    for (std::size_t i = 0; i < words.size(); ++i) {
        words[i] = word_of(seed, first + i);
    }
}
std::size_t count_wrong(std::span<const std::uint64_t> words, std::uint64_t seed,
                        std::size_t first = 0) {
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < words.size(); ++i) {
        wrong += words[i] != word_of(seed, first + i) ? 1 : 0;
    }
    return wrong;
}

// A lock that is only ever tried: a thread may own hundreds, more than the checkers of mutexes allow.
class ownership {
public:
    bool try_lock() {
        return !is_owned_.exchange(true, std::memory_order_acquire);
    }  // pairs with unlock
    void lock() { std::abort(); }
    void unlock() { is_owned_.store(false, std::memory_order_release); }  // pairs with try_lock

private:
    std::atomic<bool> is_owned_{false};
};

// A part of a region with an owner at a time and known contents.
struct slot {
    ownership lock;
    std::uint64_t seed = 0;  // 0: all zero, as mapped
    bool is_defined = true;  // false after dont_need
};

struct shared_region {
    std::uint64_t* words = nullptr;
    std::size_t bytes = 0;
    std::size_t granule_bytes = 0;
    std::vector<slot> slots;

    shared_region(std::uint64_t* at, std::size_t size, std::size_t granule)
        : words{at}, bytes{size}, granule_bytes{granule}, slots(size / slot_bytes) {}
    std::uint64_t* at(std::size_t i) const { return words + i * slot_words; }
};

class stress {
public:
    explicit stress(double seconds)
        : space_{xmm::space::create_soft(
                     {{.bytes = 64_MiB, .link_latency_ns = 20000}, {.bytes = 48_MiB}})
                     .value()},
          end_{std::chrono::steady_clock::now() + std::chrono::duration_cast<clock::duration>(
                                                      std::chrono::duration<double>(seconds))} {
        for (const auto& [bytes, granule] :
             {std::pair{96_MiB, 2_MiB}, {64_MiB, 4_MiB}, {33_MiB, 16_MiB}}) {
            auto* words = static_cast<std::uint64_t*>(
                space_.map(bytes, {.granule_bytes = granule, .name = "stress"}).value());
            regions_.push_back(std::make_unique<shared_region>(words, bytes, granule));
        }
    }

    void run() {
        std::vector<std::thread> threads;
        for (unsigned i = 0; i < thread_count; ++i) {
            threads.emplace_back([this, i] { work(i); });
        }
        while (clock::now() < end_) {
            std::this_thread::sleep_for(std::chrono::milliseconds{200});
            check(space_.is_valid());
        }
        for (auto& one : threads) {
            one.join();
        }
        verify_all();
        check(space_.is_valid());
        for (auto& one : regions_) {
            check(space_.unmap(one->words).is_ok());
        }
    }

    std::size_t wrong() const { return wrong_; }
    std::size_t operations() const { return operations_; }
    xmm::space& space() { return space_; }

private:
    using clock = std::chrono::steady_clock;

    struct worker {
        std::mt19937_64 random;
        std::vector<xmm::queue> queues;
        std::vector<std::uint64_t> plain = std::vector<std::uint64_t>(slot_words);
        std::uint64_t next_seed;
        int zero_file;

        std::size_t below(std::size_t bound) { return random() % bound; }
    };

    void work(unsigned index) {
        worker me{std::mt19937_64{index * 7919u + 17},
                  {},
                  std::vector<std::uint64_t>(slot_words),
                  (std::uint64_t{index} + 1) << 40,
                  ::open("/dev/zero", O_RDONLY)};
        for (xmm::node_id device : space_.devices()) {
            me.queues.push_back(space_.make_queue(device).value());
        }
        while (clock::now() < end_) {
            switch (me.below(16)) {
                case 0:
                case 1: on_slot(me, &stress::cpu_write); break;
                case 2:
                case 3: on_slot(me, &stress::cpu_verify); break;
                case 4:
                case 5: on_slot(me, &stress::device_write); break;
                case 6:
                case 7: on_slot(me, &stress::device_verify); break;
                case 8: on_slot(me, &stress::copy_in_or_out); break;
                case 9: copy_between(me); break;
                case 10:
                case 11: advise(me); break;
                case 12: pin_and_unpin(me); break;
                case 13: dont_need(me); break;
                case 14: on_slot(me, &stress::read_file_into); break;
                case 15: map_and_unmap(me); break;
            }
            // relaxed: a figure for the report.
            operations_.fetch_add(1, std::memory_order_relaxed);
        }
        ::close(me.zero_file);
    }

    using slot_action = void (stress::*)(worker&, slot&, std::uint64_t*);
    void on_slot(worker& me, slot_action action) {
        shared_region& region = *regions_[me.below(regions_.size())];
        const std::size_t i = me.below(region.slots.size());
        std::unique_lock own{region.slots[i].lock, std::try_to_lock};
        if (own) {
            (this->*action)(me, region.slots[i], region.at(i));
        }
    }

    void cpu_write(worker& me, slot& one, std::uint64_t* at) {
        define(one, ++me.next_seed);
        fill({at, slot_words}, one.seed);
    }
    void cpu_verify(worker&, slot& one, std::uint64_t* at) { verify(one, {at, slot_words}); }
    void device_write(worker& me, slot& one, std::uint64_t* at) {
        define(one, ++me.next_seed);
        const xmm::device_view<std::uint64_t> view{at, slot_words};
        launch(me, {xmm::writes(at, slot_bytes)}, [view, seed = one.seed] {
            view.for_each_span(0, slot_words,
                               [seed](std::span<std::uint64_t> words, std::size_t first) {
                                   fill(words, seed, first);
                               });
        });
    }
    void device_verify(worker& me, slot& one, std::uint64_t* at) {
        if (!one.is_defined) {
            return;
        }
        const xmm::device_view<const std::uint64_t> view{at, slot_words};
        launch(me, {xmm::reads(at, slot_bytes)}, [this, view, seed = one.seed] {
            view.for_each_span(
                0, slot_words,
                [this, seed](std::span<const std::uint64_t> words, std::size_t first) {
                    add_wrong(seed == 0 ? count_nonzero(words) : count_wrong(words, seed, first));
                });
        });
    }
    void copy_in_or_out(worker& me, slot& one, std::uint64_t* at) {
        if (me.below(2) == 0) {
            define(one, ++me.next_seed);
            fill(me.plain, one.seed);
            check(space_.copy(at, me.plain.data(), slot_bytes).is_ok());
        } else {
            check(space_.copy(me.plain.data(), at, slot_bytes).is_ok());
            verify(one, me.plain);
        }
    }
    void copy_between(worker& me) {
        shared_region& a = *regions_[me.below(regions_.size())];
        shared_region& b = *regions_[me.below(regions_.size())];
        const std::size_t i = me.below(a.slots.size());
        const std::size_t j = me.below(b.slots.size());
        if (a.at(i) == b.at(j)) {
            return;
        }
        std::unique_lock to{a.slots[i].lock, std::try_to_lock};
        std::unique_lock from{b.slots[j].lock, std::try_to_lock};
        if (!to || !from) {
            return;
        }
        if (me.below(2) == 0) {
            check(space_.copy(a.at(i), b.at(j), slot_bytes).is_ok());
        } else {
            xmm::queue& line = me.queues[me.below(me.queues.size())];
            check(space_.copy(line, a.at(i), b.at(j), slot_bytes).has_value());
            check(line.synchronize().is_ok());
        }
        a.slots[i].seed = b.slots[j].seed;
        a.slots[i].is_defined = b.slots[j].is_defined;
    }
    void advise(worker& me) {
        const auto [pointer, bytes] = stretch(me);
        const auto nodes = space_.nodes();
        const xmm::node_id node = nodes[me.below(nodes.size())];
        constexpr xmm::advice some[] = {xmm::advice::will_need,      xmm::advice::will_need,
                                        xmm::advice::cold,           xmm::advice::read_mostly,
                                        xmm::advice::preferred,      xmm::advice::unset_read_mostly,
                                        xmm::advice::unset_preferred};
        const xmm::advice what = some[me.below(std::size(some))];
        if (me.below(3) == 0) {
            check(space_.advise_async(node, pointer, bytes, what).has_value());
        } else {
            check(space_.advise(node, pointer, bytes, what).is_ok());
        }
    }
    void pin_and_unpin(worker& me) {
        const auto [pointer, bytes] = stretch(me, 4_MiB);
        // On the host only: a page that is pinned to a device may not be touched by the CPU.
        const xmm::status pinned = space_.advise(xmm::any_host, pointer, bytes, xmm::advice::pin);
        if (pinned) {
            check(space_.residency_of(pointer).value() == space_.hosts()[0]);
            check(space_.advise(xmm::any_host, pointer, bytes, xmm::advice::unpin).is_ok());
        } else {
            check(pinned.code == xmm::errc::busy || pinned.code == xmm::errc::no_memory);
        }
    }
    void dont_need(worker& me) {
        shared_region& region = *regions_[me.below(regions_.size())];
        const std::size_t granule = me.below(region.bytes / region.granule_bytes);
        const std::size_t per_granule = region.granule_bytes / slot_bytes;
        std::vector<std::unique_lock<ownership>> own;
        for (std::size_t i = granule * per_granule; i < (granule + 1) * per_granule; ++i) {
            own.emplace_back(region.slots[i].lock, std::try_to_lock);
            if (!own.back()) {
                return;
            }
        }
        for (std::size_t i = granule * per_granule; i < (granule + 1) * per_granule; ++i) {
            region.slots[i].is_defined = false;
        }
        check(space_
                  .advise(xmm::any_host, region.at(granule * per_granule), region.granule_bytes,
                          xmm::advice::dont_need)
                  .is_ok());
    }
    void read_file_into(worker& me, slot& one, std::uint64_t* at) {
        auto access = space_.access_on_host(at, slot_bytes);
        check(access.has_value());
        if (access) {
            check(::read(me.zero_file, at, slot_bytes) == static_cast<ssize_t>(slot_bytes));
            define(one, 0);
        }
    }
    void map_and_unmap(worker& me) {
        const std::size_t bytes = slot_bytes * (1 + me.below(100));
        const std::uint64_t seed = ++me.next_seed;
        auto mapped = space_.map(bytes, {.granule_bytes = me.below(2) == 0 ? 2_MiB : 0});
        check(mapped.has_value());
        if (!mapped) {
            return;
        }
        auto* words = static_cast<std::uint64_t*>(*mapped);
        const std::size_t count = bytes / sizeof(std::uint64_t);
        check(count_nonzero({words, count}) == 0);
        const xmm::device_view<std::uint64_t> view{words, count};
        launch(me, {xmm::writes(words, bytes)}, [view, seed] {
            view.for_each_span(0, view.size(),
                               [seed](std::span<std::uint64_t> some, std::size_t first) {
                                   fill(some, seed, first);
                               });
        });
        add_wrong(count_wrong({words, count}, seed));
        // Once: the addresses may be another thread's region by now.
        check(space_.unmap(words).is_ok());
    }

    std::pair<void*, std::size_t> stretch(worker& me, std::size_t most = 32_MiB) {
        shared_region& region = *regions_[me.below(regions_.size())];
        const std::size_t begin = me.below(region.bytes);
        const std::size_t bytes = 1 + me.below(std::min(most, region.bytes - begin));
        return {reinterpret_cast<std::byte*>(region.words) + begin, bytes};
    }
    template <class Body>
    void launch(worker& me, std::initializer_list<xmm::use> uses, Body body) {
        xmm::queue& line = me.queues[me.below(me.queues.size())];
        auto point = xmm::launch(line, uses, [&](xmm::soft::stream& s) { return s.run(body); });
        check(point.has_value());
        check(line.synchronize().is_ok());
    }
    static void define(slot& one, std::uint64_t seed) {
        one.seed = seed;
        one.is_defined = true;
    }
    void verify(const slot& one, std::span<const std::uint64_t> words) {
        if (one.is_defined) {
            add_wrong(one.seed == 0 ? count_nonzero(words) : count_wrong(words, one.seed));
        }
    }
    void verify_all() {
        for (auto& region : regions_) {
            for (std::size_t i = 0; i < region->slots.size(); ++i) {
                verify(region->slots[i], {region->at(i), slot_words});
            }
        }
    }
    static std::size_t count_nonzero(std::span<const std::uint64_t> words) {
        std::size_t wrong = 0;
        for (std::uint64_t word : words) {
            wrong += word != 0 ? 1 : 0;
        }
        return wrong;
    }
    void add_wrong(std::size_t more) {
        wrong_.fetch_add(more, std::memory_order_relaxed);
    }  // relaxed: read after join
    void check(bool holds) {
        if (!holds) {
            add_wrong(1);
        }
    }

    xmm::space space_;
    const clock::time_point end_;
    std::vector<std::unique_ptr<shared_region>> regions_;
    std::atomic<std::size_t> wrong_{0};
    std::atomic<std::size_t> operations_{0};
};

}  // namespace

TEST_CASE("eight threads over two devices lose no byte") {
    const char* set = std::getenv("XMM_STRESS_SECONDS");
    stress run{set != nullptr ? std::atof(set) : 30.0};
    run.run();
    CHECK(run.wrong() == 0);
    CHECK(run.operations() > 100);
    MESSAGE(run.operations(), " operations");
    for (const auto& one : run.space().statistics()) {
        MESSAGE("node ", one.usage.node.value, ": faults ", one.counters.faults, ", in ",
                one.counters.bytes_in >> 20, " MiB, reclaimed ", one.counters.reclaimed_bytes >> 20,
                " MiB, given up ", one.counters.moves_given_up);
    }
}
