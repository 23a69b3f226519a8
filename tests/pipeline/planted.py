"""Traces with faults that were put there: good traffic on many connections, and on others each fault, counted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from uuid import UUID

from segstore.pipeline.report.analysis_rules import Status
from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    Command,
    ConditionalAppend,
    ConditionalCheckFailed,
    DataAppended,
    Event,
    Hello,
    KeepAlive,
    NoSuchSegment,
    ReadSegment,
    SegmentIsSealed,
    SegmentRead,
    SegmentSealed,
    SetupAppend,
    encode,
)
from segstore.wire.request_id import pack
from segstore.wire.trace import Direction, Record, RecordKind, event_data
from tests.wire.trace.traces import frame

__all__ = ["Scene", "planted", "soup"]

NEW = -(1 << 63)


class Scene:
    """One connection as it is recorded, and what is wrong with it."""

    def __init__(self, connection: int, *, opened: bool = True) -> None:
        self.connection = connection
        self.records: list[Record] = []
        self.broken: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.unpaired = 0
        self._sequence = 0
        if opened:
            self._put(Direction.REQUEST, RecordKind.OPEN, event_data(peer="client", store="store"))
            self.ask(Hello(17, 5))
            self.reply(Hello(17, 5))

    def _put(self, direction: Direction, kind: RecordKind, data: bytes) -> None:
        self.records.append(Record(0, self.connection, direction, kind, data))

    def ask(self, command: Command | bytes) -> None:
        data = command if isinstance(command, bytes) else encode(command)
        self._put(Direction.REQUEST, RecordKind.FRAME, data)

    def reply(self, command: Command | bytes) -> None:
        data = command if isinstance(command, bytes) else encode(command)
        self._put(Direction.REPLY, RecordKind.FRAME, data)

    def raw(self, data: bytes) -> None:
        self._put(Direction.REQUEST, RecordKind.BYTES, data)

    def close(self, by: Direction = Direction.REQUEST) -> None:
        self._put(by, RecordKind.CLOSE, b"{}")

    def id(self, flow: int = 1) -> int:
        self._sequence += 1
        return pack(flow, self._sequence)

    def writer(self, segment: str, *, flow: int = 1, known: int = NEW, writer: UUID | None = None) -> UUID:
        writer = writer or UUID(int=self.connection << 32 | flow << 16 | self._sequence)
        request_id = self.id(flow)
        self.ask(SetupAppend(request_id, writer, segment, ""))
        self.reply(AppendSetup(request_id, segment, writer, known))
        return writer

    def append(self, writer: UUID, number: int, *, flow: int = 1, block: int | None = None, events: int = 1) -> int:
        """An append by itself, or in a block of that size, which is padded."""
        request_id, data = self.id(flow), bytes(10 * max(events, 1))
        if block is None:
            self.ask(AppendBlockEnd(writer, len(data), data, events, number, request_id))
        else:
            self.ask(AppendBlock(writer, data + frame(-1, bytes(block - len(data) - 8))))
            self.ask(AppendBlockEnd(writer, len(data), b"", events, number, request_id))
        return request_id

    def ack(self, request_id: int, writer: UUID, number: int, previous: int = NEW) -> None:
        self.reply(DataAppended(request_id, writer, number, previous, 100))

    def read(self, segment: str, *, answered: bool = True) -> int:
        request_id = self.id(3)
        self.ask(ReadSegment(segment, 0, 100, "", request_id))
        if answered:
            self.reply(SegmentRead(segment, 0, False, False, b"abc", request_id))
        return request_id


def good(scene: Scene, chance: random.Random) -> None:
    """Traffic without a fault; several appends are under way at a time."""
    flow = chance.randrange(1, 5)
    writer = scene.writer(f"scope/stream{scene.connection % 3}/{scene.connection}.#epoch.0", flow=flow)
    waiting: list[tuple[int, int]] = []
    acked = NEW
    for number in range(1, chance.randrange(5, 30)):
        if chance.random() < 0.2:
            scene.read("scope/other/0.#epoch.0")
        if chance.random() < 0.1:
            scene.ask(KeepAlive())
            scene.reply(KeepAlive())
        block = chance.choice((None, 100, 400))
        waiting.append((scene.append(writer, number, flow=flow, block=block), number))
        while waiting and chance.random() < 0.6:
            request_id, which = waiting.pop(0)
            scene.ack(request_id, writer, which, acked)
            acked = which
    for request_id, which in waiting:
        scene.ack(request_id, writer, which, acked)
        acked = which
    scene.close()


def own_ack_dropped(scene: Scene) -> None:
    writer = scene.writer("scope/s/1.#epoch.0")
    scene.append(writer, 1)
    scene.ack(scene.append(writer, 2), writer, 2)
    scene.close()
    scene.unpaired += 1


def ack_lost(scene: Scene) -> None:
    writer = scene.writer("scope/s/2.#epoch.0")
    scene.ack(scene.append(writer, 1), writer, 1)
    scene.append(writer, 2, events=2)
    scene.close()
    scene.ended[Status.LOST] += 1
    scene.unpaired += 1


def ack_not_come_yet(scene: Scene) -> None:
    scene.append(scene.writer("scope/s/3.#epoch.0"), 1)
    scene.ended[Status.WAITING] += 1
    scene.unpaired += 1


def told_by_set_up(scene: Scene) -> None:
    writer = scene.writer("scope/s/4.#epoch.0")
    scene.append(writer, 7)
    scene.writer("scope/s/4.#epoch.0", known=7, writer=writer)
    scene.close()
    scene.ended[Status.COVERED] += 1
    scene.unpaired += 1


def made_twice(scene: Scene) -> None:
    writer = scene.writer("scope/s/5.#epoch.0")
    for _ in range(2):
        scene.ack(scene.append(writer, 4), writer, 4)
    scene.close()
    scene.ended[Status.REPEATED] += 1


def refused(scene: Scene) -> None:
    writer = scene.writer("scope/s/6.#epoch.0")
    request_id = scene.append(writer, 1)
    scene.append(writer, 2)
    scene.reply(SegmentIsSealed(request_id, "scope/s/6.#epoch.0", "", 9))
    request_id = scene.id()
    scene.ask(ConditionalAppend(writer, 3, 0, Event(b"x"), request_id))
    scene.reply(ConditionalCheckFailed(writer, 3, request_id))
    scene.close()
    scene.ended[Status.REFUSED] += 2
    scene.ended[Status.LOST] += 1
    scene.unpaired += 1


def one_id_for_all(scene: Scene) -> None:
    """As the Java client does it; the failure says which append it means by its place only."""
    writer, request_id = scene.writer("scope/s/7.#epoch.0"), scene.id()
    for number in (1, 2, 3):
        scene.ask(AppendBlockEnd(writer, 1, b"x", 1, number, request_id))
    scene.ack(request_id, writer, 2)
    scene.reply(NoSuchSegment(request_id, "scope/s/7.#epoch.0", "", 0))
    scene.close()
    scene.ended[Status.REFUSED] += 1
    scene.unpaired += 1


def read_unanswered(scene: Scene) -> None:
    scene.read("scope/s/8.#epoch.0", answered=False)
    scene.close(Direction.REPLY)
    scene.ended[Status.UNANSWERED] += 1
    scene.unpaired += 1


def read_given_up(scene: Scene) -> None:
    scene.read("scope/s/8.#epoch.0", answered=False)
    scene.close()
    scene.ended[Status.GIVEN_UP] += 1
    scene.unpaired += 1


def orphan(scene: Scene) -> None:
    scene.reply(SegmentRead("scope/s/9.#epoch.0", 0, False, False, b"", 99))
    scene.ask(ReadSegment("scope/s/9.#epoch.0", 0, 1, "", 99))
    scene.reply(SegmentRead("scope/s/9.#epoch.0", 0, False, False, b"", 99))
    scene.close()
    scene.ended[Status.ORPHAN] += 1
    scene.broken["reply-without-request"] += 1


def other_kind(scene: Scene) -> None:
    scene.reply(SegmentSealed(scene.read("s", answered=False), "s"))
    scene.close()
    scene.broken["reply-kind"] += 1


def id_used_again(scene: Scene) -> None:
    for _ in range(2):
        scene.ask(ReadSegment("s", 0, 1, "", 50))
    for _ in range(2):
        scene.reply(SegmentRead("s", 0, False, False, b"", 50))
    scene.close()
    scene.broken["request-id-reuse"] += 1


def flow_taken(scene: Scene) -> None:
    first = scene.writer("scope/s/10.#epoch.0", flow=9)
    waits = scene.append(first, 1, flow=9)
    second = scene.writer("scope/s/11.#epoch.0", flow=9)
    scene.ack(waits, first, 1)
    scene.ack(scene.append(second, 1, flow=9), second, 1)
    scene.writer("scope/s/12.#epoch.0", flow=9)
    scene.close()
    scene.broken["flow-reuse"] += 1


def never_set_up(scene: Scene) -> None:
    writer = UUID(int=5)
    for number in (1, 2):
        scene.ack(scene.append(writer, number), writer, number)
    scene.close()
    scene.broken["writer-unknown"] += 2


def block_without_end(scene: Scene) -> None:
    writer = scene.writer("scope/s/13.#epoch.0")
    scene.ask(AppendBlock(writer, bytes(50)))
    other = scene.writer("scope/s/14.#epoch.0", flow=2)
    scene.ack(scene.append(other, 1, flow=2), other, 1)
    scene.close()
    scene.broken["block-open"] += 1


def block_of_another(scene: Scene) -> None:
    writer = scene.writer("scope/s/15.#epoch.0")
    other = scene.writer("scope/s/16.#epoch.0", flow=2)
    scene.ask(AppendBlock(writer, bytes(50)))
    scene.ack(scene.append(other, 1, flow=2), other, 1)
    scene.close()
    scene.broken["writer-mismatch"] += 1


def block_wrong(scene: Scene) -> None:
    """Every way in which an end does not fit its block."""
    writer = scene.writer("scope/s/17.#epoch.0")
    wrong = (
        ("whole-size", bytes(50), 51, b""),
        ("whole-size", bytes(50), -1, b""),
        ("block-tail", bytes(50), 10, b""),
        ("block-tail", bytes(50), 45, b""),
        ("block-tail", bytes(10) + frame(-1, bytes(5))[:-1], 10, b""),
        ("padded-data", bytes(10) + frame(-1, bytes(5)), 10, b"more"),
    )
    for number, (rule, block, whole, rest) in enumerate(wrong, 1):
        request_id = scene.id()
        scene.ask(AppendBlock(writer, block))
        scene.ask(AppendBlockEnd(writer, whole, rest, 1, number, request_id))
        scene.ack(request_id, writer, number)
        scene.broken[rule] += 1
    request_id = scene.id()
    scene.ask(AppendBlock(writer, bytes(10) + frame(-2, bytes(5))))
    scene.ask(AppendBlockEnd(writer, 10, b"more", 2, 90, request_id))
    scene.ack(request_id, writer, 90)
    scene.close()


def numbers_wrong(scene: Scene) -> None:
    writer = scene.writer("scope/s/18.#epoch.0")
    requests = [scene.append(writer, number) for number in (5, 3, 4, 6)]
    scene.append(writer, 7, events=0)
    scene.ack(requests[0], writer, 5)
    scene.ack(requests[1], writer, 4)
    scene.ack(requests[2], writer, 9)
    scene.close()
    scene.unpaired += 2
    scene.broken.update({"number-backwards": 2, "no-events": 1, "ack-backwards": 1, "ack-beyond": 1})


def no_hello(scene: Scene) -> None:
    scene.records[1:] = []
    scene.read("s")
    scene.close()
    scene.ask(KeepAlive())
    scene.ended[Status.UNANSWERED] += 1
    scene.unpaired += 1
    scene.broken.update({"hello-first": 2, "after-close": 1})


def not_of_the_protocol(scene: Scene) -> None:
    scene.ask(frame(9, b"\0"))
    scene.ask(frame(111, b"abc"))
    scene.raw(b"nonsense")
    scene.ask(SegmentSealed(1, "s"))
    scene.reply(ReadSegment("s", 0, 1, "", 77))
    scene.close()
    scene.broken.update({"decodes": 1, "known-command": 1, "frames-only": 1, "direction": 2})


def number_given_again(scene: Scene) -> None:
    scene.read("s", answered=False)
    scene.close()
    again = Scene(scene.connection)
    again.reply(SegmentRead("s", 0, False, False, b"", pack(3, 1)))
    again.close()
    scene.records += again.records
    scene.unpaired += 1
    scene.ended.update({Status.GIVEN_UP: 1, Status.ORPHAN: 1})
    scene.broken["reply-without-request"] += 1


def from_the_middle(scene: Scene) -> None:
    """Recorded from some time on: that nothing was set up is no fault."""
    scene.records.clear()
    writer = UUID(int=6)
    scene.ack(scene.append(writer, 8), writer, 8)


FAULTS: tuple[Callable[[Scene], None], ...] = (
    own_ack_dropped, ack_lost, ack_not_come_yet, told_by_set_up, made_twice, refused, one_id_for_all, read_unanswered,
    read_given_up, orphan, other_kind, id_used_again, flow_taken, never_set_up, block_without_end, block_of_another,
    block_wrong, numbers_wrong, no_hello, not_of_the_protocol, number_given_again, from_the_middle,
)  # fmt: skip


def planted(seed: int, *, times: int = 3, connections: int = 8) -> tuple[list[Record], Scene]:
    """A trace with each fault `times` times, and a scene that only counts: what must be found in all of it."""
    chance = random.Random(seed)
    scenes = [Scene(number) for number in range(1, connections + 1)]
    for scene in scenes:
        good(scene, chance)
    total = Scene(0, opened=False)
    for number, plant in enumerate(FAULTS * times, connections + 1):
        scene = Scene(number)
        plant(scene)
        scenes.append(scene)
        total.broken += scene.broken
        total.ended += scene.ended
        total.unpaired += scene.unpaired
    return timed(mixed(scenes, chance), chance), total


def mixed(scenes: Iterable[Scene], chance: random.Random) -> list[Record]:
    """The records of all, each connection's in order."""
    left = [iter(scene.records) for scene in scenes]
    out = []
    while left:
        one = chance.randrange(len(left))
        record = next(left[one], None)
        if record is None:
            left.pop(one)
        else:
            out.append(record)
    return out


def timed(records: list[Record], chance: random.Random) -> list[Record]:
    now, out = 1_700_000_000_000_000_000, []
    for record in records:
        now += chance.choice((500, 20_000, 3_000_000))
        out.append(record._replace(ts_ns=now))
    return out


def soup(seed: int, count: int = 400, connections: int = 3) -> list[Record]:
    """Commands in any order with few ids: every rule is broken in ways that nobody thought of."""
    chance = random.Random(seed)
    writers = [UUID(int=number) for number in range(3)]
    out = []

    def command() -> Command | bytes:
        request_id = pack(chance.randrange(3), chance.randrange(4))
        writer, number = chance.choice(writers), chance.randrange(-1, 12)
        segment = f"scope/s/{chance.randrange(2)}"
        data = bytes(chance.randrange(12)) + frame(-chance.randrange(1, 4), bytes(chance.randrange(6)))
        return chance.choice((
            SetupAppend(request_id, writer, segment, ""), AppendSetup(request_id, segment, writer, number),
            AppendBlock(writer, data), AppendBlock(writer, data),
            AppendBlockEnd(writer, chance.randrange(-1, 14), bytes(chance.choice((0, 0, 3))), chance.randrange(3),
                           number, request_id),
            AppendBlockEnd(writer, 1, b"x", 1, number, request_id),
            ConditionalAppend(writer, number, 5, Event(b"abc"), request_id),
            DataAppended(request_id, writer, number, -1, 5), DataAppended(request_id, writer, number, -1, 5),
            ConditionalCheckFailed(writer, number, request_id), NoSuchSegment(request_id, segment, "", 1),
            ReadSegment(segment, 0, 1, "", request_id), SegmentRead(segment, 0, True, False, b"", request_id),
            KeepAlive(), Hello(17, 5), frame(chance.randrange(-3, 110), bytes(chance.randrange(30))),
        ))  # fmt: skip

    for _ in range(count):
        connection, direction = chance.randrange(connections), Direction(chance.randrange(2))
        kind = chance.choices(tuple(RecordKind), (95, 2, 2, 1, 1))[0]
        data = event_data() if kind in (RecordKind.OPEN, RecordKind.CLOSE) else (b"ab", b"nonsense")[len(out) % 2]
        if kind is RecordKind.FRAME:
            made = command()
            data = made if isinstance(made, bytes) else encode(made)
            if not isinstance(made, bytes) and chance.random() < 0.7:
                direction = Direction(made.is_reply)
        out.append(Record(0, connection, direction, kind, data))
    return timed(out, chance)
