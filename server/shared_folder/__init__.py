"""Coordination and storage in a folder that processes share."""
