"""Settings of a cluster, in one process or in several processes.

Refused: settings that contradict each other, such as more stores than containers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, Field, SecretStr, model_validator

from segstore.server.config import SETTINGS, StoreSettings
from segstore.server.controller import ControllerConfig
from segstore.server.coordination import OwnershipSettings
from segstore.server.durable import MIN_MEMORY_BYTES
from segstore.server.net import TlsFiles, public_host
from segstore.server.traffic import KEPT_BYTES


class ZooKeeperSettings(BaseModel):
    """The ZooKeeper that makes several processes one cluster."""

    model_config = SETTINGS

    zookeeper: str | None = Field(default=None, min_length=1)
    """Form one cluster with all processes that name this ZooKeeper and share the data directory. An ensemble is a list
    HOST:PORT,HOST:PORT; a path at the end (HOST:PORT/PATH) separates clusters at the same ZooKeeper."""
    zookeeper_auth: SecretStr | None = None
    """The user:password that protects nodes in ZooKeeper; anyone may change them if not given."""
    configuration_zookeeper: str | None = Field(default=None, min_length=1)
    """ZooKeeper for scopes and stream policies; by default the same ZooKeeper. A process does not exit when it is
    lost."""
    zookeeper_patience_ms: float = Field(default=60_000.0, gt=0)
    """Exit if ZooKeeper is unreachable for this long."""
    trust_network: bool = False
    """Allow passwords and tokens to be sent without TLS to addresses that ZooKeeper names."""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        for name in ("configuration_zookeeper", "zookeeper_auth"):
            if self.zookeeper is None and getattr(self, name) is not None:
                raise ValueError(f"{name} needs zookeeper, which makes processes one cluster")
        return self


class ClusterSettings(BaseModel):
    """A cluster in one process, or one process of a larger cluster."""

    model_config = SETTINGS

    store: StoreSettings = StoreSettings()
    """Settings of each store. With several stores, `own` must be unset, and only the first store has this port."""
    stores: int = Field(default=1, ge=1)
    """Number of segment stores that share the containers; the first one listens on --port."""
    controller_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of the controller (gRPC); 0 picks a free port."""
    controller: ControllerConfig = ControllerConfig()
    """How the controller behaves."""
    rest_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of the controller's REST API (HTTP; HTTPS with TLS); 0 picks a free port; disabled by default."""
    http_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of the live page, the control API and metrics (HTTP); 0 picks a free port; disabled by default."""
    http_token_file: Path | None = None
    """File with the token that requests to the control API must carry; required unless the host is loopback."""
    history_bytes: int = Field(default=KEPT_BYTES, ge=0)
    """With an HTTP port: bytes of the latest traffic to keep in memory for the live page; 0 keeps no traffic."""
    published_host: str | None = None
    """Host name to announce to clients; default: --host. With TLS on a loopback address, the default is "localhost",
    because a certificate names hosts; for 0.0.0.0 or ::, it is the loopback address."""
    ownership: OwnershipSettings = OwnershipSettings()
    """How several stores own their containers."""
    data: Path | None = None
    """Directory to keep all data in; memory if not given."""
    memory_bytes: int | None = Field(default=None, ge=MIN_MEMORY_BYTES)
    """With a data directory: bytes of segments to hold in memory; 512 MiB if not given."""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.memory_bytes is not None and self.data is None:
            raise ValueError("memory_bytes needs data: without a directory everything is in memory")
        if self.rest_port is not None and self.controller_port is None:
            raise ValueError("rest_port needs controller_port: the REST API is the controller's")
        if self.http_token_file is not None and self.http_port is None:
            raise ValueError("http_token_file needs http_port: there is no control API without it")
        return self

    @property
    def public_host(self) -> str:
        """The host name that clients are given."""
        return self.published_host or public_host(self.store.host, tls=self.tls is not None)

    @property
    def tls(self) -> TlsFiles | None:
        """The TLS files of all ports; None for no TLS."""
        return self.store.tls

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
