"""The pages about the pytest plugin: their code runs, and they name all fixtures, settings and options."""

import re
from pathlib import Path

import pytest

from segstore import pytest_plugin as plugin
from segstore.testing import RunningServer
from tests.pytest_suites import ALONE, SLOW_S, STRICT, TRACES, passed, slow

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("grpc_runs")

DOCS = Path(__file__).parent.parent / "docs"
GUIDE = (DOCS / "how-to" / "test-with-pytest.md").read_text(encoding="utf-8")
REFERENCE = (DOCS / "reference" / "pytest-plugin.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE + REFERENCE, re.DOTALL | re.MULTILINE)


def test_the_code_of_the_page_runs_as_it_says(pytester: pytest.Pytester) -> None:
    (settings,) = blocks("ini")
    pytester.makeini(f"{settings}asyncio_default_fixture_loop_scope = function\n")
    mine = [block for block in blocks("python") if "pravega_client" not in block]
    assert len(mine) >= 5
    pytester.makepyfile(test_page="\n\n".join(mine))
    recorded_first = "test_a_request_is_seen_and_answered"
    passed(pytester.runpytest_inprocess(*STRICT, "--segstore-record=traces", "-k", recorded_first), 1, deselected=6)
    passed(pytester.runpytest_inprocess(*STRICT), 7)


@pytest.mark.needs("pravega, the official client")
@slow
def test_the_examples_with_the_official_client_run_as_the_page_says(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(*[block for block in blocks("python") if "pravega_client" in block])
    options = "-o", f"segstore_traces={TRACES}"
    passed(pytester.runpytest_subprocess("-q", *ALONE, "-p", "no:asyncio", *options, timeout=SLOW_S), 1)


def test_the_reference_names_every_fixture_setting_and_option() -> None:
    said = {*re.findall(r"`(segstore_\w+)", REFERENCE), *re.findall(r"(--segstore-[\w-]+)", REFERENCE)}
    source = Path(plugin.__file__).read_text(encoding="utf-8")
    fixtures = set(re.findall(r"^@pytest\.fixture.*\ndef (\w+)", source, re.MULTILINE)) - {"segstore_hosts"}
    settings = set(re.findall(r'"(segstore_\w+)",\s+"', source))
    assert said == fixtures | settings | {"--segstore-record", "--segstore-record-tokens", "--segstore-check"}


def test_the_reference_names_every_member_of_a_server() -> None:
    words = set(re.findall(r"`[^`]*`", REFERENCE))
    members = {name for name in dir(RunningServer) if name[0] != "_"}
    assert {name for name in members if not any(re.search(rf"\b{name}\b", word) for word in words)} == set()
