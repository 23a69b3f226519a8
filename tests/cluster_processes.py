"""Processes of `segstore serve --zookeeper` that a test starts, stops, freezes and kills."""

import asyncio
import json
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from subprocess import PIPE, Popen
from typing import Self

from segstore.client import ClientSettings, connect
from segstore.client.errors import OutcomeUnknown
from segstore.client.retry import Backoff
from segstore.server.segments.remote import StoreConnection
from segstore.wire import WIRE_VERSION, GetStreamSegmentInfo, StreamSegmentInfo
from segstore.wire.endpoint import Endpoint
from tests.ports import held_port

__all__ = ["IMPATIENT", "PATIENT", "PROMPT", "Processes", "Serving", "Workload", "are_at", "chaos"]

PATIENCE_S = 60.0
_PADDING = bytes(200)
PROMPT = ("--session-timeout-ms", "1000", "--takeover-delay-ms", "50", "--load-report-interval-ms", "300")
"""A process whose session is soon over when it is killed or frozen, and now and then on a machine that stands still."""
PATIENT = ("--session-timeout-ms", "30000")
"""After `PROMPT`: a process that is to keep its session, and what it owns, however slow the machine is."""
_FROZEN_S = 2.0
"""When a store has not answered for so long, it is asked again, or another one."""

IMPATIENT = ClientSettings(
    retry=Backoff(initial_ms=10, multiplier=2, max_ms=300, jitter=0.2, max_attempts=200), request_timeout_ms=5_000
)
"""A client that asks again soon and for long."""


class Serving:
    """One process; `start` it again on the same ports as often as wanted. It is no loop's, so tests may share it."""

    def __init__(self, number: int, options: tuple[str, ...], log: Path) -> None:
        self.number = number
        self.options = options
        self.log = log
        self.announced: dict[str, str | None] = {}
        self.is_recorded = False
        """Whether each of its lives is recorded, beside its log."""
        self._process: Popen[bytes] | None = None
        self._held = ExitStack()
        self._ports = [self._held.enter_context(held_port()) for _ in range(2)]

    @property
    def process(self) -> Popen[bytes]:
        assert self._process is not None, "it was not started"
        return self._process

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def controller(self) -> str:
        return str(self.announced["controller"])

    @property
    def store(self) -> str:
        return str(self.announced["segment_store"])

    def said(self) -> str:
        """What it wrote to standard error, in all its lives."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def begin(self) -> None:
        """Starts it; `announce` waits until it serves."""
        port, controller_port = map(str, self._ports)
        command = [sys.executable, "-m", "segstore", "serve", "--announce", "json", *self.options]
        if self.is_recorded:
            lives = len(list(self.log.parent.glob("*.wtrace")))
            command += ["--record", str(self.log.with_name(f"{self.log.stem}-{lives}.wtrace"))]
        with self.log.open("ab") as log:
            self._process = Popen(
                [*command, "--port", port, "--controller-port", controller_port], stdout=PIPE, stderr=log
            )

    def announce(self) -> None:
        """Blocks until it has said where it listens."""
        stdout = self.process.stdout
        impatience = threading.Timer(PATIENCE_S, self.process.kill)
        impatience.start()
        try:
            line = stdout.readline()
        finally:
            impatience.cancel()
            impatience.join()
            stdout.close()  # it writes one line
        assert line, f"process {self.number} did not start: {self.said()[-3000:]}"
        self.announced = json.loads(line)

    async def start(self) -> None:
        """Starts it and waits for its announcement."""
        self.begin()
        await asyncio.to_thread(self.announce)

    async def kill(self) -> None:
        """As a crash does."""
        self._signal(signal.SIGKILL)
        await self.ended()

    async def ended(self) -> int:
        """Its exit status, once it has ended."""
        return await asyncio.to_thread(self.wait)

    def wait(self) -> int:
        """Blocks until it has ended; its exit status."""
        return self.process.wait(PATIENCE_S)

    async def end(self) -> int:
        """As asked to."""
        self._signal(signal.SIGTERM)
        return await self.ended()

    def abandon(self) -> None:
        """Kills it if it runs, and lets its ports go. Blocks."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
        self._held.close()

    def freeze(self) -> None:
        """It stands still until `thaw`; nothing if it has ended."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.runs:
            self.process.send_signal(number)


class Processes:
    """Several on one folder. The context starts them and kills what is left of them; without asyncio too."""

    def __init__(self, folder: Path, zookeeper: str, count: int, *options: str) -> None:
        self.folder = folder
        self.zookeeper = zookeeper
        self.all: list[Serving] = []
        for _ in range(count):
            self.another(*options)

    def another(self, *options: str) -> Serving:
        """One more, with options of its own."""
        number = len(self.all)
        cluster = ("--zookeeper", self.zookeeper, "--data", str(self.folder / "data"))
        made = Serving(number, (*cluster, *PROMPT, *options), self.folder / f"process-{number}.log")
        self.all.append(made)
        return made

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        self._kill_all()

    def __enter__(self) -> Self:
        try:
            for each in self.all:
                each.begin()
            for each in self.all:
                each.announce()
        except BaseException:
            self._kill_all()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._kill_all()

    def _kill_all(self) -> None:
        for each in self.all:
            each.abandon()

    async def all_run(self) -> None:
        """Those that have ended are started again."""
        for each in self.all:
            if not each.runs:
                await each.start()

    @property
    def uri(self) -> str:
        """Of all their controllers."""
        return "tcp://" + ",".join(each.controller for each in self.all)


async def are_at(uri: str, scope: str, stores: int) -> None:
    """Returns when the controller names so many stores for the segments of the stream, and they serve them.

    A store is named as soon as it owns a container, and answers WrongHost until it has opened it, which takes as long
    as its disk does. Clients ask again then, but the official one does not where it sets something up: it panics.
    """
    async with connect(uri, IMPATIENT) as client, asyncio.timeout(PATIENCE_S):
        segments = await client.controller.current_segments(scope, "s")
        while True:
            found = [await client.controller.endpoint_of(scope, "s", each.segment_id) for each in segments]
            where = [Endpoint(each.host, each.port) for each in found]
            if len(set(where)) == stores and await _serve(where, [segment.name for segment in segments]):
                return
            await asyncio.sleep(0.05)


async def _serve(where: list[Endpoint], segments: list[str]) -> bool:
    """Whether each store answers for its segment; it may be that one is frozen and has been named for too long."""
    for location, segment in zip(where, segments, strict=True):
        try:
            async with asyncio.timeout(_FROZEN_S):
                store = await StoreConnection.open(location, WIRE_VERSION, None)
        except (OSError, TimeoutError):
            return False
        try:
            async with asyncio.timeout(_FROZEN_S):
                told = await store.ask(GetStreamSegmentInfo(0, segment, ""))
        except (OSError, TimeoutError):
            return False
        finally:
            await store.aclose()
        if not isinstance(told, StreamSegmentInfo):
            return False
    return True


class Workload:
    """Writers with keys of their own, each of which numbers its events; what was acknowledged is kept."""

    def __init__(
        self, uri: str, writers: int, settings: ClientSettings = IMPATIENT, *, scope: str = "a", stream: str = "s"
    ) -> None:
        self.uri = uri
        self.settings = settings
        self.scope, self.stream = scope, stream
        self.acknowledged = [0] * writers
        self.going = True

    async def make(self, segments: int) -> None:
        async with connect(self.uri, self.settings) as client:
            try:
                await client.controller.create_scope(self.scope)
            except OutcomeUnknown:  # a leader that lost its session meanwhile
                await client.controller.create_scope(self.scope)
            await client.controller.create_stream(self.scope, self.stream, segments=segments)

    async def _write(self, number: int) -> None:
        async with connect(self.uri, self.settings) as client, client.event_writer(self.scope, self.stream) as writer:
            sent = 0
            while self.going:
                some = [b"%d %d %s" % (number, sent + each, _PADDING) for each in range(20)]
                await asyncio.gather(*[await writer.submit(each, routing_key=f"key {number}") for each in some])
                sent += len(some)
                self.acknowledged[number] = sent

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All write, and have had something acknowledged, until the end of the context; they end what they began."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(len(self.acknowledged)):
                tasks.create_task(self._write(number), name=f"writer {number}")
            try:
                async with asyncio.timeout(PATIENCE_S):
                    while not all(self.acknowledged):  # noqa: ASYNC110  what is looked at has no event
                        await asyncio.sleep(0.01)
                yield
            finally:
                self.going = False

    async def check(self) -> int:
        """Reads all back; how many events there are. Everything is there once, and in order for each key."""
        found: dict[int, list[int]] = {number: [] for number in range(len(self.acknowledged))}
        async with connect(self.uri, self.settings) as client:
            await client.controller.seal_stream(self.scope, self.stream)
            async with client.event_reader(self.scope, self.stream) as reader:
                async for event in reader:
                    of, at, _ = bytes(event.data).split(b" ", 2)
                    found[int(of)].append(int(at))
        for number, events in found.items():
            count = self.acknowledged[number]
            if events != list(range(count)):
                wrong = next((at for at, found_there in enumerate(events) if found_there != at), len(events))
                raise AssertionError(
                    f"writer {number}: {len(events)} events, {count} acknowledged; "
                    f"the first that is wrong is at {wrong}: {events[wrong : wrong + 5]}"
                )
        return sum(map(len, found.values()))


async def chaos(processes: Processes, random: Random, rounds: int, *, most_frozen_s: float = 2.5) -> dict[str, int]:
    """Kills, freezes and ends processes at random moments, one at a time, and starts them again; what was done."""
    done = {"killed": 0, "frozen": 0, "asked to end": 0, "ended by themselves": 0}
    for _ in range(rounds):
        await asyncio.sleep(random.uniform(0.05, 0.6))
        victim = random.choice(processes.all)
        match random.choice(["kill", "kill", "freeze", "freeze", "end"]):
            case "kill":
                done["killed"] += 1
                await victim.kill()
            case "end":
                done["asked to end"] += 1
                await victim.end()
            case "freeze":
                done["frozen"] += 1
                victim.freeze()
                await asyncio.sleep(random.uniform(0.1, most_frozen_s))
                victim.thaw()
                await asyncio.sleep(0.3)
        for each in processes.all:
            if not each.runs:
                done["ended by themselves"] += each is not victim or each.process.returncode == 1
                await asyncio.sleep(random.uniform(0, 0.5))
                await each.start()
    return done
