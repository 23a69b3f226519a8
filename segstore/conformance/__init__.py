"""The conformance suite: `python -m segstore.conformance DIR` replays recorded facts against codec and server.

Vectors are what the reference's codec made of bytes and of commands; conversations are dialogues with the reference's
segment store. What a line is, is told by its keys, never by the name of its file.

Invariant: nothing is passed over in silence. A line that cannot be read, a file of a kind that is not known, a folder
with no recorded file, a disagreement: each is printed and makes the exit status 1. Deliberate differences are known by
name (`segstore.conformance.deviations`, docs/deviations.md) and counted apart.
"""

from segstore.conformance.recorded import Kind, Line, Unreadable, kind_of, read_lines, recorded_files
from segstore.conformance.report import Report, Verdict

__all__ = ["Kind", "Line", "Report", "Unreadable", "Verdict", "kind_of", "read_lines", "recorded_files"]
