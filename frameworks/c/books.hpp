// SPDX-License-Identifier: Apache-2.0
// books.hpp - what all libraries of a process that show the C interface have in common: queues and tags by name.
//
// Model    Both books are in the registry. A queue's handle is the address of its object; a tag is a number from
//          1 on. Queues come and go, tags stay. A stream that is adopted several times is one queue: all who
//          adopt it have its blocks in one order.
// Threads  Any. A mutex a book, taken before all ranked locks; the queue that a thread used last is found without.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

#include <xmm/facade/space.hpp>

namespace xmm::c_interface {

// Throws std::bad_alloc: what is asked of a book is answered as a status by then.
template <class Book>
Book& book_of_process() {
    Book* made = registry::try_object<Book>();
    return made != nullptr ? *made : throw std::bad_alloc{};
}

class queue_book {
public:
    static constexpr const char* registry_key = "c_queues/2";

    static queue_book& instance() { return book_of_process<queue_book>(); }

    result<void*> create(space& owner, node_id node) {
        result<queue> made = owner.make_queue(node);
        if (!made) {
            return made.error();
        }
        auto kept = std::make_shared<queue>(std::move(*made));
        std::lock_guard guard{order_};
        return keep_locked({std::move(kept), {}, 0});
    }
    status destroy(void* handle) {
        if (registry::is_forked_child()) {
            return not_here();
        }
        std::shared_ptr<queue> leaving;
        {
            std::lock_guard guard{order_};
            const auto found = queues_.find(handle);
            if (found == queues_.end()) {
                return unknown();
            }
            if (found->second.adoptions != 0) {
                return fail(errc::invalid_argument, "an adopted stream: xmm_queue_forget");
            }
            leaving = take_out_locked(found);
        }
        return leaving->synchronize();
    }

    // A vendor's stream as a queue of its device; the same one again is the same queue, and is to be forgotten as
    // often.
    result<void*> adopt(space& owner, void* native) {
#if XMM_HAS_CUDA
        result<native_key> key = key_of(native);
        if (!key) {
            return key.error();
        }
        std::lock_guard guard{order_};
        for (auto& [handle, one] : queues_) {
            if (one.adoptions != 0 && one.of == *key) {
                ++one.adoptions;
                return handle;
            }
        }
        result<queue> made = owner.adopt_stream(native);
        if (!made) {
            return made.error();
        }
        return keep_locked({std::make_shared<queue>(std::move(*made)), *key, 1});
#else
        static_cast<void>(owner), static_cast<void>(native);
        return fail(errc::unsupported, "this library was built without its CUDA backend");
#endif
    }
    // Waits for its work when nobody else has adopted it. Nothing has changed where it cannot say how far it is. busy:
    // the stream is being captured. no_memory: too much waits in it.
    status forget(void* handle) {
        if (registry::is_forked_child()) {
            return not_here();
        }
        std::shared_ptr<queue> leaving;
        status outcome;
        ticket last;
        {
            std::lock_guard guard{order_};
            const auto found = queues_.find(handle);
            if (found == queues_.end()) {
                return unknown();
            }
            if (found->second.adoptions == 0) {
                return fail(errc::invalid_argument, "not an adopted stream: xmm_queue_destroy");
            }
            if (found->second.adoptions > 1) {
                --found->second.adoptions;
                return {};
            }
            result<ticket> point = found->second.line->record();
            if (point.code() == errc::busy || point.code() == errc::no_memory) {
                return point.error();
            }
            outcome = point.error();
            last = point ? *point : ticket{};
            leaving = take_out_locked(found);
        }
        return outcome ? leaving->wait(last) : outcome;
    }
    struct description {
        node_id node;
        void* native = nullptr;
        bool is_native = false;
        bool is_adopted = false;
    };
    result<description> describe(void* handle) {
        if (registry::is_forked_child()) {
            return not_here();
        }
        std::lock_guard guard{order_};
        const auto found = queues_.find(handle);
        if (found == queues_.end()) {
            return unknown();
        }
        description about;
        about.node = found->second.line->node();
        about.is_adopted = found->second.adoptions != 0;
#if XMM_HAS_CUDA
        if (void* driver = found->second.line->native(cuda::vmm::native_kind)) {
            about.is_native = true;
            about.native = static_cast<cuda::vmm*>(driver)->stream_of(found->second.line->id());
        }
#endif
        return about;
    }

    // NULL is no queue: number 0.
    result<queue_id> id_of(void* handle) {
        struct memory {
            void* handle;
            queue_id id;
            std::uint64_t epoch;
        };
        thread_local memory last{};
        // acquire: pairs with the release in take_out_locked.
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
    // Another one than before: a queue of the book has ended, or is about to.
    [[nodiscard]] std::uint64_t ends() const noexcept {
        // acquire: pairs with the release in take_out_locked.
        return epoch_.load(std::memory_order_acquire);
    }
    // Null if it is none of ours.
    std::shared_ptr<queue> find(void* handle) {
        std::lock_guard guard{order_};
        const auto found = queues_.find(handle);
        return found != queues_.end() ? found->second.line : nullptr;
    }
    // NULL for a queue that is gone.
    void* handle_of(queue_id id) {
        std::lock_guard guard{order_};
        for (const auto& [handle, one] : queues_) {
            if (one.line->id() == id) {
                return handle;
            }
        }
        return nullptr;
    }
    static status unknown() noexcept {
        return fail(errc::invalid_argument,
                    "no such queue: they come from xmm_queue_create and xmm_queue_adopt");
    }
    static status not_here() noexcept {
        return fail(errc::forked, "this is a forked child: the queues are its parent's");
    }

private:
    // A stream in its context: the legacy one has no other name.
    struct native_key {
        void* context = nullptr;
        void* stream = nullptr;
        friend bool operator==(const native_key&, const native_key&) = default;
    };
    struct entry {
        std::shared_ptr<queue> line;
        native_key of;          // of an adopted stream
        std::size_t adoptions;  // that were not forgotten; 0: made here
    };

    void* keep_locked(entry one) {
        xmm::detail::keep_this_object();  // what ends the queue is a function of this library
        void* handle = one.line.get();
        queues_.emplace(handle, std::move(one));
        return handle;
    }
    std::shared_ptr<queue> take_out_locked(std::unordered_map<void*, entry>::iterator at) {
        std::shared_ptr<queue> leaving = std::move(at->second.line);
        queues_.erase(at);
        // release: pairs with the acquires in id_of and ends; what threads remember is of no use any more.
        epoch_.fetch_add(1, std::memory_order_release);
        return leaving;
    }
#if XMM_HAS_CUDA
    static result<native_key> key_of(void* native) noexcept {
        const cuda::driver& driver = cuda::driver::instance();
        if (!driver.state()) {
            return driver.state();
        }
        constexpr std::uintptr_t legacy_by_name = 1;  // CU_STREAM_LEGACY: the same stream as 0
        auto* stream = static_cast<cuda::CUstream>(native);
        const cuda::relaxed_capture quiet{driver};
        cuda::CUcontext context = nullptr;
        const status asked = driver.call(&cuda::driver_api::stream_get_ctx, stream, &context);
        if (!asked) {
            return fail(errc::unsupported, "not a stream of a context of CUDA", asked.driver_code);
        }
        const bool is_legacy = reinterpret_cast<std::uintptr_t>(native) == legacy_by_name;
        return native_key{context, is_legacy ? nullptr : native};
    }
#endif

    std::atomic<std::uint64_t> epoch_{1};
    std::mutex order_;
    std::unordered_map<void*, entry> queues_;  // under order_
};

class tag_book {
public:
    static constexpr const char* registry_key = "c_tags/1";
    static constexpr std::size_t most_tags = 1024;
    static constexpr std::size_t name_bytes = 32;

    static tag_book& instance() { return book_of_process<tag_book>(); }

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
        // acquire: pairs with the release in find_or_make; the name is complete.
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
