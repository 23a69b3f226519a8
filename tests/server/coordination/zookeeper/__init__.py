"""Tests of `server/coordination/zookeeper`. Modules whose tests have another name:

kazoo_line: test_session
"""
