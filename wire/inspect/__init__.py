"""Commands in forms for people and programs: text, JSON lines, and frames in hex or base64."""

from segstore.wire.inspect.describe import describe, lines, summary
from segstore.wire.inspect.jsonl import command_named, from_line, to_line
from segstore.wire.inspect.reading import Form, Piece, Unreadable, pieces, recognise, to_text

__all__ = [
    "Form",
    "Piece",
    "Unreadable",
    "command_named",
    "describe",
    "from_line",
    "lines",
    "pieces",
    "recognise",
    "summary",
    "to_line",
    "to_text",
]
