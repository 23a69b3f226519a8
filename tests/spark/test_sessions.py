"""Formats are found wherever they are registered: in a thread of the user's, and in a second session. They are not
registered where workers lack the package."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from segstore.pipeline.session import SparkMissing, register
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


def test_a_session_whose_workers_lack_the_package_is_told_before_its_first_job(
    spark: SparkSession, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)  # Python imports from the working folder, which may be the checkout
    for program, reason in ((str(bare), "No module named 'segstore'"), ("./none", "there is no such program")):
        monkeypatch.setattr(spark.sparkContext, "pythonExec", program)
        with pytest.raises(SparkMissing, match=rf"{reason}\. Set PYSPARK_PYTHON .* to {sys.executable}$") as caught:
            register(spark)
        assert caught.value.part == "segstore"
