"""Tests of `server/control_api/contents`. Modules whose tests have another name:

asking, models: test_streams, test_groups
"""
