"""The stream sink's promise against SIGKILL: tasks and drivers are processes, and they are killed where it hurts most.

A seed draws a stream, batches, tasks and rows, with keys or without; each of `POINTS` strikes one of its batches: the
process that is there is ended by SIGKILL, or stopped and woken later (the zombie), or hears no reply. Then the batch is
repeated, as Spark repeats it, by a process that knows nothing of the former one; between the two the stream may be
scaled. In the end the stream is read: every row once, those of a key in the order of their tasks and rows, nothing of a
task left in the store; and the recorded traffic breaks no rule.

What is played here is Spark's part: a batch is committed when a file says so (its log), tasks are run again, the driver
is run again. With Spark itself, and its own log: `python -m tests.soak.stream_spark`. The bounded version is
tests/soak/test_stream_sink.py, the long one `python -m tests.soak.stream_sink`.

Processes are forked from one that has imported what they need and talked to nobody (`--nursery`), which takes a
hundredth of the time of a new interpreter.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from segstore.pipeline.stream.commit import BatchCommitter
from segstore.pipeline.stream.registry import registry_name
from segstore.pipeline.stream.segments import Segments, opened
from segstore.pipeline.stream.write import TaskResult, write_rows
from segstore.testing import RunningServer, ServerThread
from tests.pipeline.stream_support import SCOPE, every_event, make_stream, options, rows, scale
from tests.soak.judged_runs import alarms_in

__all__ = ["POINTS", "Nursery", "Outcome", "run_seed"]

POINTS: Final = (
    "task before its write",
    "task after its write",
    "driver before the merge",
    "driver between two merges",
    "driver after the merge",
    "driver before the log",
    "lost reply",
    "zombie driver",
)
ROOT: Final = Path(__file__).parent.parent.parent
Row = tuple[str, str | None]


# --- in the processes that are killed -------------------------------------------------------------------------------


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


async def _task(job: dict[str, Any]) -> TaskResult:
    if job["point"] == "task before its write":
        create = Segments.create

        async def created(self: Segments, segment: str) -> None:
            await create(self, segment)
            _die()

        Segments.create = created  # type: ignore[method-assign]
    events = [event.encode() for event, _ in job["rows"]]
    keys = [key for _, key in job["rows"]] if job["keyed"] else None
    async with opened(options(job["uri"], stream=job["stream"]), "WRITE") as segments:
        done = await write_rows(segments, UUID(job["query"]), job["batch"], job["partition"], rows(events, keys))
    if job["point"] == "task after its write":
        _die()
    return done


async def _driver(job: dict[str, Any], said: list[bytes]) -> None:
    merge_if, merges, point = Segments.merge_if, [], job["point"]

    async def merged(self: Segments, *given: Any) -> bool:
        merges.append(given)
        if point == "driver before the merge" or (point == "driver between two merges" and len(merges) > 1):
            _die()
        if point == "zombie driver":
            _stop()
        done = await merge_if(self, *given)
        if point == "driver after the merge":
            _die()
        return done

    Segments.merge_if = merged  # type: ignore[method-assign]
    given = options(job["uri"], stream=job["stream"])
    async with opened(given, "WRITE") as segments:
        results = [pickle.loads(each) for each in said]
        await BatchCommitter(segments, given, UUID(job["query"]), job["batch"]).commit(results)
    if point == "driver before the log":
        _die()


def nursery() -> None:
    """Forks a process for each line of stdin, {"task": …} or {"driver": …}; answers with its id or how it ended."""
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            _, status = os.waitpid(asked["wait"], 0 if asked["ended"] else os.WUNTRACED)
            print(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else status, flush=True)
            continue
        child = os.fork()
        if child:
            print(child, flush=True)
            continue
        code = 1
        try:
            if "task" in asked:
                done = pickle.dumps(asyncio.run(_task(asked["task"])))
                Path(asked["task"]["result"]).write_bytes(done)
            else:
                said = [Path(each).read_bytes() for each in asked["driver"]["results"]]
                asyncio.run(_driver(asked["driver"], said))
            code = 0
        except BaseException as error:  # noqa: BLE001 — said, and the exit status tells it as well
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)


# --- who plays Spark ------------------------------------------------------------------------------------------------


class Nursery:
    """The process that forks the others. Use with `with`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.stream_sink", "--nursery"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, **job: dict[str, Any]) -> int:
        return self._ask(job)

    def wait(self, process: int, *, ended: bool = True) -> int:
        """Its exit status, or the negative number of the signal that ended it; not `ended`: or stopped it."""
        return self._ask({"wait": process, "ended": ended})

    def _ask(self, what: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


class Outcome:
    """What a seed did and what came of it: `wrong`, keys with other rows, and `left`, segments of tasks, are empty."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.did: Counter[str] = Counter()
        self.rows = 0
        self.wrong: list[str | None] = []
        self.left: list[str] = []

    def compare(self, batches: Sequence[Sequence[Sequence[Row]]], found: Sequence[str]) -> None:
        """found: the events of the stream, in order: those of a key are the key's rows, in order."""
        rows = dict(row for tasks in batches for task in tasks for row in task)
        self.rows = len(rows)
        expected, read = by_key(rows.items()), by_key((event, rows.get(event)) for event in found)
        self.wrong = [key for key in expected | read if expected.get(key) != read.get(key)]


def by_key(rows: Iterable[Row]) -> dict[str | None, list[str]]:
    """Returns the events of each key; rows without a key have no order."""
    events: dict[str | None, list[str]] = {}
    for event, key in rows:
        events.setdefault(key, []).append(event)
    return {key: sorted(some) if key is None else some for key, some in events.items()}


class _Query:
    """One seed: its stream, its batches, and the processes that write them."""

    def __init__(self, server: RunningServer, nursery: Nursery, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.outcome = Outcome(seed)
        self.server = server
        self.uri = f"tcp://{server.controller_uri}"
        self.stream = f"sink{seed}"
        self.query = str(UUID(int=self.chance.getrandbits(128), version=4))
        self.keyed = self.chance.random() < 0.75
        self._nursery = nursery
        self._folder = folder
        self._files = 0

    def draw(self, batch: int) -> list[list[Row]]:
        """The rows of each task."""
        keys = [f"k{number}" for number in range(self.chance.randint(1, 12))]
        tasks = []
        for task in range(self.chance.randint(1, 3)):
            filler = "x" * self.chance.choice([0, 10, 3_000])
            count = self.chance.randint(0 if task else 1, 40)
            tasks.append(
                [
                    (f"{batch}/{task}/{row}/{filler}", self.chance.choice(keys) if self.keyed else None)
                    for row in range(count)
                ]
            )
        return tasks

    def maybe_scaled(self) -> None:
        if self.chance.random() < 0.35:
            self.outcome.did["scaled"] += 1
            asyncio.run(scale(self.uri, self.chance.randint(1, 4), self.stream))

    def _job(self, batch: int, point: str) -> dict[str, Any]:
        return {
            "uri": self.uri, "stream": self.stream, "query": self.query, "batch": batch, "point": point,
            "keyed": self.keyed,
        }  # fmt: skip

    def tasks(self, batch: int, drawn: list[list[Row]], point: str) -> list[str]:
        """Runs them, again where one was killed; the files with what they say."""
        results = []
        for partition, of_task in enumerate(drawn):
            strikes = point if partition == len(drawn) // 2 and of_task else ""
            while True:
                self._files += 1
                result = str(self._folder / f"{self.stream}-{self._files}")
                job = self._job(batch, strikes) | {"partition": partition, "rows": of_task, "result": result}
                status = self._nursery.wait(self._nursery.start(task=job))
                if strikes.startswith("task"):
                    assert status == -signal.SIGKILL, f"{strikes}: {status}"
                    self.outcome.did[strikes] += 1
                    strikes = ""
                    continue
                assert status == 0, f"a task of batch {batch} ended with {status}"
                results.append(result)
                break
        return results

    def driver(self, batch: int, results: list[str], point: str = "") -> int:
        return self._nursery.start(driver=self._job(batch, point) | {"results": results})

    def batch(self, batch: int, point: str) -> list[list[Row]]:
        """One batch, struck at a point and repeated until its driver ends well."""
        drawn = self.draw(batch)
        results = self.tasks(batch, drawn, point)
        self.maybe_scaled()
        zombie = None
        if point == "lost reply":
            self.server.faults.add("type = MERGE_SEGMENTS", do="close after", times=self.chance.randint(1, 3))
        elif point == "zombie driver":
            zombie = self.driver(batch, results, point)
            assert self._nursery.wait(zombie, ended=False) > 0
        elif point.startswith("driver"):
            status = self._nursery.wait(self.driver(batch, results, point))
            # Where there was one target only, there is nothing between two.
            assert status in (-signal.SIGKILL, 0), f"{point}: {status}"
            self.outcome.did[point if status else f"{point}: not reached"] += 1
        if point.startswith(("driver", "zombie")):
            self.maybe_scaled()
            results = self.tasks(batch, drawn, "")
            self.maybe_scaled()
        assert self._nursery.wait(self.driver(batch, results)) == 0, f"batch {batch} was not committed, {point}"
        if zombie is not None:
            self.maybe_scaled()
            os.kill(zombie, signal.SIGCONT)
            self._nursery.wait(zombie)  # it may find that its batch was swept, and fail
        if point in ("lost reply", "zombie driver"):
            self.outcome.did[point] += 1
            self.server.faults.clear()
        return drawn

    def finish(self, batches: list[list[list[Row]]]) -> Outcome:
        keep = registry_name(SCOPE, self.stream)
        prefix = f"{SCOPE}/{self.stream}/"
        # What a zombie has left goes with the next commit: an empty stream's worth of one more batch.
        batches.append(self.batch(len(batches), ""))
        segments = (name for name in self.server.segments() if name.startswith(prefix) and name != keep)
        self.outcome.left = [name for name in segments if "#transaction." in name]
        found = asyncio.run(every_event(self.uri, self.stream))
        self.outcome.compare(batches, [event.data.decode() for event in found])
        return self.outcome


def run_seed(server: RunningServer, nursery: Nursery, seed: int, folder: Path) -> Outcome:
    """One query with a batch for each of the points, in an order of the seed's."""
    work = _Query(server, nursery, seed, folder)
    asyncio.run(make_stream(work.uri, 1, work.stream))
    asyncio.run(scale(work.uri, work.chance.randint(1, 3), work.stream))
    batches = []
    for number, point in enumerate(work.chance.sample(POINTS, len(POINTS))):
        batches.append(work.batch(number, point))
        work.maybe_scaled()
    return work.finish(batches)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.stream_sink", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--nursery", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.nursery:
        nursery()
        return 0
    wrong, total, count, start = 0, Counter[str](), 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "run.wtrace")
        with ServerThread() as servers, Nursery() as processes:
            server = servers.serve(stores=2, containers=4, record=trace)
            for seed in range(asked.seed, asked.seed + asked.seeds):
                done = run_seed(server, processes, seed, Path(folder))
                total += done.did
                count += done.rows
                if done.wrong or done.left:
                    wrong += 1
                    print(
                        f"seed {seed}: wrong keys: {done.wrong}, segments left: {done.left}; "
                        f"again with: python -m tests.soak.stream_sink --seed {seed} --seeds 1",
                        file=sys.stderr,
                    )
        alarms = alarms_in(trace)
    for alarm in alarms:
        print(alarm, file=sys.stderr)
    did = ", ".join(f"{number} × {what}" for what, number in sorted(total.items()))
    print(f"{count:,} rows over {asked.seeds} seeds in {time.monotonic() - start:.0f} s, {wrong} seeds wrong; {did}")
    return int(bool(wrong or alarms))


if __name__ == "__main__":
    sys.exit(main())
