"""`make mutants`: its rooms have code and tests, and what it adds to `pyproject.toml` is TOML for that room."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TOOL = runpy.run_path(str(ROOT / "tools" / "mutants.py"))


@pytest.mark.parametrize("room", TOOL["ROOMS"])
def test_a_room_has_code_to_change_and_tests_to_notice(room: str) -> None:
    files, tests = TOOL["module_and_tests"](room)
    assert list(ROOT.glob(files))
    assert list((ROOT / tests).glob("test_*.py"))


@pytest.mark.parametrize(
    ("room", "files", "tests"),
    [
        ("server/store", "segstore/server/store/*.py", "tests/server/store"),
        ("client/connection/pool.py", "segstore/client/connection/pool.py", "tests/client/connection"),
    ],
)
def test_a_rooms_configuration_names_its_files_and_its_tests(room: str, files: str, tests: str) -> None:
    written = (ROOT / "pyproject.toml").read_text("utf-8") + TOOL["configuration"](room)
    found = tomllib.loads(written)["tool"]["mutmut"]
    assert found["only_mutate"] == [files]
    assert found["pytest_add_cli_args_test_selection"] == [tests]
    assert {*found["also_copy"], "segstore", "tests"} == set(TOOL["COPIED"])


def test_a_room_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(SystemExit, match="server/none: there is no segstore/server/none"):
        TOOL["module_and_tests"]("server/none")
