#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh COMPILER... - each program here is refused with the sentence meant for it, and only for its fault:
# with -DWITHOUT_FAULT it compiles.
set -u
here=$(dirname "$0")
errors=0

check() {
    program=$1
    sentence=$2
    shift 2
    said=$("$@" -std=c++20 -fsyntax-only -DWITHOUT_FAULT "$here/$program" 2>&1) || {
        echo "$program: does not compile without its fault:"
        echo "$said"
        errors=$((errors + 1))
    }
    if said=$("$@" -std=c++20 -fsyntax-only "$here/$program" 2>&1); then
        echo "$program: compiles, but must be refused"
        errors=$((errors + 1))
    elif ! echo "$said" | grep -q "$sentence"; then
        echo "$program: refused, but not with: $sentence"
        echo "$said"
        errors=$((errors + 1))
    fi
}

check device_elements.cpp "this memory is out of the host's reach" "$@"
check device_pmr.cpp "no matching" "$@"
check debug_device.cpp "host_reachable" "$@"
exit "$errors"
