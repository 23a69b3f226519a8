"""The port of the REST API, with the listener and the guard of the control API."""

from __future__ import annotations

from collections.abc import Iterable

from segstore.server.control_api import Guard, HttpListener
from segstore.server.net import TlsFiles
from segstore.server.rest.app import Answering, make_app, refused


class RestApi(HttpListener):
    """Serves the REST API at a host and port; port 0 picks a free port.

    names: other allowed host names in requests. tls: the files for HTTPS; None for HTTP.
    """

    def __init__(
        self, answering: Answering, host: str, port: int, *, names: Iterable[str] = (), tls: TlsFiles | None = None
    ) -> None:
        super().__init__(host, port, "REST", "--rest-port", tls)
        self._answering = answering
        self._names = tuple(names)

    async def start(self) -> None:
        """Starts listening. Raises AddressInUse, CannotListen."""
        app = make_app(self._answering)
        # The controller completes work that it has started.
        await self.listen(Guard(app, bound=self._host, names=self._names, refusal=refused, abandons=True))
