"""Coordination through ZooKeeper."""

from segstore.server.coordination.zookeeper.session import ZooKeeperCoordinator

__all__ = ["ZooKeeperCoordinator"]
