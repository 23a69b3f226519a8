"""Routes that show what a cluster holds: scopes, streams and their segments, transactions, reader groups, tables.

They change nothing. Every answer is bounded, whatever the cluster holds: lists have pages, and contents are cut.
"""
