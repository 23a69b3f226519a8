"""Functions as fault actions, in a store and in a tap."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

from segstore.server.faults import FaultFunctionError, FaultRequest, Faults, Rule, WithFaults
from segstore.server.faults.functions import Functions
from segstore.server.faults.observe import request_seen
from segstore.wire import (
    ConditionalAppend,
    DataAppended,
    Event,
    GetStreamSegmentInfo,
    NoSuchSegment,
    SegmentIsSealed,
    SegmentRead,
    StreamSegmentInfo,
    WireError,
    WrongHost,
)
from segstore.wire.blocks import Append
from tests.looped import looped
from tests.server.faults.traffic import APPENDS, PONG, Host, HostName, acknowledged, hosted, stored, writer_of
from tests.server.support import HELLO, SEGMENT, WRITER, FakeClock, Peer, append, read, set_up, until

INFO = GetStreamSegmentInfo(9, SEGMENT, "")
APPEND = Append(SEGMENT, WRITER, 1, 1, memoryview(b"data"), None, 3)


async def test_a_function_that_decides_nothing_has_the_request_executed(mock: Host, peer: Peer) -> None:
    given: list[FaultRequest] = []

    @mock.fault(APPENDS, nth=2)
    def second(request: FaultRequest) -> None:
        given.append(request)

    peer.send(append(1), append(2, b"late"), append(3))
    await until(lambda: stored(mock) == 12)
    (request,) = given
    assert (request.rule, request.seen.event_number, request.seen.segments) == ("second", 2, (SEGMENT,))
    assert request.command.data == b"late"  # type: ignore[union-attr]  # it is an append
    assert [decision.action for decision in mock.faults.decisions] == ["call second"]


async def test_a_function_answers_with_a_command_or_a_name(mock: Host, peer: Peer) -> None:

    @mock.fault("type = GET_STREAM_SEGMENT_INFO")
    def answered(request: FaultRequest) -> None:
        if request.seen.number % 2:
            request.answer(WrongHost(request_id=9, segment=SEGMENT, correct_host="there:1"))
        else:
            request.answer("NoSuchSegment", offset=7)

    found = {type(each): each for each in [*await peer.ask(INFO), *await peer.ask(INFO)]}
    assert found.keys() == {WrongHost, NoSuchSegment}
    assert found[WrongHost].correct_host == "there:1"  # type: ignore[attr-defined]
    assert (found[NoSuchSegment].segment, found[NoSuchSegment].offset) == (SEGMENT, 7)  # type: ignore[attr-defined]


async def test_a_refused_append_has_to_be_set_up_again_and_a_pretended_one_has_not(mock: Host, peer: Peer) -> None:

    @mock.fault(APPENDS, nth=1)
    def pretended(request: FaultRequest) -> None:
        request.answer(DataAppended(3, WRITER, 1, -(2**63), 4))

    assert acknowledged(await peer.ask(append(1))) == [1]
    assert stored(mock) == 0
    assert acknowledged(await peer.ask(append(2))) == [2]
    assert stored(mock) == 4

    @mock.fault(APPENDS, nth=1)
    def refused(request: FaultRequest) -> None:
        request.answer("SegmentIsSealed")

    assert isinstance((await peer.ask(append(3)))[0], SegmentIsSealed)
    assert len(await peer.ask(set_up())) == 1
    assert acknowledged(await peer.ask(append(4))) == [4]


async def test_a_function_changes_the_request(mock: Host, peer: Peer) -> None:

    @mock.fault("type = READ_SEGMENT")
    def shorter(request: FaultRequest) -> None:
        request.change(offset=9)

    @mock.fault("type = APPEND_BLOCK_END or type = CONDITIONAL_APPEND")
    def louder(request: FaultRequest) -> None:
        request.change(data=bytes(request.command.data).upper())  # type: ignore[union-attr]  # they are appends

    conditional = ConditionalAppend(WRITER, 2, 4, Event(b"more"), 5)
    assert acknowledged(await peer.ask(append(1), conditional)) == [1, 2]
    (answer,) = await peer.ask(read(0, 100))
    assert isinstance(answer, SegmentRead)
    assert bytes(answer.data) == bytes(2) + b"\x04MORE"
    mock.faults.clear("shorter")
    (answer,) = await peer.ask(read(0, 100))
    assert isinstance(answer, SegmentRead)
    assert bytes(answer.data) == b"DATA" + bytes(7) + b"\x04MORE"


@looped(
    ("item", "fields", "error"),
    [
        (APPEND, {"segment": "another"}, ValueError),
        (APPEND, {"event_number": "second"}, WireError),
        (APPEND, {"dta": b""}, TypeError),
        (APPEND, {"data": 7}, ValueError),
        (APPEND, {"event_count": "two"}, ValueError),
        (read(0), {"offset": 2**63}, WireError),
    ],
)
async def test_a_change_that_cannot_be_sent_is_refused(
    item: Any, fields: dict[str, Any], error: type[Exception]
) -> None:
    seen = request_seen(item, 1, store=0, connection=1, now_s=0.0, started_s=0.0)
    with pytest.raises(error):
        FaultRequest("changing", seen, item).change(**fields)


@pytest.mark.parametrize("reset", [False, True])
async def test_a_function_closes_the_connection(reset: bool, mock: Host, peer: Peer) -> None:

    @mock.fault(APPENDS, nth=2)
    def closing(request: FaultRequest) -> None:
        request.close(reset=reset)

    assert acknowledged(await peer.ask(append(1))) == [1]
    peer.send(append(2))
    if reset:
        with pytest.raises(ConnectionResetError):
            await peer.reader.read(1)
    else:
        assert await peer.closed() == b""
    assert stored(mock) == 4


async def test_a_function_drops_the_request_and_the_last_decision_counts(mock: Host, peer: Peer) -> None:

    @mock.fault("type = GET_STREAM_SEGMENT_INFO")
    def undecided(request: FaultRequest) -> None:
        request.close()
        request.answer("NoSuchSegment")
        request.proceed()
        if request.seen.request_id == 10:
            request.drop()

    peer.send(INFO, GetStreamSegmentInfo(10, SEGMENT, ""), PONG)
    info, pong = await peer.receive(2)
    assert isinstance(info, StreamSegmentInfo)
    assert pong == PONG


async def test_while_a_coroutine_runs_its_request_is_held_with_those_behind_it(mock: Host, peer: Peer) -> None:
    async with await Peer.connect(mock) as other:
        go_on = asyncio.Event()

        @mock.fault(APPENDS, nth=1)
        async def slow(request: FaultRequest) -> None:
            await go_on.wait()
            request.change(data=b"slow")

        peer.send(append(1), append(2))
        await mock.wait_for(APPENDS, stage="received")
        assert len(await other.ask(HELLO)) == 1, "other connections go on"
        assert stored(mock) == 0
        go_on.set()
        await until(lambda: stored(mock) == 8)
        assert mock.segments[SEGMENT].read_bytes(0, 8) == b"slowdata"


@pytest.mark.parametrize("how", ["handle", "rule", "another thread"])
async def test_a_held_request_is_released_by_its_handle_or_by_the_rule(how: str, mock: Host, peer: Peer) -> None:
    given: list[FaultRequest] = []

    @mock.fault("type = READ_SEGMENT")
    def held(request: FaultRequest) -> None:
        request.hold()
        given.append(request)

    assert acknowledged(await peer.ask(append(1))) == [1]
    peer.send(read(0, 4))
    await mock.faults.wait_held("held")
    given[0].answer("NoSuchSegment")
    match how:
        case "handle":
            given[0].release()
        case "rule":
            assert mock.faults.release("held") == 1
        case _:
            thread = threading.Thread(target=given[0].release)
            thread.start()
            thread.join()
    assert isinstance((await peer.receive())[0], NoSuchSegment)
    given[0].release()
    assert mock.faults.held("held") == 0


@pytest.mark.parametrize(
    ("how", "stubborn"), [("release", False), ("disable", True), ("clear", False), ("replace", True)]
)
async def test_a_coroutine_is_cancelled_with_the_hold_of_its_rule(kind: HostName, how: str, stubborn: bool) -> None:
    ended: list[int] = []
    async with hosted(kind) as mock, await writer_of(mock) as peer:

        @mock.fault(APPENDS)
        async def endless(request: FaultRequest) -> None:
            request.change(data=b"slow")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append(request.seen.event_number)
                if not stubborn:
                    raise
                await asyncio.Event().wait()

        peer.send(append(1))
        await mock.faults.wait_held("endless")
        match how:
            case "release":
                assert mock.faults.release("endless") == 1
            case "replace":
                mock.faults.replace("endless", Rule(do="ok"))
            case _:
                getattr(mock.faults, how)("endless")
        assert acknowledged(await peer.receive()) == [1]
        assert mock.segments[SEGMENT].read_bytes(0, 4) == b"slow"
        await until(lambda: ended == [1])
        assert mock.faults.held("endless") == 0


async def test_a_coroutine_is_cancelled_when_its_connection_is_lost(kind: HostName) -> None:
    ended: list[type[BaseException]] = []
    async with hosted(kind) as mock:
        peer = await writer_of(mock)

        @mock.fault(APPENDS)
        async def endless(request: FaultRequest) -> None:
            try:
                await asyncio.Event().wait()
            except BaseException as error:
                ended.append(type(error))
                raise

        peer.send(append(1))
        await mock.wait_for(APPENDS, stage="received")
        mock.faults.toxics.add("down")
        await until(lambda: ended)
        mock.faults.toxics.clear()
        await peer.closed()
        await peer.close()
        async with await writer_of_existing(mock) as again:
            again.send(append(2))
            await mock.wait_for(APPENDS, count=2, stage="received")
    assert ended == [asyncio.CancelledError, asyncio.CancelledError], "the second when the server stopped"


async def writer_of_existing(mock: Any) -> Peer:
    peer = await Peer.connect(mock)
    assert len(await peer.ask(HELLO, set_up())) == 2
    return peer


class Outcome(BaseException):
    """As pytest.fail raises."""


@pytest.mark.parametrize("error", [Outcome("not so"), None], ids=["raised", "returned"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_that_fails_closes_the_connection_and_its_error_is_raised_when_the_server_stops(
    kind: HostName, is_async: bool, error: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    """error: None for a function that returns an action, which decides nothing."""

    def outcome() -> str:
        if error is not None:
            raise error
        return "drop"

    async def scenario() -> None:
        async with hosted(kind) as mock, await writer_of(mock) as peer:

            async def later(request: FaultRequest) -> str:
                request.hold()
                await asyncio.sleep(0)
                return outcome()

            def now(request: FaultRequest) -> str:
                request.hold()
                return outcome()

            mock.faults.add(APPENDS, later if is_async else now, name="broken", nth=1)
            peer.send(append(1))
            assert await peer.closed() == b""
            assert stored(mock) == 0
            async with await writer_of_existing(mock) as again:
                assert acknowledged(await again.ask(append(1))) == [1], "the server goes on"
            assert [error.rule for error in mock.faults.functions.errors] == ["broken"]

    with caplog.at_level(logging.ERROR), pytest.raises(FaultFunctionError) as caught:
        await scenario()
    if error is None:
        assert "it returned 'drop', which decides nothing" in str(caught.value)
    else:
        assert caught.value.__cause__ is error
    assert caught.value.seen.event_number == 1
    assert str(caught.value) in caplog.text


@looped(("answer", "said"), [(NoSuchSegment, "not <class"), (None, "not None"), ("NoSuchSegmnt", "NoSuchSegment\\?")])
async def test_an_answer_that_is_no_reply_is_named(answer: Any, said: str) -> None:
    seen = request_seen(HELLO, 1, store=0, connection=1, now_s=0.0, started_s=0.0)
    with pytest.raises(ValueError, match=said):
        FaultRequest("wrong", seen, HELLO).answer(answer)


def yields(request: FaultRequest) -> Iterator[None]:
    yield None


async def yields_later(request: FaultRequest) -> AsyncIterator[None]:
    yield None


@looped("function", [yields, yields_later, partial(yields), lambda: None])
async def test_a_function_that_cannot_decide_fails(function: Any) -> None:
    functions, seen = Functions(), request_seen(HELLO, 1, store=0, connection=1, now_s=0.0, started_s=0.0)
    assert functions.start(function, FaultRequest("wrong", seen, HELLO)) is None
    with pytest.raises(FaultFunctionError, match=r"which decides nothing|takes 0 positional arguments"):
        await functions.aclose()


def test_a_decorator_that_makes_no_rule_of_the_function_is_refused() -> None:
    faults = Faults(FakeClock())
    decorator: Any = WithFaults(faults).fault
    for decorate, said in (
        (lambda: decorator(yields), "without parentheses"),
        (lambda: decorator("type = HELLO", on="reply")(print), "a function takes requests: on: request"),
    ):
        with pytest.raises(ValueError, match=said):
            decorate()
    assert faults.rules == []
