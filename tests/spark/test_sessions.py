"""Formats are found wherever they are registered: in a thread of the user's, and in a second session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from segstore.pipeline.session import register
from segstore.testing import ServerThread
from tests.pipeline.stream_support import SCOPE, every_event
from tests.spark import SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK


@pytest.fixture
def sink() -> Iterator[dict[str, str]]:
    with ServerThread() as servers:
        server = servers.serve(stores=1, containers=2)
        server.create_stream(SCOPE, "out")
        yield {"controller": f"tcp://{server.controller_uri}", "scope": SCOPE, "stream": "out"}


@pytest.mark.parametrize("of", [lambda spark: spark, lambda spark: spark.newSession()], ids=["shared", "second"])
def test_a_thread_that_registers_writes_and_reads(
    spark: SparkSession, sink: dict[str, str], of: Callable[[SparkSession], SparkSession]
) -> None:
    def work() -> int:
        session = of(spark)
        register(session)
        rows = session.range(0, 20, 1, 1).selectExpr("cast(id as string) event")
        rows.write.format("segstore.stream").options(**sink).mode("append").save()
        return session.read.format("segstore.stream").options(**sink).load().count()

    with ThreadPoolExecutor(1) as thread:  # a thread has an active session of its own
        assert thread.submit(work).result() == 20
    found = sorted(int(event.data) for event in asyncio.run(every_event(sink["controller"], "out")))
    assert found == [*range(20)]
