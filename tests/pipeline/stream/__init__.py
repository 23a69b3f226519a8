"""Tests of `pipeline/stream`. Modules whose tests have another name:

registry, sink, write: test_commit, spark/test_stream
rows, segments, source: test_plan, spark/test_stream
"""
