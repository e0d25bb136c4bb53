// SPDX-License-Identifier: Apache-2.0
// xmm.hpp - everything that users need.
#pragma once

#include <xmm/core/device_view.hpp>
#include <xmm/facade/api.hpp>
#include <xmm/facade/launch.hpp>
#include <xmm/facade/resource_port.hpp>
#include <xmm/facade/space.hpp>
#include <xmm/resources/allocator.hpp>
#include <xmm/resources/debug_resource.hpp>
#include <xmm/resources/host_resource.hpp>
#include <xmm/resources/pool_resource.hpp>
#include <xmm/resources/shared_resource.hpp>
#include <xmm/resources/space_resource.hpp>
#include <xmm/resources/unified_pool.hpp>
