"""Tests of batch reads.

ranges, reader: test_batch
"""
