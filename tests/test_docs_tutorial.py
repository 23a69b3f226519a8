"""The tutorial of docs/start: its test fails as the page says, and passes after the page's fix."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pytest_suites import SLOW_S, slow

pytest_plugins = ["pytester"]

PAGE = (Path(__file__).parent.parent / "docs" / "start" / "first-test.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n# (\w+\.py)(?:, continued)?\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SAID = re.findall(r"^\$ pytest\n(.*?)\n```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.needs("pravega in this Python")
@slow
def test_the_tutorials_test_fails_and_then_passes(pytester: pytest.Pytester) -> None:
    assert [name for name, _ in PROGRAMS] == ["shop.py", "test_shop.py", "shop.py", "test_shop.py"]
    failure, success = SAID
    options = ("-p", "no:asyncio")

    def save(program: tuple[str, str]) -> None:
        name, source = program
        with (pytester.path / name).open("a", encoding="utf-8") as file:
            file.write(source)

    save(PROGRAMS[0])
    save(PROGRAMS[1])
    failed = pytester.runpytest_subprocess(*options, timeout=SLOW_S)
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(failure.replace("[", "[[]"))
    save(PROGRAMS[2])
    passed = pytester.runpytest_subprocess(*options, timeout=SLOW_S)
    passed.assert_outcomes(passed=1)
    passed.stdout.fnmatch_lines(f"*{success}*")
    save(PROGRAMS[3])
    pytester.runpytest_subprocess(*options, "--segstore-record=traces", timeout=SLOW_S).assert_outcomes(passed=2)
    assert (pytester.path / "traces" / "test_orders_are_stored.jsonl").exists()
