"""The stream sink's promise with Spark itself: its log, its retries, its processes, ended by SIGKILL.

A seed is one streaming query from a stream to a stream, with a shuffle between. Events are written to the source, the
query is started in a process of its own, and at a point of `POINTS` the driver and its Java are killed, or a task's
Python, or the driver's commit is stopped and woken when another driver has done its work, or the store does not answer
the merge. Then more is written and the query is started again with the same checkpoint. In the end the target has each
event once. Now and then the target is scaled between two runs.

Java starts in seconds, so a seed takes a minute or two; without Spark: `python -m tests.soak.stream_sink`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from pyspark.sql.types import StructType

from segstore.pipeline.segments import Segments
from segstore.pipeline.session import session
from segstore.pipeline.stream_registry import Registry
from segstore.pipeline.stream_sink import StreamStreamWriter
from segstore.pipeline.stream_source import StreamSource
from segstore.testing import RunningServer, ServerThread
from tests.pipeline.stream_support import SCOPE, every_event, scale, write_events

__all__ = ["POINTS", "KilledSource"]

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
_POINT: Final = "SEGSTORE_SOAK_POINT"
_FOLDER: Final = "SEGSTORE_SOAK_FOLDER"
_PATIENCE_S: Final = 180.0


# --- inside Spark ---------------------------------------------------------------------------------------------------


def _once(point: str) -> bool:
    """Whether this is the point to strike, and it was not struck in this run."""
    if os.environ.get(_POINT) != point:
        return False
    try:
        Path(os.environ[_FOLDER], "struck").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _end_driver() -> None:
    for process in json.loads(Path(os.environ[_FOLDER], "processes").read_text()):
        os.kill(process, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    Path(os.environ[_FOLDER], "stopped").write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)


class KilledWriter(StreamStreamWriter):
    """The sink, and where it is struck."""

    def write(self, iterator: Iterator[Any]) -> Any:
        if _once("task before its write"):
            os.kill(os.getpid(), signal.SIGKILL)
        done = super().write(iterator)
        if done.result.parts and _once("task after its write"):
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 — Spark's name
        if not any(each.result.parts for each in messages if each is not None):
            super().commit(messages, batchId)
            return
        if _once("driver before the merge"):
            _end_driver()
        merge_if, committed = Segments.merge_if, Registry.committed

        async def merged(segments: Segments, *given: Any) -> bool:
            if _once("zombie driver"):
                _stop()
            return await merge_if(segments, *given)

        async def noted(registry: Registry, *given: Any) -> None:
            if _once("driver after the merge"):
                _end_driver()
            await committed(registry, *given)

        Segments.merge_if = merged  # type: ignore[method-assign]
        Registry.committed = noted  # type: ignore[method-assign]
        try:
            super().commit(messages, batchId)
        finally:
            Segments.merge_if = merge_if  # type: ignore[method-assign]
            Registry.committed = committed  # type: ignore[method-assign]
        if _once("driver before the log"):
            _end_driver()


class KilledSource(StreamSource):
    """`segstore.stream` with a sink that is struck."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "segstore.stream.killed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamStreamWriter:  # noqa: N802 — Spark's name
        return KilledWriter(self.read_options, schema, overwrite)


def drive(uri: str, seed: int, checkpoint: str) -> None:
    """The query, to the end of what there is."""
    spark = session("local[2,4]", app="soak", conf={"spark.sql.shuffle.partitions": "2"}, quick=True)
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(KilledSource)
    java = spark.sparkContext._gateway.proc.pid
    Path(os.environ[_FOLDER], "processes").write_text(json.dumps([java, os.getpid()]))
    of = {"controller": uri, "scope": SCOPE}
    frame = spark.readStream.format("segstore.stream").options(**of, stream=f"in{seed}", maxEventsPerTrigger="150")
    rows = frame.load().selectExpr("event", "concat('k', cast(cast(event as string) as int) % 9) key").repartition(2)
    writer = rows.writeStream.format("segstore.stream.killed").options(**of, stream=f"out{seed}")
    writer = writer.option("routingKeyColumn", "key").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


# --- around it ------------------------------------------------------------------------------------------------------


class _Seed:
    def __init__(self, server: RunningServer, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.did: Counter[str] = Counter()
        self.events = 0
        self._server = server
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
        self._end(self._start(""))
        found = Counter(int(event.data) for event in asyncio.run(every_event(self._uri, f"out{self._seed}")))
        return self.events - len(found), sum(found.values()) - len(found)

    def _more(self) -> None:
        count = self.chance.randint(20, 400)
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
        driver = self._start(point)
        if point == "zombie driver":
            self._wait((self._folder / "stopped").exists, driver)
            zombie = int(self._wait_text(self._folder / "stopped"))
            self._end(self._start(""))
            os.kill(zombie, signal.SIGCONT)
            driver.wait(timeout=_PATIENCE_S)  # Spark may refuse to write its log: another was faster
        elif point.startswith("driver"):
            driver.wait(timeout=_PATIENCE_S)
            assert driver.returncode == -signal.SIGKILL, f"{point}: the driver ended with {driver.returncode}"
        else:
            self._end(driver)
        self._server.faults.clear()
        assert point == "lost reply" or (self._folder / "struck").exists(), f"{point} was not reached"
        self.did[point] += 1

    def _start(self, point: str) -> subprocess.Popen[bytes]:
        environment = os.environ | {_POINT: point, _FOLDER: str(self._folder), "PYTHONPATH": str(ROOT)}
        checkpoint = str(self._folder / f"log{self._seed}")
        with (self._folder / "said").open("ab") as said:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.soak.stream_spark", "--drive", self._uri, str(self._seed), checkpoint],
                cwd=ROOT,
                env=environment,
                stdout=said,
                stderr=said,
            )

    def _end(self, driver: subprocess.Popen[bytes]) -> None:
        driver.wait(timeout=_PATIENCE_S)
        if driver.returncode:
            said = (self._folder / "said").read_text(errors="replace")
            raise AssertionError(f"the driver ended with {driver.returncode}: {said[-4000:]}")

    def _wait(self, there: Callable[[], bool], driver: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + _PATIENCE_S
        while not there():
            assert driver.poll() is None, f"the driver ended with {driver.returncode} before its point"
            assert time.monotonic() < end, "the point was not reached in time"
            time.sleep(0.05)

    def _wait_text(self, path: Path) -> str:
        while not (text := path.read_text()):
            time.sleep(0.05)
        return text


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.stream_spark", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--drive", nargs=3, metavar=("URI", "SEED", "CHECKPOINT"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.drive:
        uri, seed, checkpoint = asked.drive
        # By its own name, not as __main__: what is pickled for the tasks must be found there.
        import_module("tests.soak.stream_spark").drive(uri, int(seed), checkpoint)
        return 0
    wrong, total, events, start = 0, Counter[str](), 0, time.monotonic()
    with ServerThread() as servers:
        server = servers.serve(stores=2, containers=4)
        for number in range(asked.seed, asked.seed + asked.seeds):
            with tempfile.TemporaryDirectory() as folder:
                seed_ = _Seed(server, number, Path(folder))
                lost, doubled = seed_.run()
            total += seed_.did
            events += seed_.events
            if lost or doubled:
                wrong += 1
                print(f"seed {number}: {lost} lost, {doubled} twice", file=sys.stderr)
            print(f"seed {number}: {seed_.events} events, {time.monotonic() - start:.0f} s so far", flush=True)
    did = ", ".join(f"{count} × {what}" for what, count in sorted(total.items()))
    print(f"{events:,} events over {asked.seeds} seeds in {time.monotonic() - start:.0f} s, {wrong} seeds wrong; {did}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
