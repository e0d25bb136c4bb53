// SPDX-License-Identifier: Apache-2.0
// frame_record.hpp - a frame as mapping keeps it: what it backs and where it stands in its lists.
//
// Model    A record is in its node's pool (owner empty), or backs a granule and stands on its node's active list, or
//          is in the hands of one thread between the two. A heap's stands on no list, and backs a granule of the heap's
//          arena; one that was lent backs the borrower, and is still mapped where it was before.
#pragma once

#include <cstdint>

#include <xmm/core/list.hpp>
#include <xmm/core/types.hpp>

namespace xmm {

struct granule;

struct frame_record {
    // (C) constant while the record lives  (L) lock of the list it is on
    // (P) page lock of the owner; of a record without one, or on its way to one: whose hands it is in
    frame backing;           // (C)  but for `zeroed`: (P)
    std::uint8_t slot = 0;   // (C)  its node's slot in the space
    bool is_host = false;    // (C)
    bool is_coming = false;  // (P)  counted in its node's `coming`
    // (P)  the granule it backs; null in the pool. Constant on a list: there L suffices to read it.
    granule* owner = nullptr;
    // (P)  of a driver's page: when it was told last to place it, by monotonic_ns()
    std::uint64_t placed_ns = 0;
    list_link link;  // (L)  place on the active list, or in the pool
};

using frame_list = list<frame_record, &frame_record::link>;

}  // namespace xmm
