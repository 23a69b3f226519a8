"""Tests of `client/stream`. Modules whose tests have another name:

event_reader, stream_client: client/test_client
synchronizer: test_revisioned
"""
