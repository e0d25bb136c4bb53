// SPDX-License-Identifier: Apache-2.0
// rig.hpp - a Level Zero backend on the software driver, with a queue and shorthands for its operators.
//
// Model    At its end all is given back, and the driver counted no misuse.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "host_kernel.hpp"

namespace xmm::test {

inline constexpr std::array device_ids{node_id{1}, node_id{2}, node_id{3}, node_id{4}};
inline constexpr std::array host_ids{node_id{0}};
inline constexpr std::array host_bytes{std::size_t{1} << 30};

// The drivers found; none where they are not the software driver of the tests, whose kernels these tests use.
inline std::vector<levelzero::found_driver> soft_drivers(
    levelzero::tiles how = levelzero::tiles::apart) {
    auto found = levelzero::find_drivers(how);
    if (!found) {
        const status why = found.error();
        MESSAGE("skipped, no Level Zero: ", std::string{why.why}, " (", why.driver_code, ")");
        CHECK(std::getenv("ZE_ENABLE_ALT_DRIVERS") == nullptr);  // one that was asked for is there
        return {};
    }
    if (find_soft_ze(found->at(0).handle) == nullptr) {
        MESSAGE("skipped: not on the software driver");
        return {};
    }
    return std::move(*found);
}
inline bool is_skipped() { return soft_drivers().empty(); }
inline bool is_set(const char* name) {
    const char* text = std::getenv(name);
    return text != nullptr && *text != 0 && *text != '0';
}
// Cases about what is mapped have nothing to say where nothing can be.
inline bool is_skipped_without_maps() {
    const bool has_none = is_set("SOFT_ZE_NO_VIRTUAL_MEMORY");
    if (has_none) {
        MESSAGE("skipped: nothing can be mapped");
    }
    return has_none || is_skipped();
}

inline result<std::unique_ptr<levelzero::vmm>> open_levelzero(const levelzero::found_driver& from,
                                                              std::size_t most,
                                                              std::uint32_t salt = 1) {
    levelzero::vmm_options options;
    options.host_bytes = host_bytes;
    options.queue_salt = salt;
    return levelzero::vmm::open(from, {device_ids.data(), std::min(most, from.devices.size())},
                                host_ids, options);
}

struct levelzero_rig {
    levelzero::found_driver from;
    const soft_ze::controls& soft;
    std::uint64_t misuses = soft.misuses();
    std::size_t alive = soft.alive();
    std::unique_ptr<levelzero::vmm> opened;
    levelzero::vmm& b;
    node_id device{1};
    node_id host{0};
    queue_id queue;
    levelzero::stream line;
    std::unique_ptr<levelzero_words> words = std::make_unique<levelzero_words>();

    explicit levelzero_rig(std::size_t devices = 1)
        : from{soft_drivers().at(0)},
          soft{*find_soft_ze(from.handle)},
          opened{std::move(open_levelzero(from, devices).value())},
          b{*opened},
          queue{*b.queue_create(device, queue_priority::normal)},
          line{b, queue} {
        soft.reset();
    }
    ~levelzero_rig() {
        words.reset();
        b.queue_destroy(queue);
        for (node_id one : {host, device}) {
            CHECK(b.bytes_in_use(one) == 0);
        }
        opened.reset();
        CHECK(soft.alive() == alive);
        CHECK(soft.misuses() == misuses);
        soft.reset();
    }

    va_range reserve(std::size_t pages) {
        return b.va_examine({0, pages * page_bytes}, page_bytes).value();
    }
    frame create(node_id node, std::size_t pages = 1) {
        return b.frame_create(node, pages * page_bytes).value();
    }
    status enter(node_id who, va_range va, frame f, access how = access::read_write) {
        const run one{va, f, how};
        return b.pmap_enter(who, {&one, 1}).outcome;
    }
    status clear(node_id who, va_range va) { return b.pmap_clear(who, {&va, 1}).outcome; }
    std::uint64_t load(address at) {
        std::uint64_t seen = 0;
        CHECK(words->load(line, at, seen));
        return seen;
    }
    status store(address at, std::uint64_t value) { return words->store(line, at, value); }
    result<ticket> copy(queue_id in, address to, address from, std::size_t bytes) {
        const piece one{{to, bytes}, {from, bytes}};
        return b.memcpy(in, {&one, 1});
    }
    void fill(address to, std::uint64_t value, std::size_t bytes = page_bytes) {
        const std::vector<std::uint64_t> plain(bytes / sizeof value, value);
        CHECK(b.wait(copy(queue, to, to_address(plain.data()), bytes).value()));
    }
    // The first word, if all are the same.
    std::uint64_t read(address from, std::size_t bytes = page_bytes) {
        std::vector<std::uint64_t> plain(bytes / sizeof(std::uint64_t), 0x0bad);
        CHECK(b.wait(copy(queue, to_address(plain.data()), from, bytes).value()));
        CHECK(plain == std::vector<std::uint64_t>(plain.size(), plain[0]));
        return plain[0];
    }
};

inline va_range page_of(va_range range, std::size_t i) {
    return {range.begin + i * page_bytes, page_bytes};
}

}  // namespace xmm::test
