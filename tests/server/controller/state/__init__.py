"""Tests of `server/controller/state`. Modules whose tests have another name:

core, operations, state: test_memory, server/controller/streams/test_streams
"""
