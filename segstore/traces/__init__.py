"""Trace files: reading and writing them, statistics, and replay against a store."""

from segstore.traces.calls import Access
from segstore.traces.companions import Companions
from segstore.traces.files import (
    CAPTURE,
    FIXTURE,
    FileRecorder,
    TraceFile,
    UnknownSuffix,
    UnreadableTrace,
    check_suffix,
    is_trace,
    make_folder,
    redacted,
    replacing,
    write_trace,
)
from segstore.traces.judging import followed, judged, reads_verdicts
from segstore.traces.recording import STANDARD_OUTPUT, Recording, capture_for, finish
from segstore.traces.replay import Drive, diff_stores, drive
from segstore.traces.reply_difference import ReplyDifference, report
from segstore.traces.stats import duration, lines, statistics
from segstore.traces.stubborn_client import TraceClient, shortened

__all__ = [
    "CAPTURE",
    "FIXTURE",
    "STANDARD_OUTPUT",
    "Access",
    "Companions",
    "Drive",
    "FileRecorder",
    "Recording",
    "ReplyDifference",
    "TraceClient",
    "TraceFile",
    "UnknownSuffix",
    "UnreadableTrace",
    "capture_for",
    "check_suffix",
    "diff_stores",
    "drive",
    "duration",
    "finish",
    "followed",
    "is_trace",
    "judged",
    "lines",
    "make_folder",
    "reads_verdicts",
    "redacted",
    "replacing",
    "report",
    "shortened",
    "statistics",
    "write_trace",
]
