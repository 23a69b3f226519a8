"""Are traces read and analysed faster on Spark than in one process, and by column than one record at a time?

The trace is made up by `write_traffic`: rounds of appends of many writers, with reads, set-ups and keep-alives between.
Nothing in it is random but what `seed` decides: the same arguments make the same file. Decoding in one process is
compared by CPU time; Spark, in local[2], is compared by the clock, warm, with the analysis of the whole trace (each
exchange), and with its judgement by all rules. All ways must find the same.
"""

from __future__ import annotations

import random
import tempfile
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.harness import Effort, Report, Times, take_turns
from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    Command,
    DataAppended,
    Hello,
    KeepAlive,
    ReadSegment,
    SegmentRead,
    SetupAppend,
    encode,
)
from segstore.wire.request_id import pack
from segstore.wire.trace import Direction, Metadata, Record, RecordKind, RecordWriter, event_data, make_mark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["run", "write_traffic"]

MEGABYTES: Final = 512
QUICK_MEGABYTES: Final = 9
DECODED_MEGABYTES: Final = 64
ROUNDS: Final = 3
START_NS: Final = 1_760_000_000_000_000_000
TOKEN: Final = "eyJhbGciOiJIUzUxMiJ9." + "c2VnbWVudHN0b3Jl" * 6 + ".c2ln"

PLAIN, BY_COLUMN, JUDGED, SPARK = "one by one", "by column", "and judging", "Spark, local[2]"


def run(effort: Effort) -> Report:
    from segstore.pipeline.session import session

    report = Report("Traces as rows")
    megabytes = MEGABYTES if effort.is_full else QUICK_MEGABYTES
    with tempfile.TemporaryDirectory(prefix="segstore-bench-") as folder:
        part, trace = str(Path(folder, "part.wtrace")), str(Path(folder, "trace.wtrace"))
        part_count = write_traffic(Path(part), min(megabytes, DECODED_MEGABYTES) * 1_000_000)
        decoded = _decoding(part, effort)
        name = "decoding by column, of decoding by row, in one process"
        report.add(name, decoded.ratio(PLAIN, BY_COLUMN), 5, at_most=False)
        name = "judging by all rules: time, of decoding one by one"
        report.add(name, decoded.ratio(JUDGED, PLAIN), 2, at_most=True)
        count = write_traffic(Path(trace), megabytes * 1_000_000, writers=200, connections=40)
        spark = session("local[2]", app="bench", conf={"spark.log.level": "ERROR", "spark.driver.memory": "2g"})
        try:
            rounds = ROUNDS if effort.is_full else 1
            analysed, judged = _analysis(spark, trace, rounds), _judging(spark, trace, rounds)
        finally:
            spark.stop()
    rows = [
        (f"decoding {way}", f"{part_count / decoded.median(way):,.0f}", "CPU") for way in (PLAIN, BY_COLUMN, JUDGED)
    ]
    rows += [(f"analysis, {way}", f"{count / analysed.median(way):,.0f}", "clock") for way in (PLAIN, SPARK)]
    ratio = analysed.ratio(SPARK, PLAIN)
    report.add(f"analysis of {megabytes} MB: time on Spark in local[2], of one process", ratio, 0.6, at_most=True)
    ratio = judged.ratio(SPARK, PLAIN)
    report.add(f"judging {megabytes} MB: time on Spark in local[2], of `segstore check`", ratio, 1, at_most=True)
    report.tables.append((("way", "records/s", "time"), rows))
    report.notes.append("Spark's own start (seconds) is not in these times: a job has to be longer than the start")
    return report


def _decoding(trace: str, effort: Effort) -> Times:
    from segstore.check import records_of
    from segstore.pipeline.trace.batches import BatchMaker
    from segstore.pipeline.trace.columns import select
    from segstore.pipeline.trace.files import plan
    from segstore.pipeline.trace.reading import read_piece
    from segstore.pipeline.trace.rows import RowMaker
    from segstore.wire.history import judge

    pieces = plan([trace])

    def plain() -> None:
        maker = RowMaker(select())
        _drain(row for piece in pieces for found in read_piece(piece) for row in maker.rows(found))

    def by_column() -> None:
        maker = BatchMaker(RowMaker(select()))
        _drain(batch for piece in pieces for found in read_piece(piece) for batch in maker.batches(found))

    def judged() -> None:
        if broken := judge(records_of([trace], [], set())).broken:
            raise RuntimeError(broken[0].text)

    clock = time.process_time
    by_column()
    work: dict[str, Callable[[], object]] = {PLAIN: plain, BY_COLUMN: by_column, JUDGED: judged}
    contenders = {name: partial(_timed, run, clock) for name, run in work.items()}
    return take_turns(contenders, max(2, effort.rounds // 2))


def _analysis(spark: SparkSession, trace: str, rounds: int) -> Times:
    from segstore.pipeline.report.analysis import analyse_traces
    from segstore.pipeline.report.reference import reference
    from segstore.pipeline.spark_engine import SparkEngine

    def alone() -> int:
        return len(reference(trace).exchanges)

    def on_spark() -> int:
        with analyse_traces(SparkEngine(spark), [trace]) as analysed:
            return _counted(analysed.exchanges)

    return _compared(alone, on_spark, rounds)


def _judging(spark: SparkSession, trace: str, rounds: int) -> Times:
    from segstore.check import check
    from segstore.pipeline.check import verdicts
    from segstore.pipeline.spark_engine import SparkEngine

    def alone() -> Counter[object]:
        found = check([trace]).verdicts
        return found.unknown + Counter((broken.rule, broken.text) for broken in found.broken)

    def on_spark() -> Counter[object]:
        found: Counter[object] = Counter()
        for row in verdicts(SparkEngine(spark), [trace]).collect():
            found[row.rule, row.text] += row.unknown or 1
        return found

    return _compared(alone, on_spark, rounds)


def _compared(alone: Callable[[], object], on_spark: Callable[[], object], rounds: int) -> Times:
    expected = on_spark()  # warms up

    def timed(work: Callable[[], object]) -> float:
        start = time.perf_counter()
        if (found := work()) != expected:
            raise RuntimeError(f"{found} found, {expected} expected")
        return time.perf_counter() - start

    return take_turns({PLAIN: partial(timed, alone), SPARK: partial(timed, on_spark)}, rounds)


def _counted(table: DataFrame) -> int:
    """Makes all of a table and throws it away; `count` would leave out the columns that it does not need."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    seen = Observation()
    table.observe(seen, f.count(f.lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    return int(seen.get["rows"])


def _drain(items: Iterator[object]) -> None:
    deque(items, maxlen=0)


def _timed(work: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    work()
    return clock() - start


# --- the trace ----------------------------------------------------------------------------------------------------


def write_traffic(
    path: Path, size: int, *, seed: int = 1, writers: int = 64, payload: int = 300, connections: int = 8
) -> int:
    """Writes a capture of about `size` bytes; how many records it has."""
    writer = RecordWriter(make_mark(seed.to_bytes(8, "big")), Metadata(17, "bench", {}))
    count = written = 0
    with path.open("wb") as file:
        written += file.write(writer.start())
        for record in records(seed=seed, writers=writers, payload=payload, connections=connections):
            count += 1
            block = writer.add(record)
            if block:
                written += file.write(block)
                if written >= size:
                    break
        file.write(writer.take())
    return count


def records(*, seed: int = 1, writers: int = 64, payload: int = 300, connections: int = 8) -> Iterator[Record]:
    """Records without end."""
    chance = random.Random(seed)
    ids = [uuid.UUID(int=chance.getrandbits(128)) for _ in range(writers)]
    segments = [f"examples/orders/{number}.#epoch.0" for number in range(writers)]
    data = chance.randbytes(payload + 64)
    now = START_NS

    def record(connection: int, reply: bool, command: Command) -> Record:
        nonlocal now
        now += chance.randrange(1_000, 30_000)
        return Record(now, connection, Direction(int(reply)), RecordKind.FRAME, encode(command))

    for connection in range(1, connections + 1):
        yield Record(now, connection, Direction.REQUEST, RecordKind.OPEN, event_data(peer=f"127.0.0.1:{connection}"))
        yield record(connection, False, Hello(17, 5))
        yield record(connection, True, Hello(17, 5))
    for flow in range(writers):
        connection = flow % connections + 1
        first = pack(flow + 1, 0)
        yield record(connection, False, SetupAppend(first, ids[flow], segments[flow], TOKEN))
        yield record(connection, True, AppendSetup(first, segments[flow], ids[flow], -(1 << 63)))
    events, offsets, turn = [0] * writers, [0] * writers, 0
    while True:
        turn += 1
        for flow in range(writers):
            connection = flow % connections + 1
            size = chance.randrange(payload // 2, payload)
            before, events[flow] = events[flow] or -1, events[flow] + chance.randrange(1, 5)
            offsets[flow] += size
            request = pack(flow + 1, turn % (1 << 31))
            yield record(connection, False, AppendBlock(ids[flow], data[:size]))
            yield record(
                connection, False, AppendBlockEnd(ids[flow], size, b"", events[flow] - before, events[flow], request)
            )
            yield record(connection, True, DataAppended(request, ids[flow], events[flow], before, offsets[flow]))
            if flow % 8 == turn % 8:
                request = pack(writers + flow + 1, turn % (1 << 31))
                offset = offsets[flow] - size
                yield record(connection, False, ReadSegment(segments[flow], offset, 1 << 20, "", request))
                yield record(connection, True, SegmentRead(segments[flow], offset, True, False, data[:size], request))
        if turn % 100 == 0:
            yield record(turn // 100 % connections + 1, False, KeepAlive())
