"""Clusters of segment stores with a controller, in one process or in several processes."""

from segstore.server.cluster.local import Cluster, MockCluster, MockClusterOptions
from segstore.server.cluster.node import ClusterNode
from segstore.server.cluster.process import ClusterProcess
from segstore.server.cluster.settings import ClusterSettings, ZooKeeperSettings

__all__ = [
    "Cluster",
    "ClusterNode",
    "ClusterProcess",
    "ClusterSettings",
    "MockCluster",
    "MockClusterOptions",
    "ZooKeeperSettings",
]
