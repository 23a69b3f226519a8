"""Makes the page from its parts: one self-contained HTML document for either source of its data.

Scripts of one source run in one scope, in the order listed. The content security policy allows the page's style and
script by their hashes and nothing else. Names and payloads chosen by peers reach the page only as JSON or as packed
sections, and the scripts insert them as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from string import Template
from typing import Any, Final, NamedTuple

_SHARED: Final = ("elements.js", "drawer.js", "filtering.js")
_LIVE: Final = (
    "asking.js",
    "forms.js",
    "panels.js",
    "about.js",
    "detail.js",
    "requests.js",
    "faults.js",
    "toxics.js",
    "recordings.js",
    "connections.js",
    "contents.js",
    "streams.js",
    "groups.js",
    "tables.js",
    "segments.js",
    "counters.js",
    "refreshing.js",
)
"""Panels stand on the page in this order; `refreshing.js` starts the page."""
_TRACE: Final = ("columns.js", "describe.js", "filters.js", "timeline.js", "details.js", "view.js", "page.js")


class Page(NamedTuple):
    """A page before and after its data, and its Content-Security-Policy."""

    head: str
    tail: str
    policy: str


def live_page() -> Page:
    """Returns the page that requests its data from the server it comes from."""
    return _page("live", _LIVE, "", "connect-src 'self'")


def trace_page(specification: Any) -> Page:
    """Returns the page whose data is embedded. specification: the protocol and the filter language, as JSON values."""
    known = json.dumps(specification, separators=(",", ":")).replace("<", "\\u003c")
    return _page("trace", _TRACE, f"const SPEC = {known};\n")


def _page(source: str, scripts: tuple[str, ...], constants: str, *rules: str) -> Page:
    style = _text("page.css")
    parts = map(_text, (*_SHARED, *(f"{source}/{name}" for name in scripts)))
    script = f'"use strict";\n{constants}{"".join(parts)}'
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_digest(script)}",
            f"style-src {_digest(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            *rules,
        )
    )
    body = _text(f"{source}/body.html")
    page = Template(_text("page.html")).substitute(policy=policy, style=style, body=body, script=script, data="\0")
    head, tail = page.split("\0")
    return Page(head, tail, policy)


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
