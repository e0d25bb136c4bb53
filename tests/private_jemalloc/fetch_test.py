#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests what packaging/jemalloc/fetch.py makes of a system's list of archives, and what it unpacks. No network."""
import importlib.util
import io
import pathlib
import sys
import tarfile
import tempfile

FETCH = pathlib.Path(__file__).resolve().parents[2] / "packaging/jemalloc/fetch.py"
spec = importlib.util.spec_from_file_location("fetch", FETCH)
fetch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fetch)

UBUNTU = """\
# See the manual
Types: deb
URIs: http://archive.example/ubuntu/
Suites: noble noble-updates noble-backports
Components: main universe restricted multiverse
Signed-By: /usr/share/keyrings/archive.gpg

Types: deb
URIs: http://security.example/ubuntu/
Suites: noble-security
Components: main universe
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQINBFit
 -----END PGP PUBLIC KEY BLOCK-----

Enabled: no
Types: deb
URIs: http://off.example/
Suites: noble
Components: main
"""
LIST = """\
# deb http://commented.example/ bookworm main
deb [arch=amd64 signed-by=/etc/apt/keys/a.gpg] http://deb.example/debian bookworm main contrib # why
deb-src http://deb.example/debian bookworm main
deb http://plain.example/debian bookworm-updates main
"""


def equal(got, expected):
    if got != expected:
        sys.exit(f"got      {got!r}\nexpected {expected!r}")


def entries():
    two, one = list(fetch.stanzas_of_sources(UBUNTU)), list(fetch.stanzas_of_list(LIST))
    equal([e["Uris"] for e in two], ["http://archive.example/ubuntu/", "http://security.example/ubuntu/",
                                     "http://off.example/"])
    equal([(e["Types"], e["Uris"]) for e in one],
          [("deb", "http://deb.example/debian"), ("deb-src", "http://deb.example/debian"),
           ("deb", "http://plain.example/debian")])

    # Only the archive, suite and component that has the package, keys and all.
    equal(fetch.as_sources(two[:2], {("http://archive.example/ubuntu", "noble", "universe")}),
          ["Types: deb-src\nURIs: http://archive.example/ubuntu/\nSuites: noble\nComponents: universe\n"
           "Signed-By: /usr/share/keyrings/archive.gpg\n"])
    equal(fetch.as_sources(one[:1], {("http://deb.example/debian", "bookworm", "main")}),
          ["Types: deb-src\nURIs: http://deb.example/debian\nSuites: bookworm\nComponents: main\n"
           "Signed-By: /etc/apt/keys/a.gpg\n"])
    # A key that is written out stays whole.
    made, = fetch.as_sources(two[1:2], {("http://security.example/ubuntu", "noble-security", "main")})
    equal(made.split("Signed-By:")[1], " \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBFit\n"
                                       " -----END PGP PUBLIC KEY BLOCK-----\n")
    # Nothing known of the package: all of them. Known, but elsewhere: none.
    equal(len(fetch.as_sources(two[:2], set())), 2)
    equal(fetch.as_sources(two[:2], {("http://archive.example/ubuntu", "jammy", "universe")}), [])


def tarball(path, files):
    with tarfile.open(path, "w:bz2") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))


def refused(call, reason):
    try:
        call()
    except fetch.Failure as failure:
        if reason in str(failure):
            return
        sys.exit(f"said {failure}, not that {reason}")
    sys.exit(f"nothing was refused where {reason}")


def sources():
    files = {"j/configure.ac": "", "j/src/jemalloc.c": "", "j/ChangeLog": "Following\n\n* 5.3.1 (Month)\n\n* 5.3.0 (May)\n",
             "../outside": "evil"}
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        tarball(work / "good.tar.bz2", files)
        where, version = fetch.fetched(work / "a", str(work / "good.tar.bz2"))
        equal((pathlib.Path(where).name, version), ("j", "5.3.1"))
        equal(list(work.rglob("outside")), [])
        # A folder of it is copied, not built in.
        equal(fetch.fetched(work / "b", where), (str(work / "b/source"), "5.3.1"))
        # Again when it has changed, and only then.
        (pathlib.Path(where) / "configure").write_text("")
        copy = work / "h/source/src/jemalloc.c"
        for text, copied in ("first", "first"), ("second, and longer", "second, and longer"):
            (pathlib.Path(where) / "src/jemalloc.c").write_text(text)
            equal(fetch.main(work / "h", where), 0)
            equal(copy.read_text(), copied)
        copy.write_text("built")
        equal(fetch.main(work / "h", where), 0)
        equal(copy.read_text(), "built")

        tarball(work / "old.tar.bz2", {**files, "j/ChangeLog": "* 5.2.1 (August 5, 2019)\n"})
        refused(lambda: fetch.fetched(work / "c", str(work / "old.tar.bz2")), "too old")
        tarball(work / "mute.tar.bz2", {**files, "j/ChangeLog": ""})
        refused(lambda: fetch.fetched(work / "d", str(work / "mute.tar.bz2")), "does not say its version")
        tarball(work / "other.tar.bz2", {"j/README": ""})
        refused(lambda: fetch.fetched(work / "e", str(work / "other.tar.bz2")), "has no source")
        (work / "broken.tar.bz2").write_bytes(b"no archive")
        refused(lambda: fetch.fetched(work / "f", str(work / "broken.tar.bz2")), "cannot be unpacked")
        refused(lambda: fetch.fetched(work / "g", str(work / "nowhere")), "there is no")


if __name__ == "__main__":
    entries()
    sources()
