#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Resources of ours under CCCL's types, thrust's and RMM's: tests/cuda/cccl/containers.cu with the toolkit's own CCCL and
with RMM's headers and the later CCCL that comes with them, and tests/resources/cuda_mr.cpp with the CCCLs that the toolkit
has not; warnings being errors. What the toolkit lacks is taken by pip once, into .cache/, or skipped. Programs run on
whatever is there: without a CUDA device they say so, and what needs none has run.

cccl.py COMPILER [KEPT]: the programs stay in the folder KEPT, with the libraries that they need."""
import concurrent.futures
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

import nvcc as nvcc_test
import tree

CACHE = tree.ROOT / ".cache" / "wheels"
SOURCE = tree.ROOT / "tests" / "cuda" / "cccl" / "containers.cu"
PIP_SECONDS = 40
SKIPPED = 77
OLDEST_RELEASE = 13  # of the toolkit, that has CCCL 3


class Fetched:
    """The unpacked wheels of some requirements, or why there are none."""

    def __init__(self, name, *requirements):
        self.name, self.why_not = name, ""
        self.folder = CACHE / re.sub(r"[^\w.]+", "-", "_".join(requirements))
        if not self.folder.is_dir():
            self.why_not = self._take(requirements)

    def find(self, *patterns):
        return [found for pattern in patterns for found in sorted(self.folder.glob(pattern))]

    def _take(self, requirements):
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            asked = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--retries", "0",
                     "--timeout", "10", "--disable-pip-version-check", "--dest", folder, *requirements]
            try:
                done = tree.run(asked, timeout=PIP_SECONDS)
            except subprocess.TimeoutExpired:
                return "pip took too long"
            wheels = list(pathlib.Path(folder).glob("*.whl"))
            if done.returncode != 0 or not wheels:
                said = done.stdout.strip().splitlines()
                return "pip has none: " + (said[-1] if said else "no word why")
            unpacked = pathlib.Path(folder) / "unpacked"
            for wheel in wheels:
                zipfile.ZipFile(wheel).extractall(unpacked)
            try:
                unpacked.rename(self.folder)  # all of it, or another run has been faster
            except OSError:
                pass
        return "" if self.folder.is_dir() else "the cache cannot be written"


def toolkit_of(nvcc):
    """Its folder, and the first number of its version."""
    release = re.search(r"release (\d+)", tree.must([nvcc, "--version"]))
    return pathlib.Path(nvcc).resolve().parents[1], int(release.group(1)) if release else 0


def has_device():
    return shutil.which("nvidia-smi") is not None and "GPU 0" in tree.run(["nvidia-smi", "-L"]).stdout


class Checks:
    """Compiles and runs; a failure ends the test."""

    def __init__(self, nvcc, compiler, folder):
        self.nvcc, self.compiler, self.folder = nvcc, compiler, folder
        self.toolkit, self.release = toolkit_of(nvcc)
        self.architecture = "-arch=native" if has_device() else "-arch=sm_90"

    def containers(self, name, rmm=None):
        # Half of thrust's kernels, and all that fewer elements than 2^31 need.
        options = ["-std=c++20", self.architecture, "-DTHRUST_FORCE_32_BIT_OFFSET_TYPE", "-Werror", "all-warnings",
                   "-I", tree.INCLUDE]
        libraries = tree.flags_of_hwloc("--libs")
        if rmm is not None:
            for cccl in rmm.find("librmm/include/rapids"):
                options += ["-I", cccl]
            for others in rmm.find("librmm/include", "rapids_logger/include"):
                options += ["-isystem", others]
            for library in rmm.find("librmm/lib*/librmm.so", "rapids_logger/lib*/librapids_logger.so"):
                libraries.append(shutil.copy(library, self.folder))
            libraries += ["-Xlinker", "-rpath=$ORIGIN"]
        program = self.folder / name
        tree.must([self.nvcc, *options, SOURCE, *libraries, "-o", program])
        return self._said_by(name, program)

    def assertions(self, name, cccl):
        source = tree.ROOT / "tests" / "resources" / "cuda_mr.cpp"
        program = self.folder / name
        tree.must([self.compiler, *tree.WARNINGS, "-DDOCTEST_CONFIG_NO_POSIX_SIGNALS", "-DXMM_CHECKS=2",
                   "-DDOCTEST_CONFIG_IMPLEMENT_WITH_MAIN", "-I", tree.INCLUDE, "-I", tree.BACKENDS, "-isystem", cccl,
                   "-isystem", self.toolkit / "include", source, f"-L{self.toolkit / 'lib64'}", "-lcudart_static",
                   *tree.flags_of_hwloc("--libs"), "-lpthread", "-ldl", "-lrt", "-o", program])
        return self._said_by(name, program)

    @staticmethod
    def _said_by(name, program):
        done = tree.run([program])
        if done.returncode not in (0, SKIPPED):
            sys.exit(f"{name}: exit {done.returncode}\n{done.stdout}")
        return name, done.returncode, done.stdout


def run_all(checks):
    rmm = Fetched("RMM", f"librmm-cu{checks.release}==26.10.*")
    older = Fetched("CCCL 3.1", "nvidia-cuda-cccl==13.1.*")
    skipped = [f"{one.name} ({one.why_not})" for one in (rmm, older) if one.why_not]
    jobs = []
    if checks.release >= OLDEST_RELEASE:
        jobs.append(functools.partial(checks.containers, "containers"))
    else:
        skipped.append("the toolkit's own CCCL (it is older than 3.0)")
    if not rmm.why_not:
        jobs.append(functools.partial(checks.containers, "containers_rmm", rmm))
        jobs += [functools.partial(checks.assertions, "assertions_later", cccl)
                 for cccl in rmm.find("librmm/include/rapids")]
    if not older.why_not:
        jobs += [functools.partial(checks.assertions, "assertions_3_1", cccl)
                 for cccl in older.find("nvidia/*/include/cccl")]
    passed = 0
    with concurrent.futures.ThreadPoolExecutor(tree.jobs()) as pool:
        for name, code, said in pool.map(lambda job: job(), jobs):
            print(f"-- {name}\n{said}", end="")
            passed += 1
            if code == SKIPPED:
                skipped.append(f"{name} on a device: compiled, not run there")
    for one in skipped:
        print(f"skipped: {one}")
    print(f"{passed} passed, 0 failed, {len(skipped)} skipped")
    return 0 if passed else SKIPPED


def main(compiler, kept=None):
    nvcc = nvcc_test.find_nvcc()
    if nvcc is None:
        tree.skip("there is no nvcc")
    if kept is not None:
        os.makedirs(kept, exist_ok=True)
        return run_all(Checks(nvcc, compiler, pathlib.Path(kept).resolve()))
    with tempfile.TemporaryDirectory() as folder:
        return run_all(Checks(nvcc, compiler, pathlib.Path(folder)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
