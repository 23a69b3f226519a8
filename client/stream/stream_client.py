"""The common base of a stream's readers and writers."""

from __future__ import annotations

from typing import Final

from segstore.client.cluster import Cluster


class StreamClient:
    """A client of one stream.

    Attributes:
        scope, stream: the stream's scope and name.
    """

    scope: Final[str]
    stream: Final[str]

    def __init__(self, cluster: Cluster, scope: str, stream: str) -> None:
        self.scope = scope
        self.stream = stream
        self._name: Final = f"{scope}/{stream}"
        self._cluster: Final = cluster
        self._pool, self._controller, self._locations, _ = cluster
        self._settings: Final = cluster.pool.settings
        self._closed = False
