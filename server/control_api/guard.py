"""Access checks of an HTTP port, made before its application sees a request.

A web page in a browser must not control a server on the same machine. Requests of pages of other origins have `Origin`
or `Sec-Fetch-Site` headers, and are refused. With DNS rebinding, a page resolves its own name to this machine, so the
browser treats it as the same origin; but its requests carry that name in `Host`. Therefore only configured names are
served, plus loopback names if the address is loopback, else IP addresses.

If a token is configured, requests must carry it. The live page at `/` needs no token, but its data does. Links on other
sites can lead only to that page.

Invariants: a request is refused before its body is read, except that a body of unknown length is read up to
`_MOST_BODY_BYTES`, the most that a body may have; the web server drops the rest. A body's content type must be JSON, or
YAML where that is read, so that forms of other pages cannot send one. HEAD is served wherever GET is: the application
sees a GET, and the web server sends no body. A request that changes nothing does not outlive its connection.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from segstore.server.control_api.problems import ApiProblem, answer

_TYPE: Final = "application/json"
YAML_TYPES: Final = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", "text/vnd.yaml")
"""Types of YAML, the registered one first. As with JSON, forms of other pages cannot send them."""
_AUTHORIZATION: Final = "header.authorization"
_SAFE: Final = ("GET", "HEAD")
_MOST_BODY_BYTES: Final = 256 * 1024
_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def is_loopback(name: str) -> bool:
    """Whether a name is `localhost` or a loopback address."""
    address = _address(name)
    return name == "localhost" if address is None else address.is_loopback


def host_of(header: str) -> str | None:
    """Returns the host of a `Host` header, in lower case and without the port; None if the header is invalid."""
    if header.startswith("["):
        host, closed, port = header[1:].partition("]")
        if not closed or _address(host) is None or not (port == "" or port.startswith(":")):
            return None
        port = port[1:]
    else:
        host, _, port = header.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit())):
        return None
    return host.rstrip(".").lower()


def media_type(header: str) -> str:
    """Returns the type in a `Content-Type` header, in lower case and without parameters."""
    return header.partition(";")[0].strip().lower()


def refusal_of(problem: ApiProblem) -> Response:
    """The response of a refused request of the control API."""
    return answer(
        problem.status, problem.detail, problem.where, {"www-authenticate": "Bearer"} if problem.status == 401 else None
    )


def _changes_nothing(scope: Scope) -> bool:
    """Whether a request only reads, or waits, and is cancelled if its client disconnects."""
    path: str = scope["path"]
    return scope["method"] in _SAFE or (path.startswith("/v1/faults/") and path.endswith("/wait"))


async def _body(receive: Receive) -> bytes | None:
    """Receives a body. Returns None if the peer disconnects. Raises ApiProblem if the body is too long."""
    data, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        data += message.get("body", b"")
        if len(data) > _MOST_BODY_BYTES:
            raise _too_long()
        more = message.get("more_body", False)
    return bytes(data)


def _too_long() -> ApiProblem:
    return ApiProblem(413, f"a body has at most {_MOST_BODY_BYTES} bytes", "body")


async def _until_gone(answering: Awaitable[None], receive: Receive) -> None:
    """Answers a request whose body is received; cancels that if its client disconnects."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            continue

    answer = asyncio.ensure_future(answering)
    tasks = (answer, asyncio.create_task(disconnected(), name="waiting for a client to disconnect"))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if not answer.cancelled():
        answer.result()


class Guard:
    """ASGI middleware that checks requests.

    bound: the host that the server listens on. names: other allowed host names in requests. token: the token that
    requests must carry; None for no token. refusal: makes the response of a refused request. yaml_paths: where a body
    may also be YAML. abandons: whether any request ends with its client's connection; else only requests that change
    nothing.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        bound: str,
        names: Iterable[str] = (),
        token: bytes | None = None,
        refusal: Callable[[ApiProblem], Response] = refusal_of,
        yaml_paths: Collection[str] = (),
        abandons: bool = False,
    ) -> None:
        self._app = app
        self._loopback_only = is_loopback(bound)
        self._names = {"localhost", bound.lower(), *(name.lower() for name in names)}
        self._token = token
        self._refusal = refusal
        self._yaml_paths = yaml_paths
        self._abandons = abandons

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        try:
            self._check(scope)
            body = await _body(receive)
        except ApiProblem as problem:
            await self._refusal(problem)(scope, receive, sending)
            return
        if body is None:
            return  # the peer has disconnected
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receiving() -> Message:
            return next(messages, None) or await receive()

        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        answering = self._app(scope, receiving, sending)
        await (_until_gone(answering, receive) if self._abandons or _changes_nothing(scope) else answering)

    def _check(self, scope: Scope) -> None:
        headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value.decode("latin-1"))
        hosts = headers.get(b"host", [])
        host = host_of(hosts[0]) if len(hosts) == 1 else None
        if host is None:
            raise ApiProblem(400, "a request has one Host header, with a host and optionally a port", "header.host")
        if not self._serves(host):
            raise ApiProblem(
                403,
                f"this server does not answer as {host[:100]!r}: use its address, or set --published-host",
                "header.host",
            )
        for origin in headers.get(b"origin", []):
            if origin.lower() != f"{scope['scheme']}://{hosts[0].lower()}":
                raise ApiProblem(403, f"pages of {origin[:100]!r} may not access this server", "header.origin")
        site = headers.get(b"sec-fetch-site", ["none"])[0]
        page = scope["method"] in _SAFE and scope["path"] == "/"
        followed = page and headers.get(b"sec-fetch-mode") == ["navigate"]
        if site not in ("none", "same-origin") and not followed:
            raise ApiProblem(403, "pages of other sites may not access this server", "header.sec-fetch-site")
        if self._token is not None and not page and not self._has_token(headers.get(b"authorization", [])):
            raise ApiProblem(401, "requests need the token of this server: Authorization: Bearer …", _AUTHORIZATION)
        has_body = b"transfer-encoding" in headers or headers.get(b"content-length", ["0"]) != ["0"]
        kinds = headers.get(b"content-type", [])
        takes_yaml = scope["path"] in self._yaml_paths
        kind = media_type(kinds[0]) if len(kinds) == 1 else ""
        if has_body and not (kind == _TYPE or (takes_yaml and kind in YAML_TYPES)):
            allowed = f"{_TYPE} or {YAML_TYPES[0]}" if takes_yaml else _TYPE
            raise ApiProblem(415, f"a body is of the type {allowed}", "header.content-type")
        if int(headers.get(b"content-length", ["0"])[0]) > _MOST_BODY_BYTES:
            raise _too_long()

    def _serves(self, host: str) -> bool:
        if host in self._names:
            return True
        return is_loopback(host) if self._loopback_only else _address(host) is not None

    def _has_token(self, values: list[str]) -> bool:
        kind, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
        same = hmac.compare_digest(token.strip().encode("latin-1"), self._token or b"")
        return kind.lower() == "bearer" and same
