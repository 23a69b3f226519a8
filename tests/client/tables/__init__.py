"""Tests of `client/tables`. Modules whose tests have another name:

iteration, segment: test_table
"""
