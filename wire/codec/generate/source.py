"""Builds and compiles the source text of one generated function."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any


class Source:
    """Collects the lines of one function and its constants, and generates fresh names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self.constants: dict[str, Any] = {}
        self._names = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, stem: str) -> str:
        self._names += 1
        return f"{stem}{self._names}"

    def constant(self, value: Any, stem: str) -> str:
        for name, known in self.constants.items():
            if known is value:
                return name
        name = f"{stem}{len(self.constants)}"
        self.constants[name] = value
        return name

    def struct(self, formats: Iterable[str], method: str) -> tuple[str, int]:
        """Returns the name of a bound `struct` method for these formats, and their size in bytes."""
        joined = "".join(formats)
        name = f"{method}_{joined.replace('?', 'o')}"
        compiled = struct.Struct(">" + joined)
        self.constants[name] = getattr(compiled, "unpack_from" if method == "read" else "pack")
        return name, compiled.size

    def compiled(self, name: str, arguments: str, title: str) -> Callable[..., Any]:
        """Returns the function. title: for tracebacks."""
        text = "\n".join([f"def {name}({arguments}):", *self.lines, ""])
        namespace = dict(self.constants)
        exec(compile(text, f"<{title} {name}>", "exec"), namespace)
        function: Callable[..., Any] = namespace[name]
        return function
