// SPDX-License-Identifier: Apache-2.0
// xmm.hpp - everything that users need.
#pragma once

#include <xmm/core/device_view.hpp>
#include <xmm/facade/api.hpp>
#include <xmm/facade/launch.hpp>
#include <xmm/facade/space.hpp>
