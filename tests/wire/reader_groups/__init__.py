"""Tests of `client/groups`. Modules whose tests have another name:

reader: test_group
"""
