#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bare_root.sh - proves that `./dev test` needs nothing but a bare Debian or Ubuntu.
#
# usage, as root: tests/build/bare_root.sh ROOT_FOLDER [./dev ARGUMENTS, default: test]
#
# Makes ROOT_FOLDER with debootstrap (base packages only) if it is not there, copies the tree into it without
# .git and without build folders, as a tarball would have it, and runs ./dev inside. The environment may say:
#   SUITE       which release (default: this system's)
#   MIRROR      where from (default: where this system's apt gets that release, or its first source)
#   COMPONENTS  default main; Ubuntu needs main,universe
#   SCRIPT      how debootstrap makes that release, where it has no script of that name (Ubuntu: gutsy)
#   KEYRING     the keys that the mirror is signed with, where they are not this system's
# No part of `./dev test`: it takes minutes, root, and a mirror.
set -euo pipefail

root=$(realpath -m "${1:?usage: bare_root.sh ROOT_FOLDER [ARGUMENTS OF ./dev]}")
shift
(($# > 0)) || set -- test
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

suite=${SUITE:-$(. /etc/os-release && echo "$VERSION_CODENAME")}
sources=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' | sort -u)
mirror=${MIRROR:-$(awk -v suite="$suite" '$1 == suite { print $2; exit }' <<<"$sources")}
mirror=${mirror:-$(awk 'NR == 1 { print $2 }' <<<"$sources")}

if [[ ! -x $root/usr/bin/apt-get ]]; then
    # Its own variables have some of these names.
    env -u SUITE -u MIRROR -u COMPONENTS -u SCRIPT -u KEYRING \
        debootstrap --variant=minbase "--components=${COMPONENTS:-main}" ${KEYRING:+"--keyring=$KEYRING"} \
        "$suite" "$root" "$mirror" ${SCRIPT:+"$SCRIPT"}
fi
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp /etc/hosts "$root/etc/hosts"

rm -rf "$root/xmm"
mkdir "$root/xmm"
tar -C "$tree" -c --exclude=./.git --exclude=./.cache --exclude='./build*' . | tar -C "$root/xmm" -x

# The mounts live in a namespace of their own and go with it.
export root
unshare --mount bash -euo pipefail -c '
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root CI="${CI:-}" \
        http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}" \
        bash -c "cd /xmm && exec ./dev \"\$@\" </dev/null" dev "$@"
' bare_root "$@"
