"""The stream sink's promise with Spark itself: its log, its retries, its processes, ended by SIGKILL.

A seed is one streaming query from a stream to a stream, with a shuffle between. Events are written to the source, the
query is run, and at a point of `POINTS` the driver and its Java are killed, or a task's Python, or the driver's commit
is stopped and woken when another driver has done its work, or the store does not answer the merge. Then more is written
and the query is run again with the same checkpoint, by another driver. In the end the target has each event once, and
the recorded traffic breaks no rule. Now and then a stream is scaled between two runs.

What takes long is Java, and what Python imports (`python_forks`). Drivers that are not to die run many queries; those
that are to die are started while others work. Seeds run side by side, each on a server of its own. Spark gives up a
Python that does not answer in ten seconds: on a machine that is so loaded the run is repeated, and counted. Without
Spark: `python -m tests.soak.stream_sink`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TypeVar

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from segstore.pipeline.session import session
from segstore.testing import RunningServer, ServerThread
from tests.pipeline.stream_support import SCOPE, every_event, scale, write_events
from tests.soak.judged_runs import alarms_in
from tests.soak.python_forks import Forks
from tests.soak.stream_struck import KilledSource

__all__ = ["POINTS"]

POINTS: Final = (
    "task before its write",
    "task after its write",
    "driver before the merge",
    "driver after the merge",
    "driver before the log",
    "lost reply",
    "zombie driver",
)
ROOT: Final = Path(__file__).parent.parent.parent
MEMORY: Final = Path("/dev/shm")
"""Where checkpoints are, if it is there: Spark writes several small files for each batch."""
_CONF: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.stopTimeout": "60s",
}
_PYTHON: Final = "SEGSTORE_SOAK_PYTHON"
_PATIENCE_S: Final = 1_800.0
_SETTLE_S: Final = 0.05
_PER_TRIGGER: Final = 40
_ATTEMPTS: Final = 5
A = TypeVar("A")


# --- inside Spark ---------------------------------------------------------------------------------------------------


def drive(answers: int) -> None:
    """Runs the queries that stdin asks for, side by side, to the end of what there is; answers in lines of JSON."""
    sys.executable = os.environ[_PYTHON]
    spark = session("local[2,4]", app="soak", conf=_CONF, quick=True)
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(KilledSource)
    processes = [spark.sparkContext._gateway.proc.pid, os.getpid()]
    asked: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            asked.put(line)
        asked.put("")

    threading.Thread(target=listen, daemon=True).start()
    running: dict[int, StreamingQuery] = {}
    with os.fdopen(answers, "w", buffering=1) as out:
        print("{}", file=out)
        while True:
            try:
                line = asked.get(timeout=_SETTLE_S if running else None)
            except queue.Empty:
                line = None
            if line == "":
                break
            if line is not None:
                job = json.loads(line)
                running[job["number"]] = _query(spark, job, processes)
            for number, each in list(running.items()):
                if not each.isActive:
                    del running[number]
                    failed = each.exception()
                    print(json.dumps({"number": number, "failed": failed and str(failed)[:4000]}), file=out)
    spark.stop()


def _query(spark: SparkSession, job: dict[str, Any], processes: list[int]) -> StreamingQuery:
    of, seed = {"controller": job["uri"], "scope": SCOPE}, job["seed"]
    frame = spark.readStream.format("segstore.stream").options(**of, stream=f"in{seed}")
    rows = frame.option("maxEventsPerTrigger", str(_PER_TRIGGER)).load()
    rows = rows.selectExpr("event", "concat('k', cast(cast(event as string) as int) % 9) key").repartition(2)
    writer = rows.writeStream.format("segstore.stream.killed").options(**of, stream=f"out{seed}")
    strike = json.dumps({"point": job["point"], "folder": job["folder"], "processes": processes})
    writer = writer.option("routingKeyColumn", "key").option("strike", strike)
    return writer.option("checkpointLocation", f"{job['folder']}/log").trigger(availableNow=True).start()


# --- around it ------------------------------------------------------------------------------------------------------


class DriverEnded(RuntimeError):
    """Of a driver that was killed, or died."""


class TooSlow(RuntimeError):
    """Of a run that failed because the machine has too much to do."""


class Driver:
    """A driver of Spark, which runs queries as it is told."""

    def __init__(self, said: Path, python: str) -> None:
        self.said = said
        self.ready = Future[None]()
        self._pending: dict[int, Future[str | None]] = {}
        self._lock = threading.Lock()
        self._number = 0
        read, write = os.pipe()
        with said.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.stream_spark", "--drive", str(write)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT), _PYTHON: python},
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                pass_fds=[write],
                text=True,
            )
        os.close(write)
        self._thread = threading.Thread(target=self._listen, args=(read,))
        self._thread.start()

    def _listen(self, answers: int) -> None:
        with os.fdopen(answers) as lines:
            for line in lines:
                answer = json.loads(line)
                if not answer:
                    self.ready.set_result(None)
                    continue
                with self._lock:
                    waiting = self._pending.pop(answer["number"])
                waiting.set_result(answer["failed"])
        status = self._process.wait()
        ended = DriverEnded(f"the driver ended with {status}; it said: {self.said.read_text(errors='replace')[-4000:]}")
        if not self.ready.done():
            self.ready.set_exception(ended)
        with self._lock:
            for each in self._pending.values():
                each.set_exception(ended)
            self._pending.clear()

    def start(self, **job: Any) -> Future[str | None]:
        """What the query failed with, None if it did not; DriverEnded if the driver did not live so long."""
        self.ready.result(_PATIENCE_S)
        done = Future[str | None]()
        with self._lock:
            self._number += 1
            self._pending[self._number] = done
            assert self._process.stdin is not None
            print(json.dumps(job | {"number": self._number}), file=self._process.stdin, flush=True)
        return done

    @property
    def status(self) -> int:
        return self._process.wait(_PATIENCE_S)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(_PATIENCE_S)
        self._thread.join()


class Drivers:
    """Two that live, for all seeds, and some that are there to be killed. Use with `with`."""

    def __init__(self, folder: Path, python: str, ahead: int) -> None:
        self._folder = folder
        self._python = python
        self._lock = threading.Lock()
        self._started = 0
        self.steady = [self._new(), self._new()]
        self._victims = [self._new() for _ in range(ahead)]

    def _new(self) -> Driver:
        self._started += 1
        return Driver(self._folder / f"driver{self._started}", self._python)

    def victim(self) -> Driver:
        """One that the caller ends; another is started in its place."""
        with self._lock:
            self._victims.append(self._new())
            return self._victims.pop(0)

    def __enter__(self) -> Drivers:
        return self

    def __exit__(self, *_: object) -> None:
        for victim in (*self.steady, *self._victims):
            victim.close()


class _Seed:
    def __init__(self, server: RunningServer, drivers: Drivers, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.did: Counter[str] = Counter()
        self.events = 0
        self._server = server
        self._drivers = drivers
        self._steady = self.chance.sample(drivers.steady, 2)
        self._seed = seed
        self._uri = f"tcp://{server.controller_uri}"
        self._folder = folder

    def run(self) -> tuple[int, int]:
        """How many events are lost, and how many there twice."""
        for stream in (f"in{self._seed}", f"out{self._seed}"):
            self._server.create_stream(SCOPE, stream)
        for point in self.chance.sample(POINTS, len(POINTS)):
            self._more()
            self._strike(point)
        self._more()
        self._whole()
        found = Counter(int(event.data) for event in asyncio.run(every_event(self._uri, f"out{self._seed}")))
        return self.events - len(found), sum(found.values()) - len(found)

    def _more(self) -> None:
        count = self.chance.randint(10, 2 * _PER_TRIGGER)
        new = [(b"%d" % number, f"k{number % 9}") for number in range(self.events, self.events + count)]
        asyncio.run(write_events(self._uri, new, f"in{self._seed}"))
        self.events += count
        for stream in ("in", "out"):
            if self.chance.random() < 0.3:
                self.did["scaled"] += 1
                asyncio.run(scale(self._uri, self.chance.randint(1, 3), f"{stream}{self._seed}"))

    def _strike(self, point: str) -> None:
        for name in ("struck", "stopped"):
            (self._folder / name).unlink(missing_ok=True)
        if point == "lost reply":
            self._server.faults.add("type = MERGE_SEGMENTS", do="close after", times=2)
            self._whole()
            self._server.faults.clear()
        elif point == "zombie driver":
            old, zombie = self._again(lambda: self._stopped(point))
            self._whole()
            os.kill(zombie, signal.SIGCONT)
            old.result(_PATIENCE_S)  # Spark may refuse to write its log: another was faster
        elif point.startswith("driver"):
            self._again(lambda: self._killed(point))
        else:
            self._whole(point)
        assert point == "lost reply" or (self._folder / "struck").exists(), f"{point} was not reached"
        self.did[point] += 1

    def _killed(self, point: str) -> None:
        victim = self._drivers.victim()
        try:
            self._heard(self._start(victim, point))
        except DriverEnded:
            assert victim.status == -signal.SIGKILL, f"{point}: the driver ended with {victim.status}"
        finally:
            victim.close()

    def _whole(self, point: str = "") -> None:
        """A run that comes to its end."""
        self._again(lambda: self._heard(self._start(self._steady[0], point)))

    def _heard(self, run: Future[str | None]) -> None:
        failed = run.result(_PATIENCE_S)
        if failed is not None and "failed to connect back" in failed:
            raise TooSlow(failed)
        assert failed is None, f"a run failed: {failed}"

    def _again(self, what: Callable[[], A]) -> A:
        for _ in range(_ATTEMPTS):
            try:
                return what()
            except TooSlow:
                self.did["repeated, as Python was too slow to start"] += 1
        return what()

    def _start(self, driver: Driver, point: str) -> Future[str | None]:
        return driver.start(uri=self._uri, seed=self._seed, point=point, folder=str(self._folder))

    def _stopped(self, point: str) -> tuple[Future[str | None], int]:
        """The run whose commit was stopped, and which process that is."""
        path, old, end = self._folder / "stopped", self._start(self._steady[1], point), time.monotonic() + _PATIENCE_S
        while not (path.exists() and (text := path.read_text()).endswith("\n")):
            if old.done():
                self._heard(old)
                raise AssertionError(f"{point} was not reached")
            assert time.monotonic() < end, f"{point} was not reached in time"
            time.sleep(_SETTLE_S)
        return old, int(text)


class _Soak:
    """Seeds, and what came of them."""

    def __init__(self, drivers: Drivers, folder: Path, servers: queue.Queue[RunningServer]) -> None:
        self.did: Counter[str] = Counter()
        self.events = self.wrong = 0
        self._drivers = drivers
        self._folder = folder
        self._servers = servers
        self._lock = threading.Lock()
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def seed(self, number: int) -> None:
        """One seed, on a server that no other uses meanwhile: faults are the server's."""
        folder = self._folder / f"seed{number}"
        folder.mkdir()
        server = self._servers.get()
        try:
            seed = _Seed(server, self._drivers, number, folder)
            lost, doubled = seed.run()
        finally:
            server.faults.clear()
            self._servers.put(server)
        with self._lock:
            self.did += seed.did
            self.events += seed.events
            self.wrong += bool(lost or doubled)
            result = f"{lost} lost, {doubled} twice"
            print(f"seed {number}: {seed.events} events, {result}; {self.seconds:.0f} s so far", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.stream_spark", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time")
    parser.add_argument("--drive", type=int, metavar="PIPE", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.drive is not None:
        drive(asked.drive)
        return 0
    failures: list[BaseException] = []
    with ExitStack() as stack:
        place = MEMORY if os.access(MEMORY, os.W_OK) else None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True)))
        servers: queue.Queue[RunningServer] = queue.Queue()
        traces = [folder / f"{number}.wtrace" for number in range(asked.jobs)]
        for trace in traces:
            servers.put(stack.enter_context(ServerThread()).serve(stores=2, containers=4, record=trace))
        forks = stack.enter_context(Forks(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        drivers = stack.enter_context(Drivers(folder, forks.python, asked.jobs))
        soak = _Soak(drivers, folder, servers)
        with ThreadPoolExecutor(asked.jobs) as pool:
            runs = {number: pool.submit(soak.seed, number) for number in range(asked.seed, asked.seed + asked.seeds)}
            for number, run in runs.items():
                if (failure := run.exception()) is not None:
                    failures.append(failure)
                    print(f"seed {number}: {type(failure).__name__}: {failure}", file=sys.stderr, flush=True)
        alarms = [alarm for trace in traces for alarm in alarms_in(trace)]
    for alarm in alarms:
        print(alarm, file=sys.stderr)
    did = ", ".join(f"{count} × {what}" for what, count in sorted(soak.did.items()))
    print(
        f"{soak.events:,} events over {asked.seeds} seeds in {soak.seconds:.0f} s, {soak.wrong} seeds wrong, "
        f"{len(failures)} not finished; {did}"
    )
    return int(bool(soak.wrong or failures or alarms))


if __name__ == "__main__":
    sys.exit(main())
