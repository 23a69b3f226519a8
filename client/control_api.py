"""A minimal client for a store's control API: registers a writer's name (seed 79.8).

Sends one request on its own connection, with a deadline and a bound on the response body. Writing events does not
depend on it: a server without a control API, such as Pravega's own, aggregates statistics by writer id.
"""

from __future__ import annotations

import asyncio
import json
from typing import Final
from urllib.parse import urlsplit

from pydantic import SecretStr

from segstore.client.errors import ConnectFailed, PeerRefused
from segstore.client.lifecycle import within
from segstore.wire.endpoint import Endpoint

_MOST_BYTES: Final = 64 * 1024


def check_url(url: str) -> tuple[str, int]:
    """Returns host and port of `http://host:port`. Raises ValueError for any other URL."""
    split = urlsplit(url)
    if split.scheme != "http" or not split.hostname or split.path not in ("", "/") or split.query or split.fragment:
        raise ValueError(f"{url!r} is not a control API address: http://host:port")
    return split.hostname, 80 if split.port is None else split.port


async def register_writer(url: str, name: str, timeout_ms: float, token: SecretStr | None = None) -> None:
    """Registers a writer's name. token: sent if the server requires it.

    Raises ConnectFailed, RequestTimedOut, PeerRefused.
    """
    host, port = check_url(url)
    endpoint = str(Endpoint(host, port))
    body = json.dumps({"name": name}).encode()
    bearing = "" if token is None else f"Authorization: Bearer {token.get_secret_value()}\r\n"
    head = (
        f"POST /v1/writers HTTP/1.1\r\nHost: {endpoint}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{bearing}Connection: close\r\n\r\n"
    )
    try:
        async with within(
            timeout_ms, f"the control API at {endpoint} did not register writer {name!r}", endpoint=endpoint
        ):
            answer = await _ask(host, port, head.encode() + body)
    except OSError as cause:
        raise ConnectFailed(f"no connection to the control API at {endpoint}: {cause}", endpoint=endpoint) from cause
    status, _, rest = answer.partition(b"\r\n")
    words = status.decode("latin-1").split(" ", 2)
    if len(words) < 2 or words[1] not in ("200", "201", "204"):
        reason = rest.partition(b"\r\n\r\n")[2].decode("utf-8", "replace").strip()
        raise PeerRefused(
            f"the control API at {endpoint} does not register writer {name!r}: {words[1:2] or words} {reason[:300]}",
            endpoint=endpoint,
            status=" ".join(words[1:]),
        )


async def _ask(host: str, port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, port, limit=_MOST_BYTES)
    try:
        writer.write(request)
        answer = b""
        while len(answer) < _MOST_BYTES and (data := await reader.read(_MOST_BYTES)):
            answer += data
        return answer
    finally:
        writer.transport.abort()
