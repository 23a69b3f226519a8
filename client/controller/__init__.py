"""The controller's gRPC API, called on any node of the cluster. gRPC is loaded when its channels are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from segstore.client.controller.controller import (
    Access,
    Cluster,
    Controller,
    ControllerLocations,
    Successor,
    TableConfig,
    TransactionStatus,
    name_of,
    parts_of,
)
from segstore.client.controller.cuts import CutError, StreamCut, checked_cut
from segstore.client.controller.policies import RetentionPolicy, RetentionType, ScaleType, ScalingPolicy, StreamConfig

if TYPE_CHECKING:
    from segstore.client.controller.channels import ControllerChannels

__all__ = [
    "Access",
    "Cluster",
    "Controller",
    "ControllerChannels",
    "ControllerLocations",
    "CutError",
    "RetentionPolicy",
    "RetentionType",
    "ScaleType",
    "ScalingPolicy",
    "StreamConfig",
    "StreamCut",
    "Successor",
    "TableConfig",
    "TransactionStatus",
    "checked_cut",
    "name_of",
    "parts_of",
]


def __getattr__(name: str) -> Any:
    if name != "ControllerChannels":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from segstore.client.controller.channels import ControllerChannels

    return globals().setdefault(name, ControllerChannels)
