"""System programs are installed after a message, never against the user's wish, and failures are shown."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "tools" / "system_packages.sh"
TOOLS = ("sh", "find", "mkdir", "rm", "tail", "timeout", "touch", "chmod")


class Machine:
    """A PATH on which apt-get and id are scripts of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in TOOLS:
            (self.bin / name).symlink_to(
                next(each for each in (Path("/bin", name), Path("/usr/bin", name)) if each.exists())
            )
        self.program("id", "echo 0")

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.bin / name).chmod(0o755)

    def apt_get(self, text: str) -> None:
        self.program("apt-get", f'echo "$@" >>"{self.folder}/asked"; {text}')

    @property
    def asked(self) -> list[str]:
        """The arguments of the calls to apt-get."""
        file = self.folder / "asked"
        return file.read_text().splitlines() if file.exists() else []

    def run(self, **environment: str) -> list[str]:
        """The printed lines; asserts that the script succeeds."""
        done = subprocess.run(
            [SCRIPT, "thing", "tests of things"],
            env={"PATH": str(self.bin), "VENV": str(self.folder / "venv"), **environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "")
        return done.stderr.splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_program_that_exists_is_not_installed(machine: Machine) -> None:
    machine.apt_get("exit 1")
    machine.program("thing", "exit 0")
    assert machine.run() == []
    assert machine.asked == []


def test_a_message_comes_before_the_installation(machine: Machine) -> None:
    machine.apt_get(f'case "$1" in install) cp "{machine.bin}/id" "{machine.bin}/thing";; esac')
    (machine.bin / "cp").symlink_to("/bin/cp")
    assert machine.run() == [
        "thing is missing, for tests of things: installing it with apt-get; NO_SYSTEM_PACKAGES=1 skips this"
    ]
    assert [each.partition(" ")[0] for each in machine.asked] == ["update", "install"]
    assert list((machine.folder / "venv").iterdir()) == []
    assert machine.run() == []


def test_it_can_be_skipped(machine: Machine) -> None:
    machine.apt_get("exit 0")
    (line,) = machine.run(NO_SYSTEM_PACKAGES="1")
    assert line.startswith("thing is missing, for tests of things: NO_SYSTEM_PACKAGES is set; ")
    assert line.endswith("reported as not run")
    assert machine.asked == []


def test_no_attempt_is_made_without_root_or_apt_get(machine: Machine) -> None:
    (line,) = machine.run()
    assert "there is no apt-get" in line
    machine.apt_get("exit 0")
    machine.program("id", "echo 1000")
    (line,) = machine.run()
    assert "only root may install it" in line
    assert machine.asked == []


def test_a_failure_shows_the_output_and_is_not_repeated_on_that_day(machine: Machine) -> None:
    machine.apt_get('echo "E: no such package" >&2; exit 100')
    said = machine.run()
    assert "E: no such package" in said
    assert said[-1].startswith("thing is missing, for tests of things: it could not be installed; ")
    asked = machine.asked
    (line,) = machine.run()
    assert "it could not be installed" in line
    assert machine.asked == asked
    (marker,) = (machine.folder / "venv").iterdir()
    assert "E: no such package" in marker.read_text()
    os.utime(marker, (0, 0))
    machine.run()
    assert len(machine.asked) == 2 * len(asked)
