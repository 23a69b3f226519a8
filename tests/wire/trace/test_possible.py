"""A filter that nothing can match is refused by every door, and means the same at all that take it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from segstore.explore import explore
from segstore.server.faults import read_faults
from segstore.testing import RunningServer, ServerThread
from tests.processes import invoke
from tests.view.samples import FIXTURES

TRACE = FIXTURES / "traces" / "write.jsonl"
FILTERS = {
    "type = APPEND_BLOCK_END and size > 0": "rule log trace",
    "type = APPEND_BLOCK_END and latency >= 0ns": "log trace",
    "type = APPEND_BLOCK_END and failure": "log trace",
    "rpc = createStream and status = STREAM_EXISTS": "reply log trace",
    "direction = reply": "reply trace",
    "type = DATA_APPENDED and latency >= 0ns": "reply trace",
    "type = APPEND_BLOCK": "trace",
    "malformed": "trace",
    "kind = close": "trace",
    "type = APPEND_BLOCK and latency >= 0ns": "",
    "type = APPEND_BLOCK_END and direction = reply": "",
    "type = DATA_APPENDED and direction = request": "",
    "type = EVENT": "",
    "kind = open and failure": "",
    "direction = request and direction = reply": "",
    "type = HELLO and type = READ_SEGMENT and size > 1": "",
    "type = READ_SEGMENT and status = OK": "",
    "data.order = 17": "rule reply log trace",
    "type = SEGMENT_READ and data ~ tea": "reply trace",
    "type = READ_SEGMENT and data ~ tea": "",
    "rpc = createStream and data ~ tea": "",
    "data.order > 1e400": "",
    "data.order >= 1e400 or data.order < 1e400": "rule reply log trace",
    "data.order < -1e400": "",
    "data = ''": "rule reply log trace",
    "not data[0] = ''": "rule reply log trace",
    "data.city = ''": "rule reply log trace",
    "size < 0B": "",
    "type = HELLO and segment = a/b/0": "",
    "broken = lost-write": "trace",
    "not broken ~ '*'": "rule reply log trace",
    "size < 1 or latency < 0": "rule reply log trace",
}
"""Filters, and the records that each may match: requests of a rule, replies of a rule, a log, a trace."""


pytestmark = pytest.mark.usefixtures("grpc_runs")


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with ServerThread() as servers:
        yield servers.serve(http_port=0)


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


def http(server: RunningServer, path: str, method: str = "GET", body: Callable[[str], object] | None = None) -> Ask:
    def ask(text: str) -> str:
        url = httpx.URL(f"{server.http_url}/v1/{path}")
        if body is None:
            answer = httpx.request(method, url.copy_merge_params({"match": text}), trust_env=False, verify=False)
        else:
            answer = httpx.request(method, url, json=body(text), trust_env=False, verify=False)
        return answer.json()["detail"] if answer.status_code == 422 else ""

    return ask


def command(*words: str, before: Callable[[str], object] = str) -> Ask:
    def ask(text: str) -> str:
        before(text)
        result = invoke(*(word.format(text) for word in words))
        return result.output if "can match" in result.output else ""

    return ask


async def _no_client(_: object) -> None:
    pass


def test_doors_take_the_filters_that_can_match_there(server: RunningServer, tmp_path: Path) -> None:
    ctl = ("ctl", "--url", server.http_url)
    out, file = tmp_path / "out.jsonl", tmp_path / "faults.json"

    def rules(on: Literal["request", "reply"]) -> dict[str, Ask]:
        def rule(text: str) -> dict[str, Any]:
            return {"match": text, "on": on, "do": "ok"}

        def save(text: str) -> None:
            file.write_text(json.dumps({"rules": [rule(text)]}))

        def read(text: str) -> None:
            save(text)
            read_faults(file)

        return {
            "faults.add": python(lambda text: server.faults.add(**rule(text))),
            "POST /v1/faults": http(server, "faults", "POST", rule),
            "PUT /v1/faults": http(server, "faults", "PUT", lambda text: {"rules": [rule(text)]}),
            "fault file": python(read),
            "ctl faults add": command(*ctl, "faults", "add", "-f", str(file), before=save),
        }

    doors: dict[str, dict[str, Ask]] = {
        "rule": rules("request"),
        "reply": rules("reply"),
        "log": {
            "requests": python(server.requests),
            "wait_for": python(lambda text: server.wait_for(text, timeout_s=0)),
            "GET /v1/requests": http(server, "requests"),  # the live page shows its refusals
            "GET /v1/requests/verify": http(server, "requests/verify?at_least=0"),
            "GET /v1/requests/wait": http(server, "requests/wait?timeout_s=0.001"),
            "ctl requests": command(*ctl, "requests", "{}"),
            "ctl verify": command(*ctl, "verify", "{}", "--at-least", "0"),
            "explore": command("explore", str(TRACE), "--prepare", "", "-f", "{}"),
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
        server.faults.clear()


async def test_an_exploration_refuses_it_before_the_first_run() -> None:
    with pytest.raises(ValueError, match="no request can match"):
        await explore(_no_client, match="direction = reply")
