"""Runs the analyses on this machine: DuckDB runs statements, and processes read traces and follow connections.

A table is the text of a SELECT over Parquet files, so it is computed where it is used, in this process or another
process. Python's rows, from traces or steps, go to Parquet files in the engine's folder, batch by batch.

Invariant: memory does not grow with the size of a trace, except for the memory of its steps: above its limit, DuckDB
spills into the engine's folder. No process outlives the engine.
"""

from __future__ import annotations

import glob
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from segstore.pipeline.trace.files import FileRange, sizes_of
from segstore.pipeline.trace.options import TraceReaderOptions, read_options
from segstore.wire.extras import pip_command

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    import duckdb
    import pyarrow as pa

    from segstore.pipeline.engine import Step, Table

_PROCESS_BYTES: Final = 8 << 20
"""Bytes of traces that are worth starting a process."""
_MEMORY: Final = "1GB"
"""DuckDB's limit, in each process."""
_ROWS_AT_ONCE: Final = 8192
_PACKED_AT_ONCE: Final = 64
"""Rows whose last column is bytes; a value may hold many rows of another table."""


class ProcessDied(RuntimeError):
    """A process of the engine ended unexpectedly."""


def missing() -> str:
    """Returns why reports cannot be made here; "" if they can."""
    if all(find_spec(name) for name in ("duckdb", "plotly", "pyarrow")):
        return ""
    return f"a report needs DuckDB, PyArrow and Plotly: {pip_command('report')}"


@dataclass(frozen=True)
class LocalTable:
    """A table of a `LocalEngine`. folder: its Parquet files, if the table is their contents."""

    engine: LocalEngine
    sql: str
    folder: Path | None = None

    @property
    def columns(self) -> list[str]:
        return self.engine.columns(self)


class LocalEngine:
    """The `Engine` of this machine. A context manager.

    folder: for its files, which are removed at the end. trace_bytes: of the traces, for the number of processes.
    """

    def __init__(self, folder: Path, trace_bytes: int) -> None:
        processes = max(1, min(_cores(), trace_bytes // _PROCESS_BYTES))
        self._folder = folder
        self._numbers = itertools.count()
        self._database = _connect(folder, _cores())
        self._watched, self._alive = multiprocessing.Pipe(duplex=False)
        self._processes = processes
        self._pool = None
        if processes > 1:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(processes, context, _start, (self._watched,))

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self._alive.close()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._watched.close()
        self._database.close()
        shutil.rmtree(self._folder)

    @property
    def about(self) -> str:
        import duckdb

        return f"DuckDB {duckdb.__version__}, {self._processes} process{'es' * (self._processes > 1)}"

    def read(self, files: Sequence[str], columns: Sequence[str], **options: str) -> LocalTable:
        read_as = read_options({"paths": json.dumps(files), "columns": ",".join(columns), **options})
        size = sum(sizes_of(files, read_as.storage).values())
        pieces = read_as.pieces(files, max(1, -(-size // self._processes)))
        pieces.sort(key=lambda piece: -piece.size)
        out = self._new_folder()
        dealt = [(pieces[number :: self._processes], read_as, _part(out, number)) for number in range(self._processes)]
        self._each(_read, dealt)
        return _of_files(self, out)

    def statement(self, text: str, **tables: LocalTable) -> LocalTable:
        here = text.replace(" DIV ", " // ").replace("DECIMAL(38, 0)", "HUGEINT").replace("`", '"')
        return LocalTable(self, here.format(**{name: f"({table.sql})" for name, table in tables.items()}))

    def mapped(
        self, table: LocalTable, step: Step, schema: pa.Schema, by: Sequence[str] = (), order: Sequence[str] = ()
    ) -> LocalTable:
        out = self._new_folder()
        ordered = f" ORDER BY {', '.join(order)}" if order else ""
        if not by:
            _map(f"{table.sql}{ordered}", step, schema, _part(out, 0), self._folder)
            return _of_files(self, out)
        parts = [
            f"SELECT * FROM ({table.sql}) WHERE hash({', '.join(by)}) % {self._processes} = {number}{ordered}"
            for number in range(self._processes)
        ]
        dealt = [(part, step, schema, _part(out, number), self._folder) for number, part in enumerate(parts)]
        self._each(_map, dealt)
        return _of_files(self, out)

    def held(self, table: LocalTable) -> LocalTable:
        return table if table.folder is not None else self.kept(table, self._folder / f"{next(self._numbers)}")

    def release(self, table: LocalTable) -> None:
        assert table.folder is not None
        shutil.rmtree(table.folder)

    def kept(self, table: LocalTable, folder: Path, order: Sequence[str] = ()) -> LocalTable:
        if table.folder is not None and not order:
            table.folder.rename(folder)
            return _of_files(self, folder)
        folder.mkdir()
        by = ", ".join(f'"{name}" {way} NULLS LAST' for name, _, way in (column.partition(" ") for column in order))
        ordered = f" ORDER BY {by}" if by else ""
        with self._database.cursor() as cursor:
            rows = cursor.sql(table.sql)
            wide = [name for name, type_ in zip(rows.columns, rows.types, strict=True) if type_ == "HUGEINT"]
            # A sum of BIGINT is a HUGEINT, in Spark a BIGINT.
            casts = ", ".join(f'CAST("{name}" AS BIGINT) AS "{name}"' for name in wide)
            chosen = f"SELECT * {f'REPLACE ({casts}) ' if casts else ''}FROM ({table.sql}){ordered}"
            cursor.execute(f"COPY ({chosen}) TO {_text(_part(folder, 0))} (FORMAT parquet, COMPRESSION zstd)")
        return _of_files(self, folder)

    def taken(self, table: Table) -> LocalTable:
        if isinstance(table, LocalTable):
            return table
        from segstore.pipeline.engine import engine_of

        folder = self._folder / f"{next(self._numbers)}"
        engine_of(table).kept(table, folder)
        return _of_files(self, folder)

    def rows(self, table: LocalTable) -> Iterator[tuple[Any, ...]]:
        with self._database.cursor() as cursor:
            cursor.execute(table.sql)
            while some := cursor.fetchmany(_ROWS_AT_ONCE):
                yield from some

    def columns(self, table: LocalTable) -> list[str]:
        with self._database.cursor() as cursor:
            return list(cursor.sql(table.sql).columns)

    def _new_folder(self) -> Path:
        folder = self._folder / f"{next(self._numbers)}"
        folder.mkdir()
        return folder

    def _each(self, work: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> None:
        """Runs `work` for each item of `arguments` in a process of its own."""
        try:
            if self._pool is None:
                (only,) = arguments
                work(*only)
                return
            futures = [self._pool.submit(work, *task) for task in arguments]
            # Python's (3.11) executor watches the process that a call has started from the next call on.
            self._pool.submit(int)
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in (*done, *futures):
                future.result()
        except BrokenProcessPool as error:
            raise ProcessDied(
                "a process of the report was ended from outside, perhaps for lack of memory: use --engine spark"
            ) from error


def _of_files(engine: LocalEngine, folder: Path) -> LocalTable:
    return LocalTable(
        engine, f"SELECT * FROM read_parquet({_text(Path(glob.escape(str(folder))) / '*.parquet')})", folder
    )


def _text(path: Path) -> str:
    return "'{}'".format(str(path).replace("'", "''"))


def _part(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05}.zstd.parquet"


def _connect(folder: Path, threads: int) -> duckdb.DuckDBPyConnection:
    import duckdb

    return duckdb.connect(
        config={
            "threads": threads,
            "memory_limit": _MEMORY,
            "temp_directory": tempfile.mkdtemp(prefix="spilt-", dir=folder),
            "default_null_order": "nulls_first_on_asc_last_on_desc",  # as in Spark
        }
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- in the processes -------------------------------------------------------------------------------------------------


def _start(alive: Connection) -> None:
    """Prepares a process. Only the engine's own process decides what an interrupt from the terminal does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_engine, args=(alive,), daemon=True).start()


def _end_with_engine(alive: Connection) -> None:
    """Ends this process when the engine is closed, or its process has died."""
    with suppress(EOFError):
        alive.recv()
    os._exit(1)


def _read(pieces: list[FileRange], options: TraceReaderOptions, out: Path) -> None:
    from pyarrow.parquet import ParquetWriter

    from segstore.pipeline.trace.batches import arrow_schema
    from segstore.pipeline.trace.facts import read_batches

    with ParquetWriter(out, arrow_schema(options.given), compression="zstd") as into:
        for batch in read_batches(pieces, options, options.given):
            into.write_batch(batch)


def _map(sql: str, step: Step, schema: pa.Schema, out: Path, folder: Path) -> None:
    from pyarrow.parquet import ParquetWriter

    with _connect(folder, 1) as database, ParquetWriter(out, schema, compression="zstd") as into:
        rows = database.sql(sql)
        at_once = _PACKED_AT_ONCE if rows.types[-1] == "BLOB" else _ROWS_AT_ONCE
        for batch in step(rows.to_arrow_reader(at_once)):
            into.write_batch(batch)
