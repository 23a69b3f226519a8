"""Errors about optional packages name a command that works for every kind of installation."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import NoReturn

import pytest

from segstore.wire import extras

DECLARED = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.mark.parametrize("extra", ["metrics", "spark", "zookeeper"])
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
