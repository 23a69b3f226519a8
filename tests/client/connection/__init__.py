"""Tests of `client/connection`. Modules whose tests have another name:

acknowledgements: test_transport
outbox: client/segment/test_blocks, test_transport, test_pool
"""
