"""Tests of `client/connection`. Modules whose tests have another name:

outbox: client/segment/test_blocks, test_transport, test_pool
"""
