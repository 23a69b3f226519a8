"""Calls to another controller as raw messages: what is sent, what is answered, and what failed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from segstore.server.controller.api import UpstreamController, unreached
from segstore.wire.controller_api import SERVICE
from segstore.wire.endpoint import Endpoint
from segstore.wire.trace import Call
from tests.server.controller.test_front import echo, standing

pytestmark = pytest.mark.usefixtures("grpc_runs")


async def refuse(requests: AsyncIterator[bytes], context: Any) -> None:
    await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing", (("hint", "look"), ("id-bin", b"\x01")))


async def test_a_call_of_any_method_has_its_bytes_and_metadata_and_its_answer_too() -> None:
    async with standing(echo) as (upstream, port):
        controller = UpstreamController(Endpoint("127.0.0.1", port))
        answer = await controller.ask(Call(7, "makeTea", b"\xff\x00"), [("authorization", "Basic x")], 60)
        await controller.aclose()
        await controller.aclose()
    assert answer == Call(7, "makeTea", b"\xff\x00", status="OK")
    ((method, metadata),) = upstream.calls
    assert (method, metadata["authorization"]) == (f"/{SERVICE}/makeTea", "Basic x")


async def test_a_refusal_is_an_answer_with_status_details_and_metadata() -> None:
    async with standing(refuse) as (_, port):
        controller = UpstreamController(Endpoint("127.0.0.1", port))
        answer = await controller.ask(Call(1, "createScope"))
        await controller.aclose()
    assert (answer.status, answer.details, unreached(answer)) == ("NOT_FOUND", "no such thing", "")
    assert answer.metadata == {"hint": "look", "id-bin": "01"}


async def test_a_call_that_was_not_sent_names_the_cause() -> None:
    controller = UpstreamController(Endpoint("127.0.0.1", 1))
    answer = await controller.ask(Call(1, "createScope"))
    await controller.aclose()
    assert answer.status == "UNAVAILABLE"
    assert "refused" in unreached(answer)
