"""Clusters of segment stores with a controller, in one process or in several."""

from segstore.server.cluster.local import Cluster, MockCluster

__all__ = ["Cluster", "MockCluster"]
