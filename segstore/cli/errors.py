"""What the operating system refuses, in words for the command line: without its number, with the name that it is about.

Invariant: nothing is lost that a person can use; an error that was given a sentence of its own keeps it.
"""

from __future__ import annotations


def said(error: OSError) -> str:
    """One line: "name: No such file or directory", or the sentence alone where no name belongs to it."""
    if error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
