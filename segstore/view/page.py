"""Makes the page: one self-contained HTML file with style, script and packed traces.

Invariants: text from a trace is only in compressed sections, and the script shows it as text; a content security policy
allows exactly this style and script, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any, Final

from segstore.view.pack import deflated
from segstore.view.schema import specification

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from segstore.view.pack import Sections

_SCRIPTS: Final = ("columns.js", "describe.js", "patterns.js", "filters.js", "timeline.js", "details.js", "page.js")


def html(traces: Sequence[Sections], differences: list[Any] | None = None) -> Iterator[str]:
    """Yields the parts of the page. differences: of the two traces, as JSON values, if they are compared."""
    style = _text("page.css")
    script = f'"use strict";\nconst SPEC = {_inert(specification())};\n{"".join(map(_text, _SCRIPTS))}'
    first: list[str] = []
    blocks: list[str] = []
    for number, sections in enumerate(traces):
        for name, packed in sections.items():
            (blocks if name.startswith("bytes-") else first).append(_section(f"{number}-{name}", packed))
    if differences is not None:
        first.append(_section("differences", deflated(json.dumps(differences).encode())))
    head, found, tail = _text("page.html").partition("$blocks")
    assert found
    page = Template(head).substitute(policy=_policy(style, script), style=style, sections="".join(first), script=script)
    yield page
    yield from blocks
    yield tail


def _section(name: str, packed: bytes) -> str:
    return f'<script type="text/plain" id="{name}">{base64.b64encode(packed).decode()}</script>\n'


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _inert(value: Any) -> str:
    """JSON that cannot end a script element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _policy(style: str, script: str) -> str:
    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    rules = ("default-src 'none'", f"script-src {digest(script)}", f"style-src {digest(style)}", "img-src data:")
    return "; ".join((*rules, "base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'"))
