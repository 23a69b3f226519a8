"""Tests of `wire/history/segments`. Modules whose tests have another name:

state, stored, written: test_fold
"""
