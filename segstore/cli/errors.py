"""Errors of the operating system as text for the command line: without the number, with the file name.

Invariant: no useful information is lost; an error with a message of its own keeps it.
"""

from __future__ import annotations


def said(error: OSError) -> str:
    """One line: "name: No such file or directory", or the message alone if there is no name."""
    if error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
