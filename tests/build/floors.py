#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the arrows between the floors: a header includes its own floor and the floors before it.

    core -> os -> concepts -> mapping -> placement -> resources -> facade

Headers of backends/ see core, os, concepts and their own folder, and backends/shared/, which sees no backend. The facade
is what lies in include/xmm/ itself; a header there may include backends.
"""
import pathlib
import re
import sys
import tempfile

import tree

FLOORS = ["core", "os", "concepts", "mapping", "placement", "resources", "facade"]
SEEN_BY_BACKENDS = FLOORS[:3]
SHARED = "shared"  # what backends have in common, itself none
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def target_of(root, header, quote, name):
    """The file of the tree that an #include means, or None where it is somebody else's."""
    candidates = [root / "include" / name]
    if name.startswith("xmm/"):
        candidates.append(root / "backends" / name[len("xmm/"):])  # as it is called where it is installed
    if quote == '"':
        candidates.insert(0, header.parent / name)
    for candidate in candidates:
        path = pathlib.Path(candidate).resolve()
        if path.is_file() and root in path.parents:
            return path
    return None


def floor_of(root, path):
    """('floor', name) or ('backend', name) of a header."""
    parts = path.relative_to(root).parts
    if parts[0] == "backends":
        return "backend", parts[1]
    return "floor", parts[2] if len(parts) > 3 else "facade"


def complaint(root, header):
    """What is wrong with the includes of one header, a line each."""
    kind, name = floor_of(root, header)
    if kind == "floor" and name not in FLOORS:
        return [f"{header.relative_to(root)}: {name} is no floor"]
    wrong = []
    for quote, included in INCLUDE.findall(header.read_text(encoding="utf-8")):
        target = target_of(root, header, quote, included)
        if target is None:
            if included.startswith("xmm/"):
                wrong.append(f"{header.relative_to(root)}: <{included}> is not there")
            continue
        target_kind, target_name = floor_of(root, target)
        if kind == "backend":
            allowed = target_name in (name, SHARED) if target_kind == "backend" else target_name in SEEN_BY_BACKENDS
        elif target_kind == "backend":
            allowed = name == "facade"
        else:
            allowed = target_name in FLOORS and FLOORS.index(target_name) <= FLOORS.index(name)
        if not allowed:
            wrong.append(f"{header.relative_to(root)} includes {target.relative_to(root)}, "
                         f"which {'a backend' if kind == 'backend' else 'the floor ' + name} may not see")
    return wrong


def complaints(root):
    found = sorted([*(root / "include").rglob("*.hpp"), *(root / "backends").rglob("*.hpp")])
    if not found:
        sys.exit("no header found")
    return [line for header in found for line in complaint(root, header)]


def self_test():
    """Each planted violation has to be found, and nothing beside them."""
    files = {
        "include/xmm/core/types.hpp": "",
        "include/xmm/core/bad_angle.hpp": "#include <xmm/os/trap.hpp>\n",
        "include/xmm/os/trap.hpp": "#include <xmm/core/types.hpp>\n#include <vector>\n",
        "include/xmm/os/bad_quote.hpp": '#  include "../mapping/page.hpp"\n',
        "include/xmm/mapping/page.hpp": '#include "use.hpp"\n// #include <xmm/facade.hpp> is only said\n',
        "include/xmm/mapping/use.hpp": "",
        "include/xmm/mapping/bad_backend.hpp": '#include "../../../backends/soft/soft.hpp"\n',
        "include/xmm/mapping/bad_installed.hpp": "#include <xmm/soft/link.hpp>\n",
        "include/xmm/mapping/bad_facade.hpp": "#include <xmm/space.hpp>\n",
        "include/xmm/mapping/bad_missing.hpp": "#include <xmm/mapping/no_such.hpp>\n",
        "include/xmm/cellar/bad_floor.hpp": "",
        "include/xmm/space.hpp": "#include <xmm/mapping/page.hpp>\n",
        "include/xmm/soft.hpp": '#include "../../backends/soft/soft.hpp"\n#include <xmm/soft/link.hpp>\n',
        "backends/soft/soft.hpp": '#include <xmm/os/trap.hpp>\n#include "link.hpp"\n',
        "backends/soft/link.hpp": '#include "../shared/slots.hpp"\n',
        "backends/shared/slots.hpp": "#include <xmm/core/types.hpp>\n",
        "backends/shared/bad_driver.hpp": '#include "../soft/soft.hpp"\n',
        "backends/soft/bad_high.hpp": "#include <xmm/mapping/page.hpp>\n",
        "backends/soft/bad_neighbour.hpp": '#include "../other/other.hpp"\n',
        "backends/other/other.hpp": "",
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        caught = {re.match(r"[^ :]+", line).group() for line in complaints(root)}
    planted = {name for name in files if "/bad_" in name}
    if caught != planted:
        sys.exit(f"self-test: missed {sorted(planted - caught)}, wrongly caught {sorted(caught - planted)}")


def main():
    self_test()
    wrong = complaints(tree.ROOT)
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
