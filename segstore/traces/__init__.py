"""Trace files: opened, counted, replayed against a store."""
