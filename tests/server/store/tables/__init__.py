"""Tests of `server/store/tables`. Modules whose tests have another name:

delta, log: test_table
"""
