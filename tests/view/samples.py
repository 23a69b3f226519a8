"""Traces of which pages are made, and the page in a browser."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from segstore.traces import TraceFile, write_trace
from segstore.view import write_page
from segstore.wire.trace import Metadata, Record
from tests.browser import Chromium, Page

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
TRACES = (*sorted((FIXTURES / "traces").glob("*.jsonl")), *sorted((FIXTURES / "reference").glob("*.jsonl")))


def records_of(path: Path) -> list[Record]:
    with TraceFile(path) as opened:
        return list(opened.records())


def all_fixtures() -> Iterator[Record]:
    """The records of all fixtures as one trace: each with connections of its own, one after another."""
    connections, start = 0, 10**18
    for path in TRACES:
        found = records_of(path)
        first = min(each.ts_ns for each in found)
        for each in found:
            yield each._replace(ts_ns=start + each.ts_ns - first, connection=connections + each.connection)
        start += max(each.ts_ns for each in found) - first + 1_000_000
        connections += max(each.connection for each in found)


def saved(folder: Path, records: Sequence[Record], name: str = "trace.wtrace") -> Path:
    path = folder / name
    write_trace(path, itertools.chain(records), lambda: Metadata(17, "a test"))
    return path


@contextlib.asynccontextmanager
async def shown(chromium: Chromium, folder: Path, *traces: Path, against: Path | None = None) -> AsyncIterator[Page]:
    """A browser that shows the page of traces; on the way out, nothing may be on its console."""
    page = folder / "page.html"
    write_page(page, traces, against)
    async with chromium.page() as browser:
        await browser.open(page.as_uri())
        await browser.until("performance.getEntriesByName('ready').length || document.querySelector('[role=alert]')")
        assert await browser.get("document.querySelector('[role=alert]')?.textContent ?? ''") == ""
        yield browser
        assert browser.complaints == []


def call(function: str, *arguments: object) -> str:
    """An expression of JavaScript that calls a function with JSON values."""
    return f"({function})({', '.join(map(json.dumps, arguments))})"
