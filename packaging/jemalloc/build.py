#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes one object file of jemalloc that keeps to itself.

build.py --source FOLDER | --archive FILE  --work FOLDER --compiler CC --tree FOLDER --output FILE

--source   builds it: all its names prefixed, none exported, its thread-local storage of the kind that a library
           loaded at run time may have, nothing in it that fills or fetches memory by itself.
--archive  takes the distribution's libjemalloc_pic.a: what C++ needs is left out and every name made local.
           Its thread-local storage is of the kind that only programs linked at start can have.

Built once per tree: another build folder of it that has the same source, built by the same compiler and this
script, gives its object. In either the names left are those of table.cpp, prefixed xmm_je_; everything else is local to the object.
"""
import argparse
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys

PREFIX = "xmm_je_"
API = ["mallocx", "dallocx", "sallocx", "mallctl", "mallctlnametomib", "malloc_conf_2_conf_harder"]

# Of the machine that runs it, not of the one that builds: an OS page is 4 KiB on x86-64, up to 64 KiB elsewhere.
LG_PAGE = 12 if platform.machine() in ("x86_64", "AMD64") else 16
CONFIGURE = [
    f"--with-jemalloc-prefix={PREFIX}", f"--with-private-namespace={PREFIX}private_", "--without-export",
    f"--with-lg-page={LG_PAGE}", "--with-lg-hugepage=21", "--with-lg-vaddr=48",
    "--disable-initial-exec-tls",  # a library loaded at run time gets no room in the static block
    "--disable-cxx",               # no operator new
    "--disable-fill",              # no junk, no zero: both would write to what it hands out
    "--disable-cache-oblivious",   # no page of slack beside each large block
    "--disable-doc", "--disable-shared", "--disable-libdl",
]


def must(command, **options):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, text=True, errors="replace", **options)
    if done.returncode != 0:
        print("failed: " + " ".join(str(part) for part in command))
        print("\n".join(done.stdout.splitlines()[-40:]))
        sys.exit(1)
    return done.stdout


def objects_of_source(source, version, work, compiler):
    if not (source / "configure").is_file():
        must(["autoconf"], cwd=source)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    environment = {**os.environ, "CC": compiler}
    # Flags meant for our code must not make its code fill or trap.
    for name in ("CFLAGS", "CPPFLAGS", "LDFLAGS", "EXTRA_CFLAGS", "MAKEFLAGS"):
        environment.pop(name, None)
    must([source / "configure", *CONFIGURE, f"--with-version={version}-0-g0", "CFLAGS=-O2 -g0 -w"],
         cwd=work, env=environment)
    must(["make", f"-j{min(4, len(os.sched_getaffinity(0)))}", "lib/libjemalloc_pic.a"], cwd=work, env=environment)
    return sorted((work / "src").glob("*.pic.o"))


def objects_of_archive(archive, work):
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    must(["ar", "x", archive], cwd=work)
    return [path for path in sorted(work.glob("*.o")) if "cpp" not in path.name]


def key_of(options):
    """What the object depends on, as a short text."""
    digest = hashlib.sha256(pathlib.Path(__file__).read_bytes())
    digest.update(must([options.compiler, "--version"]).encode())
    digest.update(platform.machine().encode())
    if options.archive:
        digest.update(options.archive.read_bytes())
    else:
        for path in sorted([*options.source.glob("src/*.c"), *options.source.glob("include/**/*.h*")]):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def is_taken_from_sibling(options, output, key):
    for known in options.tree.glob("build*/packaging/jemalloc/jemalloc.key"):
        built = known.with_name("jemalloc.o")
        if known.read_text(encoding="utf-8") == key and built.is_file() and built.resolve() != output:
            shutil.copyfile(built, output)
            return True
    return False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=pathlib.Path)
    parser.add_argument("--version", default="5.3.0")
    parser.add_argument("--archive", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--tree", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    options = parser.parse_args()
    work, output = options.work.resolve(), options.output.resolve()
    key, stamp = key_of(options), output.with_suffix(".key")
    stamp.unlink(missing_ok=True)
    if is_taken_from_sibling(options, output, key):
        stamp.write_text(key, encoding="utf-8")
        return
    if options.archive:
        objects = objects_of_archive(options.archive.resolve(), work)
        renames = [f"--redefine-sym={name}={PREFIX}{name}" for name in API]
        renames.append(f"--redefine-sym=je_opt_cache_oblivious={PREFIX}opt_cache_oblivious")
        kept = [*API, "opt_cache_oblivious"]
    else:
        objects = objects_of_source(options.source.resolve(), options.version, work, options.compiler)
        renames, kept = [], API
    one = work / "one.o"
    must([options.compiler, "-r", "-nostdlib", "-o", one, *objects])
    must(["objcopy", *renames, one])
    must(["objcopy", *[f"--keep-global-symbol={PREFIX}{name}" for name in kept], one, output])
    shutil.rmtree(work)  # objects that nobody needs again
    stamp.write_text(key, encoding="utf-8")


if __name__ == "__main__":
    main()
