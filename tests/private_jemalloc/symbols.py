#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that nothing of the private jemalloc is seen outside: by its names, in the archive and in libraries.

symbols.py ARCHIVE LIBRARY...
"""
import re
import shutil
import subprocess
import sys

# Names that are nobody's but the C library's and the C++ library's.
FORBIDDEN = re.compile(r"^(_*(m|c|re|v|pv|memalign|aligned_)alloc|free|cfree|memalign|posix_memalign|"
                       r"malloc_\w+|__libc_\w+|__malloc_hook|_Zn[wa].*|_Zd[la].*|(m|r|x|s|d|sd|n)allocx|mallctl\w*|"
                       r"aligned_alloc|pthread_create)$")
OURS = re.compile(r"^(xmm_je_\w+|xmm_jemalloc_2)$")
# The inline functions of the headers, which every unit that includes them has, and what compilers add.
OF_HEADERS = re.compile(r"^_Z|^DW\.ref\.|^__\w*san_")


def defined(path, *options):
    said = subprocess.run(["nm", "--defined-only", *options, path], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, check=True).stdout
    return {(line.split()[-2], line.split()[-1].split("@")[0]) for line in said.splitlines()
            if len(line.split()) >= 2 and not line.endswith(":")}


def main(archive, *libraries):
    if shutil.which("nm") is None:
        print("skipped: there is no nm here")
        return 77
    # The patterns themselves: what they must find, and what they must not.
    for name in ("malloc", "calloc", "free", "realloc", "_Znwm", "_ZdlPv", "mallocx", "mallctlbymib",
                 "posix_memalign", "malloc_usable_size", "__libc_memalign"):
        assert FORBIDDEN.match(name), name
    for name in ("xmm_je_mallocx", "freeze", "_ZN3xmm8registry8instanceEv"):
        assert not FORBIDDEN.match(name), name

    wrong = []
    symbols = {name for kind, name in defined(archive, "-g")}
    if "xmm_je_mallocx" not in symbols or "xmm_jemalloc_2" not in symbols:
        wrong.append(f"{archive} lacks what it is for: {sorted(symbols)[:20]}")
    wrong += [f"{archive} defines {name}" for name in sorted(symbols)
              if FORBIDDEN.match(name) or not (OURS.match(name) or OF_HEADERS.match(name))]
    for library in libraries:
        exported = {name for kind, name in defined(library, "-D")}
        if not any(name.startswith("part_") for name in exported):
            wrong.append(f"{library} lacks what it is for")
        wrong += [f"{library} exports {name}" for name in sorted(exported)
                  if FORBIDDEN.match(name) or OURS.match(name)]
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
