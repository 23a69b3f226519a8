"""The live page at `/`."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from segstore.server.control_api.controlled import Controlled
from segstore.server.page import live_page


def router(_: Controlled) -> APIRouter:
    made = APIRouter()
    head, tail, policy = live_page()
    headers = {
        "content-security-policy": f"{policy}; frame-ancestors 'none'",
        "cross-origin-opener-policy": "same-origin",
        "referrer-policy": "no-referrer",
    }

    @made.get("/", include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(head + tail, headers=headers)

    return made
