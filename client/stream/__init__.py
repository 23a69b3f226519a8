"""Streams: writers and readers of events and bytes, transactions, revisioned streams and synchronizers."""
