// SPDX-License-Identifier: Apache-2.0
// books.hpp - what all libraries of a process that show the C interface have in common: queues and tags by name.
//
// Model    Both books are in the registry. A queue's handle is the address of its object; a tag is a number from
//          1 on. Queues come and go, tags stay.
// Threads  Any. A mutex a book, taken before all ranked locks; the queue that a thread used last is found without.
#pragma once

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <xmm/facade/space.hpp>

namespace xmm::c_interface {

class queue_book {
public:
    static constexpr const char* registry_key = "c_queues/1";

    static queue_book& instance() { return registry::object<queue_book>(); }

    result<void*> create(space& owner, node_id node) {
        result<queue> made = owner.make_queue(node);
        if (!made) {
            return made.error();
        }
        auto kept = std::make_shared<queue>(std::move(*made));
        void* handle = kept.get();
        std::lock_guard guard{order_};
        queues_.emplace(handle, std::move(kept));
        return handle;
    }
    status destroy(void* handle) {
        std::shared_ptr<queue> leaving;
        {
            std::lock_guard guard{order_};
            const auto found = queues_.find(handle);
            if (found == queues_.end()) {
                return unknown();
            }
            leaving = std::move(found->second);
            queues_.erase(found);
            // release: pairs with the acquire in id_of; what threads remember is of no use any more.
            epoch_.fetch_add(1, std::memory_order_release);
        }
        return leaving->synchronize();
    }
    // NULL is no queue: number 0.
    result<queue_id> id_of(void* handle) {
        struct memory {
            void* handle;
            queue_id id;
            std::uint64_t epoch;
        };
        thread_local memory last{};
        const std::uint64_t epoch = epoch_.load(std::memory_order_acquire);
        if (handle != nullptr && (last.handle != handle || last.epoch != epoch)) {
            std::shared_ptr<queue> found = find(handle);
            if (found == nullptr) {
                return unknown();
            }
            last = {handle, found->id(), epoch};
        }
        return handle != nullptr ? last.id : queue_id{};
    }
    // Null if it is none of ours.
    std::shared_ptr<queue> find(void* handle) {
        std::lock_guard guard{order_};
        const auto found = queues_.find(handle);
        return found != queues_.end() ? found->second : nullptr;
    }
    // NULL for a queue that is gone.
    void* handle_of(queue_id id) {
        std::lock_guard guard{order_};
        for (const auto& [handle, one] : queues_) {
            if (one->id() == id) {
                return handle;
            }
        }
        return nullptr;
    }
    static status unknown() noexcept {
        return fail(errc::invalid_argument, "no such queue: use one of xmm_queue_create, or NULL");
    }

private:
    std::atomic<std::uint64_t> epoch_{1};
    std::mutex order_;
    std::unordered_map<void*, std::shared_ptr<queue>> queues_;  // under order_
};

class tag_book {
public:
    static constexpr const char* registry_key = "c_tags/1";
    static constexpr std::size_t most_tags = 1024;
    static constexpr std::size_t name_bytes = 32;

    static tag_book& instance() { return registry::object<tag_book>(); }

    result<std::uint16_t> find_or_make(const char* name) noexcept {
        if (name == nullptr || *name == '\0' || ::strnlen(name, name_bytes) == name_bytes) {
            return fail(errc::invalid_argument, "a tag's name has 1 to 31 bytes");
        }
        std::lock_guard guard{order_};
        // relaxed: written under this lock only.
        const std::uint32_t count = count_.load(std::memory_order_relaxed);
        for (std::uint32_t i = 0; i < count; ++i) {
            if (std::strcmp(names_[i].data(), name) == 0) {
                return static_cast<std::uint16_t>(i + 1);
            }
        }
        if (count == most_tags) {
            return fail(errc::no_memory, "a process has at most 1024 tags");
        }
        std::strcpy(names_[count].data(), name);
        // release: pairs with the acquire below; the name is complete.
        count_.store(count + 1, std::memory_order_release);
        return static_cast<std::uint16_t>(count + 1);
    }
    // Null if there is no such tag. Tag 0 is "".
    [[nodiscard]] const char* name_of(std::uint32_t tag) const noexcept {
        if (tag == 0) {
            return "";
        }
        return tag <= count_.load(std::memory_order_acquire) ? names_[tag - 1].data() : nullptr;
    }
    [[nodiscard]] std::vector<std::string> names() const {
        std::vector<std::string> all;
        for (std::uint32_t tag = 0; const char* name = name_of(tag); ++tag) {
            all.emplace_back(name);
        }
        return all;
    }

private:
    std::mutex order_;
    std::atomic<std::uint32_t> count_{0};                          // written under order_
    std::array<std::array<char, name_bytes>, most_tags> names_{};  // constant once counted
};

}  // namespace xmm::c_interface
