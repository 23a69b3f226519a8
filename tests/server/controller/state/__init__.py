"""Tests of `server/controller/state`. Modules whose tests have another name:

operations, state: test_core, server/controller/streams/test_streams
"""
