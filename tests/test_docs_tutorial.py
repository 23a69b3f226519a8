"""The tests in the README, in the tutorial and in the recipes fail and pass as the page says, for its reasons."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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


def printed(command: str, folder: Path) -> str:
    """Returns what a command prints, with `segstore` and `python` of this environment on its path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run = subprocess.run(
        ["bash", "-c", f"{{ {command}; }} 2>&1"], cwd=folder, env={**os.environ, "PATH": path},
        capture_output=True, text=True, timeout=4 * SLOW_S, check=False,
    )  # fmt: skip
    return run.stdout


@pytest.mark.long
def test_the_bug_of_the_explorers_tutorial_is_found_and_mended(pytester: pytest.Pytester) -> None:
    name = "docs/start/find-a-bug.md"
    shop, mended, test = programs(name)
    start, end = shop.index("async def place_orders"), shop.index("if __name__")
    blocks = re.findall(r"^```console\n\$ (.*)\n([^`]*?)^```$", page(name), re.MULTILINE)
    for number, (command, lines) in enumerate(blocks):
        fixed = f"{shop[:start]}{mended.partition(chr(10))[2]}\n\n{shop[end:]}"
        pytester.makepyfile(shop=fixed if number == len(blocks) - 1 else shop)
        shown = re.sub(r"^ +\d\.\d+  |[0-9a-f]{8}-…|…", "*", lines.replace("[", "[[]"), flags=re.MULTILINE)
        pytest.LineMatcher(printed(command, pytester.path).splitlines()).fnmatch_lines(shown.splitlines())
    assert (pytester.path / "matrix.html").exists()
    pytester.makepyfile(test_shop=test)
    pytester.runpytest_subprocess(*OPTIONS, timeout=SLOW_S).assert_outcomes(passed=1)
    pytester.makepyfile(shop=shop)
    failed = pytester.runpytest_subprocess(*OPTIONS, timeout=SLOW_S)
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(["*duplicated: shop/orders has the event b'tea' more than once"])


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
