"""Access checks of an HTTP port, made before its application sees a request.

A web page in a browser must not control a server on the same machine. Requests of pages of other origins have `Origin`
or `Sec-Fetch-Site` headers, and are refused. With DNS rebinding, a page resolves its own name to this machine, so the
browser treats it as the same origin; but its requests carry that name in `Host`. Therefore only configured names are
served, plus loopback names if the address is loopback, else IP addresses.

If a token is configured, requests must carry it. The live page at `/` needs no token, but its data does. Links on other
sites can lead only to that page.

Invariants: a body has at most `max_body_bytes` and is complete within `body_timeout_s` before it is processed; a body's
content type must be JSON, or YAML where that is read, so that forms of other pages cannot send one. Of the body of a
refused request, `_MOST_DROPPED_BYTES` are read behind the answer, because closing a connection with unread bytes would
discard the answer. HEAD is served wherever GET is: the application sees a GET, and the web server sends no body. A
request that may be abandoned does not outlive its connection; others are completed, and there are
at most `_MOST_COMPLETED` of them.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from contextlib import suppress
from typing import Any, Final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from segstore.server.control_api.problems import ApiProblem, answer

_TYPE: Final = "application/json"
YAML_TYPES: Final = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", "text/vnd.yaml")
"""Types of YAML, the registered one first. As with JSON, forms of other pages cannot send them."""
ONE_HOST: Final = "a request has one Host header, with a host and optionally a port"
_AUTHORIZATION: Final = "header.authorization"
_SAFE: Final = ("GET", "HEAD")
_MOST_COMPLETED: Final = 1_000
"""More than the connections of a port: clients that disconnect leave requests behind."""
_MOST_DROPPED_BYTES: Final = 16 * 1024 * 1024
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


def changes_nothing(scope: Scope) -> bool:
    """Whether a request of the control API only reads, or waits."""
    path: str = scope["path"]
    return scope["method"] in _SAFE or (path.startswith("/v1/faults/") and path.endswith("/wait"))


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
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if not answer.cancelled():
        answer.result()


class Guard:
    """ASGI middleware that checks requests.

    bound: the host that the server listens on. names: other allowed host names in requests. token: the token that
    requests must carry; None for no token.
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
        may_abandon: Callable[[Scope], bool] = changes_nothing,
        max_body_bytes: int = 256 * 1024,
        body_timeout_s: float = 10.0,
    ) -> None:
        """refusal: makes the response of a refused request. yaml_paths: where a body may also be YAML. may_abandon:
        whether a request is cancelled if its client disconnects.
        """
        self._app = app
        self._loopback_only = is_loopback(bound)
        self._names = {"localhost", bound.lower(), *(each.lower() for each in names)}
        self._token = token
        self._refusal = refusal
        self._yaml_paths = yaml_paths
        self._may_abandon = may_abandon
        self._completing = 0
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        is_asked = is_complete = False

        async def receiving_body() -> Message:
            nonlocal is_asked, is_complete
            is_asked = True  # a client that expects `100 Continue` gets it now
            message = await receive()
            is_complete = not message.get("more_body", False)  # or the peer has disconnected
            return message

        try:
            self._check(scope)
            data = await self._body(receiving_body)
        except ApiProblem as problem:
            response = self._refusal(problem)
            response.headers["connection"] = "close"
            is_held = not is_asked and any(name == b"expect" for name, _ in scope["headers"])
            if is_complete or is_held or problem.status == 408:
                await response(scope, receive, sending)
            else:
                await self._refuse(response, scope, receive, sending)
            return
        if data is None:
            return  # the peer has disconnected
        given = False

        async def receiving() -> MutableMapping[str, Any]:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": data, "more_body": False}

        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        if self._may_abandon(scope):
            await _until_gone(self._app(scope, receiving, sending), receive)
        elif self._completing >= _MOST_COMPLETED:
            why = f"{_MOST_COMPLETED} requests are in progress, as many as may be"
            await self._refusal(ApiProblem(503, why, "path"))(scope, receive, sending)
        else:
            self._completing += 1
            try:
                await self._app(scope, receiving, sending)
            finally:
                self._completing -= 1

    # --- headers ----------------------------------------------------------------------------------------------------

    def _check(self, scope: Scope) -> None:
        headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value.decode("latin-1"))
        hosts = headers.get(b"host", [])
        host = host_of(hosts[0]) if len(hosts) == 1 else None
        if host is None:
            raise ApiProblem(400, ONE_HOST, "header.host")
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
        lengths = headers.get(b"content-length", [])
        if any(int(each) > self._max_body_bytes for each in lengths if each.isdigit()):
            raise self._too_long()
        has_body = b"transfer-encoding" in headers or any(each != "0" for each in lengths)
        kinds = headers.get(b"content-type", [])
        takes_yaml = scope["path"] in self._yaml_paths
        kind = media_type(kinds[0]) if len(kinds) == 1 else ""
        if has_body and not (kind == _TYPE or (takes_yaml and kind in YAML_TYPES)):
            allowed = f"{_TYPE} or {YAML_TYPES[0]}" if takes_yaml else _TYPE
            raise ApiProblem(415, f"a body is of the type {allowed}", "header.content-type")

    def _serves(self, host: str) -> bool:
        if host in self._names:
            return True
        return is_loopback(host) if self._loopback_only else _address(host) is not None

    def _has_token(self, given: list[str]) -> bool:
        kind, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        same = hmac.compare_digest(token.strip().encode("latin-1"), self._token or b"")
        return kind.lower() == "bearer" and same

    async def _refuse(self, response: Response, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request whose body is not complete, and drops the rest of it before the connection is closed."""

        async def sending(message: Message) -> None:
            await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

        await response(scope, receive, sending)
        dropped, more = 0, True
        with suppress(TimeoutError):
            async with asyncio.timeout(self._body_timeout_s):
                while more and dropped <= _MOST_DROPPED_BYTES:
                    message = await receive()
                    dropped += len(message.get("body", b""))
                    more = message.get("more_body", False)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    # --- body -------------------------------------------------------------------------------------------------------

    async def _body(self, receive: Receive) -> bytes | None:
        data = bytearray()
        try:
            async with asyncio.timeout(self._body_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    data += message.get("body", b"")
                    if len(data) > self._max_body_bytes:
                        raise self._too_long()
                    if not message.get("more_body", False):
                        return bytes(data)
        except TimeoutError as error:
            raise ApiProblem(408, f"the body was incomplete after {self._body_timeout_s:g} s", "body") from error

    def _too_long(self) -> ApiProblem:
        return ApiProblem(413, f"a body has at most {self._max_body_bytes} bytes", "body")
