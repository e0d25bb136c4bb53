#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs the library into a folder and builds a user of it there: by pkg-config or by CMake.

install.py COMPILER pkg-config|cmake [ARCHIVE]

ARCHIVE is the private jemalloc of the build that runs this: to build another one takes too long.
The installed tree is moved before CMake uses it, and nothing of the source tree is on any path.
"""
import os
import pathlib
import re
import shutil
import sys
import tempfile

import tree

CMAKE_PROJECT = """\
cmake_minimum_required(VERSION 3.22)
project(consumer CXX)
find_package(xmm {version} REQUIRED)
find_package(xmm REQUIRED)  # a second time, as in a project of several folders
add_executable(consumer consumer.cpp)
target_link_libraries(consumer PRIVATE xmm::xmm)
if({expects_jemalloc})
  target_link_libraries(consumer PRIVATE xmm::jemalloc)
  target_compile_definitions(consumer PRIVATE EXPECT_JEMALLOC)
elseif(TARGET xmm::jemalloc)
  message(FATAL_ERROR "a jemalloc that was not installed")
endif()
target_compile_definitions(consumer PRIVATE {definitions})
"""


C_CONSUMER = """\
#include <stdio.h>
#include <xmm.h>
int main(void) { return printf("xmm %s, C interface %d\\n", xmm_version_text(), XMM_VERSION) < 0; }
"""


def installed(work, compiler, libxmm):
    """The prefix of a fresh installation, libxmm being enabled or disabled: it takes a while to build."""
    prefix = work / "prefix"
    environment = {**os.environ, "CXX": compiler}
    must_be_off = [*(f"-D{name}=disabled" for name in ("tests", "perf", "demo")), "-Djemalloc=off", f"-Dlibxmm={libxmm}"]
    tree.must(["meson", "setup", work / "build", tree.ROOT, f"--prefix={prefix}", *must_be_off],
              env=environment)
    tree.must(["meson", "install", "-C", work / "build", "--quiet"], env=environment)
    missing = [header for header in tree.INCLUDE.rglob("*.hpp")
               if not (prefix / "include" / header.relative_to(tree.INCLUDE)).is_file()]
    missing += [header for header in tree.BACKENDS.rglob("*.hpp")
                if not (prefix / "include/xmm" / header.relative_to(tree.BACKENDS)).is_file()]
    if missing:
        sys.exit(f"not installed: {[str(path) for path in missing]}")
    return prefix


def version_of_headers():
    text = (tree.INCLUDE / "xmm/core/config.hpp").read_text(encoding="utf-8")
    return ".".join(re.search(rf"XMM_VERSION_{part} (\d+)", text).group(1)
                    for part in ("MAJOR", "MINOR", "PATCH"))


def check_output(said):
    if f"xmm {version_of_headers()}," not in said:
        sys.exit(f"the consumer said {said!r}")


def has_soft():
    return (tree.INCLUDE / "xmm/soft.hpp").is_file()


def by_pkg_config(work, prefix, compiler):
    environment = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "share/pkgconfig")}
    version = tree.must(["pkg-config", "--modversion", "xmm"], env=environment).strip()
    if version != version_of_headers():
        sys.exit(f"xmm.pc says version {version}, config.hpp {version_of_headers()}")
    flags = tree.must(["pkg-config", "--cflags", "--libs", "xmm"], env=environment).split()
    tree.must([compiler, "-std=c++20", *(["-DEXPECT_SOFT"] if has_soft() else []), "consumer.cpp",
               *flags, "-o", "consumer"], cwd=work)
    check_output(tree.must([work / "consumer"]))
    by_c(work, prefix)


def by_c(work, prefix):
    """A C program that knows libxmm.pc only."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    library = next(prefix.rglob("libxmm.so"), None)
    if library is None or not (prefix / "include/xmm.h").is_file():
        sys.exit("libxmm.so or xmm.h is not installed")
    if compiler is None:
        print("there is no C compiler: libxmm was installed, but not used")
        return
    environment = {**os.environ, "PKG_CONFIG_PATH": str(library.parent / "pkgconfig")}
    flags = tree.must(["pkg-config", "--cflags", "--libs", "libxmm"], env=environment).split()
    (work / "consumer.c").write_text(C_CONSUMER, encoding="utf-8")
    tree.must([compiler, "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "consumer.c", *flags,
               f"-Wl,-rpath,{library.parent}", "-o", "consumer_c"], cwd=work)
    check_output(tree.must([work / "consumer_c"]))


def write_cmake_project(work, version, expects_jemalloc=False):
    (work / "CMakeLists.txt").write_text(CMAKE_PROJECT.format(
        version=version, definitions="EXPECT_SOFT" if has_soft() else "",
        expects_jemalloc="TRUE" if expects_jemalloc else "FALSE"), encoding="utf-8")


def by_cmake(work, prefix, compiler, jemalloc=None):
    if shutil.which("cmake") is None:
        tree.skip("cmake is not installed")
    moved = prefix.rename(work / "moved")
    version = version_of_headers()
    write_cmake_project(work, version)
    configure = ["cmake", "-S", work, "-B", work / "cmake", "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}",
                 f"-DCMAKE_PREFIX_PATH={moved}"]
    tree.must(configure)
    tree.must(["cmake", "--build", work / "cmake"])
    check_output(tree.must([work / "cmake" / "consumer"]))
    if jemalloc is None:
        print("there is no private jemalloc here: its target was not tried")
    else:
        config = moved / "share/cmake/xmm/xmmConfig.cmake"
        place = re.search(r'LIST_DIR}/([^"]*/libxmm-jemalloc.a)"', config.read_text(encoding="utf-8")).group(1)
        archive = pathlib.Path(os.path.normpath(config.parent / place))
        archive.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(jemalloc, archive)
        write_cmake_project(work, version, expects_jemalloc=True)
        tree.must([*configure, "--fresh"])
        tree.must(["cmake", "--build", work / "cmake"])
        check_output(tree.must([work / "cmake" / "consumer"]))
    # A series of the future must be refused: versions 0.x promise nothing to each other.
    write_cmake_project(work, "0.999")
    if tree.run([*configure, "--fresh"]).returncode == 0:
        sys.exit("find_package(xmm 0.999) was satisfied")


def main(compiler, how, *jemalloc):
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        shutil.copy(tree.ROOT / "tests/build/consumer.cpp", work)
        prefix = installed(work, compiler, "disabled" if how == "cmake" else "enabled")
        (by_cmake if how == "cmake" else by_pkg_config)(work, prefix, compiler, *jemalloc)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
