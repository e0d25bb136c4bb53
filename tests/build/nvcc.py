#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles a kernel on device_view with nvcc, then builds and runs the examples that are written for it, warnings being
errors; skipped where there is no nvcc. Where there is no device, they run on a software one."""
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


def find_nvcc():
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def main():
    nvcc = find_nvcc()
    if nvcc is None:
        tree.skip("there is no nvcc")
    options = [nvcc, "-std=c++20", "-arch=sm_90", "-Werror", "all-warnings", "-I", tree.INCLUDE]
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "kernel.cu"
        source.write_text(KERNEL, encoding="utf-8")
        tree.must([*options, "-c", source, "-o", source.with_suffix(".o")])
        for example in sorted((tree.ROOT / "examples").glob("*.cu")):
            program = pathlib.Path(folder) / example.stem
            tree.must([*options, "-O1", example, *tree.flags_of_hwloc("--libs"), "-o", program])
            print(tree.must([program]), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
