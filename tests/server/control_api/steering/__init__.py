"""Tests of `server/control_api/steering`. Modules whose tests have another name:

content, position: test_events
models: test_arranging
"""
