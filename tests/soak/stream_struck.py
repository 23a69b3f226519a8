"""The sink of streams, struck: what tasks and commits of `stream_spark` run. Only what they need is imported here."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from segstore.pipeline.stream.options import StreamOptions
from segstore.pipeline.stream.registry import Registry
from segstore.pipeline.stream.segments import Segments
from segstore.pipeline.stream.sink import StreamStreamWriter
from segstore.pipeline.stream.source import StreamSource

__all__ = ["KilledSource", "KilledWriter", "Strike"]


class Strike:
    """Where a run is struck, once; as the sink's tasks and commits are told."""

    def __init__(self, point: str, folder: str, processes: list[int]) -> None:
        self.point = point
        self.folder = folder
        self.processes = processes

    def now(self, point: str) -> bool:
        """Whether this is the point to strike, and it was not struck in this run."""
        if self.point != point:
            return False
        try:
            Path(self.folder, "struck").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def end_driver(self) -> None:
        for process in (*self.processes, os.getpid()):
            os.kill(process, signal.SIGKILL)

    def stop(self) -> None:
        Path(self.folder, "stopped").write_text(f"{os.getpid()}\n")
        os.kill(os.getpid(), signal.SIGSTOP)


class KilledWriter(StreamStreamWriter):
    """The sink, and where it is struck."""

    def __init__(self, options: StreamOptions, schema: StructType, overwrite: bool, strike: Strike) -> None:
        super().__init__(options, schema, overwrite)
        self.strike = strike

    def write(self, iterator: Iterator[Any]) -> Any:
        if self.strike.now("task before its write"):
            os.kill(os.getpid(), signal.SIGKILL)
        done = super().write(iterator)
        if done.result.parts and self.strike.now("task after its write"):
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 — Spark's name
        strike = self.strike
        if not any(message.result.parts for message in messages if message is not None):
            super().commit(messages, batchId)
            return
        if strike.now("driver before the merge"):
            strike.end_driver()
        merge_if, committed = Segments.merge_if, Registry.committed

        async def merged(segments: Segments, *given: Any) -> bool:
            if strike.now("zombie driver"):
                strike.stop()
            return await merge_if(segments, *given)

        async def noted(registry: Registry, *given: Any) -> None:
            if strike.now("driver after the merge"):
                strike.end_driver()
            await committed(registry, *given)

        Segments.merge_if = merged  # type: ignore[method-assign]
        Registry.committed = noted  # type: ignore[method-assign]
        try:
            super().commit(messages, batchId)
        finally:
            Segments.merge_if = merge_if  # type: ignore[method-assign]
            Registry.committed = committed  # type: ignore[method-assign]
        if strike.now("driver before the log"):
            strike.end_driver()


class KilledSource(StreamSource):
    """`segstore.stream` with a sink that is struck; the option `strike` says where."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        given = dict(options)
        self.strike = Strike(**json.loads(given.pop("strike")))
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "segstore.stream.killed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamStreamWriter:  # noqa: N802 — Spark's name
        return KilledWriter(self.read_options, schema, overwrite, self.strike)
