"""A streaming round trip through `segstore.stream`, as a program of its own: `python -m tests.spark.round_trip MASTER`.

With `standalone` for MASTER it starts a master and two workers on this machine first. Events of one stream are read by
a streaming query and written to another, in several batches with a shuffle between; then both are compared. Prints how
many there were and exits with 0, or says what is wrong and exits with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from segstore.pipeline.session import session
from segstore.testing import ServerThread
from tests.pipeline.stream_support import SCOPE, every_event, scale, write_events
from tests.spark.standalone import Standalone

__all__ = ["main", "round_trip"]


def round_trip(master: str, conf: Mapping[str, str], folder: Path, events: int) -> str:
    """Raises AssertionError."""
    with ServerThread() as servers:
        server = servers.serve(stores=2, containers=4)
        uri = f"tcp://{server.controller_uri}"
        for stream in ("in", "back"):
            server.create_stream(SCOPE, stream)
        numbered = [(b"%d" % number, f"k{number % 9}") for number in range(events)]
        asyncio.run(write_events(uri, numbered[: events // 2], "in"))
        for stream in ("in", "back"):
            asyncio.run(scale(uri, 3, stream))
        asyncio.run(write_events(uri, numbered[events // 2 :], "in"))
        spark = session(master, app="round trip", conf={"spark.sql.shuffle.partitions": "2", **conf}, quick=True)
        try:
            executors = _executors(spark)
            of = {"controller": uri, "scope": SCOPE}
            limit = {"maxEventsPerTrigger": str(events // 3)}
            frame = spark.readStream.format("segstore.stream").options(**of, stream="in", **limit).load()
            keyed = frame.selectExpr("event", "concat('k', cast(cast(event as string) as int) % 9) key")
            writer = keyed.repartition(2).writeStream.format("segstore.stream")
            writer = writer.options(**of, stream="back", routingKeyColumn="key")
            query = writer.option("checkpointLocation", str(folder / "log")).trigger(availableNow=True).start()
            assert query.awaitTermination(240), "the query did not end in time"
            batches = len([each for each in query.recentProgress if each["numInputRows"]])
        finally:
            spark.stop()
        found = Counter(int(event.data) for event in asyncio.run(every_event(uri, "back")))
        lost, doubled = events - len(found), sum(found.values()) - len(found)
        assert (lost, doubled) == (0, 0), f"{lost} lost, {doubled} twice"
    return f"{events} events in {batches} batches, each once; {executors} executors on {master}"


def _executors(spark: object) -> int:
    """How many there are besides the driver, after work has made them start."""
    context = spark.sparkContext  # type: ignore[attr-defined]
    context.parallelize(range(8), 8).count()
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.round_trip", description=__doc__)
    parser.add_argument("master", nargs="?", default="standalone")
    parser.add_argument("--events", type=int, default=3_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, master, conf = Path(name), asked.master, {}
        if master == "standalone":
            cluster = stack.enter_context(Standalone(folder / "cluster"))
            master, conf = cluster.master, cluster.conf
        print(round_trip(master, conf, folder, asked.events))
    return 0


if __name__ == "__main__":
    sys.exit(main())
