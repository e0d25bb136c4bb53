// SPDX-License-Identifier: Apache-2.0
// cuda.hpp - CUDA devices, their backend and their launcher, under the names that users include.
//
// Model    In the source tree the backend lies in backends/cuda/; an installed one lies beside this header. It
//          needs no CUDA header to compile, no CUDA library to link and no device to start: libcuda.so.1 is
//          looked for when the first question is asked, and its absence is an answer.
//          XMM_HAS_CUDA is 0 where the backend was left out of an installation.
// See      docs/cuda.md.
#pragma once

#if __has_include("../../backends/cuda/launcher.hpp")
#include "../../backends/cuda/launcher.hpp"
#include "../../backends/cuda/managed.hpp"
#include "../../backends/cuda/plain_memory.hpp"
#define XMM_HAS_CUDA 1
#elif __has_include("cuda/launcher.hpp")
#include <xmm/cuda/launcher.hpp>
#include <xmm/cuda/managed.hpp>
#include <xmm/cuda/plain_memory.hpp>
#define XMM_HAS_CUDA 1
#else
#define XMM_HAS_CUDA 0
#endif

#if XMM_HAS_CUDA
namespace xmm {

using cuda_vmm = cuda::vmm;
using cuda_managed = cuda::managed;
using cuda_stream = cuda::stream;

}  // namespace xmm
#endif
