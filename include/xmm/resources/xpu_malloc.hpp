// SPDX-License-Identifier: Apache-2.0
// xpu_malloc.hpp - one malloc for one device: small blocks from jemalloc, large ones by best fit, in queue order.
//
// Model    Blocks belong to a shelf: the addresses of one queue and one tag. A block given back is reused by its
//          own queue at once, since work of a queue runs in order; if other queues used it last, once these
//          have passed that point. Frames are the device's: all shelves draw on one pool of them, and
//          addresses whose blocks are gone lend theirs to whoever needs frames.
//          Blocks up to 32 KiB come from jemalloc through magazines of each thread; where there is no
//          jemalloc, and above, from the shelf's extent heap. All bookkeeping lies in host memory.
//          When the device has no more: finished blocks and caches first, then waiting for queues, then
//          idle frames of any size, then the user's callback, then demoting unified memory; then it fails.
//          What is more than the device can ever give fails before all that.
// Threads  Any. Threads on queues of their own share no lock on the way of a cached block. Not from a host call in a
//          queue: who waits for that queue may hold the lock that the call then needs.
// Failure  As status and result; a request that fails leaves what it found, but for caches. A pointer that no
//          block begins at, or that was given back already, is refused (two threads that give back one
//          small block at the same instant may both be believed).
//          A child of fork has none of this: calls answer `forked`, or do nothing. Only small blocks that the
//          forking thread keeps are still handed out and taken back: to ask there, too, costs that way a tenth.
// Units    Bytes. Every block is aligned to 256 bytes or more, on request to any power of two.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include <xmm/mapping/radix_tree.hpp>
#include <xmm/mapping/slab.hpp>
#include <xmm/os/per_thread.hpp>
#include <xmm/os/registry.hpp>
#include <xmm/resources/device_frames.hpp>
#include <xmm/resources/heap_desk.hpp>
#include <xmm/resources/heap_shelf.hpp>
#include <xmm/resources/heap_snapshot.hpp>
#include <xmm/resources/heap_statistics.hpp>
#include <xmm/resources/malloc_request.hpp>
#include <xmm/resources/parked_blocks.hpp>
#include <xmm/resources/pending_blocks.hpp>
#include <xmm/resources/queue_uses.hpp>
#include <xmm/resources/shortage_desk.hpp>
#include <xmm/resources/trace_recorder.hpp>
#include <xmm/resources/watched_port.hpp>
#include <xmm/resources/work_in_hand.hpp>

namespace xmm {

class xpu_malloc {
public:
    // The port outlives the heap.
    xpu_malloc(frame_port& port, node_id node, malloc_options options = {},
               malloc_surroundings around = {})
        : node_{node},
          around_{around},
          port_{port, statistics_, &note_frame, this},
          keeper_{*this},
          frames_{port_, options.frames, &keeper_},
          shelves_{frames_, options.uses_jemalloc && is_jemalloc_usable()} {}
    xpu_malloc(const xpu_malloc&) = delete;
    xpu_malloc& operator=(const xpu_malloc&) = delete;
    // Blocks that are left are gone with it; no work uses them any more.
    ~xpu_malloc() = default;

    [[nodiscard]] node_id node() const noexcept { return node_; }

    // ---- blocks

    // The memory may be used by work submitted to the request's queue from now on. Its contents are undefined.
    // invalid_argument: the alignment, or no such queue. no_memory: see the model. busy: no shelf, and none may be
    // made; or the place that suits the block may be in use still, and a queue that is being captured cannot say.
    [[nodiscard]] result<void*> allocate(const malloc_request& wanted) noexcept {
        if (!std::has_single_bit(wanted.alignment)) {
            return fail(errc::invalid_argument, "an alignment is a power of two");
        }
        if (wanted.alignment > extent_heap::most_alignment) {
            return fail(errc::invalid_argument, "an alignment beyond 4 GiB");
        }
        if (wanted.bytes > most_bytes) {
            return fail(errc::no_memory, "more than an address space holds");
        }
        desk* mine = desk_of_thread();
        if (void* kept = mine != nullptr ? try_kept(wanted, *mine) : nullptr) {
            return kept;
        }
        return allocate_slowly(wanted, mine);
    }

    // Work submitted to `last_user` before may still use the block; queue 0: no work does but its own queue's. May
    // wait for a queue where more than six others used the block, or the host has no memory to note them.
    status deallocate(void* block, queue_id last_user = {}) noexcept {
        const address at = to_address(block);
        desk* mine = desk_of_thread();
        if (mine != nullptr && try_keep(at, last_user, *mine)) {
            return {};
        }
        return deallocate_slowly(at, last_user, mine);
    }

    // For who cannot keep the block: where a queue cannot say now how far it is (it is being captured, or too much
    // waits in it), the block goes back when it can.
    status deallocate_when_known(void* block, queue_id last_user = {}) noexcept {
        const status gone = deallocate(block, last_user);
        return gone.code == errc::busy || gone.code == errc::no_memory
                   ? park(to_address(block), last_user, gone)
                   : gone;
    }

    // Work already submitted to that queue, and what is until the block is given back, uses it too.
    status record_use(void* block, queue_id queue) noexcept {
        result<block_info> found = find(block);
        if (!found) {
            return found.error();
        }
        if (found->range.begin != to_address(block)) {
            return fail(errc::invalid_argument, "a pointer into the middle of a block");
        }
        if (queue.value == 0 || queue == found->queue) {
            return {};
        }
        if (const status there = find_queue(queue); !there) {
            return there;
        }
        return uses_.add(to_address(block), queue);
    }

    // The queue is over: all its work is done, and nobody allocates on it any more. Its blocks stay the program's; what
    // is free serves the next queue that comes. To be told before the id is another queue's.
    void forget(queue_id queue) noexcept {
        if (registry::is_forked_child()) {
            return;
        }
        uses_.drop(queue);
        drain(desk_of_thread());
        shelves_.retire(queue, [](shelf& one) {
            if (one.small != nullptr) {
                one.small->flush();
                one.small->purge();
            }
        });
        epoch_.fetch_add(end_of_queue, std::memory_order_relaxed);  // relaxed: see follow_flush
    }

    // ---- questions

    [[nodiscard]] bool owns(const void* pointer) const noexcept {
        return spans_.find(to_address(pointer)) != nullptr;
    }
    // The block around a pointer. not_mapped: there is none in the program's hands.
    [[nodiscard]] result<block_info> find(const void* pointer) const noexcept {
        if (registry::is_forked_child()) {
            return not_here();
        }
        const address at = to_address(pointer);
        const span_note* note = spans_.find(at);
        if (note == nullptr) {
            return no_block_there();
        }
        // Whoever asks may have no block there, so that others may give the addresses back meanwhile and the note
        // serve other ones. A shelf stays, and under its lock no note of its small blocks goes.
        shelf& home = *note->owner();
        va_range range;
        if (note->is_small()) {
            with(home.lock, [&] {
                if (spans_.find(at) == note && note->owner() == &home && note->is_small()) {
                    range = note->marks.find(at);
                }
            });
        } else {
            range = home.large.find_inside(pointer);
        }
        return !range.is_empty()
                   ? result<block_info>{block_info{node_, range, home.queue(), home.tag}}
                   : no_block_there();
    }
    [[nodiscard]] heap_figures figures() noexcept {
        if (registry::is_forked_child()) {
            return {};
        }
        const frame_counts now = frames_.counts();
        count_new(heap_count::frames_moved, now.moved, moves_seen_);
        count_new(heap_count::queue_waits, now.waits, waits_seen_);
        return statistics_.read(frames_.idle_bytes());
    }
    // Where frames are and what lies in them, and what was recorded until now. Each part is exact; blocks that
    // come and go meanwhile may be missed. Throws std::bad_alloc.
    [[nodiscard]] heap_snapshot snapshot() {
        if (registry::is_forked_child()) {
            return {};
        }
        recorder_.record(trace_action::snapshot, 0, 0);
        heap_snapshot taken;
        taken.node = node_;
        taken.trace = recorder_.trace();
        snapshot_builder builder;
        frames_.for_each_frame([&](va_range slot, const frame_user& user) {
            builder.add_frame(slot, {.stream = user.queue().value,
                                     .tag = static_cast<std::uint16_t>(user.tag()),
                                     .is_small = user.is_of_one_span()});
            // A span that has frames still has its note: that goes after them.
            if (const span_note* note = spans_.find(slot.begin);
                note != nullptr && note->is_small()) {
                note->marks.for_each(slot, [&](va_range block) {
                    builder.add_block(block, block.bytes, block_state::active_allocated);
                });
            }
        });
        shelves_.for_each([&](shelf& one) { add_blocks(one, builder); });
        const auto add_pending = [&](const pending_block& one) {
            if (one.block.block_class >= 0) {
                builder.add_block({one.block.at, one.block.bytes}, one.block.requested,
                                  block_state::active_pending_free);
            }
        };
        waiting_.for_each(add_pending);
        parked_.for_each(add_pending);
        builder.add_blocks_of(taken.trace);  // for what was asked for of small blocks
        taken.segments = builder.build();
        return taken;
    }
    [[nodiscard]] heap_statistics& statistics() noexcept { return statistics_; }
    [[nodiscard]] trace_recorder& recorder() noexcept { return recorder_; }
    [[nodiscard]] device_frames& frames() noexcept { return frames_; }

    // ---- memory

    // Gives frames that no block needs back to the device until the heap holds no more than that; answers how many
    // bytes went. Other threads' magazines follow at their next call.
    std::size_t trim(std::size_t keep_bytes = 0) noexcept {
        if (registry::is_forked_child()) {
            return 0;
        }
        empty_caches(desk_of_thread(), false);
        const std::size_t gone = frames_.trim(keep_bytes);
        port_.drop_kept();
        return gone;
    }
    // The same, of one tag's addresses only.
    std::size_t trim(pool_tag tag) noexcept {
        if (registry::is_forked_child()) {
            return 0;
        }
        empty_caches(desk_of_thread(), false, &tag);
        const std::size_t before = frames_.reserved_bytes(tag.value);
        shelves_.for_each([&](shelf& one) {
            if (one.tag == tag) {
                one.large.trim();
            }
        });
        static_cast<void>(frames_.trim(0, tag.value));
        port_.drop_kept();
        const std::size_t after = frames_.reserved_bytes(tag.value);
        return before > after ? before - after : 0;  // others may allocate meanwhile
    }
    // A tag that nobody else has, until drop_tag. Users' own are below first_made_tag. no_memory: all are in use.
    [[nodiscard]] result<pool_tag> make_tag() noexcept {
        if (registry::is_forked_child()) {
            return not_here();
        }
        return with(tags_lock_, [&]() -> result<pool_tag> {
            if (!idle_tags_.empty()) {
                const pool_tag tag = idle_tags_.back();
                idle_tags_.pop_back();
                return tag;
            }
            if (made_tags_ == 0x10000 - first_made_tag) {
                return fail(errc::no_memory, "too many pools on one heap");
            }
            try {
                idle_tags_.reserve(made_tags_ + 1);  // so that drop_tag cannot fail
            } catch (const std::bad_alloc&) {
                return fail(errc::no_memory, "no memory for a tag");
            }
            return pool_tag{static_cast<std::uint16_t>(first_made_tag + made_tags_++)};
        });
    }
    // Releases its blocks; its addresses serve the next one. A tag that a block stays with, since the host has no
    // memory to note what uses it, is not made again.
    void drop_tag(pool_tag tag) noexcept {
        if (!registry::is_forked_child() && release(tag)) {
            with(tags_lock_, [&] { idle_tags_.push_back(tag); });
        }
    }
    static constexpr std::uint16_t first_made_tag = 0x8000;
    // Gives back every block of a tag that is left, on its own queue, and trims. False: some are left still.
    bool release(pool_tag tag) noexcept {
        if (registry::is_forked_child()) {
            return false;
        }
        bool are_gone = true;
        shelves_.for_each(
            [&](shelf& one) { are_gone = (one.tag != tag || give_back_all(one)) && are_gone; });
        static_cast<void>(trim(tag));
        return are_gone;
    }
    // Of frames behind the addresses of a tag.
    [[nodiscard]] std::size_t reserved_bytes(pool_tag tag) const noexcept {
        return registry::is_forked_child() ? 0 : frames_.reserved_bytes(tag.value);
    }
    // Null: none. When it returns, no other thread is in the callback before any more; called from that one, it
    // does not wait. So the caller holds nothing that the callback may wait for.
    void set_shortage_callback(shortage_callback callback, void* context) noexcept {
        if (!registry::is_forked_child()) {
            users_help_.set(callback, context);
        }
    }

private:
    static constexpr std::size_t most_bytes = extent_heap::most_bytes;
    static constexpr std::uint64_t end_of_queue = std::uint64_t{1} << 32;
    static constexpr unsigned most_reclaims = 64;  // others may take what was won

    using small_kind = heap_shelf::small_kind;
    using shelf = heap_shelf;
    using desk = heap_desk;
    struct returned_block {
        span_note* note = nullptr;
        address at = 0;
        int block_class = -1;       // -1: of the extent heap
        queue_id last_user{};       // of a parked one, besides those that are noted for it
        std::size_t bytes = 0;      // as served
        std::size_t requested = 0;  // of small blocks: as served
    };
    using pending_kind = pending_blocks<returned_block>;
    using pending_block = pending_kind::entry;
    using pending_list = pending_kind::entry_list;

    // Notes which shelf has which addresses.
    class note_keeper final : public span_observer {
    public:
        explicit note_keeper(xpu_malloc& of) noexcept : heap_{of} {}

        bool reserved(const slot_span& span) noexcept override {
            const frame_user& user = span.user();
            // Not looked up: it may be changing hands.
            auto* owner = static_cast<shelf*>(user.owner());
            span_note* note = owner != nullptr ? heap_.notes_.make() : nullptr;
            if (note == nullptr) {
                return false;
            }
            note->set(*owner, user.is_of_one_span());
            if ((note->is_small() && !note->marks.open(span.range())) ||
                !heap_.spans_.insert(span.range(), *note)) {
                drop(*note);
                return false;
            }
            if (note->is_small()) {
                with(owner->lock, [&] { owner->small_notes.push_back(*note); });
            }
            return true;
        }
        void released(const slot_span& span) noexcept override {
            span_note* note = heap_.spans_.find(span.range().begin);
            heap_.spans_.erase(span.range());
            if (note->is_small()) {
                // Desks forget the note at their next call. relaxed: these addresses come back through a lock.
                heap_.epoch_.fetch_add(1, std::memory_order_relaxed);
                with(note->owner()->lock, [&] { note->owner()->small_notes.remove(*note); });
            }
            drop(*note);
        }

    private:
        void drop(span_note& note) noexcept {
            note.marks.close();
            heap_.notes_.give_back(&note);
        }

        xpu_malloc& heap_;
    };

    // Says on stderr why not, where there is one.
    [[nodiscard]] static bool is_jemalloc_usable() noexcept {
        const jemalloc_functions* found = jemalloc_table::find();
        const status usable = found != nullptr ? found->check() : status{};
        if (!usable) {
            std::fprintf(stderr, "xmm: jemalloc is not used: %s\n", usable.why);
        }
        return usable.is_ok();
    }

    // ---- shelves

    // One that cannot say now how far it is, since it is being captured, is there all the same.
    status find_queue(queue_id queue) noexcept {
        result<ticket> there = port_.record(queue);
        return there || xmm::is_over(there.code()) ? there.error() : status{};
    }
    [[nodiscard]] result<shelf*> shelf_for(const malloc_request& wanted) noexcept {
        shelf* found = shelves_.find(wanted.queue, wanted.tag);
        if (found == nullptr) {
            if (!wanted.may_make_shelf) {
                return fail(errc::busy, "the queue has no shelf for that tag");
            }
            if (const status known = find_queue(wanted.queue); !known) {
                return known;
            }
            found = shelves_.make(wanted.queue, wanted.tag);
        }
        return found != nullptr
                   ? result<shelf*>{found}
                   : fail(errc::no_memory, "the host has no memory for a heap's records");
    }

    // ---- desks

    [[nodiscard]] desk* desk_of_thread() noexcept {
        // One a shared object; each just remembers what the thread's table says.
        struct memory {
            std::uint64_t heap = 0;
            desk* mine = nullptr;
            std::uint64_t generation = 0;
        };
        static thread_local memory last;
        // relaxed: only a thread that has left can see another generation, and it looks for nothing else.
        if (last.heap == number_ &&
            last.mine->generation.load(std::memory_order_relaxed) == last.generation) {
            return last.mine;
        }
        desk* mine = look_up_desk();
        if (mine != nullptr) {
            last = {number_, mine, mine->generation.load(std::memory_order_relaxed)};
        }
        return mine;
    }
    [[gnu::noinline]] desk* look_up_desk() noexcept {
        void* found = thread_items_->find();
        return found != nullptr ? static_cast<desk*>(found) : make_desk();
    }
    // Null without memory, or at the very end of a thread: then it goes without magazines.
    desk* make_desk() noexcept {
        desk* made = desks_.take();
        if (made == nullptr) {
            return nullptr;
        }
        if (made->counts == nullptr) {
            made->counts = statistics_.try_attach();
        }
        if (made->counts == nullptr || !thread_items_->set(made)) {
            desks_.give_back(*made);
            return nullptr;
        }
        return made;
    }
    static void thread_left(void* self, void* item) noexcept {
        if (registry::is_forked_child()) {
            return;
        }
        auto& heap = *static_cast<xpu_malloc*>(self);
        auto* mine = static_cast<desk*>(item);
        // relaxed: see desk_of_thread
        mine->generation.fetch_add(1, std::memory_order_relaxed);
        // Keys of threads are destroyed after thread_local variables.
        small_kind::end_caches_of_thread();
        heap.empty_magazines(*mine);
        heap.desks_.give_back(*mine);
    }
    void empty_magazines(desk& mine) noexcept {
        mine.last_marks = {};
        shelves_.for_each([&](shelf& home) {
            if (block_magazine* kept = mine.find_magazine(home)) {
                kept->drop_all([&](unsigned, void* block) { return_small(home, block); });
            }
        });
    }
    // What others have asked for since.
    void follow_flush(desk& mine) noexcept {
        // relaxed: late is good enough for a flush; a queue's end comes before its id is another one's.
        const std::uint64_t now = epoch_.load(std::memory_order_relaxed);
        if (mine.epoch != now) {
            const bool is_flush = (mine.epoch ^ now) % end_of_queue != 0;
            mine.epoch = now;
            mine.last_key = heap_shelf::no_key;
            if (is_flush) {
                empty_magazines(mine);
            }
        }
    }

    // ---- the way of a cached small block: no lock, no call

    [[nodiscard]] void* try_kept(const malloc_request& wanted, desk& mine) noexcept {
        // A desk was last at shelves of small blocks only.
        if (mine.last_key != heap_shelf::key_of(wanted.queue, wanted.tag) || must_look_up(mine) ||
            wanted.bytes > block_classes::largest_bytes || wanted.alignment > block_classes::unit) {
            return nullptr;
        }
        const unsigned block_class = block_classes::index_of(wanted.bytes);
        void* kept = mine.last_magazine->pop(block_class);
        if (kept != nullptr) {
            const address at = to_address(kept);
            if (!is_at_last_shelf(at, mine)) [[unlikely]] {
                static_cast<void>(mine.last_magazine->push(block_class, kept));
                return nullptr;
            }
            mine.last_marks.give(at, block_class);
            mine.counts->small_allocated(block_class);
            if (recorder_.is_on()) {
                note_event(trace_action::allocate, *mine.last, at,
                           std::max<std::size_t>(wanted.bytes, 1));
            }
        }
        return kept;
    }
    [[nodiscard]] bool try_keep(address at, queue_id last_user, desk& mine) noexcept {
        if (must_look_up(mine) || !is_at_last_shelf(at, mine) ||
            is_unordered(*mine.last, last_user) || uses_.has_any()) {
            return false;
        }
        const int peeked = mine.last_marks.peek(at);
        const auto block_class = static_cast<unsigned>(peeked);
        if (peeked < 0 || !mine.last_magazine->push(block_class, to_pointer(at))) {
            return false;
        }
        mine.last_marks.enter(at, block_class);
        mine.counts->small_freed(block_class);
        if (recorder_.is_on()) {
            const std::size_t bytes = block_classes::bytes_of(block_class);
            note_event(trace_action::free_requested, *mine.last, at, bytes);
            note_event(trace_action::free_completed, *mine.last, at, bytes);
        }
        return true;
    }
    // Whether the address belongs to the small blocks of the desk's last shelf, whose marks the desk has then.
    [[nodiscard]] bool is_at_last_shelf(address at, desk& mine) const noexcept {
        if (mine.last_marks.contains(at)) {
            return true;
        }
        span_note* note = spans_.find(at);
        if (note == nullptr || !note->is_small() || note->owner() != mine.last) {
            return false;
        }
        mine.last_marks = note->marks;
        return true;
    }
    // Somebody asked for the magazines.
    [[nodiscard]] bool must_look_up(const desk& mine) const noexcept {
        // relaxed: late is good enough.
        return mine.epoch != epoch_.load(std::memory_order_relaxed);
    }
    void hand_out(shelf& home, void* block, unsigned block_class, std::size_t requested,
                  desk* mine) noexcept {
        const address at = to_address(block);
        spans_.find(at)->marks.give(at, block_class);
        const std::size_t whole = block_classes::bytes_of(block_class);
        count_given(mine, heap_pool::small, whole, whole);
        note_event(trace_action::allocate, home, at, requested);
    }

    // ---- small and large

    // Kept out of the way of a cached block, here and below: inlined, they cost it a third.
    [[nodiscard, gnu::noinline]] result<void*> allocate_slowly(const malloc_request& wanted,
                                                               desk* mine) noexcept {
        if (registry::is_forked_child()) {
            return not_here();
        }
        result<shelf*> home = shelf_for(wanted);
        if (!home) {
            return home.error();
        }
        drain(mine);
        // Before the first try: that one drops frames already.
        if (wanted.bytes > block_classes::largest_bytes && !can_ever_fit(wanted.bytes)) {
            return out_of_memory(**home, wanted, "more than the device's limit for all blocks");
        }
        if (result<void*> given = try_allocate(**home, wanted, mine);
            given || given.code() != errc::no_memory) {
            return given;
        }
        return allocate_in_need(**home, wanted, mine);
    }

    [[nodiscard]] static bool is_small(const shelf& home, const malloc_request& wanted) noexcept {
        return wanted.bytes <= block_classes::largest_bytes &&
               wanted.alignment <= block_classes::unit && home.small != nullptr;
    }
    [[nodiscard]] result<void*> try_allocate(shelf& home, const malloc_request& wanted,
                                             desk* mine) noexcept {
        const std::size_t bytes = wanted.bytes == 0 ? 1 : wanted.bytes;
        if (!is_small(home, wanted)) {
            result<void*> given =
                home.large.allocate(bytes, std::max(wanted.alignment, block_classes::unit));
            if (given) {
                count_given(mine, heap_pool::large, align_up(bytes, extent_unit_bytes), bytes);
                note_event(trace_action::allocate, home, to_address(*given), bytes);
            }
            return given;
        }
        const unsigned block_class = block_classes::index_of(bytes);
        result<void*> given = take_small(home, block_class, mine);
        if (given) {
            hand_out(home, *given, block_class, bytes, mine);
        }
        return given;
    }
    [[nodiscard]] result<void*> take_small(shelf& home, unsigned block_class, desk* mine) noexcept {
        block_magazine* magazine = nullptr;
        if (mine != nullptr) {
            follow_flush(*mine);
            magazine = mine->magazine_of(home);
        }
        if (magazine == nullptr) {
            return make_small(home, block_class);
        }
        if (void* kept = magazine->pop(block_class)) {
            return kept;
        }
        result<void*> first = make_small(home, block_class);
        for (unsigned more = block_magazine::capacity_of(block_class) / 4; first && more > 0;
             --more) {
            result<void*> next = make_small(home, block_class);
            if (!next || !magazine->push(block_class, *next)) {
                break;
            }
        }
        return first;
    }
    result<void*> make_small(shelf& home, unsigned block_class) noexcept {
        result<void*> made =
            home.small->allocate(block_classes::bytes_of(block_class), block_classes::unit);
        if (made) {
            spans_.find(to_address(*made))->marks.enter(to_address(*made), block_class);
        }
        return made;
    }
    void return_small(shelf& home, void* block) noexcept {
        spans_.find(to_address(block))->marks.clear(to_address(block));
        home.small->deallocate(block);
    }

    // ---- giving back

    [[gnu::noinline]] status deallocate_slowly(address at, queue_id last_user,
                                               desk* mine) noexcept {
        if (registry::is_forked_child()) {
            return not_here();
        }
        span_note* note = spans_.find(at);
        if (note == nullptr) {
            return fail(errc::not_mapped, "not a block of this heap");
        }
        pending_block kept;
        if (is_unordered(*note->owner(), last_user) || uses_.has_any()) {
            if (status known = note_points(*note, at, last_user, kept); !known) {
                // One that is parked has queues that cannot say, but is the program's no more.
                return find(to_pointer(at)) ? known : no_block();
            }
        }
        if (!note->is_small() && kept.count == 0 && !recorder_.is_on()) {
            return free_large_at_once(*note, at, mine);
        }
        result<returned_block> taken = take(*note, at, mine);
        if (!taken) {
            return taken.error();
        }
        uses_.drop(at);
        if (kept.count == 0) {
            finish(*taken, mine);
        } else {
            kept.block = *taken;
            finish_later(kept, mine);
        }
        return {};
    }

    // The program has the block no more from here on.
    result<returned_block> take(span_note& note, address at, desk* mine) noexcept {
        returned_block taken{&note, at};
        if (note.is_small()) {
            taken.block_class = note.marks.take(at);
            if (taken.block_class < 0) {
                return no_block();
            }
            taken.bytes = block_classes::bytes_of(static_cast<unsigned>(taken.block_class));
            taken.requested = taken.bytes;
        } else if (!note.owner()->large.begin_free(at, taken.bytes, taken.requested)) {
            return no_block();
        }
        note_event(trace_action::free_requested, *note.owner(), at, taken.requested);
        on_counts(mine, [&](auto& counts) { counts.free_requested(pool_of(taken), taken.bytes); });
        return taken;
    }
    // take and finish under one lock. Not while events are recorded: those go before the deed.
    status free_large_at_once(span_note& note, address at, desk* mine) noexcept {
        returned_block one{&note, at};
        // Before: from then on the address, and what is noted for it, may be the next block's.
        uses_.drop(at);
        if (!note.owner()->large.try_free(at, one.bytes, one.requested)) {
            return no_block();
        }
        on_counts(mine,
                  [&](auto& counts) { counts.freed(heap_pool::large, one.bytes, one.requested); });
        return {};
    }
    // No work uses the block any more, or only such as the shelf's own queue runs before what comes next.
    void finish(const returned_block& one, desk* mine) noexcept {
        shelf& home = *one.note->owner();
        note_event(trace_action::free_completed, home, one.at, one.requested);
        on_counts(mine, [&](auto& counts) {
            counts.free_completed(pool_of(one), one.bytes, one.requested);
        });
        if (one.block_class < 0) {
            home.large.end_free(one.at);
            return;
        }
        const auto block_class = static_cast<unsigned>(one.block_class);
        block_magazine* magazine = mine != nullptr ? mine->magazine_of(home) : nullptr;
        if (magazine == nullptr) {
            return_small(home, to_pointer(one.at));
            return;
        }
        follow_flush(*mine);
        if (!magazine->push(block_class, to_pointer(one.at))) {
            magazine->drop_half(block_class, [&](unsigned, void* old) { return_small(home, old); });
            static_cast<void>(magazine->push(block_class, to_pointer(one.at)));
        }
    }
    [[nodiscard]] static bool is_unordered(const shelf& home, queue_id last_user) noexcept {
        return last_user.value != 0 && !(last_user == home.queue());
    }
    // Points after which no queue but the block's own uses it.
    status note_points(const span_note& note, address at, queue_id last_user,
                       pending_block& kept) noexcept {
        queue_uses::queue_list lent;
        std::size_t count = uses_.list(at, lent);
        if (is_unordered(*note.owner(), last_user) &&
            std::find(lent.begin(), lent.begin() + count, last_user) == lent.begin() + count) {
            if (status noted = note_point(last_user, kept);
                !noted && noted.code != errc::invalid_argument) {
                return noted;
            }
        }
        while (count > 0) {
            if (status noted = note_lender(at, lent[--count], kept); !noted) {
                return noted;
            }
        }
        return {};
    }
    // When a queue ends with its work done, it is noted no more before it is gone: see forget.
    status note_lender(address at, queue_id queue, pending_block& kept) noexcept {
        const status noted = note_point(queue, kept);
        if (noted.code != errc::invalid_argument) {
            return noted;
        }
        return uses_.is_lent(at, queue)
                   ? fail(errc::busy, "a queue that used the block is gone, and may have work left")
                   : status{};
    }
    status note_point(queue_id queue, pending_block& kept) noexcept {
        result<ticket> point = port_.record(queue);
        if (!point) {
            return point.code() == errc::device_lost ? status{} : point.error();
        }
        if (port_.is_done(*point)) {
            return {};
        }
        if (kept.count == pending_block::most_points) {
            return port_.wait(*point);  // a seventh queue is waited for
        }
        kept.points[kept.count++] = *point;
        return {};
    }
    // The program has it no more; the queues that may use it stay noted for it, or in its record.
    status park(address at, queue_id last_user, status why) noexcept {
        span_note* note = spans_.find(at);
        pending_block* record = note != nullptr ? pending_.make() : nullptr;
        if (record == nullptr) {
            return why;
        }
        *record = {};
        result<returned_block> taken = take(*note, at, desk_of_thread());
        if (!taken) {
            pending_.give_back(record);
            return taken.error();
        }
        record->block = *taken;
        record->block.last_user = last_user;
        parked_.add(*record);
        return {};
    }
    void ask_again_for_parked(desk* mine) noexcept {
        pending_list all;
        parked_.take_all(all);
        while (pending_block* one = all.pop_front()) {
            const returned_block block = one->block;
            one->count = 0;
            if (!note_points(*block.note, block.at, block.last_user, *one)) {
                parked_.add(*one);
                continue;
            }
            uses_.drop(block.at);
            const pending_block known = *one;
            pending_.give_back(one);
            if (known.count == 0) {
                finish(block, mine);
            } else {
                finish_later(known, mine);
            }
        }
    }
    void finish_later(const pending_block& kept, desk* mine) noexcept {
        pending_block* record = pending_.make();
        if (record == nullptr) {
            pending_kind::await_points(port_, kept);  // no memory to remember it
            finish(kept.block, mine);
            return;
        }
        *record = kept;
        if (!waiting_.add(*record)) {
            pending_.give_back(record);
            pending_kind::await_points(port_, kept);
            finish(kept.block, mine);
        }
    }
    // Takes what has become free.
    void drain(desk* mine) noexcept {
        if (parked_.has_any() || waiting_.has_any()) {
            drain_by(mine, [&](pending_list& over) { waiting_.take_finished(port_, over); });
        }
    }
    // Also what other threads are about to take. A block that one of them puts into the next line is found there.
    void await_and_drain(desk* mine) noexcept {
        for (unsigned lines = 0; lines <= pending_block::most_points; ++lines) {
            drain_by(mine, [&](pending_list& all) {
                if (waiting_.has_any() && waiting_.await_all(port_, all)) {
                    statistics_.count(heap_count::sync_all_streams);
                }
            });
            if (!in_hand_.await()) {
                return;
            }
        }
    }
    template <class Take>
    void drain_by(desk* mine, Take&& take) noexcept {
        const work_in_hand::piece ours{in_hand_};
        if (parked_.has_any()) {
            ask_again_for_parked(mine);
        }
        pending_list over;
        take(over);
        finish_all(over, mine);
    }
    void finish_all(pending_list& all, desk* mine) noexcept {
        while (pending_block* one = all.pop_front()) {
            finish(one->block, mine);
            pending_.give_back(one);
        }
    }

    // False: some could not be given back.
    bool give_back_all(shelf& home) noexcept {
        desk* mine = desk_of_thread();
        await_and_drain(mine);
        // A few at a time: what is given back leaves the lists that are walked.
        std::array<address, 64> found;
        for (;;) {
            std::size_t count = 0;
            const auto add = [&](address at) {
                if (count < found.size()) {
                    found[count++] = at;
                }
            };
            home.large.for_each_extent([&](const extent& one) {
                if (!one.is_free && !one.is_pending) {
                    add(one.range.begin);
                }
            });
            with(home.lock, [&] {
                home.small_notes.for_each([&](span_note& note) {
                    note.marks.for_each(note.marks.range(), [&](va_range one) { add(one.begin); });
                });
            });
            std::size_t gone = 0;
            for (std::size_t i = 0; i < count; ++i) {
                gone += deallocate_when_known(to_pointer(found[i])).is_ok() ? 1 : 0;
            }
            if (count < found.size() || gone == 0) {
                return gone == count;
            }
        }
    }

    // ---- in need

    // What threads, queues and jemalloc keep goes back to the shelves.
    void empty_caches(desk* mine, bool waits, const pool_tag* only = nullptr) noexcept {
        const auto is_meant = [&](const shelf& one) { return only == nullptr || one.tag == *only; };
        if (waits) {
            await_and_drain(mine);
        } else {
            drain(mine);
        }
        // After the drain, which fills this thread's magazines. relaxed: see follow_flush.
        epoch_.fetch_add(1, std::memory_order_relaxed);
        if (mine != nullptr) {
            follow_flush(*mine);
        }
        shelves_.for_each([&](shelf& one) {
            if (one.small != nullptr && is_meant(one)) {
                one.small->flush();
                one.small->purge();
            }
        });
    }
    // The heap may hold more than there is to be had: frames from before the device's limit was lowered.
    [[nodiscard]] bool can_ever_fit(std::size_t bytes) const noexcept {
        const std::size_t most = port_.most_bytes();
        return bytes <= most || bytes <= frames_.counts().reserved_bytes;
    }
    // From the cheap to the dear, and once more after each.
    result<void*> allocate_in_need(shelf& home, const malloc_request& wanted, desk* mine) noexcept {
        statistics_.count(heap_count::alloc_retries);
        const char* why = "";
        const auto again = [&]() -> std::optional<result<void*>> {
            result<void*> given = try_allocate(home, wanted, mine);
            if (given || given.code() != errc::no_memory) {
                return given;
            }
            why = given.error().why;
            return std::nullopt;
        };
        empty_caches(mine, false);
        if (auto given = again()) {
            return std::move(*given);
        }
        empty_caches(mine, true);
        if (auto given = again()) {
            return std::move(*given);
        }
        static_cast<void>(frames_.trim(0));
        if (auto given = again()) {  // others may have dropped some meanwhile
            return std::move(*given);
        }
        while (users_help_.ask(wanted.bytes)) {
            empty_caches(mine, true);
            static_cast<void>(frames_.trim(0));
            if (auto given = again()) {
                return std::move(*given);
            }
        }
        for (unsigned tries = 0; tries < most_reclaims; ++tries) {
            const std::size_t won =
                around_.reclaim != nullptr ? around_.reclaim(around_.self, wanted.bytes) : 0;
            if (won == 0) {
                break;
            }
            if (auto given = again()) {
                return std::move(*given);
            }
        }
        return out_of_memory(home, wanted, why);
    }
    status out_of_memory(const shelf& home, const malloc_request& wanted,
                         const char* why) noexcept {
        statistics_.count(heap_count::ooms);
        note_event(trace_action::out_of_memory, home, 0, wanted.bytes);
        return fail(errc::no_memory, why);
    }

    void count_given(desk* mine, heap_pool pool, std::size_t bytes,
                     std::size_t requested) noexcept {
        on_counts(mine, [&](auto& counts) { counts.allocated(pool, bytes, requested); });
    }

    // ---- what is seen from outside

    // Moves and waits are counted where the frames are: here comes what is new since the last look. relaxed: a
    // number; of two looks at once, the later one makes good what the earlier one took twice.
    void count_new(heap_count what, std::uint64_t now, std::atomic<std::uint64_t>& seen) noexcept {
        statistics_.count(what, now - seen.exchange(now, std::memory_order_relaxed));
    }
    [[nodiscard]] static heap_pool pool_of(const returned_block& one) noexcept {
        return one.block_class < 0 ? heap_pool::large : heap_pool::small;
    }
    template <class Fn>
    void on_counts(desk* mine, Fn&& fn) noexcept {
        if (mine != nullptr) {
            fn(*mine->counts);
        } else {
            statistics_.on_shared(fn);
        }
    }
    void note_event(trace_action action, const shelf& home, address at,
                    std::size_t bytes) noexcept {
        recorder_.record(action, at, bytes, home.queue().value, home.tag.value);
    }
    static void note_frame(void* self, trace_action action, address slot,
                           std::size_t bytes) noexcept {
        auto& heap = *static_cast<xpu_malloc*>(self);
        if (heap.recorder_.is_on()) {
            const span_note* note = heap.spans_.find(slot);
            const queue_id queue = note != nullptr ? note->owner()->queue() : queue_id{};
            const pool_tag tag = note != nullptr ? note->owner()->tag : pool_tag{};
            heap.recorder_.record(action, slot, bytes, queue.value, tag.value);
        }
    }
    static status not_here() noexcept {
        return fail(errc::forked, "this is a forked child: the heap is its parent's");
    }
    static status no_block_there() noexcept {
        return fail(errc::not_mapped, "no block of this heap is there");
    }
    static status no_block() noexcept {
        return fail(errc::invalid_argument, "no block begins there, or it was given back already");
    }

    static void add_blocks(shelf& of, snapshot_builder& builder) {
        of.large.for_each_extent([&](const extent& one) {
            if (!one.is_free) {
                builder.add_block(one.range, one.requested,
                                  one.is_pending ? block_state::active_pending_free
                                                 : block_state::active_allocated);
            }
        });
    }

    // (C) constant  (A) atomic  (L) lock named beside; the others guard themselves
    const std::uint64_t number_ = registry::next_number(number_kind::other);  // (C)
    const node_id node_;                                                      // (C)
    const malloc_surroundings around_;                                        // (C)
    heap_statistics statistics_;
    trace_recorder recorder_;
    watched_port port_;
    note_keeper keeper_;
    device_frames frames_;
    radix_tree<span_note> spans_;
    slab<span_note> notes_;
    slab<pending_block> pending_;
    pending_kind waiting_;
    parked_blocks<pending_list> parked_;
    work_in_hand in_hand_;  // what is in neither of the two, nor back on its shelf
    queue_uses uses_;
    // (A) flushes that were asked for, and queues' ends above them
    std::atomic<std::uint64_t> epoch_{0};
    std::atomic<std::uint64_t> moves_seen_{0};  // (A)  of frames, that statistics_ has, as the next
    std::atomic<std::uint64_t> waits_seen_{0};  // (A)
    shelf_table shelves_;                       // goes before what its spans are noted in
    ranked_mutex<lock_rank::leaf> tags_lock_;
    std::vector<pool_tag> idle_tags_;  // (L)  tags_lock_, as the next
    unsigned made_tags_ = 0;           // (L)
    desk_table desks_;
    shortage_desk users_help_;
    // The last to be made and the first to go: threads that end look for it.
    std::optional<thread_items> thread_items_{std::in_place, &thread_left, this};
};

}  // namespace xmm
