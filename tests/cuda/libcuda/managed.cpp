// SPDX-License-Identifier: Apache-2.0
// managed.cpp - memory that the driver moves: where its pages are, and what moves them.
//
// Model    The bytes never move: host and devices see one frame. What moves is the record of where they are,
//          what they hold of a device's memory, and the time that the link takes. The CPU's touch moves nothing.
//          A device that is full makes room by sending home what was used longest ago, and counts it.
#include "streams.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "memory.hpp"

namespace soft_cuda {

namespace {

entry_point alloc_point{"cuMemAllocManaged"};
entry_point prefetch_point{"cuMemPrefetchAsync"};
entry_point prefetch_batch_point{"cuMemPrefetchBatchAsync"};
entry_point discard_batch_point{"cuMemDiscardBatchAsync"};
entry_point discard_prefetch_point{"cuMemDiscardAndPrefetchBatchAsync"};
entry_point advise_point{"cuMemAdvise"};
entry_point range_attribute_point{"cuMemRangeGetAttribute"};
entry_point range_attributes_point{"cuMemRangeGetAttributes"};
entry_point prefetch_work{"prefetch"};

device& device_at(int ordinal) { return *the_driver().devices[static_cast<std::size_t>(ordinal)]; }

void give_back(int ordinal) {
    device_at(ordinal).managed.fetch_sub(page_bytes, std::memory_order_relaxed);  // only adds room
}

// Room for one page on a device, by eviction if need be.
bool charge_page(int ordinal) {
    device& of = device_at(ordinal);
    return of.try_charge(of.managed, page_bytes) ||
           (evict_managed(of, page_bytes) && of.try_charge(of.managed, page_bytes));
}

void drop_copies(managed_page& page) {
    for (int ordinal = 0; ordinal < most_devices; ++ordinal) {
        if ((page.copies >> ordinal & 1) != 0) {
            give_back(ordinal);
        }
    }
    page.copies = 0;
}

void go_home(managed_page& page) {
    if (page.home >= 0) {
        give_back(page.home);
    }
    page.home = managed_page::on_host;
}

// False: no room there, it stays where it is.
bool go_to_device(managed_page& page, int ordinal) {
    if (page.home == ordinal) {
        return true;
    }
    // Its stamp is the newest, so eviction passes it by.
    page.stamp = table().clock++;
    if ((page.copies >> ordinal & 1) != 0) {
        page.copies &= ~(1u << ordinal);  // the duplicate becomes the page
    } else if (!charge_page(ordinal)) {
        return false;
    }
    if (page.home >= 0) {
        give_back(page.home);
    }
    page.home = ordinal;
    return true;
}

bool prefers_host(const managed_page& page) {
    return page.preferred.type == CU_MEM_LOCATION_TYPE_HOST ||
           page.preferred.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
           page.preferred.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

CUresult check_location(const CUmemLocation& where) {
    switch (where.type) {
        case CU_MEM_LOCATION_TYPE_DEVICE:
            return the_driver().has_device(where.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
        case CU_MEM_LOCATION_TYPE_HOST_NUMA:
            return driver::has_host(where.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        case CU_MEM_LOCATION_TYPE_HOST:
        case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

// The managed allocation that holds the whole range; nullptr: none. (memory_lock)
mapping* managed_over(CUdeviceptr at, std::size_t bytes) {
    memory_table& all = table();
    const auto found = all.over(at);
    if (bytes == 0 || found == all.mappings.end() || found->second.kind != kind::managed ||
        bytes > found->second.end() - at) {
        return nullptr;
    }
    return &found->second;
}

struct pages {
    std::size_t first, last;  // last is behind the end
};
pages outward(const mapping& in, CUdeviceptr at, std::size_t bytes) {
    return {(at - in.at) / page_bytes, (at - in.at + bytes + page_bytes - 1) / page_bytes};
}
pages inward(const mapping& in, CUdeviceptr at, std::size_t bytes) {
    const std::size_t first = (at - in.at + page_bytes - 1) / page_bytes;
    const bool to_end = at + bytes == in.end();
    const std::size_t last = to_end ? in.pages.size() : (at - in.at + bytes) / page_bytes;
    return {first, std::max(first, last)};
}

// Was it ever written? An untouched page has nothing that would pass the link.
bool has_content(const mapping& in, std::size_t page) {
    const auto begin = static_cast<off_t>(page * page_bytes);
    const off_t data = ::lseek(in.what->fd, begin, SEEK_DATA);
    return data >= 0 && data < begin + static_cast<off_t>(page_bytes);
}

struct moved {
    std::size_t to_device = 0, to_host = 0;
    int device = -1;
};

moved prefetch_page(mapping& in, std::size_t index, const CUmemLocation& to) {
    auto& counted = the_driver().counted;
    managed_page& page = in.pages[index];
    const std::size_t bytes =
        page.is_discarded || !has_content(in, index) ? 0 : page_size_of(in, index);
    moved done;
    page.last_prefetch = to;
    if (to.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        if (page.home >= 0) {
            done.to_host = bytes;
            done.device = page.home;
        }
        drop_copies(page);
        go_home(page);
    } else if (page.home == to.id || (page.copies >> to.id & 1) != 0) {
        page.stamp = table().clock++;
        return done;
    } else if (page.is_read_mostly && page.home != managed_page::nowhere) {
        page.stamp = table().clock++;
        if (!charge_page(to.id)) {
            counted.refused.fetch_add(1, std::memory_order_relaxed);
            return done;
        }
        page.copies |= 1u << to.id;
        counted.duplicated.fetch_add(1, std::memory_order_relaxed);
        done.to_device = bytes;
        done.device = to.id;
    } else {
        if (!go_to_device(page, to.id)) {
            counted.refused.fetch_add(1, std::memory_order_relaxed);
            return done;
        }
        done.to_device = bytes;
        done.device = to.id;
    }
    page.is_discarded = false;
    counted.prefetched.fetch_add(1, std::memory_order_relaxed);
    return done;
}

struct range {
    CUdeviceptr at;
    std::size_t bytes;
    CUmemLocation to;
};

CUresult prefetch(const std::vector<range>& ranges) {
    if (const CUresult failed = prefetch_work.call(); failed != CUDA_SUCCESS) {
        return failed;
    }
    auto& counted = the_driver().counted;
    for (const range& one : ranges) {
        for (std::size_t page = 0, last = 1; page < last; ++page) {
            moved done;
            {
                const std::scoped_lock hold{memory_lock};
                mapping* const in = managed_over(one.at, one.bytes);
                if (in == nullptr) {
                    return CUDA_ERROR_ILLEGAL_ADDRESS;  // freed before the stream came to it
                }
                const pages all = outward(*in, one.at, one.bytes);
                page = std::max(page, all.first);
                last = all.last;
                done = prefetch_page(*in, page, one.to);
                bump_epoch();  // who has seen the page shall ask again where it is
            }
            if (done.device >= 0) {
                device& of = device_at(done.device);
                const std::uint64_t speed = of.bytes_per_second.load(std::memory_order_relaxed);
                counted.to_device.fetch_add(done.to_device, std::memory_order_relaxed);
                counted.to_host.fetch_add(done.to_host, std::memory_order_relaxed);
                of.lanes[done.to_host != 0 ? 1 : 0].pass(done.to_host + done.to_device, speed);
            }
        }
    }
    return CUDA_SUCCESS;
}

CUresult discard(const std::vector<range>& ranges) {
    if (const CUresult failed = prefetch_work.call(); failed != CUDA_SUCCESS) {
        return failed;
    }
    const std::scoped_lock hold{memory_lock};
    for (const range& one : ranges) {
        mapping* const in = managed_over(one.at, one.bytes);
        if (in == nullptr) {
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        const pages all = inward(*in, one.at, one.bytes);
        for (std::size_t page = all.first; page < all.last; ++page) {
            // Nobody shall rely on what was there: it is gone, and what shows first is no zero.
            std::byte* const there = in->what->window + page * page_bytes;
            ::madvise(there, page_size_of(*in, page), MADV_REMOVE);
            std::memset(there, 0xDB, std::min<std::size_t>(64, page_size_of(*in, page)));
            in->pages[page].is_discarded = true;
            the_driver().counted.discarded.fetch_add(1, std::memory_order_relaxed);
        }
    }
    return CUDA_SUCCESS;
}

// Managed memory of a kind that these calls need.
CUresult check_ranges(const std::vector<range>& ranges, bool has_targets) {
    context& current = *this_thread().current();
    if (the_driver().of(current).attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) == 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    const std::scoped_lock hold{memory_lock};
    for (const range& one : ranges) {
        if (managed_over(one.at, one.bytes) == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (has_targets) {
            if (const CUresult wrong = check_location(one.to); wrong != CUDA_SUCCESS) {
                return wrong;
            }
        }
    }
    return CUDA_SUCCESS;
}

// Moving managed memory cannot be captured.
CUresult start_move(CUstream in, std::vector<range> ranges, bool discards, bool prefetches) {
    if (const CUresult wrong = check_ranges(ranges, prefetches); wrong != CUDA_SUCCESS) {
        return wrong;
    }
    const std::scoped_lock hold{work_lock};
    const auto to = stream_of(in);
    if (to == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (to->captured_by != nullptr) {
        invalidate_locked(*to->captured_by);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return submit_locked(to,
                         {{},
                          [all = std::move(ranges), discards, prefetches] {
                              const CUresult failed = discards ? discard(all) : CUDA_SUCCESS;
                              return failed == CUDA_SUCCESS && prefetches ? prefetch(all) : failed;
                          },
                          false},
                         nullptr);
}

CUresult start_batch(CUdeviceptr* at, std::size_t* bytes, std::size_t count, CUmemLocation* places,
                     std::size_t* first_of, std::size_t place_count, unsigned long long flags,
                     CUstream in, bool discards, bool prefetches) {
    if (at == nullptr || bytes == nullptr || count == 0 || flags != 0 ||
        reinterpret_cast<std::uintptr_t>(in) <= stream_legacy) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (prefetches && (places == nullptr || first_of == nullptr || place_count == 0 ||
                       place_count > count || first_of[0] != 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::vector<range> ranges;
    std::size_t place = 0;
    for (std::size_t i = 0; i < count; ++i) {
        CUmemLocation to{CU_MEM_LOCATION_TYPE_INVALID, 0};
        if (prefetches) {
            if (place + 1 < place_count && first_of[place + 1] == i) {
                ++place;
            }
            to = places[place];
        }
        ranges.push_back({at[i], bytes[i], to});
    }
    if (prefetches && place + 1 != place_count) {
        return CUDA_ERROR_INVALID_VALUE;  // the starts do not ascend, or not all are used
    }
    return start_move(in, std::move(ranges), discards, prefetches);
}

CUresult advise(CUdeviceptr at, std::size_t bytes, CUmem_advise advice, CUmemLocation where) {
    const bool names_place = advice >= CU_MEM_ADVISE_SET_PREFERRED_LOCATION &&
                             advice != CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
    if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (names_place) {
        if (const CUresult wrong = check_location(where); wrong != CUDA_SUCCESS) {
            return wrong;
        }
    }
    const std::scoped_lock hold{memory_lock};
    mapping* const in = managed_over(at, bytes);
    if (in == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool is_device = where.type == CU_MEM_LOCATION_TYPE_DEVICE;
    const std::uint32_t bit = is_device && names_place ? 1u << where.id : 0;
    const pages all = outward(*in, at, bytes);
    for (std::size_t i = all.first; i < all.last; ++i) {
        managed_page& page = in->pages[i];
        switch (advice) {
            case CU_MEM_ADVISE_SET_READ_MOSTLY: page.is_read_mostly = true; break;
            case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
                page.is_read_mostly = false;
                drop_copies(page);
                page.accessed_by = 0;  // measured: the mappings are gone with the duplicates
                break;
            case CU_MEM_ADVISE_SET_PREFERRED_LOCATION: page.preferred = where; break;
            case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
                page.preferred = {CU_MEM_LOCATION_TYPE_INVALID, 0};
                break;
            case CU_MEM_ADVISE_SET_ACCESSED_BY:
                page.accessed_by |= bit;
                page.cpu_accesses = page.cpu_accesses || !is_device;
                break;
            case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
                page.accessed_by &= ~bit;
                page.cpu_accesses = page.cpu_accesses && is_device;
                break;
        }
    }
    bump_epoch();
    return CUDA_SUCCESS;
}

// What all pages of the range agree on.
CUresult range_attribute(void* data, std::size_t bytes_of_data, CUmem_range_attribute which,
                         CUdeviceptr at, std::size_t bytes) {
    const std::scoped_lock hold{memory_lock};
    mapping* const in = managed_over(at, bytes);
    if (in == nullptr || data == nullptr || bytes_of_data == 0 || bytes_of_data % 4 != 0 ||
        (bytes_of_data != 4 && which != CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const pages all = outward(*in, at, bytes);
    const auto begin = in->pages.begin() + static_cast<std::ptrdiff_t>(all.first);
    const auto end = in->pages.begin() + static_cast<std::ptrdiff_t>(all.last);
    auto* const answer = static_cast<int*>(data);
    const auto agreed = [&](CUmemLocation managed_page::*member) {
        const CUmemLocation first = (*begin).*member;
        const bool same = std::all_of(begin, end, [&](const managed_page& page) {
            return (page.*member).type == first.type && (page.*member).id == first.id;
        });
        return same ? first : CUmemLocation{CU_MEM_LOCATION_TYPE_INVALID, 0};
    };
    const auto as_number = [](const CUmemLocation& where) {
        return where.type == CU_MEM_LOCATION_TYPE_INVALID  ? -2
               : where.type == CU_MEM_LOCATION_TYPE_DEVICE ? where.id
                                                           : -1;
    };
    switch (which) {
        case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
            *answer = std::all_of(begin, end, [](const auto& page) { return page.is_read_mostly; });
            return CUDA_SUCCESS;
        case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
            *answer = as_number(agreed(&managed_page::preferred));
            return CUDA_SUCCESS;
        case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
            *answer = as_number(agreed(&managed_page::last_prefetch));
            return CUDA_SUCCESS;
        case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
            *answer = static_cast<int>(agreed(&managed_page::preferred).type);
            return CUDA_SUCCESS;
        case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
            *answer = agreed(&managed_page::preferred).id;
            return CUDA_SUCCESS;
        case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
            *answer = static_cast<int>(agreed(&managed_page::last_prefetch).type);
            return CUDA_SUCCESS;
        case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
            *answer = agreed(&managed_page::last_prefetch).id;
            return CUDA_SUCCESS;
        case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
            std::uint32_t bits = ~0u;
            bool by_cpu = true;
            for (auto page = begin; page != end; ++page) {
                bits &= page->accessed_by;
                by_cpu = by_cpu && page->cpu_accesses;
            }
            const std::size_t room = bytes_of_data / 4;
            std::fill_n(answer, room, -2);
            std::size_t filled = 0;
            for (int ordinal = 0; ordinal < most_devices; ++ordinal) {
                if ((bits >> ordinal & 1) != 0 && filled < room) {
                    answer[filled++] = ordinal;
                }
            }
            if (by_cpu && filled < room) {
                answer[filled] = -1;
            }
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

std::size_t page_size_of(const mapping& in, std::size_t page) noexcept {
    return std::min(page_bytes, in.bytes - page * page_bytes);
}

// What a kernel's access does to the page, and where it then reads or writes.
int managed_touch(mapping& in, std::size_t index, int device, bool write) {
    auto& counted = the_driver().counted;
    managed_page& page = in.pages[index];
    page.stamp = table().clock++;
    page.is_discarded = page.is_discarded && !write;
    if (write && page.copies != 0) {
        drop_copies(page);  // a duplicate is for readers alone
    }
    if (page.home == device || (page.copies >> device & 1) != 0) {
        return device;
    }
    const bool keeps_place =
        prefers_host(page) || (page.accessed_by >> device & 1) != 0 ||
        (page.preferred.type == CU_MEM_LOCATION_TYPE_DEVICE && page.preferred.id == page.home);
    if (page.home == managed_page::nowhere && prefers_host(page)) {
        page.home = managed_page::on_host;  // measured: a device's first touch lands there
    }
    if (page.is_read_mostly && !write && page.home != managed_page::nowhere &&
        charge_page(device)) {
        page.copies |= 1u << device;
        counted.faults.fetch_add(1, std::memory_order_relaxed);
        counted.duplicated.fetch_add(1, std::memory_order_relaxed);
        return device;
    }
    if ((page.home == managed_page::nowhere || !keeps_place) && go_to_device(page, device)) {
        counted.faults.fetch_add(1, std::memory_order_relaxed);
        return device;
    }
    if (page.home == managed_page::nowhere) {
        page.home = managed_page::on_host;  // there was no room
    }
    counted.remote.fetch_add(1, std::memory_order_relaxed);
    return page.home;
}

void managed_drop(mapping& in) {
    for (managed_page& page : in.pages) {
        drop_copies(page);
        go_home(page);
    }
}

// Sends home what was used longest ago, until `amount` is free. A duplicate is dropped, a page goes to the host.
bool evict_managed(device& of, std::size_t amount) {
    while (of.free_bytes() < amount) {
        managed_page* oldest = nullptr;
        for (auto& [at, one] : table().mappings) {
            for (managed_page& page : one.pages) {
                const bool is_here =
                    page.home == of.ordinal || (page.copies >> of.ordinal & 1) != 0;
                if (is_here && (oldest == nullptr || page.stamp < oldest->stamp)) {
                    oldest = &page;
                }
            }
        }
        if (oldest == nullptr) {
            return false;
        }
        if (oldest->home == of.ordinal) {
            go_home(*oldest);
        } else {
            oldest->copies &= ~(1u << of.ordinal);
            give_back(of.ordinal);
        }
        the_driver().counted.evictions.fetch_add(1, std::memory_order_relaxed);
        bump_epoch();
    }
    return true;
}

SOFT_CUDA_EXPORT CUresult cuMemAllocManaged(CUdeviceptr* at, std::size_t bytes, unsigned flags) {
    return enter(alloc_point, a_context | no_capture, [&] {
        if (at == nullptr || bytes == 0 ||
            (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        context& current = *this_thread().current();
        if (the_driver().of(current).attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) == 0) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        const std::size_t rounded = round_up(bytes, os_page_bytes());
        auto what = make_frame(nullptr, 0, rounded);
        if (the_driver().poisons) {
            // Drivers for Linux fill managed pages with zeroes, whatever is written of other memory.
            ::madvise(what->window, rounded, MADV_REMOVE);
        }
        const std::scoped_lock hold{memory_lock};
        auto* const place = reserve_address(rounded, page_bytes, 0);
        if (place == nullptr) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        if (::mmap(place, rounded, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, what->fd, 0) ==
            MAP_FAILED) {
            ::munmap(place, rounded);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        *at = reinterpret_cast<CUdeviceptr>(place);
        mapping& made = table().add(*at, rounded, kind::managed, std::move(what));
        made.flags = flags;
        made.pages.resize((rounded + page_bytes - 1) / page_bytes);
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr at, std::size_t bytes, CUmemLocation to,
                                                unsigned flags, CUstream in) {
    return enter(prefetch_point, a_context, [&] {
        return flags != 0 ? CUDA_ERROR_INVALID_VALUE
                          : start_move(in, {{at, bytes, to}}, false, true);
    });
}

// The older signature, which dlsym finds under the plain name: a device's number, -1 for the host.
SOFT_CUDA_EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr at, std::size_t bytes, CUdevice to,
                                             CUstream in) {
    return enter(prefetch_point, a_context, [&] {
        const CUmemLocation where{
            to == -1 ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, to};
        return start_move(in, {{at, bytes, where}}, false, true);
    });
}

SOFT_CUDA_EXPORT CUresult cuMemPrefetchBatchAsync(CUdeviceptr* at, std::size_t* bytes,
                                                  std::size_t count, CUmemLocation* places,
                                                  std::size_t* first_of, std::size_t place_count,
                                                  unsigned long long flags, CUstream in) {
    return enter(prefetch_batch_point, a_context, [&] {
        return start_batch(at, bytes, count, places, first_of, place_count, flags, in, false, true);
    });
}

SOFT_CUDA_EXPORT CUresult cuMemDiscardBatchAsync(CUdeviceptr* at, std::size_t* bytes,
                                                 std::size_t count, unsigned long long flags,
                                                 CUstream in) {
    return enter(discard_batch_point, a_context, [&] {
        return start_batch(at, bytes, count, nullptr, nullptr, 0, flags, in, true, false);
    });
}

SOFT_CUDA_EXPORT CUresult cuMemDiscardAndPrefetchBatchAsync(
    CUdeviceptr* at, std::size_t* bytes, std::size_t count, CUmemLocation* places,
    std::size_t* first_of, std::size_t place_count, unsigned long long flags, CUstream in) {
    return enter(discard_prefetch_point, a_context, [&] {
        return start_batch(at, bytes, count, places, first_of, place_count, flags, in, true, true);
    });
}

SOFT_CUDA_EXPORT CUresult cuMemAdvise_v2(CUdeviceptr at, std::size_t bytes, CUmem_advise advice,
                                         CUmemLocation where) {
    return enter(advise_point, a_context, [&] { return advise(at, bytes, advice, where); });
}

SOFT_CUDA_EXPORT CUresult cuMemAdvise(CUdeviceptr at, std::size_t bytes, CUmem_advise advice,
                                      CUdevice where) {
    return enter(advise_point, a_context, [&] {
        return advise(
            at, bytes, advice,
            {where == -1 ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, where});
    });
}

SOFT_CUDA_EXPORT CUresult cuMemRangeGetAttribute(void* data, std::size_t bytes_of_data,
                                                 CUmem_range_attribute which, CUdeviceptr at,
                                                 std::size_t bytes) {
    return enter(range_attribute_point, a_context,
                 [&] { return range_attribute(data, bytes_of_data, which, at, bytes); });
}

SOFT_CUDA_EXPORT CUresult cuMemRangeGetAttributes(void** data, std::size_t* bytes_of_data,
                                                  CUmem_range_attribute* which, std::size_t count,
                                                  CUdeviceptr at, std::size_t bytes) {
    return enter(range_attributes_point, a_context, [&] {
        if (data == nullptr || bytes_of_data == nullptr || which == nullptr || count == 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        for (std::size_t i = 0; i < count; ++i) {
            if (const CUresult wrong =
                    range_attribute(data[i], bytes_of_data[i], which[i], at, bytes);
                wrong != CUDA_SUCCESS) {
                return wrong;
            }
        }
        return CUDA_SUCCESS;
    });
}

static_assert(is_as_declared<&driver_api::mem_alloc_managed>(cuMemAllocManaged));
static_assert(is_as_declared<&driver_api::mem_prefetch_async>(cuMemPrefetchAsync_v2));
static_assert(is_as_declared<&driver_api::mem_advise>(cuMemAdvise_v2));
static_assert(is_as_declared<&driver_api::mem_range_get_attribute>(cuMemRangeGetAttribute));
static_assert(is_as_declared<&driver_api::mem_range_get_attributes>(cuMemRangeGetAttributes));
static_assert(is_as_declared<&driver_api::mem_prefetch_batch_async>(cuMemPrefetchBatchAsync));
static_assert(is_as_declared<&driver_api::mem_discard_batch_async>(cuMemDiscardBatchAsync));

}  // namespace soft_cuda

SOFT_CUDA_EXPORT int xmmSoftCudaResidency(xmm::cuda::CUdeviceptr at) {
    using namespace soft_cuda;
    const std::scoped_lock hold{memory_lock};
    const auto found = table().over(at);
    if (found == table().mappings.end() || found->second.kind != kind::managed) {
        return -3;
    }
    return found->second.pages[(at - found->second.at) / page_bytes].home;
}
