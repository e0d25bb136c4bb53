// SPDX-License-Identifier: Apache-2.0
// xmm.cpp - libxmm: the functions of xmm.h, over the heaps of the default space.
#include "xmm.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <xmm/resources/export/chrome_trace.hpp>
#include <xmm/resources/export/replay_csv.hpp>
#include <xmm/resources/export/rmm_csv.hpp>
#include <xmm/resources/export/text.hpp>
#include <xmm/resources/export/torch_snapshot.hpp>

#include "books.hpp"
#include "device_work.hpp"
#include "errors.hpp"
#include "heaps.hpp"
#include "stream_file.hpp"

namespace xmm::c_interface {
namespace {

constexpr std::size_t least_alignment = 256;

// Fills as much of a caller's structure as the caller knows of, and says how much. False: it does not even know the
// size field.
template <class T>
[[nodiscard]] bool hand_over(T* to, T from) noexcept {
    if (to == nullptr || to->struct_size < sizeof(std::size_t)) {
        return false;
    }
    const std::size_t known = std::min(to->struct_size, sizeof(T));
    from.struct_size = known;
    std::memcpy(static_cast<void*>(to), &from, known);
    return true;
}
status no_structure() noexcept {
    return fail(errc::invalid_argument, "a structure is missing, or its struct_size is not set");
}
// As much of a text as fits, in whole characters of UTF-8, with its NUL. A byte that is none becomes U+FFFD; the text
// may have been cut before: what it ends with of a character is left out.
template <std::size_t Room>
void fit_text(char (&to)[Room], std::string_view text) noexcept {
    const auto is_begun = [](std::string_view rest) {
        const auto first = static_cast<unsigned char>(rest[0]);
        return first >= 0xc2 && first < 0xf5 && rest.size() < 4 &&
               std::all_of(rest.begin() + 1, rest.end(), [](char next) {
                   return (static_cast<unsigned char>(next) & 0xc0) == 0x80;
               });
    };
    std::size_t used = 0;
    while (!text.empty()) {
        const std::size_t length = xmm::detail::utf8_length(text);
        if (length == 0 && is_begun(text)) {
            break;
        }
        const std::string_view piece =
            length != 0 ? text.substr(0, length) : std::string_view{"\xef\xbf\xbd"};
        if (piece.size() >= Room - used) {
            break;
        }
        std::copy(piece.begin(), piece.end(), to + used);
        used += piece.size();
        text.remove_prefix(std::max<std::size_t>(length, 1));
    }
    to[used] = '\0';
}
status no_place() noexcept {
    return fail(errc::invalid_argument, "there is no place for the answer");
}

result<pool_tag> tag_of(xmm_tag tag) {
    return tag_book::instance().name_of(tag) != nullptr
               ? result<pool_tag>{pool_tag{static_cast<std::uint16_t>(tag)}}
               : fail(errc::invalid_argument, "no such tag: they come from xmm_tag_create");
}

// A queue that does not end before this goes, whoever destroys it; NULL is none, number 0.
class held_queue {
public:
    static result<held_queue> of(xmm_queue queue) {
        if (queue != nullptr && registry::is_forked_child()) {
            return queue_book::not_here();
        }
        held_queue one;
        one.line_ = queue != nullptr ? queue_book::instance().find(queue) : nullptr;
        return queue == nullptr || one.line_ != nullptr ? result<held_queue>{std::move(one)}
                                                        : queue_book::unknown();
    }
    [[nodiscard]] queue_id id() const noexcept {
        return line_ != nullptr ? line_->id() : queue_id{};
    }
    status synchronize() noexcept { return line_ != nullptr ? line_->synchronize() : status{}; }

private:
    std::shared_ptr<xmm::queue> line_;
};

// A refusal for want of memory is thrown, as out_of_memory: a status cannot say of which node, and how full that is.
result<void*> block_of(xpu_malloc& heap, const malloc_request& wanted) {
    result<void*> block = heap.allocate(wanted);
    if (block.code() == errc::no_memory) {
        throw out_of_memory{"heap",       heap.node(),       wanted.bytes,
                            heap.usage(), block.error().why, block.error().driver_code};
    }
    return block;
}
result<void*> allocate(xmm_tag tag, std::size_t alignment, std::size_t bytes, int32_t node,
                       xmm_queue queue) {
    result<xpu_malloc*> heap = heap_finder::at(node);
    if (!heap) {
        return heap.error();
    }
    result<pool_tag> as = tag_of(tag);
    if (!as) {
        return as.error();
    }
    queue_book& book = queue_book::instance();
    malloc_request wanted{.bytes = bytes, .alignment = alignment, .tag = *as};
    // Without the book's lock: that holds as long as no queue ends meanwhile. A shelf that were made after the queue's
    // end was told would stay.
    const std::uint64_t ends = book.ends();
    result<queue_id> line = book.id_of(queue);
    if (!line) {
        return line.error();
    }
    wanted.queue = *line;
    wanted.may_make_shelf = queue == nullptr;
    result<void*> block = block_of(**heap, wanted);
    if (queue == nullptr || (block ? book.ends() == ends : block.code() != errc::busy)) {
        return block;
    }
    if (block) {
        static_cast<void>((*heap)->deallocate(*block));
    }
    result<held_queue> held = held_queue::of(queue);
    if (!held) {
        return held.error();
    }
    wanted.queue = held->id();
    wanted.may_make_shelf = true;
    return block_of(**heap, wanted);
}

// The block that begins at the pointer.
result<block_info> block_at(xpu_malloc& heap, const void* pointer) noexcept {
    result<block_info> found = heap.find(pointer);
    if (found && found->range.begin != to_address(pointer)) {
        return fail(errc::invalid_argument, "the pointer is in the middle of a block");
    }
    return found;
}
status give_back(void* block, xmm_queue last_user) {
    result<xpu_malloc*> heap = heap_finder::around(block);
    if (!heap) {
        return heap.error();
    }
    result<queue_id> line = queue_book::instance().id_of(last_user);
    return line ? (*heap)->deallocate(block, *line) : line.error();
}
result<device_work> work_on(node_id at) noexcept {
    result<node*> on = heap_finder::node_of(at.value);
    return on ? result<device_work>{device_work{(*the_space())->state(), **on}}
              : result<device_work>{on.error()};
}

result<void*> allocate_zeroed(std::size_t bytes, int32_t node, xmm_queue queue) {
    result<xpu_malloc*> heap = heap_finder::at(node);
    if (!heap) {
        return heap.error();
    }
    result<held_queue> line = held_queue::of(queue);
    if (!line) {
        return line.error();
    }
    result<void*> block =
        block_of(**heap, {.bytes = bytes, .alignment = least_alignment, .queue = line->id()});
    if (!block || bytes == 0) {
        return block;
    }
    result<device_work> device = work_on((*heap)->node());
    const status zeroed =
        device ? device->zero({to_address(*block), bytes}, line->id()) : device.error();
    if (!zeroed) {
        static_cast<void>((*heap)->deallocate(*block));
        return zeroed;
    }
    return block;
}

// What lies in both blocks is copied: after all work of the old block's queue, before anything that the given
// queue gets later.
status copy_block(const block_info& to, const block_info& from, held_queue& queue) {
    const std::size_t bytes = std::min(to.range.bytes, from.range.bytes);
    const queue_id line = queue.id();
    result<device_work> device = work_on(from.node);
    if (!device) {
        return device.error();
    }
    const bool is_one_node = to.node == from.node;
    if (const status ordered = device->order(is_one_node ? line : queue_id{}, from.queue);
        !ordered) {
        return ordered;
    }
    if (is_one_node) {
        return device->copy(to.range.begin, from.range.begin, bytes, line);
    }
    if (const status done = queue.synchronize(); !done) {
        return done;
    }
    return (*the_space())->copy(to_pointer(to.range.begin), to_pointer(from.range.begin), bytes);
}
result<void*> reallocate(void* block, std::size_t bytes, int32_t node, xmm_queue queue) {
    result<xpu_malloc*> heap = heap_finder::around(block);
    if (!heap) {
        return heap.error();
    }
    result<block_info> old = block_at(**heap, block);
    if (!old) {
        return old.error();
    }
    result<held_queue> held = held_queue::of(queue);
    if (!held) {
        return held.error();
    }
    const queue_id line = held->id();
    if (bytes == 0) {
        const status gone = (*heap)->deallocate(block, line);
        return gone ? result<void*>{nullptr} : result<void*>{gone};
    }
    const int32_t target = node == XMM_DEFAULT_NODE ? old->node.value : node;
    result<xmm::node*> on = heap_finder::node_of(target);
    if (!on) {
        return on.error();
    }
    // A block that would be more than half empty is exchanged.
    const bool fits = bytes <= old->range.bytes && bytes >= old->range.bytes / 2;
    if (fits && (*on)->id == old->node && line == old->queue) {
        return block;
    }
    result<xpu_malloc*> new_heap = heap_finder::at(target);
    if (!new_heap) {
        return new_heap.error();
    }
    // The tag may be a pool's, which has no name here.
    result<void*> fresh = block_of(
        **new_heap, {.bytes = bytes, .alignment = least_alignment, .queue = line, .tag = old->tag});
    if (!fresh) {
        return fresh;
    }
    result<block_info> made = block_at(**new_heap, *fresh);
    const status copied = made ? copy_block(*made, *old, *held) : made.error();
    if (!copied) {
        static_cast<void>((*new_heap)->deallocate(*fresh, line));
        return copied;
    }
    if (const status gone = (*heap)->deallocate(block, line); !gone) {
        static_cast<void>((*new_heap)->deallocate(*fresh, line));  // another thread was faster
        return gone;
    }
    return fresh;
}

xmm_counter counter_of(const heap_counter& from) noexcept {
    return {from.current, from.peak, from.allocated, from.freed};
}

heap_snapshot snapshot_of(xpu_malloc& heap) {
    heap_snapshot taken = heap.snapshot();
    taken.tags = tag_book::instance().names();
    return taken;
}

// A device that can have no heap is left out where all are asked for.
status take_snapshots(space& all, int32_t number, std::vector<heap_snapshot>& taken) {
    const auto take = [&](int32_t one) -> status {
        result<xpu_malloc*> heap = heap_finder::at(one);
        if (heap) {
            taken.push_back(snapshot_of(**heap));
        }
        return heap.error();
    };
    if (number != XMM_ALL_DEVICES) {
        return take(number);
    }
    for (const node_id device : all.devices()) {
        if (const status had = take(device.value); !had && had.code != errc::unsupported) {
            return had;
        }
    }
    return {};
}

}  // namespace
}  // namespace xmm::c_interface

using namespace xmm;
using namespace xmm::c_interface;

extern "C" {

// ---- version and errors

uint32_t xmm_version(void) noexcept { return XMM_VERSION; }
const char* xmm_version_text(void) noexcept {
#define XMM_TEXT_OF(number) #number
#define XMM_TEXT(major, minor, patch) \
    XMM_TEXT_OF(major) "." XMM_TEXT_OF(minor) "." XMM_TEXT_OF(patch)
    return XMM_TEXT(XMM_VERSION_MAJOR, XMM_VERSION_MINOR, XMM_VERSION_PATCH);
#undef XMM_TEXT
#undef XMM_TEXT_OF
}
const char* xmm_status_name(xmm_status status) noexcept {
    if (status == XMM_FAILED) {
        return "failed";
    }
    return status >= XMM_OK && status < XMM_FAILED ? name_of(static_cast<errc>(status)) : "?";
}
xmm_status xmm_last_status(void) noexcept { return last_failure::of_thread().status; }
const char* xmm_last_error(void) noexcept { return last_failure::of_thread().text.data(); }
void xmm_clear_error(void) noexcept { last_failure::of_thread() = {}; }

// ---- nodes

xmm_status xmm_list_nodes(int32_t* nodes, size_t capacity, size_t* count) noexcept {
    return answer(__func__, [&]() -> status {
        if (count == nullptr || (nodes == nullptr && capacity != 0)) {
            return no_place();
        }
        result<space*> all = the_space();
        if (!all) {
            return all.error();
        }
        const std::vector<node_id> found = (*all)->nodes();
        for (std::size_t i = 0; i < std::min(capacity, found.size()); ++i) {
            nodes[i] = found[i].value;
        }
        *count = found.size();
        return {};
    });
}
xmm_status xmm_describe_node(int32_t number, xmm_node_description* description) noexcept {
    return answer(__func__, [&]() -> status {
        result<node*> found = heap_finder::node_of(number);
        if (!found) {
            return found.error();
        }
        result<node_usage> usage = (*the_space())->usage((*found)->id);
        if (!usage) {
            return usage.error();
        }
        xmm_node_description said{};
        said.node = (*found)->id.value;
        said.is_device = (*found)->is_host ? 0 : 1;
        said.bytes = (*found)->about.bytes;
        said.limit_bytes = usage->limit;
        said.used_bytes = usage->used;
        fit_text(said.name, (*found)->about.name.data());
        return hand_over(description, said) ? status{} : no_structure();
    });
}
xmm_status xmm_set_budget(int32_t number, uint64_t bytes) noexcept {
    return answer(__func__, [&]() -> status {
        result<node*> found = heap_finder::node_of(number);
        return found ? (*the_space())->set_budget((*found)->id, bytes) : found.error();
    });
}

// ---- queues

xmm_status xmm_queue_create(int32_t number, xmm_queue* queue) noexcept {
    return answer(__func__, [&]() -> status {
        if (queue == nullptr) {
            return no_place();
        }
        result<node*> on = heap_finder::node_of(number);
        if (!on) {
            return on.error();
        }
        result<void*> made = queue_book::instance().create(**the_space(), (*on)->id);
        *queue = made ? *made : *queue;
        return made.error();
    });
}
xmm_status xmm_queue_destroy(xmm_queue queue) noexcept {
    return answer(__func__, [&] { return queue_book::instance().destroy(queue); });
}
xmm_status xmm_queue_adopt(void* native, xmm_queue* queue) noexcept {
    return answer(__func__, [&]() -> status {
        if (queue == nullptr) {
            return no_place();
        }
        result<space*> all = the_space();
        if (!all) {
            return all.error();
        }
        result<void*> made = queue_book::instance().adopt(**all, native);
        *queue = made ? *made : *queue;
        return made.error();
    });
}
xmm_status xmm_queue_forget(xmm_queue queue) noexcept {
    return answer(__func__, [&] { return queue_book::instance().forget(queue); });
}
xmm_status xmm_describe_queue(xmm_queue queue, xmm_queue_description* description) noexcept {
    return answer(__func__, [&]() -> status {
        result<queue_book::description> found = queue_book::instance().describe(queue);
        if (!found) {
            return found.error();
        }
        xmm_queue_description said{};
        said.node = found->node.value;
        said.is_adopted = found->is_adopted ? 1 : 0;
        said.is_native = found->is_native ? 1 : 0;
        said.native = found->native;
        return hand_over(description, said) ? status{} : no_structure();
    });
}
xmm_status xmm_queue_synchronize(xmm_queue queue) noexcept {
    return answer(__func__, [&] {
        if (registry::is_forked_child()) {
            return queue_book::not_here();
        }
        std::shared_ptr<xmm::queue> line = queue_book::instance().find(queue);
        return line != nullptr ? line->synchronize() : queue_book::unknown();
    });
}
xmm_status xmm_copy(void* to, const void* from, size_t bytes, xmm_queue queue) noexcept {
    return answer(__func__, [&]() -> status {
        result<space*> all = the_space();
        if (!all) {
            return all.error();
        }
        if (queue == nullptr) {
            return (*all)->copy(to, from, bytes);
        }
        std::shared_ptr<xmm::queue> line = queue_book::instance().find(queue);
        return line != nullptr ? (*all)->copy(*line, to, from, bytes).error()
                               : queue_book::unknown();
    });
}
uint64_t xmm_copy_failures() noexcept {
    return answer_with<uint64_t>(__func__, [&]() -> result<uint64_t> {
        result<space*> all = the_space();
        return all ? result<uint64_t>{(*all)->copy_failures()} : all.error();
    });
}

// ---- blocks

void* xmm_malloc(size_t bytes, int32_t node, xmm_queue queue) noexcept {
    return answer_with<void*>(__func__,
                              [&] { return allocate(0, least_alignment, bytes, node, queue); });
}
void* xmm_aligned_malloc(size_t alignment, size_t bytes, int32_t node, xmm_queue queue) noexcept {
    return answer_with<void*>(__func__, [&] { return allocate(0, alignment, bytes, node, queue); });
}
void* xmm_tagged_malloc(xmm_tag tag, size_t alignment, size_t bytes, int32_t node,
                        xmm_queue queue) noexcept {
    return answer_with<void*>(__func__,
                              [&] { return allocate(tag, alignment, bytes, node, queue); });
}
void* xmm_calloc(size_t count, size_t bytes, int32_t node, xmm_queue queue) noexcept {
    return answer_with<void*>(__func__, [&]() -> result<void*> {
        // Of more than there can be the heap says so, and counts it.
        const bool is_too_much = bytes != 0 && count > SIZE_MAX / bytes;
        return allocate_zeroed(is_too_much ? SIZE_MAX : count * bytes, node, queue);
    });
}
void* xmm_realloc(void* block, size_t bytes, int32_t node, xmm_queue queue) noexcept {
    return answer_with<void*>(__func__, [&] {
        return block == nullptr ? allocate(0, least_alignment, bytes, node, queue)
                                : reallocate(block, bytes, node, queue);
    });
}
xmm_status xmm_free(void* block) noexcept {
    return answer(__func__,
                  [&] { return block == nullptr ? status{} : give_back(block, nullptr); });
}
xmm_status xmm_free_on(void* block, xmm_queue queue) noexcept {
    return answer(__func__, [&] { return block == nullptr ? status{} : give_back(block, queue); });
}
xmm_status xmm_free_sized(void* block, size_t bytes) noexcept {
    return answer(__func__, [&]() -> status {
        if (block == nullptr) {
            return {};
        }
        result<xpu_malloc*> heap = heap_finder::around(block);
        if (!heap) {
            return heap.error();
        }
        result<block_info> found = block_at(**heap, block);
        if (!found) {
            return found.error();
        }
        return bytes <= found->range.bytes
                   ? (*heap)->deallocate(block)
                   : fail(errc::invalid_argument, "the block is smaller than that");
    });
}
xmm_status xmm_record_use(void* block, xmm_queue queue) noexcept {
    return answer(__func__, [&]() -> status {
        result<xpu_malloc*> heap = heap_finder::around(block);
        if (!heap) {
            return heap.error();
        }
        result<held_queue> line = held_queue::of(queue);
        return line ? (*heap)->record_use(block, line->id()) : line.error();
    });
}

// ---- pointers

xmm_status xmm_find_block(const void* pointer, xmm_block* block) noexcept {
    return answer(__func__, [&]() -> status {
        result<xpu_malloc*> heap = heap_finder::around(pointer);
        if (!heap) {
            return heap.error();
        }
        result<block_info> found = (*heap)->find(pointer);
        if (!found) {
            return found.error();
        }
        xmm_block said{};
        said.base = to_pointer(found->range.begin);
        said.bytes = found->range.bytes;
        said.queue =
            found->queue.value != 0 ? queue_book::instance().handle_of(found->queue) : nullptr;
        said.node = found->node.value;
        said.tag = found->tag.value;
        return hand_over(block, said) ? status{} : no_structure();
    });
}
size_t xmm_usable_size(const void* block) noexcept {
    return answer_with<std::size_t>(__func__, [&]() -> result<std::size_t> {
        result<xpu_malloc*> heap = heap_finder::around(block);
        if (!heap) {
            return heap.error();
        }
        result<block_info> found = block_at(**heap, block);
        return found ? result<std::size_t>{found->range.bytes} : result<std::size_t>{found.error()};
    });
}

// ---- tags

xmm_status xmm_tag_create(const char* name, xmm_tag* tag) noexcept {
    return answer(__func__, [&]() -> status {
        if (tag == nullptr) {
            return no_place();
        }
        if (registry::is_forked_child()) {
            return fail(errc::forked, "this is a forked child: the tags are its parent's");
        }
        result<std::uint16_t> made = tag_book::instance().find_or_make(name);
        *tag = made ? *made : *tag;
        return made.error();
    });
}
const char* xmm_tag_name(xmm_tag tag) noexcept {
    return answer_with<const char*>(__func__, [&]() -> result<const char*> {
        const char* name = tag_book::instance().name_of(tag);
        return name != nullptr ? result<const char*>{name}
                               : fail(errc::invalid_argument, "no such tag");
    });
}

// ---- memory

xmm_status xmm_trim(int32_t node, uint64_t keep_bytes, uint64_t* freed) noexcept {
    return answer(__func__, [&]() -> status {
        result<xpu_malloc*> heap = heap_finder::at(node);
        const std::size_t gone = heap ? (*heap)->trim(keep_bytes) : 0;
        if (heap && freed != nullptr) {
            *freed = gone;
        }
        return heap.error();
    });
}
xmm_status xmm_trim_tag(int32_t node, xmm_tag tag, uint64_t* freed) noexcept {
    return answer(__func__, [&]() -> status {
        result<xpu_malloc*> heap = heap_finder::at(node);
        if (!heap) {
            return heap.error();
        }
        result<pool_tag> of = tag_of(tag);
        const std::size_t gone = of ? (*heap)->trim(*of) : 0;
        if (of && freed != nullptr) {
            *freed = gone;
        }
        return of.error();
    });
}
xmm_status xmm_set_oom_callback(int32_t node, xmm_oom_callback callback, void* context) noexcept {
    return answer(__func__, [&]() -> status {
        result<xpu_malloc*> heap = heap_finder::at(node);
        if (heap) {
            (*heap)->set_shortage_callback(callback, context);
        }
        return heap.error();
    });
}

// ---- seeing it

xmm_status xmm_get_statistics(int32_t node, xmm_statistics* statistics) noexcept {
    return answer(__func__, [&]() -> status {
        result<xpu_malloc*> heap = heap_finder::at(node);
        if (!heap) {
            return heap.error();
        }
        const heap_figures now = (*heap)->figures();
        xmm_statistics said{};
        said.allocation = counter_of(now.of(heap_metric::allocation));
        said.allocated_bytes = counter_of(now.of(heap_metric::allocated_bytes));
        said.active = counter_of(now.of(heap_metric::active));
        said.active_bytes = counter_of(now.of(heap_metric::active_bytes));
        said.requested_bytes = counter_of(now.of(heap_metric::requested_bytes));
        said.segment = counter_of(now.of(heap_metric::segment));
        said.reserved_bytes = counter_of(now.of(heap_metric::reserved_bytes));
        said.inactive_split_bytes = counter_of(now.of(heap_metric::inactive_split_bytes));
        said.num_alloc_retries = now.of(heap_count::alloc_retries);
        said.num_ooms = now.of(heap_count::ooms);
        said.num_sync_all_streams = now.of(heap_count::sync_all_streams);
        said.num_device_alloc = now.of(heap_count::device_alloc);
        said.num_device_free = now.of(heap_count::device_free);
        said.frames_moved = now.of(heap_count::frames_moved);
        said.queue_waits = now.of(heap_count::queue_waits);
        said.driver_us = now.of(heap_count::driver_us);
        return hand_over(statistics, said) ? status{} : no_structure();
    });
}
size_t xmm_statistics_text(int32_t node, char* text, size_t capacity) noexcept {
    return answer_with<std::size_t>(__func__, [&]() -> result<std::size_t> {
        if (text == nullptr && capacity != 0) {
            return no_place();
        }
        result<xpu_malloc*> heap = heap_finder::at(node);
        if (!heap) {
            return heap.error();
        }
        std::ostringstream lines;
        lines << (*heap)->figures();
        const std::string all = lines.str();
        if (capacity != 0) {
            const std::size_t fitting = std::min(all.size(), capacity - 1);
            std::memcpy(text, all.data(), fitting);
            text[fitting] = '\0';
        }
        return all.size();
    });
}
xmm_status xmm_reset_peak_statistics(int32_t node) noexcept {
    return answer(__func__, [&]() -> status {
        result<xpu_malloc*> heap = heap_finder::at(node);
        if (heap) {
            (*heap)->statistics().reset_peaks();
        }
        return heap.error();
    });
}
xmm_status xmm_reset_accumulated_statistics(int32_t node) noexcept {
    return answer(__func__, [&]() -> status {
        result<xpu_malloc*> heap = heap_finder::at(node);
        if (heap) {
            static_cast<void>((*heap)->figures());  // what other counters hold comes in first
            (*heap)->statistics().reset_accumulated();
        }
        return heap.error();
    });
}
xmm_status xmm_trace_start(int32_t node, size_t events) noexcept {
    return answer(__func__, [&]() -> status {
        result<xpu_malloc*> heap = heap_finder::at(node);
        return heap ? (*heap)->recorder().start(events) : heap.error();
    });
}
xmm_status xmm_trace_stop(int32_t node) noexcept {
    return answer(__func__, [&]() -> status {
        result<xpu_malloc*> heap = heap_finder::at(node);
        if (heap) {
            (*heap)->recorder().stop();
        }
        return heap.error();
    });
}
xmm_status xmm_export(int32_t node, xmm_export_form form, const char* path) noexcept {
    int error = 0;
    const xmm_status outcome = answer(__func__, [&]() -> status {
        if (path == nullptr || form < XMM_RMM_CSV || form > XMM_REPLAY_CSV) {
            return fail(errc::invalid_argument, "a path and one of the forms are needed");
        }
        if (node == XMM_ALL_DEVICES && (form == XMM_RMM_CSV || form == XMM_REPLAY_CSV)) {
            return fail(errc::invalid_argument, "this form holds one device");
        }
        result<space*> all = the_space();
        if (!all) {
            return all.error();
        }
        std::vector<heap_snapshot> taken;
        if (const status had = take_snapshots(**all, node, taken); !had) {
            return had;
        }
        error = write_whole_file(path, [&](std::ostream& out) {
            switch (form) {
                case XMM_RMM_CSV: write_rmm_csv(out, taken[0].trace, taken[0].segments); break;
                case XMM_REPLAY_CSV:
                    write_replay_csv(out, taken[0].trace, taken[0].segments);
                    break;
                case XMM_TORCH_SNAPSHOT: write_torch_snapshot(out, taken); break;
                default: write_chrome_trace(out, taken); break;
            }
        });
        return {};
    });
    return outcome == XMM_OK && error != 0
               ? last_failure::of_thread().set(__func__, XMM_FAILED, std::strerror(error), error)
               : outcome;
}

}  // extern "C"
