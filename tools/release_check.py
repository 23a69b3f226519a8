"""A dry run of a release: what would be published is built, tried and checked, and nothing leaves this machine.

    python tools/release_check.py [--release] [OUT]

An sdist and wheels (see make_wheels.py) are built into OUT, dist/ by default. They pass `twine check --strict`; their
metadata has absolute links only, the repository's URL, and a classifier for no version of CPython but those of
`VERSIONS`; their version is that of the changelog's first section. The section may be called Unreleased, which is
printed; with --release it may not.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Final

import make_wheels

ROOT: Final = Path(__file__).resolve().parent.parent
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_VERSION: Final = "Programming Language :: Python :: 3."


def metadata_of(archive: Path) -> Message:
    """Returns the metadata of a wheel or an sdist."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            (name,) = (each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
            return Parser().parsestr(wheel.read(name).decode("utf-8"))
    with tarfile.open(archive) as sdist:
        (member,) = (each for each in sdist if each.name.count("/") == 1 and each.name.endswith("/PKG-INFO"))
        found = sdist.extractfile(member)
        return Parser().parsestr(found.read().decode("utf-8") if found else "")


def faults(metadata: Message) -> list[str]:
    """Names what is wrong with the metadata of an archive."""
    found = [
        f"the link {link} is relative"
        for link in _LINK.findall(str(metadata.get_payload()))
        if not link.startswith(("https://", "#"))
    ]
    if not str(metadata.get_payload()).strip():
        found.append("there is no description")
    if not any(each.startswith("Repository, https://") for each in metadata.get_all("Project-URL", [])):
        found.append("there is no URL of the repository")
    found += [
        f"the classifier {each} names a version that is not tested"
        for each in metadata.get_all("Classifier", [])
        if each.startswith(_VERSION) and each.rpartition(" ")[2] not in make_wheels.VERSIONS
    ]
    return found


def changelog_faults(changelog: str, version: str, *, release: bool) -> list[str]:
    """Compares a version with the first section of the changelog."""
    top = re.search(r"^## \[?([^\]\s]+)", changelog, re.MULTILINE)
    if top is None:
        return ["the changelog has no section"]
    if top[1] == version or (top[1] == "Unreleased" and not release):
        return []
    return [f"the changelog's first section is {top[1]}, the version is {version}"]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--release", action="store_true", help="the changelog must name the version")
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "dist")
    options = parser.parse_args(arguments)
    out = options.out.resolve()
    if old := [*out.glob("segstore-*")]:
        print(f"{out} holds {len(old)} files of an earlier build; remove them", file=sys.stderr)
        return 2
    status = make_wheels.main(out)
    subprocess.run((sys.executable, "-m", "build", "--sdist", "--outdir", out, ROOT), check=True, capture_output=True)
    archives = sorted(out.glob("segstore-*"))
    status |= subprocess.run((sys.executable, "-m", "twine", "check", "--strict", *archives), check=False).returncode
    found = [f"{archive.name}: {fault}" for archive in archives for fault in faults(metadata_of(archive))]
    version = str(metadata_of(archives[0])["Version"])
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found += changelog_faults(changelog, version, release=options.release)
    if not options.release and changelog_faults(changelog, version, release=True):
        print(f"the changelog's first section has to be called {version} before a release")
    for each in found:
        print(each, file=sys.stderr)
    return int(bool(status or found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
