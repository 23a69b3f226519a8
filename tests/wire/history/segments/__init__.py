"""Tests of `wire/history/segments`. Modules whose tests have another name:

placement, state, stored, written: test_fold
"""
