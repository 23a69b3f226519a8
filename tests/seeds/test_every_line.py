"""Each line of the five designs' checklists has a test that is marked with its id, and no mark names another line."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

LINES = {"36": 30, "79": 9, "57": 10, "601": 8, "43": 15}
"""The ids of a design end at this number."""

SHOWN = {"36.show"}
"""What is to be shown of connection pooling has no number."""

IDS = {f"{design}.{number}" for design, last in LINES.items() for number in range(1, last + 1)} | SHOWN


def marks() -> Iterator[tuple[str, str]]:
    """The id and the test of each mark."""
    for path in sorted(TESTS.rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "pytest.mark.seed(" in source else ():
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.seed":
                    for given in mark.args:
                        assert isinstance(given, ast.Constant), f"{path}: {ast.unparse(mark)}"
                        yield str(given.value), f"{path.relative_to(TESTS)}::{node.name}"


@pytest.fixture(scope="module")
def marked() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for seed, test in marks():
        found.setdefault(seed, []).append(test)
    return found


def test_every_line_has_a_test(marked: dict[str, list[str]]) -> None:
    assert sorted(IDS - marked.keys()) == []


def test_every_mark_is_of_a_line(marked: dict[str, list[str]]) -> None:
    assert {seed: tests for seed, tests in marked.items() if seed not in IDS} == {}


def test_marks_are_on_tests(marked: dict[str, list[str]]) -> None:
    names = [test.partition("::")[2] for tests in marked.values() for test in tests]
    assert [name for name in names if not name.startswith("test_")] == []
