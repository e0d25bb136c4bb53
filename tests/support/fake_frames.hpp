// SPDX-License-Identifier: Apache-2.0
// fake_frames.hpp - a device of frames that exist on paper, and that notices every misuse.
//
// Model    Frames, slots and mappings are records. Work is what a test says is submitted: it uses the frames that
//          are mapped in its range then, and is unfinished until the test (or a wait) finishes its queue. A
//          rule that is broken counts as a fault, with what it was; nothing is thrown.
// Threads  Any. One mutex.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <xmm/resources/frame_port.hpp>

namespace xmm::test {

class fake_frames final : public frame_port {
public:
    struct calls_made {
        unsigned reserve = 0, release = 0, create = 0, drop = 0, map = 0, unmap = 0, record = 0,
                 wait = 0;
    };

    explicit fake_frames(std::size_t device_bytes = std::size_t{1} << 40, bool can_alias = false)
        : device_bytes_{device_bytes}, can_alias_{can_alias} {}

    // ---- what a test says and asks

    // Each call from now on fails with this chance, in 1/1000.
    void fail_with_chance(unsigned reserve, unsigned create, unsigned map, unsigned record) {
        std::lock_guard guard{mutex_};
        reserve_chance_ = reserve;
        create_chance_ = create;
        map_chance_ = map;
        record_chance_ = record;
    }
    // The call so many calls ahead fails (1: the next one); 0: none does.
    void fail_map_after(unsigned calls) {
        std::lock_guard guard{mutex_};
        failing_map_ = calls;
    }
    // Once, within the next map.
    std::function<void()> during_map;

    void set_device_bytes(std::size_t bytes) {
        std::lock_guard guard{mutex_};
        device_bytes_ = bytes;
    }
    // Work of this queue uses the range; it is finished by finish or wait.
    void use(va_range range, queue_id queue) {
        std::lock_guard guard{mutex_};
        const std::uint64_t number = ++submitted_[queue.value];
        auto at = slots_.upper_bound(range.begin);
        if (at != slots_.begin()) {
            --at;
        }
        std::size_t covered = 0;
        for (; at != slots_.end() && at->first < range.end(); ++at) {
            const va_range common = intersect({at->first, at->second.bytes}, range);
            if (common.is_empty() || at->second.is_lent) {
                continue;
            }
            covered += common.bytes;
            auto& users = frames_[at->second.frame].users;
            for (const auto& [other, last] : users) {
                if (other != queue.value && last > finished_[other]) {
                    fault("two queues use one frame at a time");
                }
            }
            users[queue.value] = number;
            at->second.users[queue.value] = number;
        }
        if (covered != range.bytes) {
            fault("a used byte has no frame");
        }
    }
    void finish(queue_id queue) {
        std::lock_guard guard{mutex_};
        finished_[queue.value] = submitted_[queue.value];
    }
    [[nodiscard]] bool is_backed(va_range range) const {
        std::lock_guard guard{mutex_};
        std::size_t covered = 0;
        for (const auto& [begin, slot] : slots_) {
            covered += slot.is_lent ? 0 : intersect({begin, slot.bytes}, range).bytes;
        }
        return covered == range.bytes;
    }
    [[nodiscard]] std::size_t held_bytes() const {
        std::lock_guard guard{mutex_};
        return held_bytes_;
    }
    [[nodiscard]] std::size_t frame_count() const {
        std::lock_guard guard{mutex_};
        return frames_.size();
    }
    [[nodiscard]] std::size_t mapping_count() const {
        std::lock_guard guard{mutex_};
        return slots_.size();
    }
    [[nodiscard]] std::size_t reservation_count() const {
        std::lock_guard guard{mutex_};
        return reservations_.size();
    }
    [[nodiscard]] calls_made calls() const {
        std::lock_guard guard{mutex_};
        return calls_;
    }
    // Empty if no rule was broken.
    [[nodiscard]] std::string faults() const {
        std::lock_guard guard{mutex_};
        return faults_;
    }

    // ---- frame_port

    result<address> reserve(std::size_t bytes, std::size_t slot_bytes) noexcept override {
        std::lock_guard guard{mutex_};
        ++calls_.reserve;
        if (fails(reserve_chance_)) {
            return fail(errc::no_memory, "told to fail");
        }
        if (bytes == 0 || bytes % slot_bytes != 0) {
            fault("a reservation is not of whole slots");
        }
        const address begin = align_up(next_address_, slot_bytes);
        next_address_ = begin + bytes + page_bytes;
        reservations_[begin] = {bytes, slot_bytes};
        return begin;
    }
    void release(va_range range) noexcept override {
        std::lock_guard guard{mutex_};
        ++calls_.release;
        const auto at = reservations_.find(range.begin);
        if (at == reservations_.end() || at->second.bytes != range.bytes) {
            fault("released what was not reserved");
            return;
        }
        const auto slot = slots_.lower_bound(range.begin);
        if (slot != slots_.end() && slot->first < range.end()) {
            fault("released with a frame mapped in it");
        }
        reservations_.erase(at);
    }
    result<port_frame> create(std::size_t bytes) noexcept override {
        std::lock_guard guard{mutex_};
        ++calls_.create;
        if (fails(create_chance_) || held_bytes_ + bytes > device_bytes_) {
            return fail(errc::no_memory, "the device is full");
        }
        held_bytes_ += bytes;
        const std::uintptr_t number = next_frame_++;
        frames_[number].bytes = bytes;
        return port_frame{reinterpret_cast<void*>(number)};
    }
    void drop(port_frame one, std::size_t bytes) noexcept override {
        std::lock_guard guard{mutex_};
        ++calls_.drop;
        const auto at = frames_.find(number_of(one));
        if (at == frames_.end() || at->second.bytes != bytes) {
            fault("dropped what is no frame");
            return;
        }
        if (at->second.mappings != 0) {
            fault("dropped a frame that is mapped");
        }
        held_bytes_ -= bytes;
        frames_.erase(at);
    }
    status map(address slot, port_frame one, std::size_t bytes) noexcept override {
        if (const auto now = std::exchange(during_map, nullptr)) {
            now();
        }
        std::lock_guard guard{mutex_};
        ++calls_.map;
        if (fails(map_chance_) || (failing_map_ != 0 && --failing_map_ == 0)) {
            return fail(errc::no_memory, "told to fail");
        }
        auto within = reservations_.upper_bound(slot);
        if (within == reservations_.begin()) {
            fault("mapped outside of every reservation");
            return {};
        }
        --within;
        if (slot + bytes > within->first + within->second.bytes ||
            within->second.slot_bytes != bytes || (slot - within->first) % bytes != 0) {
            fault("mapped where no slot of this size is");
        }
        const auto frame = frames_.find(number_of(one));
        if (frame == frames_.end() || frame->second.bytes != bytes) {
            fault("mapped what is no frame of this size");
            return {};
        }
        if (slots_.count(slot) != 0) {
            fault("mapped where a frame is mapped");
        }
        if (++frame->second.mappings > 1 && !can_alias_) {
            fault("mapped a frame twice");
        }
        if (has_owner(number_of(one))) {
            fault("mapped a frame that another slot has");
        }
        slots_[slot] = {bytes, number_of(one), {}, false};
        return {};
    }
    void unmap(address slot, port_frame one, std::size_t bytes) noexcept override {
        std::lock_guard guard{mutex_};
        ++calls_.unmap;
        const auto at = slots_.find(slot);
        if (at == slots_.end() || at->second.frame != number_of(one) || at->second.bytes != bytes) {
            fault("unmapped what is not mapped");
            return;
        }
        for (const auto& [queue, last] : at->second.users) {
            if (last > finished_[queue]) {
                fault("unmapped while work uses the slot");
            }
        }
        --frames_[at->second.frame].mappings;
        slots_.erase(at);
    }
    result<ticket> record(queue_id queue) noexcept override {
        std::lock_guard guard{mutex_};
        ++calls_.record;
        if (fails(record_chance_)) {
            return fail(errc::no_memory, "told to fail");
        }
        return ticket{queue, submitted_[queue.value]};
    }
    bool is_done(ticket point) noexcept override {
        std::lock_guard guard{mutex_};
        return point.queue.value == 0 || point.value <= finished_[point.queue.value];
    }
    status wait(ticket point) noexcept override {
        std::lock_guard guard{mutex_};
        ++calls_.wait;
        auto& finished = finished_[point.queue.value];
        finished = std::max(finished, point.value);
        return {};
    }
    [[nodiscard]] bool can_alias() const noexcept override { return can_alias_; }
    void lend(address slot, port_frame one, std::size_t) noexcept override {
        std::lock_guard guard{mutex_};
        const auto at = slots_.find(slot);
        if (at == slots_.end() || at->second.frame != number_of(one) || at->second.is_lent) {
            fault("lent what the slot does not have");
            return;
        }
        at->second.is_lent = true;
    }
    void come_back(address slot, port_frame one, std::size_t) noexcept override {
        std::lock_guard guard{mutex_};
        const auto at = slots_.find(slot);
        if (at == slots_.end() || at->second.frame != number_of(one) || !at->second.is_lent ||
            has_owner(number_of(one))) {
            fault("what came back was not lent, or is another slot's");
            return;
        }
        at->second.is_lent = false;
    }
    [[nodiscard]] bool is_quiet(address slot) noexcept override {
        std::lock_guard guard{mutex_};
        return loud_.count(slot) == 0;
    }
    // Copies to come name the slot.
    void set_loud(address slot) {
        std::lock_guard guard{mutex_};
        loud_.insert(slot);
    }

private:
    struct reservation {
        std::size_t bytes = 0;
        std::size_t slot_bytes = 0;
    };
    struct frame_record {
        std::size_t bytes = 0;
        unsigned mappings = 0;
        std::map<std::uint32_t, std::uint64_t> users;  // queue -> its last work here
    };
    struct slot_record {
        std::size_t bytes = 0;
        std::uintptr_t frame = 0;
        std::map<std::uint32_t, std::uint64_t> users;
        bool is_lent = false;
    };

    [[nodiscard]] bool has_owner(std::uintptr_t frame) const noexcept {
        for (const auto& [begin, slot] : slots_) {
            if (slot.frame == frame && !slot.is_lent) {
                return true;
            }
        }
        return false;
    }
    static std::uintptr_t number_of(port_frame one) noexcept {
        return reinterpret_cast<std::uintptr_t>(one.handle);
    }
    bool fails(unsigned chance) noexcept {
        random_ = random_ * 6364136223846793005U + 1442695040888963407U;
        return chance != 0 && (random_ >> 33) % 1000 < chance;
    }
    void fault(const char* what) noexcept {
        if (faults_.size() < 400) {
            faults_ += what;
            faults_ += "; ";
        }
    }

    mutable std::mutex mutex_;
    std::size_t device_bytes_;
    const bool can_alias_;
    std::map<address, reservation> reservations_;
    std::map<address, slot_record> slots_;
    std::set<address> loud_;
    std::map<std::uintptr_t, frame_record> frames_;
    std::map<std::uint32_t, std::uint64_t> submitted_;
    std::map<std::uint32_t, std::uint64_t> finished_;
    calls_made calls_;
    std::string faults_;
    std::size_t held_bytes_ = 0;
    std::uintptr_t next_frame_ = 1;
    address next_address_ = address{1} << 40;
    std::uint64_t random_ = 1;
    unsigned reserve_chance_ = 0, create_chance_ = 0, map_chance_ = 0, record_chance_ = 0;
    unsigned failing_map_ = 0;
};

}  // namespace xmm::test
