"""The race explorer: clients that are wrong are found out at the point where they are, careful ones are not."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from segstore.explore import CutPoint, explore, explore_command, explore_trace, names_place, words_of
from segstore.server import MockSegmentStore
from segstore.traces import TraceClient
from segstore.wire import (
    AppendSetup,
    Command,
    CreateTableSegment,
    KeepAlive,
    ReadSegment,
    SegmentRead,
    SetupAppend,
    TableEntries,
    TableEntry,
    TableKey,
    TableValue,
    UpdateTableEntries,
    encode,
)
from segstore.wire.trace import Direction, Record, RecordKind
from tests.looped import looped
from tests.server.support import HELLO, SEGMENT, Peer, append, create, set_up

WRITER = UUID(int=7)


def event(number: int) -> bytes:
    data = b"event%d" % number
    return bytes(4) + len(data).to_bytes(4, "big") + data


def dialogue(*requests: tuple[int, Command]) -> list[Record]:
    """Requests without replies, with the numbers of their connections."""
    return [
        Record(at, connection, Direction.REQUEST, RecordKind.FRAME, encode(command))
        for at, (connection, command) in enumerate(requests)
    ]


def requests(count: int = 3) -> list[Record]:
    """The dialogue of a writer."""
    appends = (append(number, event(number)) for number in range(1, count + 1))
    return dialogue(*((1, command) for command in (HELLO, create(), set_up(), *appends, KeepAlive())))


async def writer(mock: MockSegmentStore, *, careful: bool = True, again_as: UUID | None = WRITER) -> None:
    """Writes three events one by one, and connects again when it is cut off.

    careful: asks what was stored. again_as: the writer that it is then; None stands for a new one.
    """
    acknowledged, writer_id = 0, WRITER
    for _ in range(4):
        peer = await Peer.connect(mock)
        try:
            answers = await peer.ask(HELLO, create(), set_up(writer_id=writer_id))
            if len(answers) < 3:
                continue
            if careful and isinstance(answers[2], AppendSetup):
                acknowledged = max(acknowledged, answers[2].last_event_number)
            while acknowledged < 3:
                if not await peer.ask(append(acknowledged + 1, event(acknowledged + 1), writer_id)):
                    break
                acknowledged += 1
            else:
                return
        except ConnectionError:
            pass  # it connects again
        finally:
            await peer.close()
            writer_id = again_as or uuid4()
    raise ConnectionError("cut off too often")


async def test_a_careful_writer_breaks_nowhere() -> None:
    found = await explore(writer)
    assert found.findings == []
    assert found.unreached == []
    # Hello, create, set up and three appends, cut in three ways each, and the good run.
    assert found.runs == 6 * 3 + 1


async def test_a_writer_that_comes_back_as_another_stores_twice_what_was_applied_and_not_acknowledged() -> None:
    found = await explore(lambda mock: writer(mock, again_as=None), match="type = APPEND_BLOCK_END")
    assert [(finding.cut.where, finding.cut.nth) for finding in found.findings] == [
        (where, nth) for nth in (1, 2, 3) for where in ("after", "within")
    ]
    first = found.findings[0]
    assert first.broken == (f"duplicated: {SEGMENT} has the event b'event1' more than once",)
    assert str(first.cut) == "APPEND_BLOCK_END number 1, cut after the store has applied it, before the reply"
    appends = [record for record in first.records if record.kind is RecordKind.FRAME and record.data[3] == 4]
    assert len(appends) == 4, "the run that broke was recorded"


async def test_a_writer_that_takes_silence_for_success_loses_events() -> None:
    async def careless(mock: MockSegmentStore) -> None:
        async with await Peer.connect(mock) as peer:
            await peer.ask(HELLO, create(), set_up())
            for number in (1, 2, 3):
                peer.send(append(number, event(number)))
            await peer.receive(3)

    found = await explore(careless, match="type = APPEND_BLOCK_END", cuts=["before"])
    assert [finding.broken[0] for finding in found.findings] == [
        f"lost: {SEGMENT} has not the event b'event1' and 2 more",
        f"lost: {SEGMENT} has not the event b'event2' and 1 more",
        f"lost: {SEGMENT} has not the event b'event3'",
    ]


async def test_a_client_that_raises_has_not_lost_in_silence() -> None:
    async def honest(mock: MockSegmentStore) -> None:
        async with await Peer.connect(mock) as peer:
            answers = await peer.ask(HELLO, create(), set_up(), append(1, event(1)))
            if len(answers) < 4:
                raise ConnectionError("cut off")

    assert (await explore(honest)).findings == []


async def test_a_client_that_waits_without_limit_has_hung() -> None:
    async def hanging(mock: MockSegmentStore) -> None:
        async with await Peer.connect(mock) as peer:
            if len(await peer.ask(HELLO, create())) < 2:
                await asyncio.Event().wait()

    found = await explore(hanging, match="type = CREATE_SEGMENT", cuts=["before"], timeout_s=1.0)
    assert found.findings[0].broken[0] == "hung: the client did not finish within 1 s"


async def test_events_in_another_order_are_found() -> None:
    async def swapping(mock: MockSegmentStore) -> None:
        async with await Peer.connect(mock) as peer:
            done = await peer.ask(HELLO, create(), set_up(), append(1, event(1)), append(2, event(2)))
        if len(done) < 5:
            async with await Peer.connect(mock) as peer:
                other = UUID(int=9)
                await peer.ask(HELLO, create(), SetupAppend(2, other, SEGMENT, ""))
                await peer.ask(append(1, event(2), other), append(2, event(1), other))

    found = await explore(swapping, match="type = APPEND_BLOCK_END", cuts=["before"])
    assert found.findings[0].broken == (f"reordered: {SEGMENT} has a writer's events in another order",)
    relaxed = await explore(swapping, match="type = APPEND_BLOCK_END", cuts=["before"], keep_order=False)
    assert [finding.cut.nth for finding in relaxed.findings] == [2], "only what was stored twice is left"


async def test_events_of_several_writers_may_come_between_each_other() -> None:
    """The first writer is cut off and comes back behind the second; what each of them wrote is in order."""
    other = UUID(int=9)
    records = dialogue(
        (1, HELLO), (1, create()), (1, set_up()), (2, HELLO), (2, SetupAppend(2, other, SEGMENT, "")),
        (1, append(1, event(1))), (2, append(1, event(2), other)), (1, append(2, event(3))),
    )  # fmt: skip
    found = await explore_trace(records)
    assert (found.findings, found.unreached) == ([], [])


@looped("answered", [True, False])
async def test_a_read_that_waits_at_the_tail_holds_nothing_up(answered: bool) -> None:
    """It is answered by what another connection writes, or by nobody; either way the dialogue is good."""
    data = event(1)
    records = dialogue(
        (1, HELLO), (1, create()), (1, set_up()), (2, HELLO), (2, ReadSegment(SEGMENT, 0, 1000, "", 5)),
        (1, append(1, data)),
    )  # fmt: skip
    if answered:
        reply = encode(SegmentRead(SEGMENT, 0, True, False, data, 5))
        records.append(Record(9, 2, Direction.REPLY, RecordKind.FRAME, reply))
    found = await explore_trace(records)
    assert (found.findings, found.runs) == ([], 6 * 3 + 1)


async def test_a_client_that_does_not_leave_what_is_wanted_is_refused() -> None:
    with pytest.raises(ValueError, match=f"lost: {SEGMENT} has not the event b'event1' and 2 more"):
        await explore_command(f"{sys.executable} -c pass", requests())


async def test_a_check_of_ones_own_is_asked_after_each_run() -> None:
    found = await explore(
        writer,
        match="type = HELLO",
        cuts=["before"],
        check=lambda mock: "attributes: too few" if SEGMENT in mock.segments else None,
    )
    assert found.findings[0].broken == ("attributes: too few",)


async def test_a_dialogue_that_is_not_good_is_refused() -> None:
    async def broken(mock: MockSegmentStore) -> None:
        raise ValueError("never good")

    with pytest.raises(ValueError, match="never good"):
        await explore(broken)
    with pytest.raises(TimeoutError, match="even without a fault"):
        await explore(lambda mock: asyncio.Event().wait(), timeout_s=0.02)


# --- traces -----------------------------------------------------------------------------------------------------


async def test_tables_may_hold_something_else_in_each_run() -> None:
    async def client(mock: MockSegmentStore) -> None:
        async with await Peer.connect(mock) as peer:
            entry = TableEntry(TableKey(b"key", -1), TableValue(uuid4().bytes))
            update = UpdateTableEntries(3, "scope/table", "", TableEntries((entry,)))
            heard = await peer.ask(HELLO, CreateTableSegment(2, "scope/table", False, 0, "", 0), update)
            assert heard[-1].type_name == "TABLE_ENTRIES_UPDATED"

    found = await explore(client, match="type = HELLO", cuts=["after"])
    assert (found.findings, found.runs) == ([], 2)


class Forgetful(TraceClient):
    """Sends again all that was not acknowledged, whatever the store says that it has, as another writer would."""

    async def run(self, host: str, port: int) -> None:
        for attempt in range(3):
            writer_id = UUID(int=100 + attempt)
            async with await Peer.connect(_Where(host, port)) as peer:  # type: ignore[arg-type]  # host and port do
                heard = await peer.ask(HELLO, create(), set_up(writer_id=writer_id))
                appends = [step.item for step in self.steps if step.type_name == "APPEND_BLOCK_END"]
                for number, each in enumerate(appends, 1):
                    heard += await peer.ask(append(number, bytes(each.data), writer_id))  # type: ignore[union-attr]
                if len(heard) == 3 + len(appends):
                    return
        raise ConnectionError("cut off too often")


class _Where:
    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port


async def test_what_breaks_is_shortened_to_the_fewest_requests() -> None:
    found = await explore_trace(
        requests(4), make_client=Forgetful, match="type = APPEND_BLOCK_END", cuts=["after"], timeout_s=2
    )
    (finding,) = found.findings
    assert finding.cut == CutPoint("APPEND_BLOCK_END", 1, "after")
    assert finding.broken[0].startswith(f"duplicated: {SEGMENT} has the event b'event")
    appends = [record for record in finding.records if record.kind is RecordKind.FRAME and record.data[3] == 4]
    assert len(appends) == 2, "one append, and the same once more"


async def test_a_command_is_a_client_too(tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text(
        "import socket, sys\n"
        f"data = bytes.fromhex({(encode(HELLO) + encode(create())).hex()!r})\n"
        "for _ in range(2):\n"
        "    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as peer:\n"
        "        peer.sendall(data)\n"
        "        answer = b''\n"
        "        while len(answer) < 40 and (more := peer.recv(4096)):\n"
        "            answer += more\n"
        "        if len(answer) >= 40:\n"
        "            sys.exit(0)\n"
        "sys.exit('cut off too often')\n"
    )
    found = await explore_command(f"{sys.executable} {script} {{host}} {{port}}", match="type = CREATE_SEGMENT")
    assert (found.runs, found.findings) == (4, [])


@looped(
    ("command", "named"),
    [
        ("c {controller}", True),
        ("c --at={controller}/x", True),
        ("c {{controller}}", False),
        ("c '${controller}'", False),
    ],
)
def test_a_controller_is_there_only_for_a_command_that_names_it(command: str, named: bool) -> None:
    assert names_place(words_of(command), "controller") is named
