"""Commands in forms for people and programs: text, plain values, JSON lines, and frames in hex or base64."""

from segstore.wire.inspect.describe import describe, lines, summary
from segstore.wire.inspect.jsonl import command_named, from_line, to_line
from segstore.wire.inspect.plain import from_plain, to_plain
from segstore.wire.inspect.reading import Form, Piece, Unreadable, pieces, recognise, to_text

__all__ = [
    "Form",
    "Piece",
    "Unreadable",
    "command_named",
    "describe",
    "from_line",
    "from_plain",
    "lines",
    "pieces",
    "recognise",
    "summary",
    "to_line",
    "to_plain",
    "to_text",
]
