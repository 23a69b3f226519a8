"""The findings in clients that docs/topics/findings-in-clients.md describes: their fixtures still show them."""

from __future__ import annotations

import itertools
from pathlib import Path
from uuid import UUID

import pytest

from segstore.check import check
from segstore.explore import ExploredCluster, explore
from segstore.traces import TraceFile
from segstore.wire import Command, decode
from segstore.wire.commands import (
    ConditionalBlockEnd,
    CreateTransientSegment,
    MergeSegments,
    ReadSegment,
    SegmentCreated,
    SetupAppend,
)
from segstore.wire.trace import Direction, Record, RecordKind
from tests.looped import looped
from tests.server.support import HELLO, SEGMENT, Peer, create

FINDINGS = Path(__file__).parent.parent.parent / "fixtures" / "findings"
WRITER = UUID(int=7)
EVENT = b"\x00\x00\x00\x00\x00\x00\x00\x05large"


def frames(name: str) -> list[tuple[Record, Command]]:
    with TraceFile(FINDINGS / name) as trace:
        records = [record for record in trace.records() if record.kind is RecordKind.FRAME]
    return [(record, decode(record.data, unknown="keep")) for record in records]


@looped(
    ("name", "failure", "times"),
    [
        ("rust_set_up_wrong_host.jsonl", "WRONG_HOST", 2),
        ("rust_append_token_expired.jsonl", "AUTH_TOKEN_CHECK_FAILED", 1),
        ("rust_append_unsupported.jsonl", "OPERATION_UNSUPPORTED", 1),
        ("rust_group_wrong_host.jsonl", "WRONG_HOST", 1),
        ("rust_reader_online.jsonl", "TABLE_KEY_BAD_VERSION", 1),
        ("rust_stream_deleted.jsonl", "NO_SUCH_SEGMENT", 1),
    ],
)
def test_the_rust_client_changes_nothing_after_a_failure(name: str, failure: str, times: int) -> None:
    commands = frames(name)
    failures = [index for index, (_, command) in enumerate(commands) if command.type_name == failure]
    assert len(failures) == times
    after = [command.type_name for record, command in commands[failures[-1] :] if record.direction is Direction.REQUEST]
    assert set(after) <= ({"READ_TABLE_ENTRIES_DELTA"} if failure == "TABLE_KEY_BAD_VERSION" else set())


def test_the_rust_client_repeats_an_append_to_the_wrong_host_without_a_pause() -> None:
    times = [record.ts_ns for record, command in frames("rust_append_wrong_host.jsonl") if is_failed(command)]
    assert len(times) > 10
    assert max(later - before for before, later in itertools.pairwise(times)) < 1e9


def is_failed(command: Command) -> bool:
    return command.type_name == "WRONG_HOST"


def test_the_java_client_stores_a_large_event_twice() -> None:
    report = check([FINDINGS / "java_large_event.jsonl"])
    assert {verdict.rule for verdict in report.broken} == {"duplicate"}


@pytest.mark.usefixtures("grpc_runs")
async def test_the_explorer_finds_a_large_event_that_is_stored_twice() -> None:
    """The client does what `LargeEventWriter` of the Java client does."""

    async def writes(mock: ExploredCluster) -> None:
        for _ in range(3):
            async with await Peer.connect(mock) as peer:  # type: ignore[arg-type]  # host and port do
                replies = await peer.ask(HELLO, create(), CreateTransientSegment(2, WRITER, SEGMENT, ""))
                if len(replies) < 3 or not isinstance(replies[2], SegmentCreated):
                    continue
                transient = replies[2].segment
                block = ConditionalBlockEnd(WRITER, 0, 0, EVENT, 4)
                merge = MergeSegments(5, SEGMENT, transient, "")
                if len(await peer.ask(SetupAppend(3, WRITER, transient, ""), block)) < 2 or not await peer.ask(merge):
                    continue
                await peer.ask(ReadSegment(SEGMENT, 0, 1000, "", 6))
                return
        raise ConnectionError("cut off too often")

    explored = await explore(writes, match="type = MERGE_SEGMENTS", failures=["cut *"])
    assert {finding.name: finding.kinds for finding in explored.findings} == {
        f"cut {where} at MERGE_SEGMENTS 1": {"duplicated", "duplicate"} for where in ("after", "within")
    }
