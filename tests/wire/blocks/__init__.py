"""Tests of `wire/blocks`. Modules whose tests have another name:

rules: test_blocks, test_decoder
"""
