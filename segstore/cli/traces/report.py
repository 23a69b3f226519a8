"""`segstore trace report`: reports about traces, made with DuckDB or Spark; and the Spark session of a command.

Exit status: 0; 1 if something could not be read, with details on standard error; 2 for wrong options.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from segstore.cli.terminal import NewPath, Rereadable, echo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from segstore.pipeline.engine import Engine

log = logging.getLogger(__name__)

_MAX_MESSAGE = 400
"""Maximum number of characters shown of an error of Spark, which may be a page."""
_TRACEBACK = "Traceback (most recent call last):"
_CALLING = "An error occurred while calling "
_MOST_SHOWN = 20
_LOCAL_BYTES = 1024 * 1024 * 1024
"""Bytes of traces up to which a report is made without Spark, unless a master is named."""
_QUICK_BYTES = 128 * 1024 * 1024
"""Bytes of traces up to which Java is started with options for short work."""

MASTER = click.option("--master", metavar="URL", help="Spark master, such as spark://host:7077; without it local[*].")


@contextmanager
def spark_session(master: str | None, files: list[str]) -> Iterator[SparkSession]:
    """A session that ends with the command, with shuffle partitions in proportion to the size of the traces.

    An error in Spark meanwhile, such as a master that dies, is reported in a sentence.
    """
    from segstore.pipeline.session import SparkMissing, session, shuffle_partitions
    from segstore.pipeline.trace.files import sizes_of

    size = sum(sizes_of(files).values())
    master = master or "local[*]"
    running: SparkSession | None = None
    root = logging.getLogger()
    root.addFilter(_not_of_py4j)
    try:
        running = session(master, app="segstore", quick=size < _QUICK_BYTES)
        context = running.sparkContext
        context.setLogLevel("ERROR")
        running.conf.set("spark.sql.shuffle.partitions", str(shuffle_partitions(size, context.defaultParallelism)))
        yield running
    except SparkMissing as error:
        raise click.ClickException(str(error)) from error
    except Exception as error:
        if (problem := spark_failure(error)) is None:
            raise
        log.debug("Spark at %s failed", master, exc_info=error)
        raise click.ClickException(f"Spark at {master} failed: {problem}") from error
    finally:
        if running is not None:
            from py4j.protocol import Py4JError

            with suppress(Py4JError, OSError):  # Java has ended before
                running.stop()
        root.removeFilter(_not_of_py4j)


def _not_of_py4j(record: logging.LogRecord) -> bool:
    """Py4J logs a lost connection to Java, with a traceback, in the root logger, and raises it as well."""
    return record.module != "java_gateway"


def spark_failure(error: Exception) -> str | None:
    """The most informative line of an error of Spark, or of Java beneath it; None for any other error."""
    if "pyspark" not in sys.modules:
        return None
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException | Py4JError | ConnectionError):
        return None
    try:
        text = str(error)
    except (Py4JError, OSError):  # some ask Java for their text, which may be gone
        text = ""
    return _informative_line(text)[:_MAX_MESSAGE] or type(error).__name__


def _informative_line(text: str) -> str:
    """The most informative line: the error of a traceback; otherwise the first line, or the line after the call."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    traced = next((at for at, line in enumerate(lines) if line.endswith(_TRACEBACK)), len(lines))
    raised = next((line for line in lines[traced + 1 :] if not line[0].isspace()), None)
    if raised is not None:
        return raised
    if len(lines) > 1 and lines[0].startswith(_CALLING):
        del lines[0]
    return lines[0].strip(": ") if lines else ""


@contextmanager
def errors_reported() -> Iterator[None]:
    """Reports errors of files and folders in one sentence."""
    from segstore.pipeline.report.folder import ReportError
    from segstore.wire.trace import TraceError

    try:
        yield
    except ReportError as error:
        raise click.ClickException(f"{error}{'; --replace writes over it' if error.replaceable else ''}") from error
    except (TraceError, ValueError) as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def _engine(name: str, master: str | None, files: list[str], folder: Path) -> Iterator[Engine]:
    """Yields the engine of a name, or for `auto` the best for the traces. folder: the folder of the report."""
    from segstore.pipeline.local_engine import LocalEngine, ProcessDied, missing
    from segstore.pipeline.trace.files import sizes_of

    if problem := missing():
        raise click.ClickException(problem)
    import duckdb

    size = sum(sizes_of(files).values())
    try:
        if name == "spark" or (name == "auto" and (master or size > _LOCAL_BYTES)):
            with spark_session(master, files) as spark:
                from segstore.pipeline.spark_engine import SparkEngine

                yield SparkEngine(spark)
        else:
            with LocalEngine(Path(tempfile.mkdtemp(dir=folder)), size) as engine:
                yield engine
    except (duckdb.Error, ProcessDied) as error:
        log.debug("the report failed", exc_info=error)
        raise click.ClickException(str(error).partition("\n")[0][:_MAX_MESSAGE]) from error


@click.command(short_help="Write a report about traces.")
@click.argument("traces", nargs=-1, required=True, metavar="TRACES...", type=Rereadable())
@click.option("-o", "--out", required=True, type=NewPath(path_type=Path), metavar="DIR", help="Folder of the report.")
@click.option("--strict", is_flag=True, help="Stop at the first unreadable data.")
@click.option("--replace", is_flag=True, help="Overwrite a report in DIR.")
@click.option("--parts", type=click.IntRange(1), default=8, show_default=True, help="Maximum number of parts.")
@click.option(
    "--engine",
    "chosen",
    type=click.Choice(["auto", "local", "spark"]),
    default="auto",
    show_default=True,
    help="DuckDB on this machine, or Spark. auto is spark with --master, or for traces of more than 1 GiB.",
)
@MASTER
def report(
    traces: tuple[str, ...], out: Path, strict: bool, replace: bool, parts: int, chosen: str, master: str | None
) -> int:
    """Write a report about traces: DIR/report.html, and the tables behind it as Parquet.

    TRACES are files, folders, globs and URLs of stores.

    Unreadable data is skipped, counted in the report, and reported on standard error; the exit status is then 1.
    """
    from segstore.pipeline.report.folder import PAGE, report_folder
    from segstore.pipeline.trace.files import find_traces

    if chosen == "local" and master is not None:
        raise click.UsageError("--master is for --engine spark")
    # Errors that need no engine are reported before it is started.
    with ExitStack() as stack:
        stack.enter_context(errors_reported())
        files = find_traces(traces)
        folder = stack.enter_context(report_folder(out, files, replace=replace))
        engine = stack.enter_context(_engine(chosen, master, files, folder))
        from segstore.pipeline.report.report import write_report

        facts = write_report(engine, files, folder, strict=strict, parts=parts, progress=partial(echo, err=True))
    lost = facts["skipped"]["rows"]
    for row in lost[:_MOST_SHOWN]:
        where = "" if row["record"] is None else f"record {row['record']}: "
        place = f"{row['file']}: at byte {row['offset']}"
        echo(f"{place}: {row['bytes']} bytes skipped: {where}{row['error']}", err=True)
    if facts["skipped"]["all"] > _MOST_SHOWN:
        echo(f"{facts['skipped']['all'] - _MOST_SHOWN} more are in {out / 'skipped'}", err=True)
    echo(f"made with {facts['engine']}", err=True)
    echo(out / PAGE)
    return 1 if lost else 0
