#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What ./dev refuses before it builds anything."""
import os
import pathlib
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def refused(reason, *words):
    # No such compiler: what is not refused ends there.
    done = subprocess.run([ROOT / "dev", *words, "--no-install", "--compiler", "no-such-compiler"],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    if done.returncode != 2 or reason not in done.stderr or "usage: ./dev" not in done.stderr:
        raise SystemExit(f"{words}: exit status {done.returncode}\n{done.stdout}{done.stderr}")


refused("no command named bogus", "bogus")
refused("no sanitizer named bogus", "sanitize", "bogus")
refused("no sanitizer named tests", "sanitize", "tests", "address")
# A typo of an option installs, builds and lays out nothing.
refused("no option --no-instal", "test", "--no-instal")
refused("no option --werrors", "sanitize", "address", "--werrors")
refused("format takes --check alone", "format", "--chek")
print("dev: unknown words are refused")

# A suite that is none is refused with the names of those that are; a test that is none before anything is built.
for words in (("test", "--suite", "nope"), ("test", "--suite=nope"), ("sanitize", "address", "--suite", "nope")):
    done = subprocess.run([ROOT / "dev", *words, "--no-install", "--compiler", "no-such-compiler"],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    if done.returncode != 2 or "no suite named nope; known are unit matrix examples perf tools build" not in done.stderr:
        raise SystemExit(f"{words}: exit status {done.returncode}\n{done.stdout}{done.stderr}")

# Beside it one of meson's and ninja's kind: one test of each kind, and what is built is told.
MESON = r"""#!/usr/bin/env python3
import json, os, sys
if sys.argv[1] == "introspect":
    folder = sys.argv[2]
    kinds = {"alone": ("unit", ["one"]), "reads a, b": ("tools", ["one", "two"]), "floors": ("build", [])}
    print(json.dumps({
        "tests": [{"name": name, "suite": ["xmm:" + suite], "depends": needs} for name, (suite, needs) in kinds.items()],
        "targets": [{"id": i, "filename": [os.path.join(folder, "tests", i)]} for i in ("one", "two", "three")]}))
elif sys.argv[1] == "test" and "--list" in sys.argv:
    print("xmm:unit / alone")
"""
NINJA = "#!/bin/sh\nshift 4\necho \"ninja builds: $*\"\n"
with tempfile.TemporaryDirectory() as folder:
    tree = pathlib.Path(folder)
    for name in ("bin", "build", "tests/build"):
        (tree / name).mkdir(parents=True)
    shutil.copy(ROOT / "dev", tree)
    for name in ("needed.py", "summary.py"):
        shutil.copy(ROOT / "tests" / "build" / name, tree / "tests" / "build")
    (tree / "build" / "build.ninja").touch()
    for name in ("g++", "pkg-config", "make", "autoconf", "dpkg-query"):
        (tree / "bin" / name).write_text("#!/bin/sh\necho install ok installed\n")
    (tree / "bin" / "meson").write_text(MESON)
    (tree / "bin" / "ninja").write_text(NINJA)
    for path in (tree / "bin").iterdir():
        path.chmod(0o755)
    for words, built in (((), ""), (("--suite", "unit"), "tests/one"), (("--suite", "tools"), "tests/one tests/two"),
                         (("--suite=unit", "--suite", "tools"), "tests/one tests/two"), (("--suite", "build"), None),
                         (("alone",), "tests/one"), (("--suite", "tools", "reads a, b"), "tests/one tests/two"),
                         (("--", "--repeat", "2"), ""), (("nope",), "there is no test named nope"),
                         (("alone", "nope"), "there is no test named nope"),
                         (("--suite", "tools", "alone"), "there is no such test here: --suite tools alone")):
        done = subprocess.run([tree / "dev", "test", "--no-install", *words], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=60, env={**os.environ, "PATH": f"{tree / 'bin'}:{os.environ['PATH']}", "CXX": "g++"})
        told = [line[14:] for line in done.stdout.splitlines() if line.startswith("ninja builds: ")]
        is_refusal = built is not None and built.startswith("there is no")
        if is_refusal and (done.returncode != 2 or built not in done.stderr or told):
            raise SystemExit(f"test {words}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
        if not is_refusal and told != ([] if built is None else [built]):
            raise SystemExit(f"test {words}: builds {told}\n{done.stdout}{done.stderr}")
print("dev: builds what the chosen tests need, and refuses what is none")

# What the demonstration and the benchmarks are told of lies where the command was given, not in the tree. Nothing is
# built: the programs are there, and say where they run.
with tempfile.TemporaryDirectory() as folder:
    tree = pathlib.Path(folder).resolve() / "tree"
    elsewhere = tree.parent / "else where"
    for name in ("tools/demo", "build-release/tools", "build-release/benchmarks", "tests/build", "bin"):
        (tree / name).mkdir(parents=True)
    elsewhere.mkdir()
    shutil.copy(ROOT / "dev", tree)
    (tree / "build-release" / "build.ninja").touch()
    programs = {"tools/xmm-demo": "demo", "benchmarks/bench_one": "bench"}
    for name in programs:
        (tree / "build-release" / name).write_text('#!/bin/sh\necho "in $PWD: $*"\n')
    for name in ("meson", "ninja", "g++", "pkg-config", "make", "autoconf", "dpkg-query"):
        (tree / "bin" / name).write_text("#!/bin/sh\necho install ok installed\n")
    for path in [*(tree / "bin").iterdir(), *(tree / "build-release" / name for name in programs)]:
        path.chmod(0o755)
    for name, command in programs.items():
        done = subprocess.run([os.path.relpath(tree / "dev", elsewhere), command, "--no-install", "a b.csv"], cwd=elsewhere,
                              env={**os.environ, "PATH": f"{tree / 'bin'}:{os.environ['PATH']}", "CXX": "g++"},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        if done.returncode != 0 or f"in {elsewhere}: a b.csv" not in done.stdout.splitlines():
            raise SystemExit(f"{command} from another folder: exit status {done.returncode}\n{done.stdout}{done.stderr}")
print("dev: demo and bench run where they are called")

# A compiler that is called through another program: what is missing is that program, not both as one.
for compiler in ("no-such-launcher g++", "no-such-launcher g++ -isystem no-such-folder"):
    done = subprocess.run([ROOT / "dev", "test", "--no-install"], env={**os.environ, "CXX": compiler},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    missing = [line for line in done.stdout.splitlines() if line.startswith("missing: no-such-launcher")]
    if done.returncode != 2 or len(missing) != 1 or not missing[0].startswith("missing: no-such-launcher ("):
        raise SystemExit(f"{compiler}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
print("dev: a compiler may be called through another program")

# Each compiler has its folder, and each set of options.
FOLDERS = """
source <(sed -n '/^folder_for() {/,/^}/p' "$0")
default_compiler=g++ compiler=$1 compiler_name=$2
folder_for build
"""


def folder_of(compiler, name):
    return subprocess.run(["bash", "-c", FOLDERS, ROOT / "dev", compiler, name], check=True, capture_output=True,
                          text=True, timeout=60).stdout.strip()


for compiler, name, start in (("g++", "g++", "build"), ("clang++-16", "clang++-16", "build-clang++-16"),
                              ("ccache g++ -I/opt/x", "g++", "build-g++-"), ("/opt/bin/g++", "/opt/bin/g++", "build-g++-")):
    found = folder_of(compiler, name)
    if not found.startswith(start) or "/" in found or (not start.endswith("-") and found != start):
        raise SystemExit(f"{compiler}: builds in {found}")
if folder_of("ccache g++ -I/opt/x", "g++") == folder_of("ccache g++ -I/else/x", "g++"):
    raise SystemExit("other options build in the same folder")
print("dev: each compiler has its folder")

with tempfile.TemporaryDirectory() as folder:
    shutil.copy(ROOT / "dev", folder)
    tree = pathlib.Path(folder)
    for name in ("include", "backends", "tests", "examples", "benchmarks", "tools", "frameworks", "packaging"):
        (tree / name).mkdir()
    for name, first, last in (("include/one.hpp", "// fits", "// "), ("backends/soft/one.hpp", "// fits", "// "),
                              ("tests/os/one.cpp", "int one;", "int two;  // "), ("examples/one.cu", "// fits", "    // "),
                              ("benchmarks/one.cpp", "// fits", "// "), ("tools/demo/main.cpp", "// fits", "// "),
                              ("frameworks/c/one.h", "/* fits", " * "), ("frameworks/c/one.cpp", "// fits", "// "),
                              ("tests/c_abi/one.c", "int one;", "int two; /* "), ("packaging/one/one.cpp", "// fits", "// ")):
        source = tree / name
        source.parent.mkdir(parents=True, exist_ok=True)
        for columns, has_passed in ((120, True), (121, False)):
            source.write_text(f"{first}\n{last.ljust(columns, 'x')}\n", encoding="ascii")
            # Whatever lays out the code, this is about what it leaves alone.
            done = subprocess.run([tree / "dev", "format", "--check", "--no-install"],
                                  env={**os.environ, "CLANG_FORMAT": "true"}, capture_output=True, text=True, timeout=60)
            if (done.returncode == 0) != has_passed or (f"{name}:2:" in done.stderr) == has_passed:
                raise SystemExit(f"{name}, a comment of {columns} columns: exit status {done.returncode}\n{done.stderr}")
        source.unlink()
print("dev: comments past 120 columns are refused")
