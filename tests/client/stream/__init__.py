"""Tests of `client/stream`. Modules whose tests have another name:

event_reader, successors: client/test_client
synchronizer: test_revisioned
"""
