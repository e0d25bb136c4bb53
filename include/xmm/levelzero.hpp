// SPDX-License-Identifier: Apache-2.0
// levelzero.hpp - Level Zero devices, their backend and their launcher, under the names that users include.
//
// Model    In the source tree the backend lies in backends/levelzero/; an installed one lies beside this header. It
//          needs no header of Level Zero to compile, no library to link and no device to start: libze_loader.so.1 is
//          looked for when the first question is asked, and its absence is an answer.
//          XMM_HAS_LEVELZERO is 0 where the backend was left out of an installation.
// See      docs/levelzero.md.
#pragma once

#if __has_include("../../backends/levelzero/launcher.hpp")
#include "../../backends/levelzero/launcher.hpp"
#define XMM_HAS_LEVELZERO 1
#elif __has_include("levelzero/launcher.hpp")
#include <xmm/levelzero/launcher.hpp>
#define XMM_HAS_LEVELZERO 1
#else
#define XMM_HAS_LEVELZERO 0
#endif

#if XMM_HAS_LEVELZERO
namespace xmm {

using levelzero_vmm = levelzero::vmm;
using levelzero_stream = levelzero::stream;

}  // namespace xmm
#endif
