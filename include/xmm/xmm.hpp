// SPDX-License-Identifier: Apache-2.0
// xmm.hpp - everything that users need; resources/cuda_mr.hpp, which includes CCCL, and resources/export/ are asked
// for by name.
#pragma once

#include <xmm/core/device_view.hpp>
#include <xmm/facade/api.hpp>
#include <xmm/facade/cuda_ipc_resource.hpp>
#include <xmm/facade/launch.hpp>
#include <xmm/facade/resource_port.hpp>
#include <xmm/facade/space.hpp>
#include <xmm/facade/touch.hpp>
#include <xmm/resources/adaptors/aligned_resource.hpp>
#include <xmm/resources/adaptors/binning_resource.hpp>
#include <xmm/resources/adaptors/failure_callback_resource.hpp>
#include <xmm/resources/adaptors/limit_resource.hpp>
#include <xmm/resources/adaptors/logging_resource.hpp>
#include <xmm/resources/adaptors/prefetch_resource.hpp>
#include <xmm/resources/adaptors/statistics_resource.hpp>
#include <xmm/resources/adaptors/thread_cache_resource.hpp>
#include <xmm/resources/adaptors/thread_safe_resource.hpp>
#include <xmm/resources/adaptors/tracking_resource.hpp>
#include <xmm/resources/allocator.hpp>
#include <xmm/resources/debug_resource.hpp>
#include <xmm/resources/heap_resource.hpp>
#include <xmm/resources/host_resource.hpp>
#include <xmm/resources/pool_resource.hpp>
#include <xmm/resources/shared_resource.hpp>
#include <xmm/resources/space_resource.hpp>
#include <xmm/resources/unified_pool.hpp>
