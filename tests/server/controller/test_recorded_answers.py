"""What a real controller answered, call by call: a controller here is held to it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from segstore.wire.controller_api import METHODS
from tests.server.controller.calls import NO_ID, Client

pytestmark = pytest.mark.usefixtures("grpc_runs")

FIXTURE = Path(__file__).parents[3] / "fixtures" / "controller" / "answers.ndjson"


def sequences() -> Iterator[Any]:
    """Each sequence of calls under its name."""
    name, steps = "", []
    for line in FIXTURE.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if isinstance(row, list):
            steps.append(row)
            continue
        if steps:
            yield pytest.param(steps, id=name)
        name, steps = row["sequence"], []
    yield pytest.param(steps, id=name)


class Caller:
    """Makes recorded calls, and tells the answers as they are recorded."""

    def __init__(self, call: Client) -> None:
        self._call = call
        self._ids: dict[str, Any] = {}
        self._names: dict[str, str] = {}

    async def __call__(self, name: str, request: dict[str, Any], given: str | None) -> dict[str, Any]:
        message = METHODS[name].request()
        json_format.ParseDict({key: self._asked(key, value) for key, value in request.items()}, message)
        try:
            response = await self._call(name, message)
        except grpc.aio.AioRpcError as error:
            return {"code": error.code().name}
        answer = json_format.MessageToDict(response, preserving_proto_field_name=True)
        answer.pop("continuationToken", None)  # its text is each controller's own
        if given is not None:
            self._name(given, answer)
        return {key: self._told(key, value) for key, value in answer.items()}

    def _name(self, given: str, answer: dict[str, Any]) -> None:
        if "txnId" in answer:
            self._ids[given] = answer["txnId"]
            self._names[json.dumps(answer["txnId"], sort_keys=True)] = f"${given}"
        elif "config" in answer:
            identifier = answer["config"]["readerGroupId"]
            self._ids[given] = identifier
            self._names[identifier] = f"${given}"

    def _asked(self, key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {inner: self._asked(inner, each) for inner, each in value.items()}
        if isinstance(value, list):
            return [self._asked("", each) for each in value]
        if isinstance(value, str) and value.startswith("$"):
            return self._ids.get(value[1:], NO_ID if key == "readerGroupId" else {})
        if isinstance(value, str) and value.startswith("@"):
            return {"scope": "s", "stream": value[1:]}
        return value

    def _told(self, key: str, value: Any) -> Any:
        if key == "txnId":
            return self._names.get(json.dumps(value, sort_keys=True), value)
        if key == "readerGroupId" and value != NO_ID:
            return self._names.get(value, "?")
        if key in ("endpoint", "port"):
            return {"endpoint": "<host>", "port": "<port>"}[key]
        if isinstance(value, dict):
            if value.keys() == {"scope", "stream"} and value["scope"] == "s":
                return f"@{value['stream']}"
            return {inner: self._told(inner, each) for inner, each in value.items()}
        if isinstance(value, list):
            return [self._told("", each) for each in value]
        return value


def unordered(value: Any) -> Any:
    """The value with every list sorted: the order of most is that of a hash map there."""
    if isinstance(value, dict):
        return {key: unordered(each) for key, each in value.items()}
    if isinstance(value, list):
        return sorted(map(unordered, value), key=lambda each: json.dumps(each, sort_keys=True))
    return value


@pytest.mark.parametrize("steps", list(sequences()))
async def test_every_answer_is_that_of_the_real_controller(call: Client, steps: list[list[Any]]) -> None:
    caller, different = Caller(call), []
    for name, request, expected, *given in steps:
        answer = await caller(name, request, given[0] if given else None)
        if unordered(answer) != unordered(expected):
            different.append((name, request, expected, answer))
    assert different == []
