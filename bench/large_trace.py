"""Does the analysis keep its speed and its memory on a large trace, on local[2] and on a master with two workers?

    python -m bench.large_trace [--megabytes N] [--quick] [--write-docs]

The trace is a folder of equal files, each a trace of its own (`bench.traffic`): one is made, the others are copies. A
quarter of the files is analysed first, then all of them, by the jobs of `bench.matching`. One plain process analyses
one file after the other; as they are equal, some are timed and the rest is counted as their mean. Memory is the peak of
the largest process of an executor, as the system counts it: its Java, and each of its Python workers; on local[2] Java
is the driver's too. Stages, their shuffle and the kept result are read from Spark's event log.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.harness import FULL, Effort, Figure, Report
from bench.matching import ALONE, ANALYSIS_GOAL, CLUSTER, CONNECTIONS, JOBS, LOCAL, WRITERS
from bench.pages import main
from bench.pictures import Bars
from bench.pipeline import watching
from bench.standalone import cluster, session
from bench.traffic import write_traffic
from segstore.pipeline.session import shuffle_partitions

__all__ = ["MEGABYTES", "STAGES", "make_trace", "run", "stages_of"]

MEGABYTES: Final = 5_000
QUICK_MEGABYTES: Final = 16
FILES: Final = 20
TIMED_FILES: Final = 2
MEMORY_GOAL: Final = 1.2
READING, FOLLOWING, SQL = "reading, shuffle write", "sorting, following", "SQL on the result"
STAGES: Final = (READING, FOLLOWING, SQL)
_ANALYSIS: Final = JOBS[1]


class Stages(NamedTuple):
    """What Spark's event log says: seconds of tasks by kind of stage; bytes that tasks wrote for a shuffle, in all and
    in stages that read the trace; bytes of the largest result that was kept on disk."""

    seconds: dict[str, float]
    shuffled: int
    shuffled_first: int
    kept: int


class Run(NamedTuple):
    """Seconds, and bytes of the largest process of each kind, of a quarter and of the whole."""

    seconds: list[float]
    java: list[int]
    python: list[int]
    stages: Stages


def make_trace(folder: Path, size: int) -> int:
    """Makes `FILES` equal files of about `size` bytes together, and `folder/quarter`; returns the records of one."""
    whole, quarter = folder / "whole", folder / "quarter"
    whole.mkdir()
    quarter.mkdir()
    first = whole / "00.wtrace"
    records = write_traffic(first, size // FILES, writers=WRITERS, connections=CONNECTIONS)
    for number in range(1, FILES):
        shutil.copyfile(first, whole / f"{number:02}.wtrace")
    for path in sorted(whole.iterdir())[: FILES // 4]:
        os.link(path, quarter / path.name)
    return records


def stages_of(log: Path) -> Stages:
    """Reads the event log of a session whose last job group is `whole`."""
    kinds: dict[int, str] = {}
    groups: dict[int, str] = {}
    seconds: Counter[str] = Counter()
    shuffled: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    followed = False
    for event in _events(log):
        match event["Event"]:
            case "SparkListenerStageSubmitted":
                info = event["Stage Info"]
                groups[info["Stage ID"]] = event["Properties"].get("spark.jobGroup.id", "")
                scopes = {json.loads(each.get("Scope", "{}")).get("name", "") for each in info["RDD Info"]}
                kind = SQL
                if any(name.startswith("BatchScan") for name in scopes) and "MapInArrow" not in scopes:
                    kind = READING
                elif groups[info["Stage ID"]] == "whole" and "MapInArrow" in scopes and not followed:
                    kind, followed = FOLLOWING, True
                kinds[info["Stage ID"]] = kind
            case "SparkListenerTaskEnd" if groups.get(event["Stage ID"]) == "whole" and event.get("Task Metrics"):
                metrics = event["Task Metrics"]
                kind = kinds[event["Stage ID"]]
                seconds[kind] += metrics["Executor Run Time"] / 1e3
                shuffled[kind] += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"]
            case "SparkListenerBlockUpdated" if event["Block Updated Info"]["Block ID"].startswith("rdd_"):
                block = event["Block Updated Info"]
                kept[block["Block ID"].rpartition("_")[0]] += block["Disk Size"]
    return Stages(
        {kind: seconds[kind] for kind in STAGES}, shuffled.total(), shuffled[READING], max(kept.values(), default=0)
    )


def _events(log: Path) -> Iterator[dict[str, Any]]:
    (path,) = (each for each in log.rglob("*") if each.is_file())
    with path.open() as file:
        for line in file:
            yield json.loads(line)


def _analysed(master: str, folder: Path, name: str, size: int, quick: bool) -> tuple[Run, list[Any]]:
    log = folder / f"log of {name}"
    log.mkdir()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": log.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.logBlockUpdates.enabled": "true",
        "spark.eventLog.rolling.enabled": "false",
    }
    spark = session(master, quick=quick, conf=conf)
    seconds, java, python, found = [], [], [], []
    try:
        for part, share in (("quarter", 4), ("whole", 1)):  # in this order: processes stay, and so do their peaks
            spark.conf.set("spark.sql.shuffle.partitions", str(shuffle_partitions(size // share, 2)))
            spark.sparkContext.setJobGroup(part, part)
            start = time.perf_counter()
            with watching() as peaks:
                found.append(_ANALYSIS.spark(spark, str(folder / part)))
            seconds.append(time.perf_counter() - start)
            java.append(max((most for (_, kind), most in peaks.items() if kind == "java"), default=0))
            python.append(max((most for (_, kind), most in peaks.items() if kind == "python"), default=0))
    finally:
        spark.stop()
    return Run(seconds, java, python, stages_of(log)), found


def _alone(folder: Path) -> tuple[float, Any]:
    """Seconds for one file in one plain process, and what it found."""
    work = _ANALYSIS.ways[ALONE]
    files = [str(each) for each in sorted((folder / "whole").iterdir())][:TIMED_FILES]
    start = time.perf_counter()
    found = [work(each) for each in files]
    if len(set(found)) > 1:
        raise RuntimeError(f"equal files gave {found}")
    return (time.perf_counter() - start) / len(files), found[0]


def run(effort: Effort, megabytes: int = MEGABYTES) -> Report:
    """Makes a trace and measures."""
    full = effort.scale == FULL.scale
    report = Report(
        "A large trace", question="Does the analysis keep its speed and its memory on a trace ten times as large?"
    )
    with tempfile.TemporaryDirectory(prefix="segstore-large-") as name:
        folder = Path(name)
        records = make_trace(folder, (megabytes if full else min(megabytes, QUICK_MEGABYTES)) * 1_000_000)
        size = sum(each.stat().st_size for each in (folder / "whole").iterdir())
        one, expected = _alone(folder)
        alone = [one * FILES / 4, one * FILES]
        runs: dict[str, Run] = {}
        runs[LOCAL], found = _analysed("local[2]", folder, LOCAL, size, not full)
        _check(found, expected)
        with cluster(folder) as url:
            runs[CLUSTER], found = _analysed(url, folder, CLUSTER, size, not full)
        _check(found, expected)
    _report(report, runs, alone, size, records * FILES, goals=full)
    return report


def _check(found: list[tuple[int, int]], expected: tuple[int, int]) -> None:
    for counts, files in zip(found, (FILES // 4, FILES), strict=True):
        if counts != tuple(each * files for each in expected):
            raise RuntimeError(f"{counts} was found, {files} times {expected} expected")


def _report(report: Report, runs: dict[str, Run], alone: list[float], size: int, records: int, *, goals: bool) -> None:
    rows: list[tuple[str, ...]] = [
        ("¼", f"{size / 4e6:,.0f}", f"{alone[0]:,.1f}"),
        ("all", f"{size / 1e6:,.0f}", f"{alone[1]:,.1f}"),
    ]
    for way, each in runs.items():
        ratio = each.seconds[1] / alone[1]
        memory = each.python[1] / each.python[0]
        if goals:
            report.figures.append(Figure(f"the analysis, {way}, of one process: time", ratio, ANALYSIS_GOAL, True))
        report.figures.append(Figure(f"a Python worker's memory, {way}, all of a quarter", memory, MEMORY_GOAL, True))
        for at, row in enumerate(rows):
            rows[at] = (*row, f"{each.seconds[at] / alone[at]:.2f}", _mb(each.java[at]), _mb(each.python[at]))
    heading = ["files", "MB", "one process, s"]
    for way in runs:
        heading += [f"{way}, × that", "Java, MB", "a Python worker, MB"]
    report.tables.append((heading, rows))
    shares = {
        way: [100 * each.stages.seconds[kind] / sum(each.stages.seconds.values()) for kind in STAGES]
        for way, each in runs.items()
    }
    report.pictures.append(
        Bars("large-trace", "The analysis of a large trace: time of tasks", "", "%", shares, groups=STAGES, decimals=0)
    )
    stages = runs[LOCAL].stages
    ratios = (f"{way} takes {each.seconds[1] / alone[1]:.2f} of the time of one process" for way, each in runs.items())
    report.says = (
        f"For {size / 1e9:,.1f} GB, {'; '.join(ratios)}. "
        f"{stages.shuffled / records:,.0f} bytes are shuffled per record, "
        f"{stages.shuffled_first / records:,.0f} of them to bring connections together; the result keeps "
        f"{stages.kept / records:,.0f} bytes per record on disk."
    )
    timed = f"{TIMED_FILES} were timed in one process, whose time for all is their mean times their number"
    report.notes += [
        f"{records:,} records in {FILES} equal files, of which {timed}",
        "each once; sessions are warm from the quarter when all files are analysed",
    ]


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f}"


if __name__ == "__main__":
    sys.exit(main("large_trace", run, megabytes=MEGABYTES))
