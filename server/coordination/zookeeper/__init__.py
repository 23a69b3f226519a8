"""Coordination through ZooKeeper."""
