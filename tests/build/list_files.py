#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists files or folders of the tree for meson, one a line, in a stable order.

list_files.py sources FOLDER   the .cpp files in FOLDER, relative to it
list_files.py scripts FOLDER   the .py files in FOLDER, relative to it
list_files.py folders FOLDER   the folders in FOLDER, relative to it

A folder that is not there lists as empty.
"""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def names(kind, folder):
    base = ROOT / folder
    if not base.is_dir():
        return []
    if kind in ("sources", "scripts"):
        found = [p for p in base.glob("*.cpp" if kind == "sources" else "*.py") if p.is_file()]
    elif kind == "folders":
        found = [p for p in base.iterdir() if p.is_dir() and not p.name.startswith((".", "_"))]
    else:
        sys.exit(f"list_files.py: no kind {kind!r}")
    return sorted(p.relative_to(base).as_posix() for p in found)


if __name__ == "__main__":
    print("\n".join(names(sys.argv[1], sys.argv[2])))
