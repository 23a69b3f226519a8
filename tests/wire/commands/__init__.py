"""Tests of `wire/commands`. Modules whose tests have another name:

session: wire/codec/test_codec, wire/schema/test_schema
"""
