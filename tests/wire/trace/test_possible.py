"""A filter that nothing can match is refused by every door, and means the same at all that take it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from segstore.cli import main
from segstore.explore import explore
from segstore.testing import RunningServer, ServerThread
from tests.view.samples import FIXTURES

TRACE = FIXTURES / "traces" / "write.jsonl"
FILTERS = {
    "type = APPEND_BLOCK_END and size > 0": "rule log trace",
    "type = APPEND_BLOCK_END and latency >= 0ns": "log trace",
    "type = APPEND_BLOCK_END and failure": "log trace",
    "rpc = createStream and status = STREAM_EXISTS": "log trace",
    "direction = reply": "trace",
    "type = DATA_APPENDED and latency >= 0ns": "trace",
    "type = APPEND_BLOCK": "trace",
    "malformed": "trace",
    "kind = close": "trace",
    "type = APPEND_BLOCK and latency >= 0ns": "",
    "type = APPEND_BLOCK_END and direction = reply": "",
    "type = DATA_APPENDED and direction = request": "",
    "type = EVENT": "",
    "kind = open and failure": "",
    "type = HELLO and type = READ_SEGMENT and size > 1": "",
    "type = READ_SEGMENT and status = OK": "",
    "data.order = 17": "rule log trace",
    "type = SEGMENT_READ and data ~ tea": "trace",
    "type = READ_SEGMENT and data ~ tea": "",
    "rpc = createStream and data ~ tea": "",
}


pytestmark = pytest.mark.usefixtures("grpc_runs")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with ServerThread() as servers:
        running = servers.serve(http_port=0)
        assert running.controller_uri  # starts the controller, which a test would leave behind
        yield running


Ask = Callable[[str], str]
"""Returns why a door refuses a filter; "" if it takes it."""


def python(call: Callable[[str], object]) -> Ask:
    def ask(text: str) -> str:
        try:
            call(text)
        except TimeoutError:
            return ""
        except ValueError as error:
            return str(error)
        return ""

    return ask


def http(server: RunningServer, path: str) -> Ask:
    def ask(text: str) -> str:
        url = httpx.URL(f"{server.http_url}/v1/requests{path}").copy_merge_params({"match": text})
        answer = httpx.get(url, trust_env=False)
        return answer.json()["detail"] if answer.status_code == 422 else ""

    return ask


def command(*words: str) -> Ask:
    def ask(text: str) -> str:
        result = CliRunner().invoke(main, [each.format(text) for each in words])
        return result.output if "can match" in result.output or "has this type" in result.output else ""

    return ask


async def _no_client(_: object) -> None:
    pass


def test_doors_take_the_filters_that_can_match_there(server: RunningServer, tmp_path: Path) -> None:
    def add_rule(text: str) -> None:
        server.faults.add(text, do="ok")
        server.faults.clear()

    ctl = ("ctl", "--url", server.http_url)
    out = tmp_path / "out.jsonl"
    doors: dict[str, dict[str, Ask]] = {
        "rule": {"faults.add": python(add_rule)},
        "log": {
            "requests": python(server.requests),
            "wait_for": python(lambda text: server.wait_for(text, timeout_s=0)),
            "GET /v1/requests": http(server, ""),
            "GET /v1/requests/verify": http(server, "/verify?at_least=0"),
            "GET /v1/requests/wait": http(server, "/wait?timeout_s=0.001"),
            "ctl requests": command(*ctl, "requests", "{}"),
            "ctl verify": command(*ctl, "verify", "{}", "--at-least", "0"),
            "ctl wait": command(*ctl, "wait", "{}", "--timeout-s", "0.001"),
        },
        "trace": {
            "trace show": command("trace", "show", str(TRACE), "-f", "{}"),
            "trace stats": command("trace", "stats", str(TRACE), "-f", "{}"),
            "trace filter": command("trace", "filter", str(TRACE), str(out), "-f", "{}"),
            "trace filter --only": command("trace", "filter", str(TRACE), str(out), "--only", "-f", "{}"),
        },
    }
    for text, taken in FILTERS.items():
        for records, asks in doors.items():
            for door, ask in asks.items():
                out.unlink(missing_ok=True)
                refusal = ask(text)
                assert bool(refusal) is (records not in taken.split()), (text, door, refusal)
                assert "filter" not in door or out.exists() is not bool(refusal), "no fixture without records"


async def test_an_exploration_refuses_it_before_the_first_run() -> None:
    with pytest.raises(ValueError, match="no request can match"):
        await explore(_no_client, match="direction = reply")
