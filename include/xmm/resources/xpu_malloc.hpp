// SPDX-License-Identifier: Apache-2.0
// xpu_malloc.hpp - one malloc for one device: small blocks from jemalloc, large ones by best fit, in queue order.
//
// Model    Blocks belong to a shelf: the addresses of one queue and one tag. A block given back is reused by its
//          own queue at once, since work of a queue runs in order; if other queues used it last, once these
//          have passed that point. Frames are the device's: all shelves draw on one pool of them, and
//          addresses whose blocks are gone lend theirs to whoever needs frames.
//          Blocks up to 32 KiB come from jemalloc through magazines of each thread; where there is no
//          jemalloc, above, and in a thread's last destructors, from the shelf's extent heap. All bookkeeping lies
//          in host memory.
//          When the device has no more: finished blocks and caches first, then waiting for queues, then
//          idle frames of any size, then the user's callback, then demoting unified memory; then it fails.
//          What is more than the device can ever give fails before all that, and what has no room beside the blocks
//          that the program has, before unified memory is demoted. While the device holds more than its budget, frames
//          that fall idle go back to it rather than serve again.
// Threads  Any. Threads on queues of their own share no lock on the way of a cached block. Not from a host call in a
//          queue: who waits for that queue may hold the lock that the call then needs.
// Failure  As status and result; a request that fails leaves what it found, but for caches, and for unified memory
//          that was demoted in vain: that is so only where others than this heap's blocks hold the rest of the device
//          (pins, fixed memory, other spaces). A pointer that no
//          block begins at, or that was given back already, is refused (two threads that give back one
//          small block at the same instant may both be believed).
//          A child of fork has none of this: calls answer `forked`, or do nothing. Only small blocks that the
//          forking thread keeps are still handed out and taken back: to ask there, too, costs that way a tenth.
// See      heap_state.hpp is what the parts share; these are small_stock.hpp, returned_blocks.hpp, malloc_ladder.hpp,
//          heap_survey.hpp, pool_tags.hpp, thread_desks.hpp.
// Units    Bytes. Every block is aligned to 256 bytes or more, on request to any power of two.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/os/registry.hpp>
#include <xmm/resources/block_classes.hpp>
#include <xmm/resources/device_frames.hpp>
#include <xmm/resources/heap_desk.hpp>
#include <xmm/resources/heap_shelf.hpp>
#include <xmm/resources/heap_snapshot.hpp>
#include <xmm/resources/heap_state.hpp>
#include <xmm/resources/heap_statistics.hpp>
#include <xmm/resources/heap_survey.hpp>
#include <xmm/resources/jemalloc_table.hpp>
#include <xmm/resources/malloc_ladder.hpp>
#include <xmm/resources/malloc_request.hpp>
#include <xmm/resources/out_of_memory.hpp>
#include <xmm/resources/pool_tags.hpp>
#include <xmm/resources/returned_blocks.hpp>
#include <xmm/resources/shelf_clearing.hpp>
#include <xmm/resources/small_stock.hpp>
#include <xmm/resources/thread_desks.hpp>
#include <xmm/resources/trace_recorder.hpp>

namespace xmm {

class xpu_malloc {
public:
    // The port outlives the heap.
    xpu_malloc(frame_port& port, node_id node, malloc_options options = {},
               malloc_surroundings around = {})
        : node_{node},
          heap_{port, options.frames, options.uses_jemalloc && is_jemalloc_usable()},
          ladder_{heap_, small_, returned_, around} {}
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
        desk* mine = desks_.of_thread();
        if (void* kept = mine != nullptr ? try_kept(wanted, *mine) : nullptr) {
            return kept;
        }
        return allocate_slowly(wanted, mine);
    }

    // Work submitted to `last_user` before may still use the block; queue 0: no work does but its own queue's. May
    // wait for a queue where more than six others used the block, or the host has no memory to note them.
    // not_mapped: no address of this heap. invalid_argument: no block begins there, or it was given back; or the last
    // user was never a queue of this space, and so cannot be asked what it does. In that and all other cases the block
    // stays the program's. busy: a queue that used it is being captured, or is gone without a word.
    // no_memory: too much waits in such a queue. Any other: the wait for one failed.
    status deallocate(void* block, queue_id last_user = {}) noexcept {
        const address at = to_address(block);
        desk* mine = desks_.of_thread();
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
                   ? returned_.park(to_address(block), last_user, gone, desks_.of_thread())
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
        return returned_.uses().add(to_address(block), queue);
    }

    // The queue is over: all its work is done, and nobody allocates on it any more. Its blocks stay the program's; what
    // is free serves the next queue that comes. To be told before the id is another queue's.
    void forget(queue_id queue) noexcept {
        if (registry::is_forked_child()) {
            return;
        }
        returned_.uses().drop(queue);
        returned_.drain(desks_.of_thread());
        heap_.shelves.retire(queue, [](shelf& one) { small_stock::purge(one); });
        heap_.flushes.note_end_of_queue();
    }

    // ---- questions

    // Whether the heap can ask the queue how far it is; not so one of another space's driver, or one that is gone.
    [[nodiscard]] bool knows(queue_id queue) noexcept {
        return heap_.port.record(queue).code() != errc::invalid_argument;
    }
    [[nodiscard]] bool owns(const void* pointer) const noexcept {
        return heap_.notes.find(to_address(pointer)) != nullptr;
    }
    // The block around a pointer. not_mapped: there is none in the program's hands.
    [[nodiscard]] result<block_info> find(const void* pointer) const noexcept {
        if (registry::is_forked_child()) {
            return not_here();
        }
        const span_notes::noted_block found = heap_.notes.find_block(to_address(pointer));
        if (found.home == nullptr) {
            return fail(errc::not_mapped, "no block of this heap is there");
        }
        return block_info{node_, found.range, found.home->queue(), found.home->tag};
    }
    [[nodiscard]] heap_figures figures() noexcept {
        return registry::is_forked_child() ? heap_figures{} : heap_.journal.figures(heap_.frames);
    }
    // Where frames are and what lies in them, and what was recorded until now. Each part is exact; blocks that
    // come and go meanwhile may be missed. Throws std::bad_alloc.
    [[nodiscard]] heap_snapshot snapshot() {
        return registry::is_forked_child() ? heap_snapshot{}
                                           : heap_survey{heap_, returned_}.take(node_);
    }
    [[nodiscard]] heap_statistics& statistics() noexcept { return heap_.journal.statistics(); }
    [[nodiscard]] trace_recorder& recorder() noexcept { return heap_.journal.recorder(); }
    [[nodiscard]] device_frames& frames() noexcept { return heap_.frames; }
    // What the device is charged with, for all who draw on it, and what it may hold. Of a device that keeps no book,
    // what this heap has.
    [[nodiscard]] resource_usage usage() const noexcept {
        if (registry::is_forked_child()) {
            return {};
        }
        const std::size_t most = heap_.port.most_bytes();
        return {std::max(heap_.port.used_bytes(), heap_.frames.counts().reserved_bytes),
                most == SIZE_MAX ? 0 : most};
    }

    // ---- memory

    // Gives frames that no block needs back to the device until the heap holds no more than that; answers how many
    // bytes went. Other threads' magazines follow at their next call.
    std::size_t trim(std::size_t keep_bytes = 0) noexcept {
        return registry::is_forked_child() ? 0 : ladder_.trim(keep_bytes, desks_.of_thread());
    }
    // The same, of one tag's addresses only.
    std::size_t trim(pool_tag tag) noexcept {
        return registry::is_forked_child() ? 0 : ladder_.trim(tag, desks_.of_thread());
    }
    // A tag that nobody else has, until drop_tag. Users' own are below first_made_tag. no_memory: all are in use.
    [[nodiscard]] result<pool_tag> make_tag() noexcept {
        return registry::is_forked_child() ? result<pool_tag>{not_here()} : tags_.make();
    }
    // Releases its blocks; its addresses serve the next one. A tag that a block stays with, since the host has no
    // memory to note what uses it, is not made again.
    void drop_tag(pool_tag tag) noexcept {
        if (!registry::is_forked_child() && release(tag)) {
            tags_.give_back(tag);
        }
    }
    static constexpr std::uint16_t first_made_tag = pool_tags::first_made;
    // Gives back every block of a tag that is left, on its own queue, and trims. False: some are left still.
    bool release(pool_tag tag) noexcept {
        if (registry::is_forked_child()) {
            return false;
        }
        bool are_gone = true;
        heap_.shelves.for_each(
            [&](shelf& one) { are_gone = (one.tag != tag || give_back_all(one)) && are_gone; });
        static_cast<void>(trim(tag));
        return are_gone;
    }
    // Of frames behind the addresses of a tag.
    [[nodiscard]] std::size_t reserved_bytes(pool_tag tag) const noexcept {
        return registry::is_forked_child() ? 0 : heap_.frames.reserved_bytes(tag.value);
    }
    // Null: none. When it returns, no other thread is in the callback before any more; called from that one, it
    // does not wait. So the caller holds nothing that the callback may wait for. The callback does not throw.
    void set_shortage_callback(shortage_callback callback, void* context) noexcept {
        if (!registry::is_forked_child()) {
            ladder_.users_help().set(callback, context);
        }
    }

private:
    static constexpr std::size_t most_bytes = extent_heap::most_bytes;

    using shelf = heap_shelf;
    using desk = heap_desk;

    // Says on stderr why not, where there is one.
    [[nodiscard]] static bool is_jemalloc_usable() noexcept {
        const jemalloc_functions* found = jemalloc_table::find();
        const status usable = found != nullptr ? found->check() : status{};
        if (!usable) {
            std::fprintf(stderr, "xmm: jemalloc is not used: %s\n", usable.why);
        }
        return usable.is_ok();
    }

    static status not_here() noexcept {
        return fail(errc::forked, "this is a forked child: the heap is its parent's");
    }

    // ---- the way of a cached small block: no lock, no call

    [[nodiscard]] void* try_kept(const malloc_request& wanted, desk& mine) noexcept {
        // A desk was last at shelves of small blocks only.
        if (mine.last_key != heap_shelf::key_of(wanted.queue, wanted.tag) ||
            heap_.flushes.is_ahead_of(mine) || wanted.bytes > block_classes::largest_bytes ||
            wanted.alignment > block_classes::unit) {
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
            if (heap_.journal.is_recording()) {
                heap_.journal.note(trace_action::allocate, *mine.last, at,
                                   std::max<std::size_t>(wanted.bytes, 1));
            }
        }
        return kept;
    }
    [[nodiscard]] bool try_keep(address at, queue_id last_user, desk& mine) noexcept {
        if (heap_.flushes.is_ahead_of(mine) || !is_at_last_shelf(at, mine) ||
            block_points::is_unordered(*mine.last, last_user) || returned_.uses().has_any()) {
            return false;
        }
        const int peeked = mine.last_marks.peek(at);
        const auto block_class = static_cast<unsigned>(peeked);
        if (peeked < 0 || !mine.last_magazine->push(block_class, to_pointer(at))) {
            return false;
        }
        mine.last_marks.enter(at, block_class);
        mine.counts->small_freed(block_class);
        if (heap_.journal.is_recording()) {
            const std::size_t bytes = block_classes::bytes_of(block_class);
            heap_.journal.note(trace_action::free_requested, *mine.last, at, bytes);
            heap_.journal.note(trace_action::free_completed, *mine.last, at, bytes);
        }
        return true;
    }
    // Whether the address belongs to the small blocks of the desk's last shelf, whose marks the desk has then.
    [[nodiscard]] bool is_at_last_shelf(address at, desk& mine) const noexcept {
        if (mine.last_marks.contains(at)) {
            return true;
        }
        span_note* note = heap_.notes.find(at);
        if (note == nullptr || !note->is_small() || note->owner() != mine.last) {
            return false;
        }
        mine.last_marks = note->marks;
        return true;
    }

    // ---- all others

    // Kept out of the way of a cached block, as returned_blocks::give_back: inlined, they cost it a third.
    [[nodiscard, gnu::noinline]] result<void*> allocate_slowly(const malloc_request& wanted,
                                                               desk* mine) noexcept {
        if (registry::is_forked_child()) {
            return not_here();
        }
        result<shelf*> home = shelf_for(wanted);
        if (!home) {
            return home.error();
        }
        returned_.drain(mine);
        // Before the first try: that one takes free places, which have frames still, and drops others.
        if (wanted.bytes > block_classes::largest_bytes &&
            (wanted.bytes > most_bytes || !ladder_.is_within_limit(wanted.bytes))) [[unlikely]] {
            if (const char* why_not = refuse_or_give_back(wanted); why_not != nullptr) {
                return ladder_.out_of_memory(**home, wanted, why_not);
            }
        }
        if (result<void*> given = try_allocate(**home, wanted, mine);
            given || given.code() != errc::no_memory) {
            return given;
        }
        return ladder_.climb(**home, wanted, mine,
                             [&] { return try_allocate(**home, wanted, mine); });
    }

    // Why there is never room for so much; null: there may be, and idle frames are gone as far as there is too little
    // and their queues are done.
    [[nodiscard, gnu::noinline]] const char* refuse_or_give_back(
        const malloc_request& wanted) noexcept {
        if (wanted.bytes > most_bytes) {
            return "more than an address space holds";
        }
        if (ladder_.is_over_limit()) {
            ladder_.give_excess_back();
        }
        return ladder_.can_ever_fit(wanted.bytes) ? nullptr
                                                  : "more than the device's limit for all blocks";
    }
    // Kept out of the way likewise.
    [[gnu::noinline]] status deallocate_slowly(address at, queue_id last_user,
                                               desk* mine) noexcept {
        const status gone = returned_.give_back(at, last_user, mine);
        // Its frames are nobody's now.
        if (gone && ladder_.is_over_limit()) [[unlikely]] {
            ladder_.give_excess_back();
        }
        return gone;
    }

    [[nodiscard]] static bool is_small(const shelf& home, const malloc_request& wanted) noexcept {
        return wanted.bytes <= block_classes::largest_bytes &&
               wanted.alignment <= block_classes::unit && home.small != nullptr;
    }
    [[nodiscard]] result<void*> try_allocate(shelf& home, const malloc_request& wanted,
                                             desk* mine) noexcept {
        const std::size_t bytes = wanted.bytes == 0 ? 1 : wanted.bytes;
        if (is_small(home, wanted)) {
            result<void*> given = small_.allocate(home, bytes, mine);
            if (given || given.code() != errc::unsupported) {
                return given;
            }
        }
        result<void*> given =
            home.large.allocate(bytes, std::max(wanted.alignment, block_classes::unit));
        if (given) {
            heap_.journal.count_given(mine, heap_pool::large, align_up(bytes, extent_unit_bytes),
                                      bytes);
            heap_.journal.note(trace_action::allocate, home, to_address(*given), bytes);
        }
        return given;
    }

    // One that cannot say now how far it is, since it is being captured, is there all the same.
    status find_queue(queue_id queue) noexcept {
        result<ticket> there = heap_.port.record(queue);
        return there || xmm::is_over(there.code()) ? there.error() : status{};
    }
    [[nodiscard]] result<shelf*> shelf_for(const malloc_request& wanted) noexcept {
        shelf* found = heap_.shelves.find(wanted.queue, wanted.tag);
        if (found == nullptr) {
            if (!wanted.may_make_shelf) {
                return fail(errc::busy, "the queue has no shelf for that tag");
            }
            if (const status known = find_queue(wanted.queue); !known) {
                return known;
            }
            found = heap_.shelves.make(wanted.queue, wanted.tag);
        }
        return found != nullptr
                   ? result<shelf*>{found}
                   : fail(errc::no_memory, "the host has no memory for a heap's records");
    }

    // False: some could not be given back.
    bool give_back_all(shelf& home) noexcept {
        returned_.await_and_drain(desks_.of_thread());
        return clear_shelf(
            home, [&](address at) { return deallocate_when_known(to_pointer(at)).is_ok(); });
    }

    // In this order: each uses those before it, and goes before them.
    const node_id node_;
    heap_state heap_;
    small_stock small_{heap_};
    returned_blocks returned_{heap_, small_};
    malloc_ladder ladder_;
    pool_tags tags_;
    thread_desks desks_{heap_.journal.statistics(), small_};
};

}  // namespace xmm
