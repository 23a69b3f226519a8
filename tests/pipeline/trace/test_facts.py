"""Facts of the records of traces: in order, by key, each once however the connections of a file are divided."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from segstore.pipeline.trace.columns import select
from segstore.pipeline.trace.facts import DAMAGED, FACTS, read_batches, unpacked_facts
from segstore.pipeline.trace.files import FileRange, plan, shared
from segstore.pipeline.trace.options import TraceReaderOptions, read_options
from segstore.pipeline.trace.rows import BadTrace
from segstore.traces import TraceFile
from segstore.wire.history import Finding, Key
from tests.pipeline.support import write_capture
from tests.test_check import FIXTURES


def options_of(path: Path, **options: str) -> TraceReaderOptions:
    return read_options({"path": str(path), "facts": "true", **options})


def facts_of(pieces: list[FileRange], options: TraceReaderOptions) -> list[tuple[Key, Finding | None]]:
    batches = pa.Table.from_batches(read_batches(pieces, options, options.given))
    order = [(name, "ascending") for name in FACTS.names[:-1]]
    return list(unpacked_facts(batches.sort_by(order).to_batches(max_chunksize=1)))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two recordings in one file: the connections of the second one have other numbers."""
    with TraceFile(FIXTURES / "transaction.jsonl") as recorded:
        records = list(recorded.records())
    first_free = max(record.connection for record in records) + 1
    return write_capture(
        tmp_path / "a.wtrace",
        sorted(records + [record._replace(connection=record.connection + first_free) for record in records]),
    )


def test_facts_are_in_order_however_connections_are_shared(trace: Path) -> None:
    options, (whole,) = options_of(trace), plan([str(trace)])
    facts = facts_of([whole], options)
    assert len({key for key, _ in facts}) > 3
    places = [(key, finding.place.order) for key, finding in facts if hasattr(finding, "place")]
    assert len(places) > 50
    assert places == sorted(places)
    for share_bytes, count in ((-(-whole.size // 2), 2), (1, 4)):
        shares = list(shared([whole], share_bytes))
        assert len(shares) == count
        assert facts_of(shares, options) == facts


def test_a_file_with_records_behind_damage_is_named_once(trace: Path) -> None:
    data = bytearray(trace.read_bytes())
    data[len(data) // 2] ^= 1
    trace.write_bytes(data)
    shares = list(shared(plan([str(trace)]), 1))
    facts = facts_of(shares, options_of(trace))
    assert [key for key, _ in facts if key.kind == DAMAGED] == [(DAMAGED, str(trace))]
    with pytest.raises(BadTrace, match=str(trace)):
        facts_of(shares, options_of(trace, mode="failfast"))


def test_the_columns_that_are_wanted_are_given(trace: Path) -> None:
    options = options_of(trace)
    batches = list(read_batches(plan([str(trace)]), options, select(["name", "kind"], options.known)))
    assert {tuple(batch.schema.names) for batch in batches} == {("name", "kind")}
