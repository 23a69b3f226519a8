"""Tests of `server/store/tables`. Modules whose tests have another name:

checks, delta, iteration, log: test_table
"""
