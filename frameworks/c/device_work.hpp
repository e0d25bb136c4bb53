// SPDX-License-Identifier: Apache-2.0
// device_work.hpp - zeroes and copies inside blocks of a heap, by the device, in the order of a queue.
//
// Model    The frames under a block that is in use stay where they are, so the device reaches them at their
//          standing addresses without further ado. On no queue (number 0) the work is done on return.
// Threads  Any.
// Failure  As the driver says; what was submitted before the failure goes on in the queue, and on no queue is over.
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include <xmm/facade/space_state.hpp>
#include <xmm/resources/frame_port.hpp>

namespace xmm::c_interface {

class device_work {
public:
    device_work(space_state& state, node& on) noexcept
        : core_{state.core}, carrier_{on.is_host ? state.core.host_carrier() : &on} {}

    // What is submitted to `queue` from now on comes after what was submitted to `earlier` so far.
    status order(queue_id queue, queue_id earlier) noexcept {
        if (carrier_ == nullptr || earlier.value == 0 || earlier == queue) {
            return {};
        }
        const backend_ref driver = carrier_->driver;
        result<ticket> point = driver.record(earlier);
        if (!point) {
            // A queue that is gone has done its work; one that only cannot say how far it is has not.
            return is_over(point.code()) ? status{} : point.error();
        }
        return queue.value != 0 ? driver.make_wait(queue, *point) : driver.wait(*point);
    }
    status zero(va_range block, queue_id queue) noexcept {
        return in_parts(
            block.bytes, queue,
            [&](std::size_t done, std::size_t most) { return standing(block.begin + done, most); },
            [&](queue_id line, std::span<const part> parts) {
                std::array<va_range, most_parts> to;
                std::ranges::transform(parts, to.begin(), &part::to);
                return carrier_->driver.zero(line, {to.data(), parts.size()});
            });
    }
    // Between blocks of one node.
    status copy(address to, address from, std::size_t bytes, queue_id queue) noexcept {
        return in_parts(
            bytes, queue,
            [&](std::size_t done, std::size_t most) {
                part one = standing(to + done, most);
                const part source = standing(from + done, one.to.bytes);
                return part{{one.to.begin, source.to.bytes}, source.to};
            },
            [&](queue_id line, std::span<const part> parts) {
                std::array<piece, most_parts> pieces;
                std::ranges::transform(parts, pieces.begin(), [](const part& one) {
                    return piece{one.to, one.from};
                });
                return carrier_->driver.memcpy(line, {pieces.data(), parts.size()});
            });
    }

private:
    static constexpr std::size_t most_parts = 16;
    struct part {
        va_range to;
        va_range from;
    };

    // Where the device finds what lies at the address, as far as one frame goes; empty: no frame.
    part standing(address at, std::size_t most) noexcept {
        part found;
        core_.with_granule(at, [&](granule& page) {
            if (const frame_record* frame = page.home_frame(); frame != nullptr) {
                found.to = {frame->backing.standing + (at - page.va.begin),
                            std::min(most, page.va.end() - at)};
            }
        });
        return found;
    }
    template <class Next, class Submit>
    status in_parts(std::size_t bytes, queue_id queue, Next&& next, Submit&& submit) noexcept {
        if (carrier_ == nullptr) {
            return fail(errc::unsupported, "no device is there to do it");
        }
        const queue_id line = queue.value != 0 ? queue : carrier_->queues[node::urgent_in];
        ticket last;
        // Whoever owns the block may give it back at once, and without a queue nothing else keeps the order. A batch
        // that failed may have been begun.
        const auto give_up = [&](status why) {
            if (queue.value == 0) {
                if (result<ticket> all = carrier_->driver.record(line)) {
                    last = *all;
                }
                static_cast<void>(last.value != 0 ? carrier_->driver.wait(last) : status{});
            }
            return why;
        };
        for (std::size_t done = 0; done < bytes;) {
            std::array<part, most_parts> parts;
            std::size_t count = 0;
            while (count < most_parts && done < bytes) {
                parts[count] = next(done, bytes - done);
                if (parts[count].to.is_empty()) {
                    return give_up(fail(errc::not_mapped, "the block was given back meanwhile"));
                }
                done += parts[count++].to.bytes;
            }
            result<ticket> point = submit(line, std::span<const part>{parts.data(), count});
            if (!point) {
                return give_up(point.error());
            }
            last = *point;
        }
        return queue.value != 0 ? status{} : carrier_->driver.wait(last);
    }

    address_space& core_;
    node* carrier_;
};

}  // namespace xmm::c_interface
