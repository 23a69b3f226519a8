"""Tests of `wire/schema`. Modules whose tests have another name:

record: test_schema
"""
