"""Makes the page of traces: packed traces in the page of `segstore.server.page`.

Text from a trace is only in compressed sections, and the script shows it as text.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from segstore.server.page import trace_page
from segstore.view.pack import deflated
from segstore.view.schema import specification

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from segstore.view.pack import Sections


def html(traces: Sequence[Sections], differences: list[Any] | None = None) -> Iterator[str]:
    """Yields the parts of the page. differences: of the two traces, as JSON values, if they are compared."""
    head, tail, _ = trace_page(specification())
    yield head
    for number, sections in enumerate(traces):
        for name, packed in sections.items():
            yield _section(f"{number}-{name}", packed)
    if differences is not None:
        yield _section("differences", deflated(json.dumps(differences).encode()))
    yield tail


def _section(name: str, packed: bytes) -> str:
    return f'<script type="text/plain" id="{name}">{base64.b64encode(packed).decode()}</script>\n'
