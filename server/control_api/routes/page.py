"""The route of the live page."""

from __future__ import annotations

from functools import cache

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from segstore.server.page import live_page

router = APIRouter()


@cache
def _page() -> tuple[str, dict[str, str]]:
    """Returns the page and its headers."""
    head, tail, policy = live_page()
    return head + tail, {
        "content-security-policy": f"{policy}; frame-ancestors 'none'",
        "cross-origin-opener-policy": "same-origin",
        "referrer-policy": "no-referrer",
    }


@router.get("/", include_in_schema=False)
async def page() -> Response:
    text, headers = _page()
    return HTMLResponse(text, headers=headers)
