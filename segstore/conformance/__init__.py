"""The conformance suite: `python -m segstore.conformance DIR` replays recorded facts against codec and server.

Vectors are results of the reference's codec for bytes and commands; conversations are dialogues with the reference's
segment store. The kind of a line follows from its keys, never from its file name.

Invariant: nothing is skipped silently. An unreadable line, a file of an unknown kind, a folder without a recorded file,
a disagreement: each is printed and makes the exit status 1. Deliberate differences have names
(`segstore.conformance.deviations`, docs/project/deviations.md) and are counted separately.
"""

from segstore.conformance.recorded import Kind, Line, Unreadable, kind_of, read_lines, recorded_files
from segstore.conformance.report import Report, Verdict

__all__ = ["Kind", "Line", "Report", "Unreadable", "Verdict", "kind_of", "read_lines", "recorded_files"]
