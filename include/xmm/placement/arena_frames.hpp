// SPDX-License-Identifier: Apache-2.0
// arena_frames.hpp - granules whose frames an allocator gives and takes: an arena's.
//
// Model    Such a granule has one frame or none, and is on no list, since reclaim need not see it. It may lend its
//          frame and keep the mappings, so that nothing is mapped anew if it comes back.
// Threads  Any, with the page lock held.
// Failure  As each function says.
// See      resources/space_frames.hpp, who asks for it.
#pragma once

#include <xmm/placement/steered.hpp>

namespace xmm {

// Above steered_pages for no reason of its own: a mover has both.
class arena_frames : public steered_pages {
public:
    using steered_pages::steered_pages;

    // With the page lock: an untouched granule gets that frame, whatever it holds, and its node's accessor a
    // mapping of it. On failure neither has the other. On no list: what an arena has, reclaim need not see.
    [[nodiscard]] status give_frame_locked(granule& one, frame_record& given) noexcept {
        XMM_ASSERT(one.current() == residency::untouched && !one.has_mapping(),
                   "a granule with a frame got another");
        node& at = space_.at_slot(given.slot);
        given.owner = &one;
        given.backing.zeroed = false;
        one.frames[given.slot] = &given;
        set_home_locked(one, residency_step::first_touch, given.slot);
        status entered = enter_locked(one, at.accessor(), access::read_write);
        if (!entered) {
            static_cast<void>(
                take_frame_locked(one));  // nothing is mapped that could not be cleared
        }
        return entered;
    }
    // With the page lock: parts a granule from its one frame, which backs nothing then; the contents go.
    [[nodiscard]] result<frame_record*> take_frame_locked(granule& one) noexcept {
        XMM_ASSERT(one.home_frame() != nullptr && count_frames(one) == 1, "not a single frame");
        if (status cleared = clear_all_locked(one); !cleared) {
            return cleared;
        }
        frame_record* taken = unlink_locked(one, one.home);
        one.home = no_slot;
        one.step_locked(residency_step::discard, residency::untouched);
        return taken;
    }

    // With the page lock: parts a granule from its one frame, as take_frame_locked; its mappings stay.
    [[nodiscard]] frame_record& lend_frame_locked(granule& one) noexcept {
        XMM_ASSERT(one.home_frame() != nullptr && count_frames(one) == 1, "not a single frame");
        frame_record* lent = unlink_locked(one, one.home);
        one.home = no_slot;
        one.step_locked(residency_step::discard, residency::untouched);
        return *lent;
    }
    // With the page lock: the frame that it lent, and that is mapped there still.
    void take_back_locked(granule& one, frame_record& lent) noexcept {
        XMM_ASSERT(one.current() == residency::untouched, "a granule with a frame got another");
        lent.owner = &one;
        one.frames[lent.slot] = &lent;
        set_home_locked(one, residency_step::first_touch, lent.slot);
    }
    // With the page lock, of a granule without a frame: no mapping is left of what it lent.
    status end_lent_locked(granule& one) noexcept {
        XMM_ASSERT(count_frames(one) == 0, "a granule that has a frame");
        return clear_all_locked(one);
    }
};

}  // namespace xmm
