"""Tests of `server/segments`. Modules whose tests have another name:

local: test_recorded
"""
