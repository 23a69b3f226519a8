"""Tests of `server/control_api/steering`. Modules whose tests have another name:

models: test_arranging
"""
