"""The explorer: clients that are wrong are found out at the point where they are, careful ones are not."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any
from uuid import UUID, uuid4

import pytest

from segstore.explore import CommandError, ExploredCluster, Plan, Point, explore, explore_trace, failures_at, junit
from segstore.explore.options import Check, ExplorerSetting
from segstore.traces import TraceClient
from segstore.wire import (
    AppendSetup,
    Command,
    CreateTableSegment,
    GetStreamSegmentInfo,
    KeepAlive,
    ReadSegment,
    SegmentCreated,
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
from tests.server.traffic import Port

pytestmark = pytest.mark.usefixtures("grpc_runs")

WRITER = UUID(int=7)
STREAM = "scope/stream"
CUTS = ("cut *",)


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


def appends_of(records: list[Record]) -> int:
    return sum(record.kind is RecordKind.FRAME and record.data[3] == 4 for record in records)


async def peer_of(mock: Any) -> Peer:
    return await Peer.connect(mock)


async def writer(mock: ExploredCluster, *, careful: bool = True, again_as: UUID | None = WRITER) -> None:
    """Writes three events one by one, and connects again when it is cut off.

    careful: asks what was stored. again_as: the writer that it is then; None stands for a new one.
    """
    acknowledged, writer_id = 0, WRITER
    for _ in range(4):
        peer = await peer_of(mock)
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
            continue  # it connects again
        finally:
            await peer.close()
            writer_id = again_as or uuid4()
    raise ConnectionError("cut off too often")


async def test_a_careful_writer_breaks_at_no_cut() -> None:
    explored = await explore(writer, failures=["cut *", "reset *", "reply twice", "reply late"], timeout_s=2)
    assert (explored.findings, explored.unreached, explored.notes) == ([], [], [])
    # Hello, create, set up and three appends with seven failures each, and two runs without faults.
    assert explored.runs == 6 * 7 + 2


async def test_a_writer_that_comes_back_as_another_stores_twice_what_was_applied_and_not_acknowledged() -> None:
    explored = await explore(
        lambda mock: writer(mock, again_as=None), match="type = APPEND_BLOCK_END", failures=CUTS, complete=True
    )
    names = [f"cut {where} at APPEND_BLOCK_END {nth}" for nth in (1, 2, 3) for where in ("after", "within")]
    assert sorted(finding.name for finding in explored.findings) == sorted(names)
    first = next(finding for finding in explored.findings if finding.name == names[0])
    assert first.broken == (f"duplicated: {STREAM} has the event b'event1' more than once",)
    assert appends_of(first.records) == 4, "the run that broke was recorded"
    assert first.rules == '{"rules": [{"match": "type = APPEND_BLOCK_END", "nth": 1, "do": {"close": "after"}}]}'
    (again,) = (await explore(lambda mock: writer(mock, again_as=None), only=names[0])).findings
    assert (again.name, again.kinds) == (names[0], first.kinds)


async def test_a_writer_that_takes_silence_for_success_loses_events() -> None:
    async def careless(mock: ExploredCluster) -> None:
        async with await peer_of(mock) as peer:
            await peer.ask(HELLO, create(), set_up())
            for number in (1, 2, 3):
                peer.send(append(number, event(number)))
            await peer.receive(3)

    explored = await explore(careless, match="type = APPEND_BLOCK_END", failures=["cut before"])
    assert sorted(finding.broken[0] for finding in explored.findings) == [
        f"lost: {STREAM} lacks the event b'event1' and 2 others",
        f"lost: {STREAM} lacks the event b'event2' and 1 other",
        f"lost: {STREAM} lacks the event b'event3'",
    ]


async def test_a_client_that_raises_has_not_lost_in_silence() -> None:
    """Yet it has given up where the reference's client continues, and not where that gives up, too."""

    async def honest(mock: ExploredCluster) -> None:
        async with await peer_of(mock) as peer:
            answers = await peer.ask(HELLO, create(), set_up(), append(1, event(1)))
            if len(answers) < 4 or answers[3].is_failure:
                raise ConnectionError("cut off")

    explored = await explore(honest, match="type = APPEND_BLOCK_END", failures=["cut before", "token refused"])
    (finding,) = explored.findings
    assert (finding.name, finding.kinds) == ("cut before at APPEND_BLOCK_END 1", {"gave up"})


async def test_bugs_of_the_client_and_connections_that_it_leaves_are_found() -> None:
    peers: list[Peer] = []

    async def leaking(mock: ExploredCluster) -> None:
        peer = await peer_of(mock)
        answers = await peer.ask(HELLO, create())
        await peer.close()
        if len(answers) == 2:
            assert answers[1].type_name == "SEGMENT_CREATED"
        elif answers:
            peers.append(await peer_of(mock))
        else:
            answers[1]

    explored = await explore(leaking, failures=["cut before", "WrongHost"], timeout_s=1)
    assert {finding.name: finding.kinds for finding in explored.findings} == {
        "cut before at HELLO 1": {"crashed"},
        "cut before at CREATE_SEGMENT 1": {"leaked"},
        "WrongHost at CREATE_SEGMENT 1": {"check"},
    }
    for peer in peers:
        await peer.close()


async def test_errors_of_tasks_are_judged_one_by_one() -> None:
    async def grouped(mock: ExploredCluster) -> None:
        async with await peer_of(mock) as peer:
            replies = await peer.ask(HELLO, create())
        errors: list[Exception] = [OSError("lost")]
        if not replies:
            errors += [ExceptionGroup("inner", [AssertionError("too few"), KeyError("reply")])]
        elif len(replies) < 2:
            errors += [AssertionError("too few")]
        elif not replies[1].is_failure:
            return
        raise ExceptionGroup("outer", errors)

    explored = await explore(grouped, failures=["cut before", "WrongHost"], timeout_s=20)
    assert {finding.name: finding.broken for finding in explored.findings} == {
        "cut before at HELLO 1": ("crashed: KeyError: 'reply'",),
        "cut before at CREATE_SEGMENT 1": ("check: AssertionError: too few",),
        "WrongHost at CREATE_SEGMENT 1": ("gave up: OSError: lost; the reference's client continues",),
    }


@looped("error", [SystemExit(3), asyncio.CancelledError()])
async def test_a_client_that_exits_or_is_cancelled_by_itself_ends_its_run_only(error: BaseException) -> None:
    async def ends(mock: ExploredCluster) -> None:
        async with await peer_of(mock) as peer:
            if len(await peer.ask(HELLO, create())) < 2:
                raise error

    async def always(mock: ExploredCluster) -> None:
        raise error

    explored = await explore(ends, failures=["cut before"], timeout_s=20)
    assert [finding.kinds for finding in explored.findings] == [{"crashed"}] * 2
    with pytest.raises(RuntimeError, match="the client raised"):
        await explore(always)


async def test_an_exploration_can_be_cancelled() -> None:
    started = asyncio.Event()

    async def waits(mock: ExploredCluster) -> None:
        started.set()
        await asyncio.Event().wait()  # for ever

    exploration = asyncio.create_task(explore(waits, jobs=1))
    await started.wait()
    exploration.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exploration


async def test_a_client_that_waits_without_limit_has_hung_and_the_reply_that_it_waits_for_is_named() -> None:
    async def hanging(mock: ExploredCluster) -> None:
        async with await peer_of(mock) as peer:
            if len(await peer.ask(HELLO, create())) < 2:
                await asyncio.Event().wait()

    explored = await explore(
        hanging, match="type = CREATE_SEGMENT", failures=["cut before", "reply lost"], timeout_s=1.0
    )
    (finding,) = explored.findings
    assert finding.broken[0].startswith("hung: the client did not finish within 1 s; no request waits for a reply")
    assert [cell.colour for cell in explored.cells] == ["red", "unknown"], "TCP loses no reply for ever"


async def test_a_run_that_hangs_once_in_two_is_counted_as_unknown() -> None:
    cuts = 0

    async def busy(mock: ExploredCluster) -> None:
        nonlocal cuts
        async with await peer_of(mock) as peer:
            if len(await peer.ask(HELLO, create())) < 2:
                cuts += 1
                if cuts == 1:
                    await asyncio.Event().wait()  # for ever

    explored = await explore(busy, match="type = CREATE_SEGMENT", failures=["cut before"], timeout_s=1.0)
    (cell,) = explored.cells
    assert (explored.runs, explored.findings, cell.colour, cell.why) == (4, [], "unknown", "hung once in two runs")
    assert explored.notes == ["cut before at CREATE_SEGMENT 1: hung once in two runs"]
    assert explored.unreached == []
    assert '<skipped message="hung once in two runs"/>' in junit(explored, {})


async def test_a_run_whose_failure_never_happened_is_unknown_whatever_went_wrong() -> None:
    good = 2

    async def moody(mock: ExploredCluster) -> None:
        nonlocal good
        good -= 1
        async with await peer_of(mock) as peer:
            if good >= 0:
                await peer.ask(HELLO, create())
            elif good == -1:
                raise TypeError("no failure's doing")
            else:
                await asyncio.Event().wait()  # for ever

    failures = ["cut before", "cut after"]
    explored = await explore(moody, match="type = CREATE_SEGMENT", failures=failures, timeout_s=2, jobs=1)
    assert (explored.runs, explored.findings) == (4, []), "no run that hangs is repeated"
    assert [(cell.colour, cell.why) for cell in explored.unreached] == [("unknown", "")] * 2


def test_late_replies_of_calls_come_before_their_statuses() -> None:
    point = Point("createScope", 1, True, "call createScope", "", "SUCCESS")
    assert next(failures_at(point, ExplorerSetting(writer))).name == "reply late"


async def test_trouble_of_the_machine_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    starts, start = 0, ExploredCluster.start

    async def start_twice(mock: ExploredCluster) -> None:
        nonlocal starts
        starts += 1
        if starts > 2:
            raise OSError(24, "Too many open files")
        await start(mock)

    async def unstarted(mock: ExploredCluster) -> None:
        if mock.faults.rules:
            raise CommandError("client", "'client' cannot be started: Too many open files")
        await writer(mock)

    with pytest.raises(CommandError, match="cannot be started"):
        await explore(unstarted, failures=["cut before"])
    monkeypatch.setattr(ExploredCluster, "start", start_twice)
    with pytest.raises(OSError, match="Too many open files"):
        await explore(writer, failures=["cut before"], jobs=2)


async def test_only_the_log_of_servers_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    log, server = logging.getLogger("segstore.client"), logging.getLogger("segstore.server.net")

    async def logs(mock: ExploredCluster) -> None:
        log.warning("of the client")
        server.warning("of a server")
        await writer(mock)

    await explore(logs, match="type = HELLO", failures=["cut before"])
    assert {record.message for record in caplog.records} == {"of the client"}
    server.warning("afterwards")
    assert "afterwards" in caplog.text


async def test_a_client_that_asks_without_end_has_spun() -> None:
    async def spinning(mock: ExploredCluster) -> None:
        async with await peer_of(mock) as peer:
            answers = await peer.ask(HELLO, create())
            while answers[-1].type_name == "WRONG_HOST":
                answers = await peer.ask(create())

    explored = await explore(spinning, match="type = CREATE_SEGMENT", failures=["WrongHost*"], timeout_s=2)
    (finding,) = explored.findings
    assert (finding.name, finding.kinds) == ("WrongHost for ever at CREATE_SEGMENT 1", {"spun"})


async def test_events_in_another_order_are_found() -> None:
    async def swapping(mock: ExploredCluster) -> None:
        async with await peer_of(mock) as peer:
            done = await peer.ask(HELLO, create(), set_up(), append(1, event(1)), append(2, event(2)))
        if len(done) < 5:
            async with await peer_of(mock) as peer:
                other = UUID(int=9)
                await peer.ask(HELLO, create(), SetupAppend(2, other, SEGMENT, ""))
                await peer.ask(append(1, event(2), other), append(2, event(1), other))

    options: dict[str, Any] = {"match": "type = APPEND_BLOCK_END", "failures": ["cut before"]}
    explored = await explore(swapping, **options)
    assert explored.findings[0].broken == (
        f"reordered: {STREAM} has a writer's events in another order; if it may, use --any-order",
    )
    relaxed = await explore(swapping, **options, keep_order=False)
    names = [finding.name for finding in relaxed.findings]
    assert names == ["cut before at APPEND_BLOCK_END 2"], "only what was stored twice is left"


async def test_events_of_several_writers_may_come_between_each_other() -> None:
    """The first writer is cut off and comes back behind the second; what each of them wrote is in order."""
    other = UUID(int=9)
    records = dialogue(
        (1, HELLO), (1, create()), (1, set_up()), (2, HELLO), (2, SetupAppend(2, other, SEGMENT, "")),
        (1, append(1, event(1))), (2, append(1, event(2), other)), (1, append(2, event(3))),
    )  # fmt: skip
    explored = await explore_trace(records, failures=CUTS)
    assert (explored.findings, explored.unreached) == ([], [])


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
    assert (await explore_trace(records, failures=CUTS)).findings == []


async def test_a_check_of_ones_own_is_asked_after_each_run() -> None:
    explored = await explore(
        writer,
        match="type = HELLO",
        failures=["cut before"],
        check=lambda mock: "attributes: too few\0" if SEGMENT in mock.segments else None,
    )
    assert [(finding.name, finding.broken) for finding in explored.findings] == [
        ("without a fault", ("attributes: too few\\u0000",)),
        ("cut before at HELLO 1", ("attributes: too few\\u0000",)),
    ]

    def asserts(mock: ExploredCluster) -> None:
        assert SEGMENT not in mock.segments, "too many"

    async def asserts_later(mock: ExploredCluster) -> None:
        await asyncio.sleep(0)
        asserts(mock)

    checks: tuple[Check, ...] = (asserts, asserts_later, lambda cluster: asserts_later(mock=cluster))
    for check in checks:
        explored = await explore(writer, match="type = HELLO", failures=["cut before"], check=check)
        assert [finding.broken for finding in explored.findings] == [("check: too many",)] * 2
        assert explored.findings[1].pytest.endswith(", check=check)")


async def test_failures_that_last_have_ended_when_a_check_makes_requests() -> None:
    answers: list[Command] = []

    async def asks(mock: ExploredCluster) -> None:
        peer = await peer_of(mock)
        answers.extend(await peer.ask(HELLO, create()))
        await peer.close()

    await explore(writer, only="WrongHost for ever at CREATE_SEGMENT 1", check=asks)
    assert isinstance(answers[-1], SegmentCreated)


async def test_a_check_that_hangs_is_a_finding() -> None:
    never = asyncio.Event()
    explored = await explore(writer, only="cut before at HELLO 1", timeout_s=0.5, check=lambda mock: never.wait())
    assert {finding.broken for finding in explored.findings} == {("check: it does not finish within 0.5 s",)}


async def test_a_check_that_returns_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="check: it returned False"):
        await explore(writer, check=lambda mock: SEGMENT not in mock.segments)


async def test_a_dialogue_that_is_not_good_is_refused() -> None:
    tries = 0

    async def broken(mock: ExploredCluster) -> None:
        nonlocal tries
        tries += 1
        raise ValueError("never good")

    with pytest.raises(ValueError, match="never good"):
        await explore(broken)
    assert tries <= 2, "no third run"
    with pytest.raises(TimeoutError, match="even without a fault: it made no request"):
        await explore(lambda mock: asyncio.Event().wait(), timeout_s=0.02)
    for jobs in (-1, 0):
        with pytest.raises(ValueError, match=f"jobs: {jobs} is less than 1"):
            await explore(writer, jobs=jobs)
    with pytest.raises(ValueError, match="is no list of patterns"):
        await explore(writer, failures="cut *")
    with pytest.raises(ValueError, match="there is no failure 'cut after at HELLO 2'"):
        await explore(writer, only="cut after at HELLO 2")
    name = "cut after at HELLO 1"
    with pytest.raises(ValueError, match=f"there is no failure 'no at HELLO 2' in the run with {name}"):
        await explore(writer, only=f"{name} + no at HELLO 2")


async def test_a_named_run_is_made_whatever_other_options_select() -> None:
    name = "cut after at HELLO 1"
    explored = await explore(writer, only=name, failures=["cut before"], match="type = APPEND_BLOCK_END", budget_s=1e-9)
    assert [(cell.name, cell.is_made) for cell in explored.cells] == [(name, True)]


async def test_what_differs_between_two_good_runs_is_told_and_not_compared() -> None:
    async def client(mock: ExploredCluster) -> bytes:
        async with await peer_of(mock) as peer:
            data = uuid4().hex.encode()
            await peer.ask(HELLO, create(), set_up(), append(1, bytes(4) + len(data).to_bytes(4, "big") + data))
            return data

    explored = await explore(client, match="type = HELLO", failures=["reply late"], timeout_s=1)
    assert explored.findings == []
    assert not any(rule == "lost-write" for rule, _ in explored.unknown)
    assert explored.notes == [
        f"two runs without faults store different events in {STREAM}, which is not compared",
        "two runs without faults print different texts, which are not compared",
    ]


async def test_tables_may_hold_something_else_in_each_run() -> None:
    async def client(mock: ExploredCluster) -> None:
        async with await peer_of(mock) as peer:
            entry = TableEntry(TableKey(b"key", -1), TableValue(uuid4().bytes))
            update = UpdateTableEntries(3, "scope/table", "", TableEntries((entry,)))
            replies = await peer.ask(HELLO, CreateTableSegment(2, "scope/table", False, 0, "", 0), update)
            assert replies[-1].type_name == "TABLE_ENTRIES_UPDATED"

    explored = await explore(client, match="type = HELLO", failures=["reply late"], timeout_s=1)
    assert (explored.findings, explored.notes, explored.runs) == ([], [], 3)


async def test_each_run_starts_with_what_the_preparation_left() -> None:
    async def prepare(mock: ExploredCluster) -> None:
        async with await peer_of(mock) as peer:
            await peer.ask(HELLO, create(), set_up(), append(1, event(1)))

    async def client(mock: ExploredCluster) -> None:
        async with await peer_of(mock) as peer:
            replies = await peer.ask(HELLO, set_up(writer_id=UUID(int=9)), append(1, event(2), UUID(int=9)))
            assert replies[-1].type_name == "DATA_APPENDED"

    explored = await explore(client, prepare=prepare, failures=["reply late"], timeout_s=1)
    assert (explored.findings, explored.runs) == ([], 2 + 3)


class Forgetful(TraceClient):
    """Sends again all that was not acknowledged, whatever the store says that it has, as another writer would."""

    async def run(self, host: str, port: int) -> None:
        for attempt in range(3):
            writer_id = UUID(int=100 + attempt)
            async with await Peer.connect(Port(host, port)) as peer:  # type: ignore[arg-type]  # host and port do
                replies = await peer.ask(HELLO, create(), set_up(writer_id=writer_id))
                appends = [step.item for step in self.steps if step.type_name == "APPEND_BLOCK_END"]
                for number, each in enumerate(appends, 1):
                    replies += await peer.ask(append(number, bytes(each.data), writer_id))  # type: ignore[union-attr]
                if len(replies) == 3 + len(appends):
                    return
        raise ConnectionError("cut off too often")


async def test_what_breaks_is_shortened_to_the_fewest_requests() -> None:
    explored = await explore_trace(
        requests(4), make_client=Forgetful, match="type = APPEND_BLOCK_END", failures=["cut after"], timeout_s=2
    )
    names = [cell.name for cell in explored.cells if cell.broken]
    one, two = (f"cut after at APPEND_BLOCK_END {number}" for number in (1, 2))
    assert names == [one, two, two, two], "the first append, and an append after an append"
    finding = explored.findings[0]
    broken = [cell for cell in explored.cells if cell.broken]
    report = junit(explored, {})
    assert (report.count("<failure"), report.count("in the baseline")) == (len(broken), 0)
    known = junit(explored, dict.fromkeys(name for each in explored.findings for name in each.identities))
    assert (known.count("<failure"), known.count("in the baseline")) == (0, len(broken))
    assert finding.broken[0].startswith(f"duplicated: {STREAM} has the event b'event")
    assert appends_of(finding.records) == 2, "one append, and the same once more"


async def test_pairs_find_what_single_failures_do_not() -> None:
    """The writer asks what was stored after its first reconnection only."""

    async def twice(mock: ExploredCluster) -> None:
        for attempt in range(3):
            async with await peer_of(mock) as peer:
                replies = await peer.ask(HELLO, create(), set_up())
                if len(replies) < 3:
                    continue
                stored = replies[2].last_event_number if attempt == 1 else -1  # type: ignore[attr-defined]
                replies = [] if stored >= 1 else await peer.ask(append(1, event(1), request_id=9))
                if stored >= 1 or replies:
                    return
        raise ConnectionError("cut off too often")

    options: dict[str, Any] = {"failures": ["cut after"], "timeout_s": 1}
    assert (await explore(twice, **options)).findings == []
    explored = await explore(twice, pairs=True, **options)
    name = "cut after at APPEND_BLOCK_END 1 + cut after at CREATE_SEGMENT 2"
    finding = next(finding for finding in explored.findings if finding.name == name)
    assert "duplicated" in finding.kinds
    assert [again.name for again in (await explore(twice, only=name, **options)).findings] == [name]
    assert finding.pytest == f"segstore_explore(client, only={name!r}, timeout_s=1)"
    assert [cell for cell in explored.cells if cell.broken] == explored.findings


async def test_both_failures_of_a_pair_happen_at_requests_of_one_type() -> None:
    faulty: list[list[int]] = []

    async def greets(mock: ExploredCluster) -> None:
        answers: list[list[Command]] = []
        for _ in range(4):
            async with await peer_of(mock) as peer:
                answers.append(await peer.ask(HELLO))
        faulty.append([number for number, seen in enumerate(mock.requests(), 1) if seen.faults])
        if not any(answers[:2]):
            raise ConnectionError("cut off twice")

    for one, two in (("before", "before"), ("before", "after"), ("after", "before")):
        only = f"cut {one} at HELLO 1 + cut {two} at HELLO 2"
        (cell,) = (await explore(greets, only=only, timeout_s=20, jobs=1)).cells
        assert (faulty[-1], cell.is_made) == ([1, 2], True), only
        rules = json.loads(cell.rules)["rules"]
        assert [rule["nth"] for rule in rules] == [2, 1], "what one rule takes is not counted by the next"


async def test_a_pair_whose_second_request_never_comes_is_not_reached() -> None:
    good = 2

    async def once(mock: ExploredCluster) -> None:
        nonlocal good
        async with await peer_of(mock) as peer:
            await peer.ask(HELLO, create())
        if good > 0:
            async with await peer_of(mock) as peer:
                await peer.ask(HELLO)
        good -= 1

    name = "cut before at CREATE_SEGMENT 1 + cut before at HELLO 2"
    explored = await explore(once, only=name, timeout_s=20, jobs=1)
    assert (explored.findings, [cell.name for cell in explored.unreached]) == ([], [name])
    assert list(explored.lines) == [f"not reached: {name}"]


async def test_a_budget_ends_the_runs_and_the_rest_is_counted() -> None:
    explored = await explore(writer, failures=CUTS, budget_s=1e-9)
    assert (explored.runs, explored.notes) == (2, ["the budget ended before 18 more runs"])


async def test_each_class_and_kind_of_failure_is_tried_before_a_second_of_its_like() -> None:
    plans: list[Plan] = []
    await explore(writer, budget_s=1e-9, started=plans.append)
    (plan,) = plans
    members = {alike.points[0] for alike in plan.classes}
    first = [injection for injection in plan.injections if injection.point in members]
    assert plan.injections[: len(first)] == first, "first members of classes come before second members"
    start = first[: len(plan.classes)]
    assert len({injection.point.alike for injection in start}) == len(plan.classes)
    assert len({injection.failure.name for injection in start}) == len(plan.classes)
    waits = [injection.failure.only_waits for injection in first]
    assert waits == sorted(waits), "runs that only wait come last"
    shuffled: list[Plan] = []
    for seed in (1, 1, 2):
        await explore(writer, budget_s=1e-9, seed=seed, started=shuffled.append)
    one, again, other = ([str(injection) for injection in plan.injections] for plan in shuffled)
    assert one == again != other


async def test_pairs_begin_with_the_failure_that_has_led_to_the_most_new_classes() -> None:
    async def client(mock: ExploredCluster) -> None:
        async with await peer_of(mock) as peer:
            replies = await peer.ask(HELLO, create(), set_up())
            if replies[-1].is_failure:
                await peer.ask(set_up(), create())
            replies = await peer.ask(GetStreamSegmentInfo(6, SEGMENT, ""))
            if replies[-1].is_failure:
                await peer.ask(GetStreamSegmentInfo(7, SEGMENT, ""))

    match = "type = SETUP_APPEND or type = GET_STREAM_SEGMENT_INFO"
    explored = await explore(client, match=match, failures=["OperationUnsupported"], pairs=True, timeout_s=2, jobs=1)
    pairs = [cell.injections[0].point.type_name for cell in explored.cells if len(cell.injections) == 2]
    assert pairs == ["SETUP_APPEND", "SETUP_APPEND", "GET_STREAM_SEGMENT_INFO"]


async def test_a_client_that_cannot_run_side_by_side_is_run_alone() -> None:
    running = 0

    async def alone(mock: ExploredCluster) -> None:
        nonlocal running
        running += 1
        try:
            await asyncio.sleep(0.01)
            if running > 1:
                raise OSError("Address already in use")
            await writer(mock)
        finally:
            running -= 1

    explored = await explore(alone, failures=["cut before"])
    assert explored.findings == []
    assert explored.notes == [
        "runs are one by one, because side by side the client fails even without a fault: Address already in use"
    ]
