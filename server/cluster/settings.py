"""What a cluster is made with, in one process or in several.

Refused: what does not fit together, such as more stores than containers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from segstore.server.config import StoreSettings
from segstore.server.controller import ControllerConfig
from segstore.server.controller.api import TlsFiles
from segstore.server.coordination import OwnershipSettings
from segstore.server.durable import MIN_MEMORY_BYTES


class ClusterSettings(BaseModel):
    """A cluster in one process.

    store: settings of each store; with several, `own` must be left open, and only the first has its port.
    stores: how many.
    controller_port: where the controller listens; 0 picks a free one, None is for no controller.
    controller: how the controller behaves.
    http_port: where the control API listens; 0 picks a free port, None is for none.
    http_token_file: file with the token that its requests must carry; None for no token, allowed on loopback only.
    published_host: the name under which clients are sent to the stores; None is `host`, but "localhost" with TLS on a
        loopback address, because a certificate names hosts.
    ownership: how several stores own their containers.
    data: the directory that everything is kept in, see `segstore.server.durable.durable`; None for memory.
    memory_bytes: how much of the segments' bytes is in memory at a time, with `data`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)  # the input may contain a key

    store: StoreSettings = StoreSettings()
    stores: int = Field(default=1, ge=1)
    controller_port: int | None = Field(default=None, ge=0, le=65535)
    controller: ControllerConfig = ControllerConfig()
    http_port: int | None = Field(default=None, ge=0, le=65535)
    http_token_file: Path | None = None
    published_host: str | None = None
    ownership: OwnershipSettings = OwnershipSettings()
    data: Path | None = None
    memory_bytes: int | None = Field(default=None, ge=MIN_MEMORY_BYTES)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.memory_bytes is not None and self.data is None:
            raise ValueError("memory_bytes needs data: without a directory everything is in memory")
        if self.http_token_file is not None and self.http_port is None:
            raise ValueError("http_token_file needs http_port: there is no control API without it")
        return self

    @property
    def public_host(self) -> str:
        """The name that clients are given."""
        if self.published_host is not None:
            return self.published_host
        host = self.store.host
        if self.store.tls_cert is not None and (host.startswith("127.") or host == "::1"):
            return "localhost"
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)

    @property
    def tls(self) -> TlsFiles | None:
        """The files for TLS at all ports; None for none."""
        cert, key = self.store.tls_cert, self.store.tls_key
        return None if cert is None or key is None else TlsFiles(cert, key)

    def of_stores(self) -> list[StoreSettings]:
        """The settings of each store. Raises ValueError if they cannot share the containers."""
        if self.stores == 1:
            return [self.store]
        if self.store.own is not None:
            raise ValueError("own is for a single store; several share all containers")
        if self.stores > self.store.containers:
            raise ValueError(f"{self.stores} stores need as many containers, there are {self.store.containers}")
        return [
            self.store.model_copy(
                update={
                    "own": frozenset(range(number, self.store.containers, self.stores)),
                    **({"port": 0, "admin_port": None} if number else {}),
                }
            )
            for number in range(self.stores)
        ]
