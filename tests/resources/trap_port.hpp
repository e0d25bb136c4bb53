// SPDX-License-Identifier: Apache-2.0
// trap_port.hpp - a device made of address space that traps on any access, and books of what is mapped where.
// Fails on request; what is asked for wrongly is counted.
#pragma once

#include <xmm/resources/frame_port.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include <sys/mman.h>

class trap_port final : public xmm::frame_port {
public:
    std::size_t most_bytes = SIZE_MAX;         // of frames; beyond it there is no memory
    std::size_t fail_create_after = SIZE_MAX;  // that many succeed, then none
    bool fail_map = false;
    bool fail_reserve = false;

    ~trap_port() {
        for (auto& [begin, one] : reservations_) {
            ::munmap(one.mapped, one.mapped_bytes);
        }
    }

    // What is charged to the device, and address space taken.
    std::size_t frame_bytes() {
        const std::lock_guard guard{lock_};
        return frame_bytes_;
    }
    std::size_t reserved_bytes() {
        const std::lock_guard guard{lock_};
        std::size_t sum = 0;
        for (auto& [begin, one] : reservations_) {
            sum += one.bytes;
        }
        return sum;
    }
    std::size_t refused() {
        const std::lock_guard guard{lock_};
        return refused_;
    }
    std::size_t mistakes() {
        const std::lock_guard guard{lock_};
        return mistakes_;
    }
    bool has_frames(xmm::address at, std::size_t bytes) {
        const std::lock_guard guard{lock_};
        while (bytes != 0) {
            auto slot = mapped_.upper_bound(at);
            if (slot == mapped_.begin()) {
                return false;
            }
            --slot;
            const xmm::address end = slot->first + slot->second.bytes;
            if (end <= at) {
                return false;
            }
            const std::size_t covered = std::min<std::size_t>(bytes, end - at);
            at += covered;
            bytes -= covered;
        }
        return true;
    }

    xmm::result<xmm::address> reserve(std::size_t bytes, std::size_t slot_bytes) noexcept override {
        const std::lock_guard guard{lock_};
        if (fail_reserve) {
            return xmm::fail(xmm::errc::no_memory, "told to have no addresses");
        }
        mistakes_ += bytes % slot_bytes != 0 ? 1 : 0;
        const std::size_t mapped_bytes = bytes + slot_bytes;
        void* mapped = ::mmap(nullptr, mapped_bytes, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapped == MAP_FAILED) {
            return xmm::fail(xmm::errc::no_memory, "no addresses");
        }
        const xmm::address begin = xmm::align_up(xmm::to_address(mapped), slot_bytes);
        reservations_[begin] = {mapped, mapped_bytes, bytes};
        return begin;
    }
    void release(xmm::va_range reservation) noexcept override {
        const std::lock_guard guard{lock_};
        const auto at = reservations_.find(reservation.begin);
        const auto inside = mapped_.lower_bound(reservation.begin);
        if (at == reservations_.end() || at->second.bytes != reservation.bytes ||
            (inside != mapped_.end() && inside->first < reservation.end())) {
            ++mistakes_;
            return;
        }
        ::munmap(at->second.mapped, at->second.mapped_bytes);
        reservations_.erase(at);
    }
    xmm::result<xmm::port_frame> create(std::size_t bytes) noexcept override {
        const std::lock_guard guard{lock_};
        if (fail_create_after == 0 || frame_bytes_ + bytes > most_bytes) {
            ++refused_;
            return xmm::fail(xmm::errc::no_memory, "no frame");
        }
        fail_create_after -= fail_create_after != SIZE_MAX ? 1 : 0;
        frame_bytes_ += bytes;
        frames_[++last_frame_] = bytes;
        return xmm::port_frame{xmm::to_pointer(last_frame_)};
    }
    void drop(xmm::port_frame one, std::size_t bytes) noexcept override {
        const std::lock_guard guard{lock_};
        const auto at = frames_.find(xmm::to_address(one.handle));
        if (at == frames_.end() || at->second != bytes) {
            ++mistakes_;
            return;
        }
        frame_bytes_ -= bytes;
        frames_.erase(at);
    }
    xmm::status map(xmm::address slot, xmm::port_frame one, std::size_t bytes) noexcept override {
        const std::lock_guard guard{lock_};
        if (fail_map) {
            return xmm::fail(xmm::errc::no_memory, "told not to map");
        }
        mistakes_ += frames_.count(xmm::to_address(one.handle)) == 0 || slot % bytes != 0 ? 1 : 0;
        mistakes_ += mapped_.emplace(slot, mapping{one.handle, bytes}).second ? 0 : 1;
        return {};
    }
    void unmap(xmm::address slot, xmm::port_frame one, std::size_t bytes) noexcept override {
        const std::lock_guard guard{lock_};
        const auto at = mapped_.find(slot);
        if (at == mapped_.end() || at->second.handle != one.handle || at->second.bytes != bytes) {
            ++mistakes_;
            return;
        }
        mapped_.erase(at);
    }
    // No queue here has work.
    xmm::result<xmm::ticket> record(xmm::queue_id queue) noexcept override {
        return xmm::ticket{queue, 0};
    }
    bool is_done(xmm::ticket) noexcept override { return true; }
    xmm::status wait(xmm::ticket) noexcept override { return {}; }

private:
    struct reservation {
        void* mapped = nullptr;
        std::size_t mapped_bytes = 0;
        std::size_t bytes = 0;
    };
    struct mapping {
        void* handle = nullptr;
        std::size_t bytes = 0;
    };

    std::mutex lock_;
    std::map<xmm::address, reservation> reservations_;
    std::map<xmm::address, mapping> mapped_;
    std::map<xmm::address, std::size_t> frames_;
    xmm::address last_frame_ = 0;
    std::size_t frame_bytes_ = 0;
    std::size_t refused_ = 0;
    std::size_t mistakes_ = 0;
};
