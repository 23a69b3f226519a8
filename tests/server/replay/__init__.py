"""Tests of `server/replay`. Modules whose tests have another name:

matching, script: test_server
"""
