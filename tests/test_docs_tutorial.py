"""The tests in the README, in the tutorial and in the recipes fail and pass as the page says, for its reasons."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pytest_suites import ALONE, SLOW_S, slow

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.needs("pravega in this Python"), slow]

ROOT = Path(__file__).parent.parent
OPTIONS = (*ALONE, "-p", "no:asyncio", "-o", "segstore_unmatched_faults=error")


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def programs(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page(name), re.DOTALL | re.MULTILINE)


def test_the_readmes_test_fails_and_passes_and_the_recipes_pass(pytester: pytest.Pytester) -> None:
    (program,) = programs("README.md")
    (failure,) = re.findall(r"^E .*$", page("README.md"), re.MULTILINE)
    flushed = program.replace("write_event(order)\n", "write_event(order)\n    writer.flush()\n")
    shop, *recipes = programs("docs/how-to/test-an-application.md")
    pytester.makepyfile(test_orders=program, test_flushed=flushed, shop=shop, test_shop="\n\n".join(recipes))
    result = pytester.runpytest_subprocess(*OPTIONS, timeout=SLOW_S)
    result.assert_outcomes(failed=1, passed=11)
    result.stdout.fnmatch_lines([failure.replace("[", "[[]"), "FAILED test_orders.py*"])


def test_the_tutorials_tests_fail_and_pass(pytester: pytest.Pytester) -> None:
    shop, tests, flush, refusal = programs("docs/start/first-test.md")
    failure, _ = re.findall(r"^\$ pytest\n(.*?)\n```$", page("docs/start/first-test.md"), re.DOTALL | re.MULTILINE)
    pytester.makepyfile(shop=shop, test_shop=tests)
    failed = pytester.runpytest_subprocess(*OPTIONS, timeout=SLOW_S)
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(failure.replace("[", "[[]"))
    without_the_rule = re.sub(r".*segstore_faults\.add.*\n", "", refusal).replace("def test_", "def test_without_rule_")
    pytester.makepyfile(shop=f"{shop}{flush}", test_shop=f"{tests}\n\n{refusal}\n\n{without_the_rule}")
    last = pytester.runpytest_subprocess(*OPTIONS, "--segstore-record=traces", timeout=SLOW_S)
    last.assert_outcomes(passed=2, failed=1)
    last.stdout.fnmatch_lines(["*DID NOT RAISE*", "FAILED test_shop.py::test_without_rule_*"])
    assert (pytester.path / "traces" / "test_orders_are_stored.jsonl").exists()
