"""The output folder of a report: validated first, written beside its destination, then moved into place. No Spark.

Invariant: a failed report leaves no file, and an existing report stays until the new report is complete. Refused, with
`ReportError`: an existing folder, unless it holds a report and may be replaced; a folder that holds the traces; a
folder that cannot be written.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PAGE: Final = "report.html"

_OF_WRITING: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
"""Errors of writing the report: the traces are only read."""


class ReportError(RuntimeError):
    """The report cannot be written to this folder. Attributes: path; replaceable, whether it holds a report."""

    def __init__(self, path: Path, message: str, *, replaceable: bool = False) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.replaceable = replaceable


@contextmanager
def report_folder(folder: Path, traces: Sequence[str] = (), *, replace: bool = False) -> Iterator[Path]:
    """Yields an empty folder for the report, which is moved to `folder` if the block succeeds.

    traces: files being read, which must not be replaced. Raises ReportError on entry, on exit if `folder` has been
    created meanwhile, and if the block cannot write the report (OSError).
    """
    place = Path(os.path.realpath(folder))
    new = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        with _writing(folder):
            _refuse(folder, traces, replace)
            shutil.rmtree(new, ignore_errors=True)  # of a process with the same id that was killed
            new.mkdir(parents=True)
        try:
            yield new
        except OSError as error:
            if error.errno in _OF_WRITING or str(error.filename).startswith(f"{new}{os.sep}"):
                raise _unwritable(folder, error) from error
            raise
        with _writing(folder):
            _refuse(folder, traces, replace)
            if place.exists():
                shutil.rmtree(place)
            new.rename(place)
    finally:
        shutil.rmtree(new, ignore_errors=True)  # already gone if it was moved


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unwritable(folder, error) from error


def _refuse(folder: Path, traces: Sequence[str], replace: bool) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not (folder / PAGE).is_file():
            raise ReportError(folder, "exists and is not a report")
        if not replace:
            raise ReportError(folder, "already contains a report", replaceable=True)
        place = Path(os.path.realpath(folder))
        for trace in traces:
            if place in Path(os.path.realpath(trace)).parents:
                raise ReportError(folder, f"contains {trace}, which is being read")


def _unwritable(folder: Path, error: OSError) -> ReportError:
    return ReportError(folder, f"cannot be written: {error if error.errno is None else os.strerror(error.errno)}")
