"""Clients and commands beside what a real Pravega answered, as recorded in fixtures/reference and fixtures/controller.

A replay of a recording answers them, and a request that is not in the recording fails the test. The recordings of a
store have no controller calls: a controller of the replay answers these. Those of a controller have no store.

Not covered, because no recording has it: reading a stream to the end that it has now (`consume -e`), watermarks,
checkpoints, batch reads, large events (the writer's random id is the name of an attribute in the merge), TLS.
"""

import json
import subprocess
import sys
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from google.protobuf import json_format

from segstore.client import Client, TableConfig, TableEntry, TableKey, TransactionStatus, connect
from segstore.client.errors import ConditionFailed, NoSuchStream, SegmentTruncated
from segstore.server.replay import TraceServer
from segstore.testing import ServerThread
from segstore.traces import write_trace
from segstore.wire.controller_api import METHODS
from segstore.wire.hashing import position_of
from segstore.wire.trace import Call, Metadata, Record
from tests.client.support import settings
from tests.processes import PATIENCE_S, invoke
from tests.server.replay.test_calls import one_by_one
from tests.test_trace_fixtures import REFERENCE, read

T = TypeVar("T")

ANSWERS = REFERENCE.parent / "controller" / "answers.ndjson"
SEGSTORE = (sys.executable, "-m", "segstore")
READ_BYTES = 2 << 20
"""What reads suggested when the recordings were made."""
EVENTS = [b"event %d" % number for number in range(12)]

pytestmark = pytest.mark.usefixtures("grpc_runs")


@asynccontextmanager
async def replayed(scenario: str) -> AsyncIterator[Client]:
    """A client of the recording of a scenario; every request of the client must be in the recording."""
    _, records = read(REFERENCE / f"{scenario}.jsonl")
    async with TraceServer(records, mode="match") as server:
        controller = await server.start_controller(records)
        async with connect(f"tcp://{controller}", settings(read_size_bytes=READ_BYTES)) as pravega:
            yield pravega
        assert [str(problem) for problem in server.problems] == []


async def test_events_are_written_read_and_refused_after_truncation_as_recorded() -> None:
    keys = {position_of(key) >= 0.5: key for key in "abcdefgh"}
    async with replayed("events") as pravega:
        async with pravega.event_writer("scope", "events") as writer:
            for number, event in enumerate(EVENTS):
                await writer.write(event, routing_key=keys[number % 3 != 2])
            await writer.write(bytes(range(256)) * 2, routing_key=keys[True])
        for _ in range(2):
            async with pravega.event_reader("scope", "events") as reader:
                found = [event.data async for event in _first(reader, 13)]
            assert sorted(found) == sorted([*EVENTS, bytes(range(256)) * 2])
        async with pravega.event_reader("scope", "events") as reader:
            with pytest.raises(SegmentTruncated, match="scope/events/"):
                await reader.read()


async def _first(reader: AsyncIterable[T], count: int) -> AsyncIterator[T]:
    async for event in reader:
        yield event
        count -= 1
        if not count:
            return


async def test_transactions_are_committed_and_aborted_as_recorded() -> None:
    async with replayed("transactions") as pravega:
        async with pravega.transaction_writer("scope", "transactions") as writer:
            async with writer.begin() as transaction:
                await transaction.write(b"coffee")
                await transaction.write(b"cake")
            assert await transaction.status() is TransactionStatus.COMMITTED
            other = writer.begin()
            await other.open()
            await other.write(b"nothing")
            await other.abort()
        async with pravega.event_reader("scope", "transactions") as reader:
            assert [event.data async for event in _first(reader, 2)] == [b"coffee", b"cake"]


async def test_bytes_are_written_and_read_as_recorded() -> None:
    async with replayed("bytes") as pravega:
        async with pravega.byte_writer("scope", "bytes") as writer:
            await writer.append(b"some bytes")
        async with pravega.byte_reader("scope", "bytes") as reader:
            assert await reader.read() == b"some bytesmore"


async def test_a_revisioned_stream_is_written_with_and_without_conditions_as_recorded() -> None:
    async with replayed("log") as pravega:
        async with pravega.revisioned_stream("scope", "log") as log:
            start = await log.latest()
            first = await log.write_conditionally(start, b"one")
            assert await log.write_conditionally(start, b"two") is None
            assert await log.mark() is None
            assert await log.compare_and_set_mark(None, first)
            assert not await log.compare_and_set_mark(None, start)
            assert await log.mark() == first
            await log.write(b"two")
            assert [each.data async for each in log.read(start)] == [b"one", b"two"]
            await log.truncate(first)
        async with pravega.revisioned_stream("scope", "nothing") as nothing:
            with pytest.raises(NoSuchStream):
                await nothing.latest()


async def test_a_table_is_changed_with_versions_and_iterated_as_recorded() -> None:
    english = TableKey(b"0007", b"en")
    async with replayed("table") as pravega:
        await pravega.controller.create_scope("scope")
        await pravega.controller.create_table("scope", "table", TableConfig(primary_key_bytes=4, secondary_key_bytes=2))
        async with pravega.table("scope", "table") as table:
            first = await table.put_if_absent(english, b"12 cups")
            with pytest.raises(ConditionFailed):
                await table.put_if_absent(english, b"none")
            second = await table.put(english, b"11 cups", version=first)
            await table.put_all([(TableKey(b"0007", b"de"), b"11 Tassen"), (TableKey(b"0007", b"fr"), b"11 tasses")])
            assert await table.get(english) == TableEntry(english, b"11 cups", second)
            assert await table.get(TableKey(b"0009", b"en")) is None
            with pytest.raises(ConditionFailed):
                await table.remove(english, version=first)


async def test_a_group_of_two_readers_shares_a_stream_as_recorded() -> None:
    async with replayed("group") as pravega:
        async with pravega.event_writer("scope", "shared") as writer:
            for event in EVENTS[:6]:
                await writer.write(event)
        async with pravega.reader_group("scope", "group", streams=["shared"], shared_with="rust") as group:
            for name, events in (("one", EVENTS[:3]), ("two", EVENTS[3:6])):
                async with group.reader(name) as reader:
                    assert [event.data async for event in _first(reader, 3)] == events
            await group.delete()


@contextmanager
def served(trace: Path) -> Iterator[str]:
    """A replay of a trace, which must have no problem at its end; the URI of its controller."""
    with ServerThread() as host:
        replay = host.replay(trace, mode="match")
        yield f"tcp://{replay.controller_uri}"
        assert replay.problems == []


def segstore(uri: str, *arguments: str) -> tuple[int, str, str]:
    """The exit status, output and errors of a command."""
    result = invoke(*arguments, env={"SEGSTORE_CONTROLLER": uri})
    return result.exit_code, result.stdout, result.stderr


def test_produce_and_consume_make_the_recorded_requests() -> None:
    lines = b"".join(event + b"\n" for event in EVENTS[:6])
    with served(REFERENCE / "group.jsonl") as uri:
        command = [*SEGSTORE, "produce", "scope/shared", "-b", uri, "-X", "max_batch_events=1"]
        subprocess.run(command, input=lines, check=True, timeout=PATIENCE_S)
        read_bytes = ("-X", f"read_size_bytes={READ_BYTES}")
        assert segstore(uri, "consume", "scope/shared", "-c", "6", *read_bytes) == (0, lines.decode(), "")


SEQUENCES: dict[str, list[tuple[str, int, str]]] = {
    "delete order": [
        ("scopes create s", 0, ""),
        ("streams create s/a --segments 2", 0, ""),
        ("streams delete s/a", 1, "segstore: stream s/a: the controller reports STREAM_NOT_SEALED\n"),
        ("scopes delete s", 1, "segstore: scope s: the controller reports SCOPE_NOT_EMPTY\n"),
        ("streams seal s/a", 0, ""),
        ("scopes delete s", 1, "segstore: scope s: the controller reports SCOPE_NOT_EMPTY\n"),
        ("streams delete s/a", 0, ""),
        ("streams delete s/a", 1, "segstore: stream s/a: the controller reports STREAM_NOT_FOUND\n"),
        ("scopes delete s", 0, ""),
        ("scopes delete s", 1, "segstore: there is no scope s\n"),
        ("scopes create s", 0, ""),
        ("scopes create s", 1, "segstore: scope s exists\n"),
    ],
    "updates": [
        ("scopes create s", 0, ""),
        ("streams create s/a", 0, ""),
        ("streams create s/a", 1, "segstore: stream s/a exists\n"),
        ("streams create s/a --segments 3", 1, "segstore: stream s/a exists\n"),
        ("streams list s --tag q", 0, ""),
        ("streams list s --tag q", 0, "a\n"),
        ("streams update s/a --tag s --tag r", 0, ""),
    ],
    "lists": [
        ("streams list s", 0, ""),
        ("streams list s", 0, "_RGz\na\nb\nc\n"),
        ("streams delete s/a --seal", 0, ""),
        ("streams list s", 0, "_RGz\nb\nc\n"),
    ],
    "tables": [
        ("tables create s/k --partitions 2 --key-bytes 4", 0, ""),
        ("tables create s/k --partitions 2 --key-bytes 4", 1, "segstore: table s/k exists\n"),
        ("tables create s/_k --partitions 2 --key-bytes 4", 1, "the controller reports INVALID_TABLE_NAME\n"),
        ("tables show s/ks", 0, "partitions: 2\nprimary_key_bytes: 4\nsecondary_key_bytes: 5\n"),
        ("tables show s/k0", 1, "segstore: table s/k0: the controller reports TABLE_NOT_FOUND\n"),
        ("tables list s", 0, "k\nkr\nks\np7\n"),
        ("tables delete s/k", 0, ""),
        ("tables delete s/k", 1, "segstore: there is no table s/k\n"),
    ],
    "absent stream": [
        ("streams seal s/a", 1, "segstore: stream s/a: the controller reports STREAM_NOT_FOUND\n"),
        ("tables list s", 0, ""),
    ],
}
"""Commands of `segstore admin` with exit status and what they print, in the order of the recorded sequences."""


_END = {"continuationToken": {"token": "end"}}


def calls_of(sequence: str) -> list[Record]:
    """The calls of a recorded sequence as a trace, without those that depend on ids of transactions and groups.

    The recording has no continuation tokens: here each list has one, and an empty page behind it.
    """
    found, name = [], ""
    for line in ANSWERS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if isinstance(row, dict):
            name = row["sequence"]
        elif name == sequence and "$" not in line and len(row) == 3:
            method, request, answer = (row[0], *map(_named, row[1:]))
            is_page = method.startswith("list") and any(isinstance(each, list) for each in answer.values())
            found.append(_call(method, request, answer | _END if is_page else answer))
            if is_page:
                found.append(_call(method, request | _END, _END))
    return one_by_one(*found)


def _call(method: str, request: Any, answer: Any) -> tuple[Call, Call]:
    asked = json_format.ParseDict(request, METHODS[method].request()).SerializeToString()
    code = answer.get("code")
    replied = b"" if code else json_format.ParseDict(answer, METHODS[method].response()).SerializeToString()
    return Call(1, method, asked), Call(1, method, replied, status=code or "OK")


def _named(value: Any) -> Any:
    """A recorded value with "@a" replaced by the stream s/a."""
    if isinstance(value, dict):
        return {key: _named(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_named(each) for each in value]
    return {"scope": "s", "stream": value[1:]} if isinstance(value, str) and value.startswith("@") else value


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_admin_makes_the_recorded_calls_and_reports_their_answers(sequence: str, tmp_path: Path) -> None:
    trace = tmp_path / "calls.jsonl"
    write_trace(trace, iter(calls_of(sequence)), lambda: Metadata(17, "a test"))
    with served(trace) as uri:
        for command, status, says in SEQUENCES[sequence]:
            found, out, err = segstore(uri, "admin", *command.split())
            assert (command, found, status) == (command, status, status), (out, err)
            shown = "".join(sorted(out.splitlines(keepends=True))) if "list" in command else out
            assert says in (err if status else shown), command
            assert says or not (out or err)
