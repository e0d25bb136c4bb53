// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/xpu_malloc.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <xmm/resources/heap_resource.hpp>

#include "../support/sanitizer.hpp"
#include "watched_new.hpp"

#include <limits.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace xmm;
using namespace xmm::literals;

namespace {

// A device without memory: addresses that nobody can touch, frames that are only counted, and queues whose
// work is done when the test says so.
class paper_device final : public frame_port {
public:
    explicit paper_device(std::size_t bytes) : left_{bytes} {}
    ~paper_device() {
        CHECK(frames_ == 0);
        for (const auto& [begin, whole] : reserved_) {
            ::munmap(to_pointer(whole.begin), whole.bytes);
        }
    }

    result<address> reserve(std::size_t bytes, std::size_t slot_bytes) noexcept override {
        void* at = ::mmap(nullptr, bytes + slot_bytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        const address begin = align_up(to_address(at), slot_bytes);
        std::lock_guard guard{lock_};
        reserved_[begin] = {to_address(at), bytes + slot_bytes};
        return begin;
    }
    void release(va_range reservation) noexcept override {
        std::lock_guard guard{lock_};
        const auto found = reserved_.find(reservation.begin);
        ::munmap(to_pointer(found->second.begin), found->second.bytes);
        reserved_.erase(found);
    }
    result<port_frame> create(std::size_t bytes) noexcept override {
        std::lock_guard guard{lock_};
        if (bytes > left_) {
            return fail(errc::no_memory, "the paper is full");
        }
        left_ -= bytes;
        ++frames_;
        return port_frame{new char};
    }
    void drop(port_frame one, std::size_t bytes) noexcept override {
        std::lock_guard guard{lock_};
        left_ += bytes;
        --frames_;
        delete static_cast<char*>(one.handle);
    }
    status map(address, port_frame, std::size_t) noexcept override { return {}; }
    void unmap(address, port_frame, std::size_t) noexcept override {}
    result<ticket> record(queue_id queue) noexcept override {
        ++records;
        if (queue.value > 100 || (queue.value != 0 && queue.value == gone)) {
            return fail(errc::invalid_argument, "no such queue");
        }
        if (queue.value != 0 && queue.value == captured) {
            return fail(errc::busy, "the queue is being captured");
        }
        return queue.value == 0 ? ticket{} : ticket{queue, submitted_[queue.value]};
    }
    bool is_done(ticket point) noexcept override {
        if (has_hook.exchange(false)) {
            when_asked();
        }
        return point.value == 0 || done_[point.queue.value] >= point.value;
    }
    status wait(ticket point) noexcept override {
        if (!is_done(point)) {
            ++waits;
            done_[point.queue.value] = point.value;
        }
        return {};
    }

    void submit(queue_id queue) { ++submitted_[queue.value]; }
    void complete(queue_id queue) { done_[queue.value] = submitted_[queue.value].load(); }
    [[nodiscard]] std::size_t left() {
        std::lock_guard guard{lock_};
        return left_;
    }
    std::atomic<int> waits{0};
    std::atomic<int> records{0};
    std::atomic<std::uint32_t> captured{0};  // a queue
    std::atomic<std::uint32_t> gone{0};      // a queue
    void at_next_question(std::function<void()> then) {
        when_asked = std::move(then);
        has_hook = true;
    }
    std::atomic<bool> has_hook{false};
    std::function<void()> when_asked;  // before the next answer of is_done

private:
    std::mutex lock_;
    std::size_t left_;
    std::size_t frames_ = 0;
    std::map<address, va_range> reserved_;
    std::array<std::atomic<std::uint64_t>, 101> submitted_{};
    std::array<std::atomic<std::uint64_t>, 101> done_{};
};

constexpr node_id device{3};
constexpr queue_id first{1};
constexpr queue_id second{2};

struct malloc_rig {
    paper_device paper;
    xpu_malloc heap;

    explicit malloc_rig(std::size_t bytes = 256_MiB, malloc_options options = {},
                        malloc_surroundings around = {})
        : paper{bytes}, heap{paper, device, options, around} {
        for (std::uint32_t queue = 1; queue <= 20; ++queue) {
            paper.submit({queue});
        }
    }
    void* make(std::size_t bytes, queue_id queue = first, pool_tag tag = {}) {
        return heap.allocate({.bytes = bytes, .queue = queue, .tag = tag}).value();
    }
    [[nodiscard]] std::int64_t now(heap_metric metric) { return heap.figures().of(metric).current; }
};

// A size of each kind: small, where a jemalloc is linked in, and of the extent heap.
constexpr std::size_t sizes[] = {100, 5000, 32768, 32769, 3'000'000, 40'000'000};

}  // namespace

TEST_CASE("xpu_malloc: what a queue gives back, it gets again at once") {
    malloc_rig r;
    for (const std::size_t bytes : sizes) {
        CAPTURE(bytes);
        void* one = r.make(bytes);
        CHECK(to_address(one) % 256 == 0);
        CHECK(r.heap.deallocate(one, first));
        void* again = r.make(bytes);
        CHECK(again == one);
        CHECK(r.heap.deallocate(again));  // on its own queue
    }
    CHECK(r.paper.waits == 0);
    CHECK(r.now(heap_metric::allocation) == 0);
}

TEST_CASE("xpu_malloc: what another queue used last waits for that queue") {
    for (const std::size_t bytes : sizes) {
        CAPTURE(bytes);
        malloc_rig r;
        void* one = r.make(bytes);
        CHECK(r.heap.deallocate(one, second));
        CHECK(r.now(heap_metric::allocation) == 0);
        CHECK(r.now(heap_metric::active) == 1);
        void* other = r.make(bytes);
        CHECK(other != one);
        CHECK(r.heap.deallocate(one, second).code == errc::invalid_argument);  // given back already
        CHECK(r.heap.find(one).code() == errc::not_mapped);
        r.paper.complete(second);
        void* third = r.make(bytes);
        CHECK((bytes <= 32_KiB || third == one));  // a magazine may have others at hand
        CHECK(r.heap.deallocate(other, first));
        CHECK(r.heap.deallocate(third, first));
        CHECK(r.paper.waits == 0);
        static_cast<void>(r.heap.trim());
        CHECK(r.now(heap_metric::active) == 0);
    }
}

TEST_CASE("xpu_malloc: each queue that a block was lent to is awaited") {
    for (const std::size_t bytes : sizes) {
        CAPTURE(bytes);
        malloc_rig r;
        void* one = r.make(bytes);
        CHECK(r.heap.record_use(one, second));
        CHECK(r.heap.record_use(one, second));
        CHECK(r.heap.record_use(one, queue_id{5}));
        CHECK(r.heap.record_use(one, first));  // its own: nothing to note
        CHECK(r.heap.deallocate(one, first));
        r.paper.complete(second);
        void* other = r.make(bytes);
        CHECK(other != one);
        r.paper.complete(queue_id{5});
        void* third = r.make(bytes);
        CHECK((bytes <= 32_KiB || third == one));  // a magazine may have others at hand
        // The notes are gone with the first life.
        CHECK(r.heap.deallocate(third, first));
        CHECK(r.make(bytes) == third);
    }
}

TEST_CASE("xpu_malloc: a note of the next owner outlives the end of the last one") {
    malloc_rig r;
    void* lent = r.make(1_MiB);  // so that there are notes
    REQUIRE(r.heap.record_use(lent, queue_id{5}));
    std::atomic<void*> in_use{nullptr};  // by the second queue, though given back
    std::atomic<bool> is_over{false};
    std::atomic<int> lost{0};
    std::vector<std::thread> give_back;
    for (int i = 0; i < 3; ++i) {
        give_back.emplace_back([&] {
            while (!is_over) {
                void* one = r.make(3'000'000);
                lost += one == in_use ? 1 : 0;
                static_cast<void>(r.heap.deallocate(one));
            }
        });
    }
    for (int i = 0; i < 60'000; ++i) {
        void* one = r.make(3'000'000);
        r.paper.submit(second);
        static_cast<void>(r.heap.record_use(one, second));
        static_cast<void>(r.heap.deallocate(one));
        in_use = one;
        void* next = r.make(3'000'000);
        lost += next == one ? 1 : 0;
        static_cast<void>(r.heap.deallocate(next));
        in_use = nullptr;
        r.paper.complete(second);
    }
    is_over = true;
    for (std::thread& one : give_back) {
        one.join();
    }
    CHECK(lost == 0);
}

TEST_CASE("xpu_malloc: more lenders than a note holds are waited for on the spot") {
    malloc_rig r;
    void* one = r.make(1_MiB);
    for (std::uint32_t queue = 2; queue <= 12; ++queue) {
        CHECK(r.heap.record_use(one, {queue}));
    }
    CHECK(r.heap.deallocate(one, first));
    CHECK(r.paper.waits == 5);  // eleven queues, six notes
    for (std::uint32_t queue = 2; queue <= 12; ++queue) {
        r.paper.complete({queue});
    }
    CHECK(r.make(1_MiB) == one);
}

TEST_CASE("xpu_malloc: a tag whose blocks a captured queue uses is dropped, and they follow") {
    for (const std::size_t bytes : {std::size_t{1000}, std::size_t{40'000}}) {
        CAPTURE(bytes);
        malloc_rig r;
        const pool_tag tag = r.heap.make_tag().value();
        for (int i = 0; i < 200; ++i) {
            REQUIRE(r.heap.record_use(r.make(bytes, first, tag), second));
        }
        r.paper.captured = second.value;
        r.heap.drop_tag(tag);
        CHECK(r.now(heap_metric::allocation) == 0);
        CHECK(r.now(heap_metric::active) == 200);
        r.paper.captured = 0;
        static_cast<void>(r.heap.trim());
        CHECK(r.now(heap_metric::active) == 200);  // known now, and not over
        r.paper.complete(second);
        static_cast<void>(r.heap.trim());
        CHECK(r.now(heap_metric::active) == 0);
        CHECK(r.heap.make_tag().value() == tag);
    }
}

TEST_CASE("xpu_malloc: a resource's block given back on a captured queue goes back after that") {
    struct line {
        queue_id number;
        [[nodiscard]] queue_id id() const { return number; }
        status synchronize() { return fail(errc::busy, "the queue is being captured"); }
    };
    for (const std::size_t bytes : sizes) {
        CAPTURE(bytes);
        malloc_rig r;
        heap_resource memory{r.heap};
        line own{first};
        line captured{second};
        void* one = memory.allocate(own, bytes);
        r.paper.captured = second.value;
        CHECK(r.heap.deallocate(one, second).code == errc::busy);
        CHECK(r.heap.find(one).has_value());
        memory.deallocate(captured, one, bytes);
        CHECK(r.heap.find(one).code() == errc::not_mapped);
        CHECK(!r.heap.deallocate(one));
        CHECK(r.heap.deallocate_when_known(one).code == errc::invalid_argument);
        void* other = memory.allocate(own, bytes);
        CHECK(other != one);
        memory.deallocate(own, other, bytes);
        r.paper.captured = 0;
        static_cast<void>(r.heap.trim());
        CHECK(r.now(heap_metric::allocation) == 0);
        CHECK(r.now(heap_metric::active) == 1);
        r.paper.complete(second);
        static_cast<void>(r.heap.trim());
        CHECK(r.now(heap_metric::active) == 0);
        CHECK(r.paper.left() == 256_MiB);
    }
}

TEST_CASE("xpu_malloc: a snapshot allocates nothing under the lock that faults take") {
    malloc_rig r;
    std::vector<void*> blocks;
    for (int i = 0; i < 40; ++i) {
        blocks.push_back(r.heap.allocate({.bytes = i % 2 == 0 ? 3_MiB : 1_KiB}).value());
    }
    const std::size_t before = test::watched_new.count_under(lock_rank::device_frames);
    const heap_snapshot taken = r.heap.snapshot();
    CHECK(test::watched_new.count_under(lock_rank::device_frames) == before);
    CHECK(taken.is_valid());
    std::size_t count = 0;
    for (const snapshot_segment& segment : taken.segments) {
        for (const snapshot_block& block : segment.blocks) {
            count += block.state == block_state::active_allocated ? 1 : 0;
        }
    }
    CHECK(count == blocks.size());
    for (void* one : blocks) {
        CHECK(r.heap.deallocate(one));
    }
}

TEST_CASE("xpu_malloc: a queue that is being captured gets blocks and is lent some") {
    for (const std::size_t bytes : sizes) {
        CAPTURE(bytes);
        malloc_rig r;
        r.paper.captured = second.value;
        void* own = r.heap.allocate({.bytes = bytes, .queue = second}).value_or(nullptr);
        CHECK(own != nullptr);
        void* lent = r.make(bytes);
        CHECK(r.heap.record_use(lent, second));
        CHECK(r.heap.record_use(lent, {101}).code == errc::invalid_argument);
        CHECK(r.heap.deallocate(lent).code == errc::busy);
        r.paper.captured = 0;
        CHECK(r.heap.deallocate(lent));
        r.paper.complete(second);
        CHECK(r.heap.deallocate(own));
    }
}

TEST_CASE("xpu_malloc: a parked block stays where it is if its queue ends without a word") {
    for (const bool is_lent : {false, true}) {
        for (const std::size_t bytes : sizes) {
            CAPTURE(is_lent);
            CAPTURE(bytes);
            malloc_rig r;
            void* one = r.make(bytes);
            if (is_lent) {
                REQUIRE(r.heap.record_use(one, second));
            }
            r.paper.captured = second.value;
            REQUIRE(r.heap.deallocate_when_known(one, is_lent ? queue_id{} : second));
            r.paper.captured = 0;
            r.paper.gone = second.value;
            static_cast<void>(r.heap.trim());
            CHECK(r.now(heap_metric::active) == 1);
            void* other = r.make(bytes);
            CHECK(other != one);
            REQUIRE(r.heap.deallocate(other));
            r.heap.forget(second);  // all its work was done after all
            static_cast<void>(r.heap.trim());
            CHECK(r.now(heap_metric::active) == 0);
        }
    }
}

TEST_CASE("xpu_malloc: a queue that cannot say is asked once, whatever waits for it") {
    malloc_rig r;
    constexpr int count = 500;
    constexpr queue_id third{3};
    std::vector<void*> those;
    for (int i = 0; i < count; ++i) {
        those.push_back(r.make(64_KiB));
        REQUIRE(r.heap.record_use(those.back(), third));
    }
    r.paper.captured = second.value;
    for (void* one : those) {
        REQUIRE(r.heap.deallocate_when_known(one, second));
    }
    r.paper.records = 0;
    for (int i = 0; i < count; ++i) {
        CHECK(r.heap.deallocate(r.make(64_KiB)));
    }
    CHECK(r.paper.records <= 10 * count);
    // Now the third queue is the one that cannot say.
    r.paper.captured = third.value;
    r.paper.complete(second);
    static_cast<void>(r.heap.trim());
    CHECK(r.now(heap_metric::active) == count);
    r.paper.captured = 0;
    r.paper.complete(third);
    static_cast<void>(r.heap.trim());
    CHECK(r.now(heap_metric::active) == 0);
}

TEST_CASE("xpu_malloc: release takes back all of a tag's blocks, however many, and no other's") {
    malloc_rig r{2_GiB};
    const pool_tag tag = r.heap.make_tag().value();
    std::vector<void*> others;
    constexpr int count = 20'000;
    for (int i = 0; i < count; ++i) {
        const std::size_t bytes =
            256 + 256 * static_cast<std::size_t>(i % 40) + (i % 10 == 0 ? 64_KiB : 0);
        static_cast<void>(r.make(bytes, i % 3 == 0 ? first : second, tag));
        if (i % 100 == 0) {
            others.push_back(r.make(bytes));
        }
    }
    r.heap.release(tag);
    CHECK(r.now(heap_metric::allocation) == static_cast<std::int64_t>(others.size()));
    for (void* one : others) {
        CHECK(r.heap.deallocate(one));
    }
    CHECK(r.now(heap_metric::allocation) == 0);
}

TEST_CASE("xpu_malloc: a block that is parked already waits for nobody who gives it back again") {
    for (const std::size_t bytes : sizes) {
        CAPTURE(bytes);
        malloc_rig r;
        void* one = r.make(bytes);
        r.paper.captured = 2;
        REQUIRE(r.heap.deallocate_when_known(one, second));
        CHECK(r.heap.deallocate(one, second).code == errc::invalid_argument);
        r.paper.captured = 5;
        CHECK(r.heap.deallocate_when_known(one, {5}).code == errc::invalid_argument);
        r.paper.captured = 0;
        static_cast<void>(r.heap.trim());
        CHECK(r.now(heap_metric::active) == 1);
        r.paper.complete(second);
        static_cast<void>(r.heap.trim());
        CHECK(r.now(heap_metric::active) == 0);
    }
}

TEST_CASE("xpu_malloc: bad input is refused and changes nothing") {
    malloc_rig r;
    for (const std::size_t bytes : sizes) {
        CAPTURE(bytes);
        auto* one = static_cast<std::byte*>(r.make(bytes));
        const auto before = r.now(heap_metric::allocated_bytes);
        CHECK(r.heap.deallocate(one + 1).code == errc::invalid_argument);
        CHECK(r.heap.deallocate(one + bytes - 1).code == errc::invalid_argument);
        CHECK(r.heap.record_use(one + 1, second).code == errc::invalid_argument);
        CHECK(r.heap.record_use(one, queue_id{101}).code == errc::invalid_argument);
        CHECK(r.now(heap_metric::allocated_bytes) == before);
        CHECK(r.heap.find(one).value().range.begin == xmm::to_address(one));
        CHECK(r.heap.deallocate(one));
        CHECK(r.heap.deallocate(one).code == errc::invalid_argument);
    }
    int plain = 0;
    CHECK(r.heap.deallocate(&plain).code == errc::not_mapped);
    CHECK(r.heap.deallocate(nullptr).code == errc::not_mapped);
    CHECK(r.heap.record_use(&plain, second).code == errc::not_mapped);
    CHECK(!r.heap.owns(&plain));
    CHECK(r.heap.allocate({.bytes = 1, .alignment = 3}).code() == errc::invalid_argument);
    CHECK(r.heap.allocate({.bytes = 1, .alignment = 0}).code() == errc::invalid_argument);
    CHECK(r.heap.allocate({.bytes = 1, .alignment = 8_GiB}).code() == errc::invalid_argument);
    CHECK(r.heap.allocate({.bytes = SIZE_MAX}).code() == errc::no_memory);
    CHECK(r.heap.allocate({.bytes = SIZE_MAX / 2}).code() == errc::no_memory);
    CHECK(r.heap.allocate({.bytes = 1, .queue = {101}}).code() == errc::invalid_argument);
    CHECK(r.heap.deallocate(r.make(0)));  // nothing is still a block
}

TEST_CASE("xpu_malloc: pointers into a block find it, its queue and tag") {
    malloc_rig r;
    for (const std::size_t bytes : sizes) {
        CAPTURE(bytes);
        auto* one = static_cast<std::byte*>(r.make(bytes, second, pool_tag{7}));
        for (const std::size_t offset : {std::size_t{0}, bytes / 2, bytes - 1}) {
            const block_info found = r.heap.find(one + offset).value();
            CHECK(found.node == device);
            CHECK(found.range.begin == xmm::to_address(one));
            CHECK(found.range.bytes >= bytes);
            CHECK(found.queue == second);
            CHECK(found.tag == pool_tag{7});
        }
        CHECK(r.heap.deallocate(one));
        CHECK(r.heap.find(one).code() == errc::not_mapped);
    }
}

TEST_CASE("xpu_malloc: a pointer may be asked for while its addresses are given back") {
    malloc_rig r;
    std::atomic<address> last{0};
    std::atomic<bool> is_over{false};
    std::thread asks{[&] {
        while (!is_over) {
            if (const address at = last; at != 0) {
                result<block_info> found = r.heap.find(to_pointer(at + 100));
                if (found && !found->range.contains(at + 100)) {
                    FAIL_CHECK("a block that is not there");
                }
            }
        }
    }};
    for (int i = 0; i < 3000; ++i) {
        const pool_tag tag{static_cast<std::uint16_t>(1 + i % 3)};
        for (const std::size_t bytes : {std::size_t{5000}, std::size_t{3'000'000}}) {
            void* one = r.make(bytes, first, tag);
            last = to_address(one);
            CHECK(r.heap.find(one)->range.begin == to_address(one));
            CHECK(r.heap.deallocate(one));
            static_cast<void>(r.heap.trim(tag));
        }
    }
    is_over = true;
    asks.join();
}

TEST_CASE("xpu_malloc: every alignment") {
    malloc_rig r;
    for (std::size_t alignment = 1; alignment <= 16_MiB; alignment *= 2) {
        for (const std::size_t bytes : {std::size_t{1}, std::size_t{4000}, std::size_t{100'000}}) {
            CAPTURE(alignment);
            void* one =
                r.heap.allocate({.bytes = bytes, .alignment = alignment, .queue = first}).value();
            CHECK(to_address(one) % std::max<std::size_t>(alignment, 256) == 0);
            CHECK(r.heap.deallocate(one));
        }
    }
}

TEST_CASE("xpu_malloc: what a thread keeps comes back when it ends") {
    if (jemalloc_table::find() == nullptr) {
        MESSAGE("skipped: without jemalloc threads keep nothing");
        return;
    }
    malloc_rig r;
    std::set<void*> given;
    std::thread([&] {
        std::vector<void*> all;
        for (int i = 0; i < 10; ++i) {
            all.push_back(r.make(1000));
        }
        for (void* one : all) {
            given.insert(one);
            CHECK(r.heap.deallocate(one, first));
        }
    }).join();
    std::size_t met = 0;
    for (int i = 0; i < 64; ++i) {
        met += given.count(r.make(1000));
    }
    CHECK(met == given.size());
}

namespace {

// Runs a function of the round, from 0, in each round of a thread's last destructors, those of its keys.
class last_destructors {
public:
    explicit last_destructors(std::function<void(long)> body) : body_{std::move(body)} {
        REQUIRE(::pthread_key_create(&key_, &run) == 0);
    }
    ~last_destructors() { ::pthread_key_delete(key_); }
    void arm() { ::pthread_setspecific(key_, this); }
    static constexpr long rounds = PTHREAD_DESTRUCTOR_ITERATIONS;

private:
    static void run(void* self) {
        auto& all = *static_cast<last_destructors*>(self);
        const long round = all.round_++;
        if (all.round_ < rounds) {
            all.arm();
        }
        all.body_(round);
    }

    std::function<void(long)> body_;
    pthread_key_t key_{};
    long round_ = 0;
};

}  // namespace

TEST_CASE("xpu_malloc: a thread in its last destructors is served this device's memory") {
    if (test::has_sanitizer) {
        MESSAGE("skipped: what is registered so late in a thread is never freed by the C library");
        return;
    }
    for (const bool was_here : {true, false}) {
        CAPTURE(was_here);
        malloc_rig r;
        CHECK(r.heap.deallocate(r.make(100)));
        std::size_t strange = 0;
        std::size_t served = 0;
        std::vector<void*> kept;
        last_destructors last{[&](long round) {
            std::vector<void*> all;
            // One queue that others have used, and one that is new in each round.
            for (const queue_id queue : {first, queue_id{static_cast<std::uint32_t>(10 + round)}}) {
                for (std::size_t bytes = 1; bytes <= 32'768; bytes += 500) {
                    all.push_back(r.make(bytes, queue));
                    const result<block_info> found = r.heap.find(all.back());
                    strange += !found || found->range.bytes < bytes || found->queue != queue;
                }
            }
            served += all.size();
            for (std::size_t i = 0; i < all.size(); ++i) {
                if (i % 8 == 0) {
                    kept.push_back(all[i]);
                } else {
                    strange += !r.heap.deallocate(all[i], r.heap.find(all[i])->queue);
                }
            }
            r.heap.trim();
        }};
        std::thread([&] {
            if (was_here) {
                CHECK(r.heap.deallocate(r.make(100)));
            }
            last.arm();
        }).join();
        CHECK(served == last_destructors::rounds * 132);
        CHECK(strange == 0);
        CHECK(r.now(heap_metric::allocation) == static_cast<std::int64_t>(kept.size()));
        for (void* one : kept) {
            CHECK(r.heap.deallocate(one));
        }
        r.heap.trim();
        CHECK(r.now(heap_metric::allocation) == 0);
        CHECK(r.paper.left() == 256_MiB);
    }
}

TEST_CASE("xpu_malloc: what a thread gives back in its last destructors is kept nowhere") {
    if (test::has_sanitizer) {
        MESSAGE("skipped: what is registered so late in a thread is never freed by the C library");
        return;
    }
    malloc_rig r;
    std::vector<void*> all;
    last_destructors last{[&](long round) {
        for (std::size_t i = static_cast<std::size_t>(round) * 100; i < all.size(); ++i) {
            if (i < static_cast<std::size_t>(round + 1) * 100) {
                static_cast<void>(r.heap.deallocate(all[i]));
            }
        }
    }};
    std::thread([&] {
        for (long i = 0; i < last_destructors::rounds * 100; ++i) {
            all.push_back(r.make(static_cast<std::size_t>(i) * 30));
        }
        last.arm();
    }).join();
    CHECK(r.now(heap_metric::allocation) == 0);
    r.heap.trim();
    CHECK(r.paper.left() == 256_MiB);
}

TEST_CASE("xpu_malloc: a thread of a forked child gets no desk of its own") {
    if (test::has_sanitizer) {
        MESSAGE("skipped: jemalloc takes more locks before a fork than the thread sanitizer bears");
        return;
    }
    malloc_rig r;
    void* block = nullptr;
    std::thread([&] { block = r.make(100); }).join();
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::alarm(20);
        constexpr std::size_t most = 1000;
        test::watched_new.left = most;
        const bool is_refused =
            r.heap.allocate({.bytes = 100, .queue = first}).code() == errc::forked &&
            r.heap.deallocate(block).code == errc::forked;
        ::_exit(is_refused && test::watched_new.left == most ? 0 : 1);
    }
    int how = -1;
    CHECK(::waitpid(child, &how, 0) == child);
    CHECK(how == 0);
}

TEST_CASE("xpu_malloc: a forked child is served what its thread keeps, whoever was recording") {
    if (test::has_sanitizer) {
        MESSAGE("skipped: jemalloc takes more locks before a fork than the thread sanitizer bears");
        return;
    }
    if (jemalloc_table::find() == nullptr) {
        MESSAGE("skipped: without jemalloc threads keep nothing");
        return;
    }
    malloc_rig r;
    REQUIRE(r.heap.recorder().start(1000));
    CHECK(r.heap.deallocate(r.make(100)));
    std::atomic<bool> is_over{false};
    std::vector<std::thread> others;
    for (int i = 0; i < 2; ++i) {
        others.emplace_back([&] {
            while (!is_over) {
                r.heap.recorder().record(trace_action::allocate, 1, 1);
            }
        });
    }
    int bad = 0;
    for (int i = 0; i < 40 && bad == 0; ++i) {
        const pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            ::alarm(5);
            const result<void*> given = r.heap.allocate({.bytes = 100, .queue = first});
            const bool is_well = given && r.heap.deallocate(*given);
            r.heap.recorder().stop();
            ::_exit(is_well && r.heap.recorder().trace().events.empty() ? 0 : 1);
        }
        int how = -1;
        CHECK(::waitpid(child, &how, 0) == child);
        bad += how != 0 ? 1 : 0;
    }
    CHECK(bad == 0);
    is_over = true;
    for (std::thread& one : others) {
        one.join();
    }
}

TEST_CASE("xpu_malloc: blocks go back from any thread, and to the shelf they are from") {
    malloc_rig r;
    for (const std::size_t bytes : sizes) {
        CAPTURE(bytes);
        void* one = r.make(bytes, second);
        std::thread([&] { CHECK(r.heap.deallocate(one)); }).join();
        void* of_first = r.make(bytes, first);
        CHECK(of_first != one);
        CHECK(r.heap.find(of_first).value().queue == first);
        void* of_second = r.make(bytes, second);
        CHECK(r.heap.find(of_second).value().queue == second);
        CHECK((bytes <= 32_KiB || of_second == one));
    }
}

TEST_CASE("xpu_malloc: in need the user is asked, and its answer decides") {
    struct giver {
        malloc_rig* r;
        std::vector<void*> spare;
        int asked = 0;
    };
    malloc_rig r{64_MiB};
    giver one{&r, {}, 0};
    for (int i = 0; i < 3; ++i) {
        one.spare.push_back(r.make(16_MiB));
    }
    r.heap.set_shortage_callback(
        [](std::size_t bytes, void* context) {
            auto& me = *static_cast<giver*>(context);
            CHECK(bytes == 40_MiB);
            ++me.asked;
            if (me.spare.empty()) {
                return false;
            }
            CHECK(me.r->heap.deallocate(me.spare.back()));
            me.spare.pop_back();
            return true;
        },
        &one);
    void* large = r.make(40_MiB);
    CHECK(one.asked == 2);
    CHECK(one.spare.size() == 1);
    CHECK(r.heap.deallocate(large));
    // Nothing to give any more: a clear refusal, and all is as before.
    one.spare.push_back(r.make(16_MiB));
    one.spare.push_back(r.make(16_MiB));
    std::vector<void*> kept;
    kept.swap(one.spare);
    const auto before = r.now(heap_metric::allocated_bytes);
    CHECK(r.heap.allocate({.bytes = 40_MiB, .queue = first}).code() == errc::no_memory);
    CHECK(one.asked == 3);
    CHECK(r.now(heap_metric::allocated_bytes) == before);
    CHECK(r.heap.figures().of(heap_count::ooms) == 1);
    for (void* block : kept) {
        CHECK(r.heap.find(block).has_value());
        CHECK(r.heap.deallocate(block));
    }
}

TEST_CASE("xpu_malloc: who takes the callback away waits for those in it, but not for itself") {
    struct asked {
        malloc_rig* r;
        std::atomic<bool> is_in{false};
        std::atomic<bool> may_go{false};
        std::atomic<bool> is_over{false};
    };
    malloc_rig r{16_MiB};
    asked one{&r, {}, {}, {}};
    r.heap.set_shortage_callback(
        [](std::size_t, void* context) {
            auto& me = *static_cast<asked*>(context);
            me.is_in = true;
            while (!me.may_go) {
                std::this_thread::yield();
            }
            me.is_over = true;
            return false;
        },
        &one);
    std::thread asks{[&] { CHECK(r.heap.allocate({.bytes = 40_MiB}).code() == errc::no_memory); }};
    while (!one.is_in) {
        std::this_thread::yield();
    }
    std::atomic<bool> is_away{false};
    bool was_over = false;
    std::thread takes_away{[&] {
        r.heap.set_shortage_callback(nullptr, nullptr);
        was_over = one.is_over;
        is_away = true;
    }};
    std::this_thread::sleep_for(std::chrono::milliseconds{50});
    CHECK_FALSE(is_away);
    one.may_go = true;
    takes_away.join();
    asks.join();
    CHECK(was_over);

    // A callback that takes itself away, or puts another in its place.
    static int calls = 0;
    calls = 0;
    r.heap.set_shortage_callback(
        [](std::size_t, void* context) {
            auto& me = *static_cast<malloc_rig*>(context);
            ++calls;
            me.heap.set_shortage_callback(
                [](std::size_t, void* again) {
                    calls += 10;
                    static_cast<malloc_rig*>(again)->heap.set_shortage_callback(nullptr, nullptr);
                    return true;
                },
                context);
            return true;
        },
        &r);
    CHECK(r.heap.allocate({.bytes = 40_MiB}).code() == errc::no_memory);
    CHECK(calls == 11);
    CHECK(r.heap.allocate({.bytes = 40_MiB}).code() == errc::no_memory);
    CHECK(calls == 11);
}

TEST_CASE("xpu_malloc: in need placement is asked last") {
    struct other_memory {
        paper_device* paper = nullptr;
        std::vector<port_frame> held;
        int asked = 0;
    } other;
    malloc_rig r{64_MiB, {}, {&other, [](void* self, std::size_t) noexcept -> std::size_t {
                                  auto& me = *static_cast<other_memory*>(self);
                                  ++me.asked;
                                  if (me.held.empty()) {
                                      return 0;
                                  }
                                  me.paper->drop(me.held.back(), 16_MiB);
                                  me.held.pop_back();
                                  return 16_MiB;
                              }}};
    other.paper = &r.paper;
    for (int i = 0; i < 3; ++i) {
        other.held.push_back(r.paper.create(16_MiB).value());
    }
    void* large = r.make(30_MiB);
    CHECK(other.asked > 0);
    CHECK(r.heap.deallocate(large));
    for (const port_frame one : other.held) {
        r.paper.drop(one, 16_MiB);
    }
}

TEST_CASE("xpu_malloc: in need what queues still use is waited for before anybody is asked") {
    malloc_rig r{64_MiB};
    void* one = r.make(40_MiB);
    bool was_asked = false;
    r.heap.set_shortage_callback(
        [](std::size_t, void* asked) {
            *static_cast<bool*>(asked) = true;
            return false;
        },
        &was_asked);
    CHECK(r.heap.deallocate(one, second));
    void* other = r.make(40_MiB);
    CHECK(r.paper.waits > 0);
    CHECK(!was_asked);
    // None of these was for a frame that could not move.
    CHECK(static_cast<std::uint64_t>(r.heap.figures().of(heap_count::queue_waits)) ==
          r.heap.frames().counts().waits);
    CHECK(r.heap.figures().of(heap_count::queue_waits) < r.paper.waits);
    CHECK(r.heap.deallocate(other));
}

TEST_CASE("xpu_malloc: in need what another thread has just taken is waited for") {
    malloc_rig r{64_MiB};
    REQUIRE(r.heap.deallocate(r.make(40_MiB), second));
    r.paper.complete(second);
    std::atomic<bool> is_in_hand{false};
    std::atomic<bool> is_over{false};
    unsigned asked = 0;
    r.paper.at_next_question([&] {
        if (++asked == 1) {
            r.paper.has_hook = true;  // once more, with the block out of its line
            return;
        }
        is_in_hand = true;
        for (int ms = 0; ms < 200 && !is_over; ++ms) {
            std::this_thread::sleep_for(std::chrono::milliseconds{1});
        }
    });
    std::thread other{[&] { static_cast<void>(r.make(100'000, {3})); }};
    while (!is_in_hand) {
        std::this_thread::yield();
    }
    result<void*> block = r.heap.allocate({.bytes = 50_MiB, .queue = first});
    is_over = true;
    other.join();
    CHECK(block);
}

TEST_CASE("xpu_malloc: trimmed memory is the device's again") {
    malloc_rig r;
    std::vector<void*> all;
    for (const std::size_t bytes : sizes) {
        all.push_back(r.make(bytes));
        all.push_back(r.make(bytes, second));
    }
    const std::size_t held = 256_MiB - r.paper.left();
    CHECK(held > 0);
    for (void* one : all) {
        CHECK(r.heap.deallocate(one));
    }
    const std::size_t before = r.paper.left();
    const std::size_t gone = r.heap.trim();
    CHECK(r.paper.left() == before + gone);
    CHECK(r.paper.left() == 256_MiB);
    CHECK(r.now(heap_metric::reserved_bytes) == 0);
}

TEST_CASE("xpu_malloc: idle frames of a busy heap are idle") {
    malloc_rig r;
    CHECK(r.heap.deallocate(r.make(100_MiB)));
    r.heap.statistics().reset_peaks();
    std::atomic<bool> is_over{false};
    std::thread keeps_busy{[&] {
        while (!is_over) {
            static_cast<void>(r.heap.deallocate(r.make(1_MiB)));
        }
    }};
    for (int i = 0; i < 5000; ++i) {
        static_cast<void>(r.heap.figures());
    }
    is_over = true;
    keeps_busy.join();
    CHECK(r.heap.figures().of(heap_metric::inactive_split_bytes).peak <= std::int64_t{8_MiB});
}

TEST_CASE("xpu_malloc: tags are trimmed apart") {
    malloc_rig r;
    void* weights = r.make(40_MiB, first, pool_tag{1});
    void* activations = r.make(40_MiB, first, pool_tag{2});
    CHECK(r.heap.deallocate(weights));
    CHECK(r.heap.deallocate(activations));
    const std::size_t before = r.paper.left();
    const std::size_t gone = r.heap.trim(pool_tag{1});
    CHECK(gone >= 38_MiB);
    CHECK(r.paper.left() == before + gone);
    CHECK(r.heap.trim(pool_tag{1}) == 0);
    CHECK(r.heap.trim(pool_tag{2}) >= 38_MiB);
    CHECK(r.paper.left() == 256_MiB);
}

TEST_CASE("xpu_malloc: without jemalloc everything works") {
    malloc_rig r{256_MiB, {.uses_jemalloc = false}};
    for (const std::size_t bytes : sizes) {
        void* one = r.make(bytes);
        CHECK(r.heap.deallocate(one, second));
        CHECK(r.heap.deallocate(one).code == errc::invalid_argument);
        r.paper.complete(second);
        CHECK(r.make(bytes) == one);
    }
}

TEST_CASE("xpu_malloc: threads and queues at random, no two blocks overlap") {
    malloc_rig r{1_GiB};
    std::atomic<bool> is_wrong{false};
    std::vector<std::thread> threads;
    std::mutex lock;
    std::map<address, std::size_t> live;  // under lock
    for (std::uint32_t t = 1; t <= 4; ++t) {
        threads.emplace_back([&, t] {
            std::minstd_rand generator{t};
            const auto random = [&] { return static_cast<std::uint32_t>(generator()); };
            std::vector<std::pair<void*, std::size_t>> mine;
            for (int i = 0; i < 4000; ++i) {
                const queue_id queue{1 + random() % 3};
                if (mine.size() < 50 || random() % 2 == 0) {
                    const std::size_t bytes = std::size_t{1} << random() % 21;
                    result<void*> made = r.heap.allocate({.bytes = bytes, .queue = queue});
                    if (!made) {
                        is_wrong = true;
                        continue;
                    }
                    const address at = to_address(*made);
                    std::lock_guard guard{lock};
                    const auto after = live.lower_bound(at);
                    is_wrong = is_wrong || (after != live.end() && after->first < at + bytes) ||
                               (after != live.begin() &&
                                std::prev(after)->first + std::prev(after)->second > at);
                    live[at] = bytes;
                    mine.emplace_back(*made, bytes);
                } else {
                    const std::size_t which = random() % mine.size();
                    std::swap(mine[which], mine.back());
                    with(lock, [&] { live.erase(to_address(mine.back().first)); });
                    if (random() % 4 == 0) {
                        is_wrong =
                            is_wrong || !r.heap.record_use(mine.back().first, {1 + random() % 3});
                    }
                    is_wrong = is_wrong || !r.heap.deallocate(mine.back().first, {random() % 4});
                    mine.pop_back();
                }
                if (random() % 16 == 0) {
                    r.paper.complete({1 + random() % 3});
                    r.paper.submit({1 + random() % 3});
                }
                if (random() % 512 == 0) {
                    static_cast<void>(r.heap.trim());
                }
            }
            for (const auto& [block, bytes] : mine) {
                with(lock, [&] { live.erase(to_address(block)); });
                is_wrong = is_wrong || !r.heap.deallocate(block);
            }
        });
    }
    for (std::thread& one : threads) {
        one.join();
    }
    CHECK(!is_wrong);
    for (std::uint32_t queue = 1; queue <= 3; ++queue) {
        r.paper.complete({queue});
    }
    static_cast<void>(r.heap.trim());
    CHECK(r.now(heap_metric::active) == 0);
    CHECK(r.paper.left() == 1_GiB);
}

TEST_CASE("xpu_malloc: what lies on the shelf of a queue that is over goes to the next queue") {
    for (const std::size_t bytes : sizes) {
        CAPTURE(bytes);
        malloc_rig r;
        void* freed = r.make(bytes);
        void* kept = r.make(bytes);
        CHECK(r.heap.deallocate(freed, first));
        CHECK(r.make(bytes, second) != freed);  // first may still use it
        r.paper.complete(first);
        r.heap.forget(first);
        CHECK(r.heap.find(kept)->queue == queue_id{});
        CHECK(r.make(bytes, {3}) == freed);
        CHECK(r.heap.find(kept)->queue == queue_id{3});
        CHECK(r.heap.deallocate(kept, {3}));
        CHECK(r.make(bytes, {3}) == kept);
        // Another tag and another queue get shelves of their own.
        CHECK(r.make(bytes, {3}, {7}) != freed);
        CHECK(r.make(bytes, {4}) != freed);
        r.heap.forget({5});  // had none
    }
}

TEST_CASE(
    "xpu_malloc: what lies on the shelf of a queue that is over goes to those without a queue") {
    for (const std::size_t bytes : sizes) {
        CAPTURE(bytes);
        malloc_rig r{1_GiB};
        void* freed = r.make(bytes);
        void* kept = r.make(bytes);
        CHECK(r.heap.deallocate(freed, first));
        r.paper.complete(first);
        r.heap.forget(first);
        CHECK(r.make(bytes, {}) == freed);
        for (int i = 0; i < 3; ++i) {
            CHECK(r.heap.allocate({.bytes = bytes, .may_make_shelf = false}).has_value());
        }
        CHECK(r.make(bytes, {3}) != kept);
        CHECK(r.make(bytes, {4}) != kept);
        CHECK(r.heap.find(kept)->queue == queue_id{});
    }
}

TEST_CASE("xpu_malloc: of a queue that is gone without a word nothing is taken") {
    malloc_rig r{64_MiB};
    REQUIRE(r.heap.deallocate(r.make(40_MiB)));
    r.paper.gone = first.value;
    const auto began = std::chrono::steady_clock::now();
    CHECK(r.heap.allocate({.bytes = 50_MiB, .queue = second}).code() == errc::no_memory);
    CHECK(r.heap.trim() == 0);
    CHECK(r.heap.trim(pool_tag{}) == 0);
    CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds{2});
    // It is said later.
    r.paper.complete(first);
    r.heap.forget(first);
    CHECK(r.heap.allocate({.bytes = 50_MiB, .queue = second}).has_value());
}

TEST_CASE("xpu_malloc: a block that was lent to a queue that is gone without a word stays") {
    for (const std::size_t bytes : sizes) {
        CAPTURE(bytes);
        malloc_rig r;
        void* block = r.make(bytes);
        REQUIRE(r.heap.record_use(block, second));
        r.paper.gone = second.value;
        CHECK(r.heap.deallocate(block).code == errc::busy);
        CHECK(r.heap.find(block).has_value());
        CHECK(r.heap.deallocate(block, {5}).code == errc::busy);
        r.heap.forget(second);
        CHECK(r.heap.deallocate(block, second));
        CHECK(r.make(bytes) == block);
    }
}

TEST_CASE("xpu_malloc: a child of fork forgets no queue") {
    if (test::has_sanitizer) {
        MESSAGE("skipped: jemalloc takes more locks before a fork than the thread sanitizer bears");
        return;
    }
    malloc_rig r;
    void* awaited = r.make(40'000, {4});
    REQUIRE(r.heap.record_use(awaited, second));
    CHECK(r.heap.deallocate(awaited));
    r.paper.at_next_question([] {});
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        r.heap.forget({4});
        ::_exit(r.paper.has_hook ? 0 : 1);
    }
    int how = -1;
    CHECK(::waitpid(child, &how, 0) == child);
    CHECK(how == 0);
}

TEST_CASE("xpu_malloc: a block of a queue that is over waits for who uses it still") {
    malloc_rig r;
    void* one = r.make(3'000'000);
    REQUIRE(r.heap.record_use(one, second));
    r.paper.complete(first);
    r.heap.forget(first);
    CHECK(r.heap.deallocate(one));
    CHECK(r.make(3'000'000, {3}) != one);
    r.paper.complete(second);
    CHECK(r.make(3'000'000, {3}) == one);
}

TEST_CASE("xpu_malloc: addresses that come as the queue ends are its shelf's, and nobody else's") {
    for (const bool has_other : {false, true}) {
        for (const std::size_t bytes : {std::size_t{100}, std::size_t{3'000'000}}) {
            CAPTURE(has_other);
            CAPTURE(bytes);
            malloc_rig r;
            if (has_other) {  // the shelf of no queue
                CHECK(r.heap.deallocate(r.make(bytes, {})));
            }
            // A shelf of the first queue, without addresses for the size.
            CHECK(r.heap.deallocate(r.make(bytes == 100 ? 3'000'000 : 100)));
            void* awaited = r.make(40'000, {4});
            REQUIRE(r.heap.record_use(awaited, second));
            CHECK(r.heap.deallocate(awaited));
            r.paper.at_next_question([&] {
                r.paper.complete(first);
                r.heap.forget(first);
            });
            result<void*> block =
                r.heap.allocate({.bytes = bytes, .queue = first, .may_make_shelf = false});
            CHECK(!r.paper.has_hook);
            REQUIRE(block);
            // The shelf goes to the next queue, and the block with it.
            CHECK(r.heap.deallocate(r.make(bytes, {3})));
            CHECK(r.heap.find(*block)->queue == queue_id{3});
            CHECK(r.heap.deallocate(*block));
            CHECK(r.make(bytes, {3}) == *block);
        }
    }
}

TEST_CASE("xpu_malloc: who cannot say that a queue stays makes no shelf for it") {
    malloc_rig r;
    const malloc_request loose{.bytes = 5000, .queue = first, .may_make_shelf = false};
    CHECK(r.heap.allocate(loose).code() == errc::busy);
    void* block = r.make(5000);
    void* other = r.heap.allocate(loose).value();
    CHECK(r.heap.deallocate(block));
    CHECK(r.heap.deallocate(other));
    r.heap.forget(first);
    CHECK(r.heap.allocate(loose).code() == errc::busy);
}

TEST_CASE("xpu_malloc: a block is lent to any number of queues one after the other") {
    malloc_rig r;
    for (const std::size_t bytes : {std::size_t{100}, std::size_t{3'000'000}}) {
        CAPTURE(bytes);
        void* block = r.make(bytes);
        void* other = r.make(bytes);
        CHECK(r.heap.record_use(other, second));
        for (std::uint32_t queue = 3; queue <= 100; ++queue) {
            CAPTURE(queue);
            r.paper.submit({queue});
            CHECK(r.heap.record_use(block, {queue}));
            r.paper.complete({queue});
            r.heap.forget({queue});
        }
        // A queue that takes the last one's number has nothing to do with the block.
        r.paper.submit({100});
        CHECK(r.heap.deallocate(block));
        CHECK(r.make(bytes) == block);
        // What another block was lent to stays noted.
        r.paper.submit(second);
        CHECK(r.heap.deallocate(other));
        CHECK(r.make(bytes) != other);
        r.paper.complete(second);
    }
    CHECK(r.paper.waits == 0);
}

TEST_CASE("xpu_malloc: ten thousand queues one after the other cost no more than one") {
    malloc_rig r;
    std::set<address> places;
    for (int i = 0; i < 10'000; ++i) {
        const queue_id queue{1 + static_cast<std::uint32_t>(i % 50)};
        void* large = r.make(40'000'000, queue);
        void* small = r.make(100, queue);
        places.insert(to_address(large));
        CHECK(r.heap.deallocate(large, queue));
        CHECK(r.heap.deallocate(small, queue));
        r.paper.complete(queue);
        r.heap.forget(queue);
    }
    CHECK(places.size() == 1);
    CHECK(r.heap.frames().counts().moved == 0);
    CHECK(r.heap.frames().counts().reserved_bytes <= 44_MiB);
}

TEST_CASE("xpu_malloc: queues come and go on threads, no two blocks overlap") {
    malloc_rig r{1_GiB};
    std::atomic<bool> is_wrong{false};
    std::mutex lock;
    std::map<address, std::size_t> live;              // under lock
    std::vector<std::pair<void*, std::size_t>> left;  // under lock: given back by others
    const auto play = [&](std::uint32_t t) {
        std::minstd_rand generator{t};
        const auto random = [&] { return static_cast<std::uint32_t>(generator()); };
        for (std::uint32_t life = 0; life < 60; ++life) {
            const queue_id queue{10 * t + life % 5};
            std::vector<std::pair<void*, std::size_t>> mine;
            for (int i = 0; i < 60; ++i) {
                const std::size_t bytes = std::size_t{1} << random() % 22;
                result<void*> made = r.heap.allocate({.bytes = bytes, .queue = queue});
                if (!made) {
                    is_wrong = true;
                    continue;
                }
                const address at = to_address(*made);
                std::lock_guard guard{lock};
                const auto after = live.lower_bound(at);
                is_wrong = is_wrong || (after != live.end() && after->first < at + bytes) ||
                           (after != live.begin() &&
                            std::prev(after)->first + std::prev(after)->second > at);
                live[at] = bytes;
                mine.emplace_back(*made, bytes);
                if (!left.empty() && random() % 3 == 0) {
                    std::swap(mine.back(), left[random() % left.size()]);
                }
            }
            // Some outlive their queue.
            for (std::size_t i = 0; i < mine.size(); ++i) {
                if (i % 4 == 0) {
                    std::lock_guard guard{lock};
                    left.push_back(mine[i]);
                    continue;
                }
                with(lock, [&] { live.erase(to_address(mine[i].first)); });
                is_wrong = is_wrong || !r.heap.deallocate(mine[i].first, queue);
            }
            r.paper.complete(queue);
            r.heap.forget(queue);
        }
    };
    std::vector<std::thread> threads;
    for (std::uint32_t t = 1; t <= 4; ++t) {
        threads.emplace_back(play, t);
    }
    for (std::thread& one : threads) {
        one.join();
    }
    for (const auto& [block, bytes] : left) {
        is_wrong = is_wrong || !r.heap.deallocate(block);
    }
    CHECK(!is_wrong);
    for (std::uint32_t queue = 0; queue <= 100; ++queue) {
        r.paper.complete({queue});
    }
    static_cast<void>(r.heap.trim());
    CHECK(r.now(heap_metric::active) == 0);
    CHECK(r.paper.left() == 1_GiB);
}
