#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh - builds two shared objects and a program that all embed xmm, by g++ and clang++, and checks
# that they share one registry. Exit 77, a skip, when one of the compilers is missing; what can be run
# without it is run all the same.
#
#   run.sh [--flags "-fsanitize=..."]
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
flags=
[ "${1-}" = --flags ] && flags=$2
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# The newest clang++ that is installed and new enough.
gcc=$(command -v g++ || true)
clang=
for name in clang++ clang++-20 clang++-19 clang++-18 clang++-17 clang++-16; do
    path=$(command -v "$name") || continue
    version=$("$path" -dumpversion | cut -d. -f1)
    [ "$version" -ge 16 ] && clang=$path && break
done
missing=
[ -n "$gcc" ] || missing="g++"
[ -n "$clang" ] || missing="${missing:+$missing and }clang++ 16 or later"
if [ -z "$gcc$clang" ]; then
    echo "skipped: neither g++ nor clang++ is here"
    exit 77
fi
[ -n "$gcc" ] || gcc=$clang
[ -n "$clang" ] || clang=$gcc

# Sanitizers have one run time per process, which is the program's: so there the parts are g++'s.
if [ -n "$flags" ]; then
    clang=$gcc
    missing=
fi
libraries=$(pkg-config --libs hwloc 2>/dev/null || echo -lhwloc)
options="-std=c++20 -O1 -Wall -Wextra -Wpedantic -Werror -fvisibility=hidden -fvisibility-inlines-hidden -pthread"
fail() { echo "FAILED: $*"; exit 1; }
build() {  # compiler, output, source, extra
    # shellcheck disable=SC2086  # options are words
    "$1" $options $flags ${4-} -I"$root/include" -o "$2" "$here/$3" $libraries -ldl || fail "building $3 with $1"
}
build "$gcc" "$work/by_gcc.so" part.cpp "-shared -fPIC"
build "$clang" "$work/by_clang.so" part.cpp "-shared -fPIC"
build "$gcc" "$work/program_gcc" program.cpp
if [ -n "$flags" ]; then
    programs="$work/program_gcc"
else
    programs="$work/program_gcc $work/program_clang"
    build "$clang" "$work/program_clang" program.cpp
fi

runs=0
for program in $programs; do
    for scenario in objects_first program_first one_at_a_time at_once service_threads leave_open turns left_with_others; do
        for order in "$work/by_gcc.so $work/by_clang.so" "$work/by_clang.so $work/by_gcc.so"; do
            for conf in userfaultfd:on userfaultfd:off; do
                # shellcheck disable=SC2086
                XMM_CONF=$conf timeout 60 "$program" $scenario $order ||
                    fail "$(basename "$program") $scenario $order ($conf)"
                runs=$((runs + 1))
            done
        done
    done
done
echo "$runs runs, one registry in each"

# The same, where they show all their functions to each other.
shown="-shared -fPIC -fvisibility=default -fno-visibility-inlines-hidden"
build "$gcc" "$work/gcc_shown.so" part.cpp "$shown"
build "$clang" "$work/clang_shown.so" part.cpp "$shown"
runs=0
for order in "$work/gcc_shown.so $work/clang_shown.so" "$work/clang_shown.so $work/gcc_shown.so" \
    "$work/by_gcc.so $work/by_clang.so"; do
    # shellcheck disable=SC2086
    timeout 60 "$work/program_gcc" in_one_scope $order || fail "in_one_scope $order"
    runs=$((runs + 1))
done
echo "$runs runs in one lookup scope"

# One of them makes a heap and is unloaded.
build "$gcc" "$work/heap_one.so" heap_part.cpp "-shared -fPIC"
build "$gcc" "$work/heap_two.so" heap_part.cpp "-shared -fPIC"
build "$gcc" "$work/heap_program" heap_program.cpp
XMM_CONF=cuda:off,soft_devices:1 timeout 60 "$work/heap_program" "$work/heap_one.so" "$work/heap_two.so" ||
    fail "the object that made a heap"
echo "1 run of an object that made a heap"

# One whose constructor asks for what another thread is making.
build "$gcc" "$work/plugin.so" plugin.cpp "-shared -fPIC"
build "$gcc" "$work/plugin_program" plugin_program.cpp "-rdynamic"
for scenario in object heap; do
    XMM_CONF=cuda:off,soft_devices:1 timeout 60 "$work/plugin_program" $scenario "$work/plugin.so" ||
        fail "a constructor that asks for what another thread makes ($scenario)"
done
# With the devices that are looked for when none are named: that loads the driver's library, if it is there or not.
for scenario in default_space new_space; do
    XMM_CONF=soft_devices:1 timeout 60 "$work/plugin_program" $scenario "$work/plugin.so" ||
        fail "a constructor that asks for a space that another thread makes ($scenario)"
done
echo "4 runs of a constructor that asks for what another thread makes"

# Without a dynamic linker. The static C library may be missing; hwloc's usually is, and is not needed.
if [ -z "$flags" ]; then
    if "$gcc" -std=c++20 -O1 -pthread -static -w -I"$root/include" -o "$work/static" "$here/static_program.cpp" \
        2>"$work/static.log"; then
        timeout 60 "$work/static" || fail "the static program"
        echo "1 run of a static program"
    else
        echo "no static C library: that run is left out"
    fi
fi
if [ -n "$missing" ]; then
    echo "skipped: without $missing, mixed compilers were not tried"
    exit 77
fi
