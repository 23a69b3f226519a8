"""Connections to segment stores: the pool, its flows, their transport, and where segments are."""
