"""The programs of the pages on Spark run one after the other, and print what the pages say."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from segstore.client.stream import frame_event
from segstore.pipeline import session
from segstore.testing import ServerThread
from segstore.wire import AppendBlock
from tests.pipeline.support import write_capture
from tests.spark import SPARK
from tests.wire.trace.traces import record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK

ROOT = Path(__file__).parent.parent.parent
DOCS, FIXTURES = ROOT / "docs" / "how-to", ROOT / "fixtures" / "traces"


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs the programs of a page that have some words with the tests' session, in a folder of the test's own."""
    monkeypatch.setattr(session, "session", lambda: spark)

    def run_programs(page: str, words: str, controller: str = "") -> None:
        names: dict[str, object] = {"spark": spark}
        for program in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL):
            if re.search(words, program):
                here = re.sub(r'"(checkpoints|tables|traces)/', rf'"{tmp_path}/\1/', program)
                exec(here.replace("127.0.0.1:9090", controller), names)

    return run_programs


def test_streams_are_copied_and_written_to_parquet(
    run: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    with ServerThread() as servers:
        server = servers.serve(stores=1, containers=2)
        run("use-streams-on-spark.md", "prepare|readStream", server.controller_uri)
    assert capsys.readouterr().out.splitlines()[-1] == "1000"


def test_events_of_appends_are_a_table(run: Callable[..., None], spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    events = [json.dumps({"table": number % 10, "order": number}).encode() for number in range(20)]
    block = AppendBlock(UUID(int=1), b"".join(map(frame_event, [*events, b"plain text"])))
    write_capture(tmp_path / "traces" / "run.wtrace", [record(block)])
    shutil.copy(FIXTURES / "write.jsonl", tmp_path / "traces")  # its appends have no blocks
    run("analyse-traces-on-spark.md", "from_json")
    rows = spark.read.parquet(str(tmp_path / "tables" / "orders")).collect()
    assert sorted((row.table, row.order) for row in rows if row.order is not None) == sorted(
        (number % 10, number) for number in range(20)
    )
    assert len(rows) == 21 + 14
