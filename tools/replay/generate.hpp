// SPDX-License-Identifier: Apache-2.0
// generate.hpp - traces that nobody recorded: loads that an allocator may find hard.
//
// Model    A name and a seed give the same events on every machine. Written as CSV and read back, a trace is
//          the same again.
// Failure  bad_input for an unknown name.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trace.hpp"

namespace xmm::trace_replay {

namespace detail {

inline constexpr std::uint64_t kib = std::uint64_t{1} << 10;
inline constexpr std::uint64_t mib = std::uint64_t{1} << 20;

// Steele, Lea and Flood's splitmix64: the same numbers everywhere, unlike the standard's distributions.
class dice {
public:
    explicit dice(std::uint64_t seed) noexcept : state_{seed} {}
    [[nodiscard]] std::uint64_t next() noexcept {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }
    // From low to high, both included.
    [[nodiscard]] std::uint64_t between(std::uint64_t low, std::uint64_t high) noexcept {
        return low + next() % (high - low + 1);
    }
    [[nodiscard]] bool chance(std::uint64_t in) noexcept { return next() % in == 0; }
    // Small ones as often as those twice as large.
    [[nodiscard]] std::uint64_t between_doublings(unsigned low_shift,
                                                  unsigned high_shift) noexcept {
        const auto shift = static_cast<unsigned>(between(low_shift, high_shift - 1));
        return between(std::uint64_t{1} << shift, (std::uint64_t{2} << shift) - 1);
    }

private:
    std::uint64_t state_;
};

class generator {
public:
    explicit generator(std::uint64_t seed) noexcept : random{seed} {}

    std::uint64_t allocate(std::uint64_t bytes, std::uint64_t stream = 0) {
        expect(out_.allocate(next_, bytes, stream, now));
        streams_.push_back(stream);
        return next_++;
    }
    void request(std::uint64_t block) {
        expect(out_.request_free(block, {}, streams_[block], now));
    }
    void free(std::uint64_t block) { expect(out_.complete_free(block, {}, streams_[block], now)); }
    // Any order of these, all of them.
    void free_shuffled(std::vector<std::uint64_t>& blocks) {
        for (std::size_t i = blocks.size(); i > 1; --i) {
            std::swap(blocks[i - 1], blocks[random.between(0, i - 1)]);
        }
        for (const std::uint64_t one : blocks) {
            free(one);
            now += 3;
        }
        blocks.clear();
    }
    [[nodiscard]] trace finish(std::string name) && {
        return std::move(out_).finish(std::move(name), "generated");
    }

    dice random;
    std::uint64_t now = 0;

private:
    static void expect(const trace_builder::outcome& why) {
        if (why) {
            std::abort();  // a generator that contradicts itself
        }
    }

    trace_builder out_;
    std::uint64_t next_ = 0;
    std::vector<std::uint64_t> streams_;
};

// Buffers made on one stream and used up on another: their frees are complete only later.
inline void generate_handover(generator& to) {
    struct lent {
        std::uint64_t due, block;
    };
    std::deque<lent> under_way;
    std::array<std::vector<std::uint64_t>, 4> own;
    const auto settle = [&] {
        while (!under_way.empty() && under_way.front().due <= to.now) {
            to.free(under_way.front().block);
            under_way.pop_front();
        }
    };
    for (int step = 0; step < 2500; ++step) {
        const std::uint64_t stream = to.random.between(0, 3);
        to.now += to.random.between(50, 400);
        settle();
        const std::uint64_t batch = to.random.between(1, 6);
        for (std::uint64_t i = 0; i < batch; ++i) {
            const std::uint64_t bytes = to.random.between_doublings(18, 27);  // 256 KiB to 128 MiB
            const std::uint64_t block = to.allocate(bytes, stream);
            to.now += 5 + bytes / 100'000;  // filled at 100 GB/s
            if (to.random.chance(3)) {
                own[stream].push_back(block);
                continue;
            }
            to.request(block);
            const std::uint64_t due =
                std::max(to.now + to.random.between(100, 3000) + bytes / 50'000,
                         under_way.empty() ? 0 : under_way.back().due);
            under_way.push_back({due, block});
        }
        if (own[stream].size() > 12) {
            to.free_shuffled(own[stream]);
        }
    }
    to.now += 100000;
    settle();
}

// Many threads, a stream each, in phases: who works changes, what they hold when idle is little.
inline void generate_threads(generator& to) {
    constexpr std::uint64_t threads = 24;
    std::vector<std::vector<std::uint64_t>> held(threads);
    std::vector<std::uint64_t> shape(threads);
    for (auto& one : shape) {
        one = to.random.between(14, 22);
    }
    for (int phase = 0; phase < 40; ++phase) {
        std::vector<std::uint64_t> active;
        for (int i = 0; i < 6; ++i) {
            active.push_back(to.random.between(0, threads - 1));
        }
        for (int i = 0; i < 1500; ++i) {
            const std::uint64_t stream = active[to.random.between(0, active.size() - 1)];
            auto& own = held[stream];
            to.now += to.random.between(2, 60);
            if (own.size() < 40 && !to.random.chance(3)) {
                const auto low = static_cast<unsigned>(shape[stream]);
                own.push_back(to.allocate(to.random.between_doublings(low, low + 5), stream));
            } else if (!own.empty()) {
                const auto at = static_cast<std::ptrdiff_t>(to.random.between(0, own.size() - 1));
                to.free(own[static_cast<std::size_t>(at)]);
                own.erase(own.begin() + at);
            }
        }
        for (const std::uint64_t stream : active) {
            to.free_shuffled(held[stream]);
        }
    }
}

// Three days of requests: caches that grow with every token, load that follows the hour, models that come
// and go.
inline void generate_days(generator& to) {
    struct request {
        std::vector<std::uint64_t> parts;
        std::uint64_t stream, part_bytes, left;
    };
    std::vector<request> open;
    std::vector<std::uint64_t> model;
    const auto load_model = [&] {
        const std::uint64_t layer = to.random.between(20, 90) * mib + to.random.between(0, 7) * 512;
        for (int i = 0; i < 48; ++i) {
            model.push_back(to.allocate(layer, 0));
            to.now += 2000;
        }
    };
    load_model();
    constexpr std::uint64_t hour = std::uint64_t{3600} * 1'000'000;
    constexpr std::array<std::uint64_t, 6> busy = {2, 4, 14, 30, 22, 8};
    while (to.now < 72 * hour) {
        const std::uint64_t wanted = busy[to.now / (4 * hour) % busy.size()];
        to.now += to.random.between(1'000'000, 9'000'000);
        if (open.size() < wanted) {
            const std::uint64_t stream = to.random.between(1, 4);
            const std::uint64_t prompt = to.random.between(1, 64);
            request one{{},
                        stream,
                        to.random.between(1, 4) * mib + to.random.between(0, 3) * 1536,
                        to.random.between(4, 60)};
            one.parts.push_back(to.allocate(prompt * one.part_bytes, stream));
            const std::uint64_t scratch = to.allocate(prompt * 3 * mib + 512, stream);
            to.now += 40000;
            to.free(scratch);
            open.push_back(std::move(one));
        }
        for (std::size_t i = 0; i < open.size();) {
            request& one = open[i];
            if (to.random.chance(3)) {
                one.parts.push_back(to.allocate(one.part_bytes, one.stream));
                to.now += 500;
                one.left -= 1;
            }
            if (one.left == 0 || to.random.chance(400)) {
                to.free_shuffled(one.parts);
                open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
            } else {
                ++i;
            }
        }
        if (to.random.chance(4000)) {  // another model is served
            to.free_shuffled(model);
            load_model();
        }
    }
}

// Sizes on and beside powers of two and the sizes of handles.
inline void generate_sizes(generator& to) {
    std::vector<std::uint64_t> sizes;
    for (unsigned shift = 9; shift <= 28; ++shift) {
        const std::uint64_t whole = std::uint64_t{1} << shift;
        for (const std::uint64_t one :
             {whole - 512, whole - 1, whole, whole + 1, whole + 512, whole + whole / 2 + 512}) {
            if (one > 0) {
                sizes.push_back(one);
            }
        }
    }
    std::vector<std::uint64_t> held;
    for (int i = 0; i < 12000; ++i) {
        to.now += to.random.between(5, 200);
        if (held.size() < 60 || to.random.chance(2)) {
            held.push_back(to.allocate(sizes[to.random.between(0, sizes.size() - 1)]));
        }
        if (held.size() > 90 || (!held.empty() && to.random.chance(2))) {
            const auto at = static_cast<std::ptrdiff_t>(to.random.between(0, held.size() - 1));
            to.free(held[static_cast<std::size_t>(at)]);
            held.erase(held.begin() + at);
        }
    }
}

// Up in steps, down at once, each tooth with other sizes.
inline void generate_sawtooth(generator& to) {
    std::vector<std::uint64_t> held;
    for (int tooth = 0; tooth < 60; ++tooth) {
        const std::uint64_t bytes =
            to.random.between(3, 70) * mib + to.random.between(0, 4000) * 512;
        std::uint64_t sum = 0;
        while (sum < 4000 * mib) {
            held.push_back(to.allocate(bytes));
            sum += bytes;
            to.now += to.random.between(100, 900);
        }
        to.free_shuffled(held);
        to.now += 20000;
    }
}

// Every second block goes, then blocks a little too large for the gaps come.
inline void generate_checkerboard(generator& to) {
    std::vector<std::uint64_t> held;
    std::uint64_t bytes = 5 * mib;
    for (int round = 0; round < 30; ++round) {
        const std::uint64_t count = 3000 * mib / bytes;
        for (std::uint64_t i = held.size(); i < count; ++i) {
            held.push_back(to.allocate(bytes));
            to.now += to.random.between(50, 300);
        }
        std::vector<std::uint64_t> kept;
        for (std::size_t i = 0; i < held.size(); ++i) {
            if (i % 2 == 0) {
                kept.push_back(held[i]);
            } else {
                to.free(held[i]);
                to.now += 20;
            }
        }
        held = std::move(kept);
        bytes += to.random.between(1, 3) * mib / 2 + 512;
        if (round % 8 == 7) {
            to.free_shuffled(held);
            bytes = to.random.between(2, 9) * mib;
        }
    }
}

// A program whose most live bytes are a few tens of MB.
inline void generate_tiny(generator& to) {
    std::vector<std::uint64_t> held;
    std::uint64_t live = 0;
    std::vector<std::uint64_t> sizes;
    for (int i = 0; i < 20000; ++i) {
        to.now += to.random.between(5, 80);
        const std::uint64_t bytes = to.random.between_doublings(8, 22);
        if (live + bytes < 24 * mib) {
            const std::uint64_t block = to.allocate(bytes);
            sizes.resize(block + 1);
            sizes[block] = bytes;
            held.push_back(block);
            live += bytes;
        } else if (!held.empty()) {
            const auto at = static_cast<std::ptrdiff_t>(to.random.between(0, held.size() - 1));
            const std::uint64_t block = held[static_cast<std::size_t>(at)];
            to.free(block);
            live -= sizes[block];
            held.erase(held.begin() + at);
        }
    }
}

// Training steps of two kinds in turn, with an evaluation of other shapes now and then.
inline void generate_steps(generator& to) {
    std::vector<std::uint64_t> layers;
    for (int i = 0; i < 60; ++i) {
        layers.push_back(to.random.between(2, 160) * mib + to.random.between(0, 2047) * 512);
    }
    for (int i = 0; i < 60; ++i) {
        (void)to.allocate(to.random.between(4, 40) * mib);  // weights
        to.now += 100;
    }
    std::vector<std::uint64_t> kept;
    for (int step = 0; step < 80; ++step) {
        const bool is_evaluation = step % 11 == 10;
        const std::uint64_t scale = is_evaluation ? 5 : step % 2 == 0 ? 4 : 3;
        for (const std::uint64_t layer : layers) {
            const std::uint64_t scratch = to.allocate(layer * scale / 3 + 512);
            to.now += to.random.between(200, 600);
            if (!is_evaluation) {
                kept.push_back(to.allocate(layer * scale / 4));
            }
            to.now += to.random.between(200, 600);
            to.free(scratch);
        }
        while (!kept.empty()) {
            const std::uint64_t gradient = to.allocate(layers[kept.size() % layers.size()] / 2);
            to.now += to.random.between(300, 900);
            to.free(kept.back());
            kept.pop_back();
            to.free(gradient);
        }
        to.now += 5000;
    }
}

struct named_generator {
    const char* name;
    void (*run)(generator& to);
};
inline constexpr std::array<named_generator, 8> generators = {
    {{"handover", generate_handover},
     {"threads", generate_threads},
     {"days", generate_days},
     {"sizes", generate_sizes},
     {"sawtooth", generate_sawtooth},
     {"checkerboard", generate_checkerboard},
     {"tiny", generate_tiny},
     {"steps", generate_steps}}};

}  // namespace detail

[[nodiscard]] inline std::vector<std::string> generator_names() {
    std::vector<std::string> out;
    for (const auto& one : detail::generators) {
        out.emplace_back(one.name);
    }
    return out;
}

// NAME or NAME:SEED.
[[nodiscard]] inline trace generate_trace(std::string_view wanted) {
    const std::size_t colon = wanted.find(':');
    const std::string_view name = wanted.substr(0, colon);
    std::uint64_t seed = 1;
    if (colon != std::string_view::npos) {
        const std::string_view text = wanted.substr(colon + 1);
        const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
        if (error != std::errc{} || stop != text.data() + text.size()) {
            throw bad_input(fmt::format("--generate: '{}' is not a seed", text));
        }
    }
    for (const auto& one : detail::generators) {
        if (name == one.name) {
            detail::generator to{seed};
            one.run(to);
            return std::move(to).finish(fmt::format("{}:{}", name, seed));
        }
    }
    throw bad_input(fmt::format("--generate: no load '{}'; known are {}", name,
                                fmt::join(generator_names(), ", ")));
}

// As read_csv reads it.
[[nodiscard]] inline std::string trace_as_csv(const trace& source) {
    std::string out = fmt::format("# {}: op,id,size,stream,us\n", source.name);
    for (const trace_event& one : source.events) {
        fmt::format_to(std::back_inserter(out), "{},{},{},{},{}\n",
                       one.op == trace_op::allocate         ? 'a'
                       : one.op == trace_op::free_requested ? 'r'
                                                            : 'f',
                       one.block, one.bytes, source.streams[one.stream], one.microseconds);
    }
    return out;
}

}  // namespace xmm::trace_replay
