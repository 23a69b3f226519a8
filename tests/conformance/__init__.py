"""The conformance suite: `python -m tests.conformance DIR` replays recorded facts against codec and server.

Vectors are results of the reference's codec for bytes and commands; conversations are dialogues with the reference's
segment store. The kind of a line follows from its keys, never from its file name.

Invariant: nothing is skipped silently. An unreadable line, a file of an unknown kind, a folder without a recorded file,
a disagreement: each is printed and makes the exit status 1. Deliberate differences have names
(`tests.conformance.deviations`, docs/project/deviations.md) and are counted separately.
"""

from tests.conformance.recorded import Kind, Line, Unreadable, kind_of, read_lines, recorded_files
from tests.conformance.report import Report, Verdict

__all__ = ["Kind", "Line", "Report", "Unreadable", "Verdict", "kind_of", "read_lines", "recorded_files"]
