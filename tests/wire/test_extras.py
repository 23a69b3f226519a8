"""Errors about optional packages name a command that works for every kind of installation."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import NoReturn

import pytest

from segstore.wire import extras
from tests.looped import looped

ROOT = Path(__file__).parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@looped("extra", ["metrics", "spark", "zookeeper"])
def test_the_packages_of_an_extra_are_named(extra: str) -> None:
    command = extras.pip_command(extra)
    names = {each.strip("'").partition(">=")[0] for each in command.removeprefix("pip install ").split()}
    assert names == {each.partition(">=")[0] for each in DECLARED["optional-dependencies"][extra]}
    assert "segstore" not in command


def test_without_an_installation_the_place_of_the_list_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> NoReturn:
        raise PackageNotFoundError("segstore")

    monkeypatch.setattr(extras, "requires", missing)
    assert extras.pip_command("spark") == "see the extra spark in pyproject.toml"


@looped("place", ["README.md", "CONTRIBUTING.md", "docs", "client", "pipeline", "segstore", "server"])
def test_nothing_installs_by_name_what_no_index_has_yet(place: str) -> None:
    there = ROOT / place
    files = [there] if there.is_file() else [each for each in there.rglob("*") if each.suffix in (".md", ".py")]
    assert files
    for file in files:
        commands = re.findall(r"pip install ([^#\n`]*)", file.read_text("utf-8"))
        assert [command for command in commands if re.search(r"(?<![\w/.\\])segstore\b", command)] == [], file
