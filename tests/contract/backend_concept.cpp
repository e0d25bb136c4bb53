// SPDX-License-Identifier: Apache-2.0
// Each requirement of the backend concepts is tested with a type that lacks just that.
#include <xmm/concepts/backend.hpp>

#include <doctest/doctest.h>

#include "../support/faulty_backend.hpp"

namespace {

using namespace xmm;
using test::op;
using ranges = std::span<const va_range>;

// What test::op has no name for.
enum class wrong { none, nodes, is_done, nodes_may_throw, describe_gives_value, wait_gives_bool };

// All of vendor but the one named.
template <op Missing = op::call, wrong Wrong = wrong::none>
struct vendor_part {
    std::span<const node_id> nodes() noexcept(Wrong != wrong::nodes_may_throw)
        requires(Wrong != wrong::nodes);
    std::conditional_t<Wrong == wrong::describe_gives_value, node_description,
                       result<node_description>>
        describe(node_id) noexcept
        requires(Missing != op::describe);
    result<va_range> va_examine(va_range, std::size_t) noexcept
        requires(Missing != op::va_examine);
    void va_release(va_range) noexcept
        requires(Missing != op::va_release);
    result<queue_id> queue_create(node_id, queue_priority) noexcept
        requires(Missing != op::queue_create);
    void queue_destroy(queue_id) noexcept
        requires(Missing != op::queue_destroy);
    result<ticket> memcpy(queue_id, std::span<const piece>) noexcept
        requires(Missing != op::memcpy);
    result<ticket> zero(queue_id, ranges) noexcept
        requires(Missing != op::zero);
    bool is_done(ticket) noexcept
        requires(Wrong != wrong::is_done);
    std::conditional_t<Wrong == wrong::wait_gives_bool, bool, status> wait(ticket) noexcept
        requires(Missing != op::wait);
    result<ticket> record(queue_id) noexcept
        requires(Missing != op::record);
    status make_wait(queue_id, ticket) noexcept
        requires(Missing != op::make_wait);
};

template <op Missing = op::call>
struct frames_part {
    result<frame> frame_create(node_id, std::size_t) noexcept
        requires(Missing != op::frame_create);
    void frame_drop(frame) noexcept
        requires(Missing != op::frame_drop);
    progress pmap_enter(node_id, std::span<const run>) noexcept
        requires(Missing != op::pmap_enter);
    progress pmap_clear(node_id, ranges) noexcept
        requires(Missing != op::pmap_clear);
};

template <op Missing = op::call>
struct steering_part {
    result<ticket> place(queue_id, ranges, node_id) noexcept
        requires(Missing != op::place);
    status advise(ranges, driver_advice, node_id) noexcept
        requires(Missing != op::advise);
    status residency(ranges, std::span<node_id>) noexcept
        requires(Missing != op::residency);
    result<ticket> discard(queue_id, ranges) noexcept
        requires(Missing != op::discard);
};

template <op Missing, wrong Wrong = wrong::none>
struct owner_lacks : vendor_part<Missing, Wrong>, frames_part<Missing> {};
template <op Missing>
struct steerer_lacks : vendor_part<Missing>, steering_part<Missing> {};
struct both : vendor_part<>, frames_part<>, steering_part<> {};
struct neither : vendor_part<> {};

// op::call is part of none of them, so nothing lacks.
static_assert(backend<owner_lacks<op::call>> && owns_frames<owner_lacks<op::call>>);
static_assert(backend<steerer_lacks<op::call>> && steers_driver<steerer_lacks<op::call>>);
static_assert(!backend<both>);
static_assert(!backend<neither>);

static_assert(!backend<owner_lacks<op::describe>>);
static_assert(!backend<owner_lacks<op::va_examine>>);
static_assert(!backend<owner_lacks<op::va_release>>);
static_assert(!backend<owner_lacks<op::queue_create>>);
static_assert(!backend<owner_lacks<op::queue_destroy>>);
static_assert(!backend<owner_lacks<op::memcpy>>);
static_assert(!backend<owner_lacks<op::zero>>);
static_assert(!backend<owner_lacks<op::wait>>);
static_assert(!backend<owner_lacks<op::record>>);
static_assert(!backend<owner_lacks<op::make_wait>>);
static_assert(!backend<owner_lacks<op::call, wrong::nodes>>);
static_assert(!backend<owner_lacks<op::call, wrong::is_done>>);
static_assert(!backend<owner_lacks<op::call, wrong::nodes_may_throw>>);
static_assert(!backend<owner_lacks<op::call, wrong::describe_gives_value>>);
static_assert(!backend<owner_lacks<op::call, wrong::wait_gives_bool>>);

static_assert(!backend<owner_lacks<op::frame_create>>);
static_assert(!backend<owner_lacks<op::frame_drop>>);
static_assert(!backend<owner_lacks<op::pmap_enter>>);
static_assert(!backend<owner_lacks<op::pmap_clear>>);

static_assert(!backend<steerer_lacks<op::place>>);
static_assert(!backend<steerer_lacks<op::advise>>);
static_assert(!backend<steerer_lacks<op::residency>>);
static_assert(!backend<steerer_lacks<op::discard>>);

template <op Missing>
struct faults_part {
    status on_device_fault(device_fault_sink) noexcept
        requires(Missing != op::on_device_fault);
    void off_device_fault(void*) noexcept
        requires(Missing != op::off_device_fault);
    result<ticket> call(queue_id, void (*)(void*) noexcept, void*) noexcept
        requires(Missing != op::call);
};
static_assert(takes_device_faults<faults_part<op::call>> &&
              !makes_host_calls<faults_part<op::call>>);
static_assert(!takes_device_faults<faults_part<op::on_device_fault>>);
static_assert(!takes_device_faults<faults_part<op::off_device_fault>>);
static_assert(makes_host_calls<faults_part<op::off_device_fault>>);

// The tests' wrapper is of the kind of what it wraps.
static_assert(owns_frames<test::faulty_backend<owner_lacks<op::call>>>);
static_assert(steers_driver<test::faulty_backend<steerer_lacks<op::call>>>);
static_assert(!takes_device_faults<test::faulty_backend<owner_lacks<op::call>>>);

}  // namespace

TEST_CASE("the concepts accept complete backends only") {
    CHECK(backend<owner_lacks<op::call>>);
    CHECK_FALSE(backend<both>);
}
