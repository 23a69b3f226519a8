"""How a writer ends: its flow is closed, its error says where and why, and no attempt is left."""

import asyncio
from uuid import UUID

import pytest

from segstore.client.connection import ConnectionPool, Endpoint, FixedStore
from segstore.client.errors import (
    ClientError,
    ConnectFailed,
    ProtocolViolation,
    RequestRejected,
    RetriesExhausted,
    SegmentSealed,
    WriterFenced,
)
from segstore.client.segment import SegmentWriter, WriterState
from segstore.wire import (
    AppendBlockEnd,
    AppendSetup,
    AuthTokenCheckFailed,
    BadField,
    Command,
    DataAppended,
    InvalidEventNumber,
    SegmentIsSealed,
    SetupAppend,
    WrongHost,
)
from tests.client.segments import FAST_RETRY, SEGMENT, setup_reply, stores_all, writing
from tests.client.support import Recorder, ScriptedPeer, ScriptedStore, settings, until
from tests.looped import looped


@looped("how", ["over", "failed", "lost", "not set up"])
async def test_a_flow_of_no_more_use_is_closed_on_a_connection_that_goes_on(how: str) -> None:
    set_ups: list[SetupAppend] = []

    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, SetupAppend):
            set_ups.append(command)
            if how != "not set up" or len(set_ups) > 1:
                peer.send(setup_reply(command))
        elif isinstance(command, AppendBlockEnd):
            if how in ("over", "failed"):
                peer.send(SegmentIsSealed(command.request_id, SEGMENT))
            elif how == "lost" and len(set_ups) == 1:
                peer.send(WrongHost(command.request_id, SEGMENT, ""))
            else:
                stores_all(peer, command)

    config = settings(request_timeout_ms=50 if how == "not set up" else 15_000, max_connections_per_store=1)
    async with ScriptedStore(answer) as store, ConnectionPool(config) as pool:
        other = await pool.flow(store.endpoint, Recorder())
        on_over = (lambda writer, error: None) if how == "over" else None
        writer = SegmentWriter(pool, FixedStore(store.endpoint), SEGMENT, on_over=on_over)
        ack = writer.write(b"event")
        if how == "over":
            await until(lambda: writer.state is WriterState.OVER)
            writer.take_pending()
        elif how == "failed":
            with pytest.raises(SegmentSealed):
                await ack
        else:
            await ack
            assert len(set_ups) == 2
        assert pool.metrics().flows == (1 if how in ("over", "failed") else 2)
        assert not other.closed
        assert len(store.peers) == 1
        await writer.abort()
        ack.cancel()
        assert pool.metrics().flows == 1
        assert other.connection.outbox._encoder._sessions == {}, "the connection forgets a writer with its flow"


async def test_an_ack_for_another_writer_is_a_protocol_error_that_ends_the_connection() -> None:
    stranger = UUID(int=99)

    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, SetupAppend):
            peer.send(setup_reply(command))
        elif isinstance(command, AppendBlockEnd):
            peer.send(DataAppended(command.request_id, stranger, 1, 0, 1))

    async with writing(answer, retry=FAST_RETRY, max_connections_per_store=1) as (store, pool, writer):
        neighbour = Recorder()
        await pool.flow(store.endpoint, neighbour)
        with pytest.raises(RetriesExhausted) as caught:
            await writer.write(b"x")
        said = caught.value.__cause__
        assert isinstance(said, ProtocolViolation)
        where = str(store.endpoint), SEGMENT, writer.request_id
        assert (said.endpoint, said.segment, said.request_id) == where
        assert f"acknowledges events of writer {stranger}, to writer {writer.writer_id} of {SEGMENT}" in str(said)
        assert "acknowledges events" in str(said.__cause__)
        assert neighbour.lost == [said] or [type(each) for each in neighbour.lost] == [ProtocolViolation]
        assert len(store.peers) == 4, "one connection an attempt"


async def test_an_answer_to_another_writers_set_up_is_a_protocol_error() -> None:
    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, SetupAppend):
            peer.send(AppendSetup(command.request_id, SEGMENT, UUID(int=99), -(2**63)))

    async with writing(answer, retry=FAST_RETRY) as (_, _, writer):
        with pytest.raises(RetriesExhausted) as caught:
            await writer.write(b"x")
        assert f"answers a set-up of writer {UUID(int=99)}" in str(caught.value.__cause__)
        assert writer.set_ups == 0


@looped("by", ["number", "set-up"])
async def test_a_fenced_writer_says_where_and_by_which_answer(by: str) -> None:
    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, SetupAppend):
            peer.send(setup_reply(command, 7 if peer is not store.peers[0] else -(2**63)))
        elif isinstance(command, AppendBlockEnd):
            if by == "set-up":
                peer.close()
            else:
                peer.send(InvalidEventNumber(command.writer_id, command.request_id, "", 1))

    async with writing(answer) as (store, _, writer):
        with pytest.raises(WriterFenced, match=f"according to {store.endpoint}") as caught:
            await writer.write(b"x")
        assert caught.value.facts() == {
            "endpoint": str(store.endpoint),
            "segment": SEGMENT,
            "request_id": writer.request_id,
            "writer_id": writer.writer_id,
        }
        assert caught.value.__cause__ is not None
        assert not isinstance(caught.value.__cause__, WriterFenced)
        assert writer.state is WriterState.FAILED


async def test_a_writer_that_failed_while_it_connected_makes_no_further_attempt() -> None:
    asked: list[str] = []

    class Nowhere(FixedStore):
        async def endpoint_of(self, segment: str) -> Endpoint:
            asked.append(segment)
            if len(asked) == 2:
                writer.fail(RequestRejected("its owner gave up", segment=segment))
            raise ConnectFailed("there is no store", segment=segment)

    async with ConnectionPool(settings(retry=FAST_RETRY)) as pool:
        writer = SegmentWriter(pool, Nowhere(Endpoint("127.0.0.1", 1)), SEGMENT)
        ack = writer.write(b"x")
        with pytest.raises(RequestRejected):
            await ack
        await until(lambda: not any("setting up" in task.get_name() for task in asyncio.all_tasks()))
        assert asked == [SEGMENT] * 2
        assert writer.state is WriterState.FAILED
        await writer.room()
        await writer.abort()


@looped("handed_over", [True, False])
async def test_who_waits_for_the_start_of_a_writer_whose_segment_is_over_waits_no_longer(handed_over: bool) -> None:
    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, SetupAppend):
            peer.send(SegmentIsSealed(command.request_id, SEGMENT))

    heard: list[object] = []
    on_over = (lambda _, error: heard.append(error)) if handed_over else None
    async with writing(answer, on_over=on_over) as (_, _, writer):
        if handed_over:
            await writer.started()
            assert writer.state is WriterState.OVER
        else:
            with pytest.raises(SegmentSealed):
                await writer.started()
        assert (len(heard), writer.set_ups) == (handed_over, 0)


async def test_a_refusal_that_names_nothing_is_of_the_writers_segment_and_endpoint() -> None:
    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, SetupAppend):
            peer.send(setup_reply(command))
        elif isinstance(command, AppendBlockEnd):
            peer.send(AuthTokenCheckFailed(command.request_id, "", 0))

    async with writing(answer, retry=FAST_RETRY) as (store, _, writer):
        with pytest.raises(ClientError) as caught:
            await writer.write(b"x")
        assert (caught.value.segment, caught.value.endpoint) == (SEGMENT, str(store.endpoint))


@looped("how", ["failed", "over"])
async def test_a_writer_that_ends_while_it_is_set_up_leaves_no_attempt_behind(how: str) -> None:
    asked: list[SetupAppend] = []

    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, SetupAppend):
            asked.append(command)
            if how == "over":
                peer.send(SegmentIsSealed(command.request_id, SEGMENT))

    async with writing(answer, on_over=lambda *_: None, request_timeout_ms=3_600_000) as (_, pool, writer):
        await until(lambda: asked)
        if how == "failed":
            writer.fail(RequestRejected("its owner gave up", segment=SEGMENT))
        await until(lambda: not any("setting up" in task.get_name() for task in asyncio.all_tasks()))
        assert writer.state is (WriterState.FAILED if how == "failed" else WriterState.OVER)
        assert (len(asked), writer.set_ups, pool.metrics().flows) == (1, 0, 0)


async def test_a_writer_that_is_closed_while_it_connects_waits_for_the_end_of_its_attempt() -> None:
    ended: list[str] = []

    class Unknown(FixedStore):
        async def endpoint_of(self, segment: str) -> Endpoint:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append(segment)
            raise AssertionError

    async with ConnectionPool(settings()) as pool:
        writer = SegmentWriter(pool, Unknown(Endpoint("127.0.0.1", 1)), SEGMENT)
        await asyncio.sleep(0)
        await writer.abort()
        assert ended == [SEGMENT]
        await writer.abort()


class Failing(FixedStore):
    """A store whose endpoint cannot be found for a reason that is no `ClientError`."""

    def __init__(self, problem: Exception) -> None:
        super().__init__(Endpoint("127.0.0.1", 1))
        self.problem = problem

    async def endpoint_of(self, segment: str) -> Endpoint:
        raise self.problem


@looped(
    ("problem", "kind", "said"),
    [
        (BadField("it is too long"), RequestRejected, f"{SEGMENT} cannot be written to: it is too long"),
        (ZeroDivisionError("by zero"), ProtocolViolation, f"a writer of {SEGMENT} failed: ZeroDivisionError"),
    ],
)
async def test_an_error_that_no_further_attempt_can_mend_ends_the_writer_with_its_cause(
    problem: Exception, kind: type[ClientError], said: str
) -> None:
    async with ConnectionPool(settings()) as pool:
        writer = SegmentWriter(pool, Failing(problem), SEGMENT)
        with pytest.raises(kind) as caught:
            await writer.started()
        assert said in str(caught.value)
        assert (caught.value.segment, caught.value.__cause__) == (SEGMENT, problem)
        assert writer.state is WriterState.FAILED
        await writer.abort()
