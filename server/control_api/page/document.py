"""Makes the live page and serves it.

The content security policy allows the page's style and script by their hashes and nothing else: no other resources,
requests to this server only, no framing. Names and payloads chosen by peers reach the page only as JSON, and the
scripts insert them as text.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

SCRIPTS: Final = (
    "asking.js",
    "showing.js",
    "forms.js",
    "panels.js",
    "about.js",
    "drawer.js",
    "requests.js",
    "recordings.js",
    "faults.js",
    "toxics.js",
    "connections.js",
    "contents.js",
    "streams.js",
    "groups.js",
    "tables.js",
    "segments.js",
    "counters.js",
    "refreshing.js",
)
"""In the order in which they run; `refreshing.js` starts the page."""

_STYLES: Final = ("page.css", "contents.css")
_INLINE: Final = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def text() -> str:
    """Returns the page, with its style and scripts inside."""
    script, style = "".join(map(_part, SCRIPTS)), "".join(map(_part, _STYLES))
    return _part("page.html").replace("$style", style).replace("$script", f'"use strict";\n{script}')


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def policy(page: str) -> str:
    """Returns the Content-Security-Policy of a page, which allows only its own inline style and script."""
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, inside in _INLINE.findall(page):
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(hashes['script'])}",
            f"style-src {' '.join(hashes['style'])}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        )
    )


router = APIRouter()


@cache
def _page() -> tuple[str, dict[str, str]]:
    """Returns the page and its headers."""
    page = text()
    return page, {
        "content-security-policy": policy(page),
        "cross-origin-opener-policy": "same-origin",
        "referrer-policy": "no-referrer",
    }


@router.get("/", include_in_schema=False)
async def live_page() -> Response:
    page, headers = _page()
    return HTMLResponse(page, headers=headers)
