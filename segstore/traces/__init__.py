"""Trace files: reading and writing them, statistics, and replay against a store."""

from segstore.traces.files import (
    CAPTURE,
    FIXTURE,
    FileRecorder,
    TraceFile,
    TraceRecorder,
    UnknownSuffix,
    redacted,
    write_trace,
)
from segstore.traces.replay import Drive, drive, report
from segstore.traces.stats import duration, lines, statistics
from segstore.traces.stubborn_client import TraceClient, shortened

__all__ = [
    "CAPTURE",
    "FIXTURE",
    "Drive",
    "FileRecorder",
    "TraceClient",
    "TraceFile",
    "TraceRecorder",
    "UnknownSuffix",
    "drive",
    "duration",
    "lines",
    "redacted",
    "report",
    "shortened",
    "statistics",
    "write_trace",
]
