"""The versions that `make test-lowest` installs are the lower bounds of pyproject.toml, and none is missing."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
lowest_versions = runpy.run_path(str(ROOT / "tools" / "lowest_versions.py"))["lowest_versions"]


def test_every_requirement_that_ships_is_pinned_to_its_lower_bound() -> None:
    source = """
    [project]
    dependencies = ["click>=8.1.7,<9", "grpcio[x] ~= 1.60 ; python_version < '3.13'"]
    [project.optional-dependencies]
    spark = ["pyspark==3.5.0", "click>=8.1.7,<9"]
    dev = ["ruff"]
    """
    assert lowest_versions(source) == ["click==8.1.7", "grpcio==1.60 ; python_version < '3.13'", "pyspark==3.5.0"]


def test_a_requirement_without_a_lower_bound_is_refused_by_name() -> None:
    with pytest.raises(SystemExit, match=r"'msgspec<1' has no lower bound"):
        lowest_versions('[project]\ndependencies = ["msgspec<1"]')


def test_the_project_itself_declares_a_lower_bound_for_everything() -> None:
    pins = lowest_versions((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert {pin.partition("==")[0] for pin in pins} >= {"click", "construct", "msgspec", "pydantic", "uvloop"}
