"""Tests of `client/segment`. Modules whose tests have another name:

conditional: client/stream/test_revisioned
stats: client/stream/test_routers, client/stream/test_event_writer
"""
