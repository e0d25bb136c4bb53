#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles a kernel on device_view with nvcc, warnings being errors; skipped where there is no nvcc."""
import pathlib
import shutil
import sys
import tempfile

import tree

KERNEL = """
#include <xmm/core/device_view.hpp>

__global__ void scale(xmm::device_view<float> out, xmm::device_view<const float> in) {
    const std::size_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < out.size()) {
        out[i] += 2.0f * in[i];
        out.store(i, out.load(i) + in.load(i));
        out.fetch_add(0, 1.0f);
    }
}

float on_the_host(xmm::device_view<float> out) { return out[0] + out.load(1); }
"""


def main():
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        tree.skip("there is no nvcc")
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "kernel.cu"
        source.write_text(KERNEL, encoding="utf-8")
        tree.must([nvcc, "-std=c++20", "-arch=sm_90", "-Werror", "all-warnings", "-I", tree.INCLUDE, "-c", source,
                   "-o", source.with_suffix(".o")])
    return 0


if __name__ == "__main__":
    sys.exit(main())
